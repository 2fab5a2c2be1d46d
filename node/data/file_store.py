"""Files of a run that are on this machine, by an index that says their sizes and hashes: which are whole, and a place
for those that come.

    look (in a thread: reads and hashes) → Survey → take_over → `have`
    part → grows, from one source → whole, and with its hash → keep → `have`

Only a file whose hash fits the index is in `have`, and only those are used or lent. What there are of such files:
shard_store.py and layer_store.py.

A store belongs to the task that fetches into it (fetching.py): that one alone changes `index` and `have`. `look` may
run in a thread beside it, since it changes nothing here; what it finds counts once it is taken over.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from ftnode.models.data import DataError
from ftnode.models.first_weights import Span
from ftnode.models.shards import StoredFile
from ftnode.node.home.size import size_text

DISK_BYTES_SPARED: Final = 1 << 30
"""Left free on the disk, beyond what is fetched."""
PART_SUFFIX: Final = ".part"
TAG_LETTERS: Final = 8
PARTS_MAX: Final = 4
"""Files that are not whole yet."""
LOCK_NAME: Final = "lock"


class NoRoom(DataError):
    """What is missing may not be fetched now, and later it may."""


class StoredIndex(Protocol):
    """Which files there are, with sizes and hashes."""

    @property
    def files(self) -> tuple[StoredFile, ...]: ...

    @property
    def size(self) -> int:
        """Bytes of all of them."""
        ...


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found here: `have` as of FileStore, and what is wrong with some files, a line each."""

    index: StoredIndex | None = None
    have: Mapping[str, Path] = field(default_factory=dict)
    troubles: tuple[str, ...] = ()


class FileStore(ABC):
    """The files of one index, in a folder of the home. Nothing is known of them before a survey is taken over."""

    index_name: str
    """Of its file, in the folder and for peers."""
    index_bytes_max: int
    what: str
    """The files, for people."""

    def __init__(self, folder: Path, sha256: str, bytes_max: int) -> None:
        """`sha256`: of the index, by the manifest. `bytes_max`: what is wanted is not fetched if it is larger."""
        self.folder, self.sha256 = folder, sha256
        self.index: StoredIndex | None = None
        self.have: dict[str, Path] = {}
        """Name → file, of those that have their hash; the index among them."""
        self._bytes_max = bytes_max
        self._lock = -1

    @abstractmethod
    def look(self, local: Path | None) -> Survey:
        """Look at every file that is here or in the owner's folder `local`, and hash it: a second for each GB or two.

        What is damaged here is removed; what is in `local` stays as it is. Raises DataError when `local` has another
        index, or this one cannot be used; OSError.
        """

    @abstractmethod
    def parse(self, data: bytes) -> StoredIndex:
        """The index that has the run's hash. Raises DataError when it is none that this run can use."""

    @property
    def complete(self) -> bool:
        return self.index is not None and not self.missing()

    @property
    def size(self) -> int:
        """Bytes of all that is wanted here."""
        return 0 if self.index is None else self.index.size

    def take_over(self, survey: Survey) -> None:
        """What was found is what is here."""
        self.index, self.have = survey.index, dict(survey.have)

    def missing(self) -> list[StoredFile]:
        """What is wanted and not here."""
        return [] if self.index is None else [file for file in self.index.files if file.name not in self.have]

    def lacks_files(self) -> bool:
        """Whether something is missing, and none of it has been put here meanwhile by another node of the home."""
        names = [file.name for file in self.missing()]
        return bool(names) and not any((self.folder / name).exists() for name in names)

    def spans(self, name: str) -> list[Span]:
        """Where the bytes of a file that is here lie; nothing when it is gone."""
        path = self.have.get(name)
        try:
            return [] if path is None else [Span(str(path), 0, path.stat().st_size)]
        except OSError:
            return []

    def take_index(self, data: bytes) -> None:
        """Keep what somebody gave as the index. Raises DataError when it is not the run's or no use to us; OSError."""
        self.index = self._keep_index(data)
        self.have[self.index_name] = self.folder / self.index_name

    def check_room(self) -> None:
        """Raises DataError unless what is missing may be fetched, NoRoom unless it fits on the disk."""
        assert self.index is not None
        if self.size > self._bytes_max:
            raise DataError(
                f"the run's {self.what} have {size_text(self.size)}, more than {size_text(self._bytes_max)}; "
                "raise --data-limit to fetch them"
            )
        needed = sum(file.size for file in self.missing()) - sum(size for _, _, size in self._all_parts())
        free = shutil.disk_usage(self.folder).free
        if needed + DISK_BYTES_SPARED > free:
            raise NoRoom(
                f"{size_text(needed)} of {self.what} are missing, and the disk of {self.folder} has {size_text(free)} "
                f"free, of which {size_text(DISK_BYTES_SPARED)} stay free; make room, and they are fetched"
            )

    def part(self, file: StoredFile, source: str) -> Path:
        """Where a file grows until it is whole. Each source has its own, so that a wrong hash is one source's fault."""
        tag = hashlib.sha256(source.encode()).hexdigest()[:TAG_LETTERS]
        return self.folder / f"{file.name}.{tag}{PART_SUFFIX}"

    def parts(self, file: StoredFile) -> list[Path]:
        """Of this file, from whatever source."""
        return sorted(self.folder.glob(f"{file.name}.{'?' * TAG_LETTERS}{PART_SUFFIX}"))

    def begin(self, part: Path) -> None:
        """It is about to grow: of the others those go that have grown least lately, where there are too many."""
        others = [path for _, path, _ in self._all_parts() if path != part]
        for path in others[: max(0, len(others) + 1 - PARTS_MAX)]:
            path.unlink(missing_ok=True)

    def keep(self, file: StoredFile, part: Path) -> None:
        """The part is whole and has its hash; raises OSError."""
        self._settle(part, file.name)
        self.have[file.name] = self.folder / file.name
        for path in self.parts(file):
            path.unlink(missing_ok=True)

    def lock(self) -> bool:
        """Whether this node is the one that fetches into the folder; other nodes of the home wait for it."""
        if self._lock < 0:
            descriptor = os.open(self.folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return False
            self._lock = descriptor
        return True

    def unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _keep_index(self, data: bytes) -> StoredIndex:
        """In the folder. Raises as `take_index`."""
        found = hashlib.sha256(data).hexdigest()
        if found != self.sha256:
            raise DataError(f"an index {found[:12]}, where the run's is {self.sha256[:12]}")
        index = self.parse(data)
        draft = self.folder / f"{self.index_name}{PART_SUFFIX}"
        draft.write_bytes(data)
        self._settle(draft, self.index_name)
        return index

    def _all_parts(self) -> list[tuple[float, Path, int]]:
        """When each has grown last, itself, and bytes; in this order."""
        found = []
        for path in self.folder.glob(f"*{PART_SUFFIX}"):
            with suppress(OSError):
                status = path.stat()
                found.append((status.st_mtime, path, status.st_size))
        return sorted(found)

    def _settle(self, draft: Path, name: str) -> None:
        """It gets its name once it is on the disk, whole."""
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(self.folder / name)
