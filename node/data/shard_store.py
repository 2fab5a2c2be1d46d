"""The token shards of a run that are on this machine: which are whole, and a place for those that come.

They lie in the home's folder `data/`, one folder for each corpus; what the volunteer passed with --data is linked
there, not copied. Only a file whose hash fits the index is counted in `have`, and only those are trained on or lent.
Nothing here waits for anybody but the disk; hashing takes a second per GB or two, so it is called in threads.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from ftnode.models.data import DataError, NotThere, Unread
from ftnode.models.first_weights import Span
from ftnode.models.shards import (
    INDEX_BYTES_MAX,
    INDEX_NAME,
    Index,
    StoredFile,
    check_file,
    parse_index,
    read_index,
)
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
    def size(self) -> int: ...


class ShardStore:
    """`survey` before anything else."""

    index_name = INDEX_NAME
    index_bytes_max = INDEX_BYTES_MAX
    what = "shards"
    """Of the run, for people."""

    def __init__(self, folder: Path, sha256: str, vocabulary: int, bytes_max: int) -> None:
        """`sha256`, `vocabulary`: the manifest's. `bytes_max`: larger corpora are not fetched."""
        self.folder, self.sha256 = folder, sha256
        self.index: StoredIndex | None = None
        self.have: dict[str, Path] = {}
        """Name → file, of those that have their hash; the index among them."""
        self._vocabulary, self._bytes_max = vocabulary, bytes_max
        self._lock = -1

    @property
    def complete(self) -> bool:
        return self.index is not None and not self.missing()

    @property
    def size(self) -> int:
        """Bytes of all that is wanted here."""
        return 0 if self.index is None else self.index.size

    def missing(self) -> list[StoredFile]:
        return [] if self.index is None else [file for file in self.index.files if file.name not in self.have]

    def lacks_files(self) -> bool:
        """Whether something is missing, and none of it has been put here meanwhile by another node of the home."""
        names = [file.name for file in self.missing()]
        return bool(names) and not any((self.folder / name).exists() for name in names)

    def spans(self, name: str) -> list[Span]:
        """Where the bytes of a file that is here lie; nothing when it is gone, or is looked for anew, in a thread."""
        path = self.have.get(name)
        try:
            return [] if path is None else [Span(str(path), 0, path.stat().st_size)]
        except OSError:
            return []

    def parse(self, data: bytes) -> StoredIndex:
        """Raises DataError when it is no index of what this run has."""
        return self._checked(parse_index(data))

    def survey(self, local: Path | None) -> list[str]:
        """Look at every file that is here or in `local`; what is wrong with some, a line each.

        Raises DataError when `local` holds another corpus or the run's tokenizer does not fit its model; OSError.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.have.clear()
        self.index = None
        if local is not None and local.resolve() == self.folder.resolve():
            local = None
        for place in (self.folder, local):
            if self.index is None and place is not None and (place / INDEX_NAME).exists():
                self._find_index(place, ours=place is self.folder)
        if self.index is None:
            return []
        troubles = [self._find(file, local) for file in self.index.files]
        return [trouble for trouble in troubles if trouble]

    def take_index(self, data: bytes) -> None:
        """Keep what somebody gave as the index. Raises DataError when it is not the run's or no use to us; OSError."""
        found = hashlib.sha256(data).hexdigest()
        if found != self.sha256:
            raise DataError(f"an index {found[:12]}, where the run's is {self.sha256[:12]}")
        index = self.parse(data)
        draft = self.folder / f"{self.index_name}{PART_SUFFIX}"
        draft.write_bytes(data)
        self._settle(draft, self.index_name)
        self.index = index

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
        for path in self.parts(file):
            path.unlink(missing_ok=True)

    def _all_parts(self) -> list[tuple[float, Path, int]]:
        """When each has grown last, itself, and bytes; in this order."""
        found = []
        for path in self.folder.glob(f"*{PART_SUFFIX}"):
            with suppress(OSError):
                status = path.stat()
                found.append((status.st_mtime, path, status.st_size))
        return sorted(found)

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

    def _find_index(self, place: Path, ours: bool) -> None:
        try:
            index, found = read_index(place)
        except DataError as error:
            if not ours:
                raise
            if not isinstance(error, NotThere):
                (place / INDEX_NAME).unlink()
            return
        if found != self.sha256 and ours:
            (place / INDEX_NAME).unlink()
            return
        if found != self.sha256:
            raise DataError(f"the index in {place} is {found[:12]}, the run's is {self.sha256[:12]}")
        self.index = self._checked(index)
        self.have[INDEX_NAME] = place / INDEX_NAME
        if not ours:
            self._link(place / INDEX_NAME)

    def _checked(self, index: Index) -> Index:
        own = index.tokenizer
        if own.vocabulary > self._vocabulary:
            raise DataError(
                f"the tokenizer {own.name} has {own.vocabulary} tokens, the run's model {self._vocabulary}; "
                "make the manifest anew with: ftnode run init --data"
            )
        return index

    def _find(self, file: StoredFile, local: Path | None) -> str:
        """Look for one file; what is wrong with it, or ""."""
        trouble = ""
        for place in (self.folder, local):
            if place is None or not (place / file.name).exists():
                continue
            try:
                check_file(place, file)
            except DataError as error:
                trouble = str(error)
                if place is self.folder and not isinstance(error, Unread):
                    (place / file.name).unlink()
                continue
            self.have[file.name] = place / file.name
            if place is not self.folder:
                self._link(place / file.name)
            return ""
        return trouble

    def _link(self, path: Path) -> None:
        link = self.folder / path.name
        with suppress(FileNotFoundError):
            link.unlink()  # it leads nowhere
        link.symlink_to(path.absolute())

    def _settle(self, draft: Path, name: str) -> None:
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(self.folder / name)
        self.have[name] = self.folder / name
