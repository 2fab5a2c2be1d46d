"""The snapshots that one home keeps of a run: which are there and whole, their parts, and how many stay.

A folder counts when it has its final name and an index whose checksum fits and whose files have the sizes that it says.
Everything else there is a draft, or what is left of one, and is cleared away by the next who writes. `kept` reads no
tensors; `load` and `verify` compare the hash of all that they read.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISLNK
from threading import Event
from typing import Any, Final

from ftnode.models.state_plan import PARTS, StatePlan
from ftnode.node.snapshots.disk import FOLDER_FLAGS, Disk, locked, read_ahead, try_lock
from ftnode.node.snapshots.format import (
    HEADER_BYTES_MAX,
    INDEX_BYTES_MAX,
    INDEX_NAME,
    KeptSnapshot,
    SnapshotError,
    StageIndex,
    UnknownFormat,
    Unreadable,
    mismatch,
    parse_header,
    parse_index,
    part_header,
    structure,
)
from ftnode.node.snapshots.piece_hash import AHEAD, PieceHash
from ftnode.node.snapshots.retention import newest_set, rank_in_stage
from ftnode.protocol.words.types import Version

FOLDER: Final = "snapshots"
RUN_NAME: Final = re.compile(r"[0-9a-f]{32}")
STEP_NAME: Final = re.compile(r"[0-9]{1,12}")
STAGE_NAME: Final = re.compile(r"stage-[0-9]{1,4}-[0-9a-f]{16}")
DRAFT_PREFIX: Final = "."
KEPT_MAX: Final = 4096
"""Snapshots that are looked at in one run's folder."""
PIECE_BYTES: Final = 8 << 20


class SnapshotStore:
    """One run's folder below `home`. Nothing is made before something is saved."""

    def __init__(self, home: Path, run_id: str, disk: Disk | None = None) -> None:
        self.home, self.root = home, home / FOLDER
        self.run_id, self.folder, self.disk = run_id, home / FOLDER / run_id, disk or Disk(home)

    # What is there.

    def kept(self) -> tuple[KeptSnapshot, ...]:
        """Whole snapshots, those of the newest step first; of equal steps, those that were saved last."""
        return self.survey()[0]

    def survey(self) -> tuple[tuple[KeptSnapshot, ...], tuple[SnapshotError, ...]]:
        """As `kept`, and why each other folder that has a snapshot's name is none.

        What does not fit is read once more after all others: who lists must not call torn what somebody else clears
        away, or writes anew, at that moment."""
        found, unfit = [], []
        for folder, read in self._read_all():
            if isinstance(read, KeptSnapshot):
                found.append(read)
            else:
                unfit.append(folder)
        troubles = []
        for folder in unfit:
            read = self._read(folder)
            if isinstance(read, KeptSnapshot):
                found.append(read)
            elif folder.is_dir():
                troubles.append(read)
        found.sort(key=lambda kept: (kept.version.step, kept.index.sequence), reverse=True)
        return tuple(found), tuple(troubles)

    def verify(self, kept: KeptSnapshot, stop: Event | None = None) -> str:
        """What is wrong with the bytes of a snapshot, or ""; `stop` as of `read_part`."""
        return str(self.trouble(kept, stop) or "")

    def trouble(self, kept: KeptSnapshot, stop: Event | None = None) -> SnapshotError | None:
        """As `verify`; Unreadable where the disk does not give the bytes out, so that nobody can tell."""
        try:
            for part in PARTS:
                read_part(kept, part, None, stop)
        except SnapshotError as error:
            return error
        return None

    def newest_good(self, stage: int) -> KeptSnapshot | None:
        """The snapshot of the newest step whose bytes are as they were written; reads all of it, and more when it is
        damaged."""
        return next((kept for kept in self.kept() if kept.stage == stage and not self.verify(kept)), None)

    def load(self, kept: KeptSnapshot, parts: Iterable[str] = PARTS, stop: Event | None = None) -> dict[str, bytearray]:
        """The numbers of each part, as they lie in a stage's memory; `stop` as of `read_part`. Raises SnapshotError."""
        loaded = {}
        for part in parts:
            into = bytearray(part_bytes(kept.index, part))
            read_part(kept, part, memoryview(into), stop)
            loaded[part] = into
        return loaded

    # What goes.

    def prune(self, keep: int) -> list[KeptSnapshot]:
        """Remove drafts that nobody writes, what is not whole, and of each stage all but the `keep` snapshots that were
        saved last; returns these. With `keep`, the newest version that has all stages stays. Raises OSError."""
        if not self.folder.is_dir():
            return []
        with locked(self.folder):
            self.sweep()
            return self.keep_last(keep, {each.stage for each in self.kept()} if keep else ())

    def keep_last(self, keep: int, held: Collection[int], writing: Version | None = None) -> list[KeptSnapshot]:
        """`prune` without the drafts; what `newest_set` finds of `held` stays. The run is locked. Raises OSError."""
        for folder in self._broken():
            self.drop(folder)
        kept = self.kept()
        whole = {each.folder for each in newest_set(kept, held, writing)}
        gone = [each for each in kept if rank_in_stage(each, kept) >= keep and each.folder not in whole]
        for each in gone:
            self.drop(each.folder)
        self._drop_empty_steps()
        return gone

    def drop(self, folder: Path) -> None:
        """A snapshot loses its name first, so that half of one is never taken for whole. The run is locked. Raises
        OSError."""
        away = folder.with_name(f"{DRAFT_PREFIX}{folder.name}.{os.getpid()}.gone")
        self.disk.rename(folder, away)
        self.disk.remove(away)

    def sweep(self) -> None:
        """Remove drafts whose writers are gone. The run is locked. Raises OSError."""
        for step in self._steps():
            with _opened(step) as inside:
                if inside is not None:
                    for name in sorted(name for name in os.listdir(inside) if name.startswith(DRAFT_PREFIX)):
                        self._sweep_draft(name, inside)

    def bytes_on_disk(self) -> int:
        """Of all runs' snapshots in this home, drafts included."""
        return bytes_below(self.root)

    # Parts of the above.

    def _sweep_draft(self, name: str, step: int) -> None:
        with suppress(FileNotFoundError), _opened(name, step) as draft:
            if draft is not None and try_lock(draft):
                self.disk.clear(draft)
                os.rmdir(name, dir_fd=step)
            elif draft is None and S_ISLNK(os.stat(name, dir_fd=step, follow_symlinks=False).st_mode):
                self.disk.unlink(name, step)

    def _steps(self) -> Iterator[Path]:
        yield from (self.folder / name for name in _folders_in(self.folder) if STEP_NAME.fullmatch(name))

    def _stage_folders(self) -> Iterator[Path]:
        seen = 0
        for step in sorted(self._steps(), key=lambda path: int(path.name), reverse=True):
            for name in _folders_in(step):
                if STAGE_NAME.fullmatch(name) and seen < KEPT_MAX:
                    seen += 1
                    yield step / name

    def _read_all(self) -> Iterator[tuple[Path, KeptSnapshot | SnapshotError]]:
        return ((folder, self._read(folder)) for folder in self._stage_folders())

    def _read(self, folder: Path) -> KeptSnapshot | SnapshotError:
        try:
            return read_snapshot(folder, self.run_id)
        except SnapshotError as error:
            return error

    def _broken(self) -> list[Path]:
        return [folder for folder, read in self._read_all() if isinstance(read, SnapshotError) and may_go(read)]

    def _drop_empty_steps(self) -> None:
        for step in list(self._steps()):
            try:
                step.rmdir()
            except OSError:
                continue  # not empty


def may_go(why: SnapshotError) -> bool:
    """Whether the next save removes it. What another version wrote, or the disk cannot read now, may be whole."""
    return not isinstance(why, (UnknownFormat, Unreadable))


def bytes_below(folder: Path) -> int:
    """Of the files in a folder and in those in it."""
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # somebody else removes it
                total += os.lstat(os.path.join(base, name)).st_size
    return total


def runs_kept(home: Path) -> tuple[str, ...]:
    """Ids of the runs that this home has snapshots of."""
    try:
        names = sorted(os.listdir(home / FOLDER))
    except OSError:
        return ()
    return tuple(name for name in names if RUN_NAME.fullmatch(name))


def stage_name(index: StageIndex, again: int = 0) -> str:
    """Of its folder: another one for every history and every state, and for each `again`, where a folder has that name
    and cannot be trusted."""
    text = f"{index.version.commit}/{index.whole_digest}" + (f"/{again}" if again else "")
    told = hashlib.blake2b(text.encode(), digest_size=8)
    return f"stage-{index.stage}-{told.hexdigest()}"


def read_snapshot(folder: Path, run_id: str | None = None) -> KeptSnapshot:
    """One snapshot by its folder. Raises SnapshotError unless its index is whole, of that run, and fits the files;
    Unreadable when that cannot be told now."""
    path = folder / INDEX_NAME
    try:
        with path.open("rb") as file:
            text = file.read(INDEX_BYTES_MAX + 1)
    except OSError as error:
        raise not_read(path, error) from None
    if len(text) > INDEX_BYTES_MAX:
        raise SnapshotError(f"{path} is larger than {INDEX_BYTES_MAX} bytes")
    index = parse_index(text, path)
    if run_id is not None and index.run != run_id:
        raise SnapshotError(f"{path} is of run {index.run[:8]}, not {run_id[:8]}")
    for part in index.parts.values():
        try:
            size = (folder / part.file).stat().st_size
        except OSError as error:
            raise not_read(folder / part.file, error) from None
        if size != part.bytes:
            raise SnapshotError(f"{folder / part.file} has {size} bytes, not {part.bytes}: it is not whole")
    return KeptSnapshot(folder, index)


def not_read(path: Path, error: OSError) -> SnapshotError:
    """Unreadable, but for what is not there."""
    kind = SnapshotError if error.errno == errno.ENOENT else Unreadable
    return kind(f"cannot read {path}: {error.strerror}")


def part_bytes(index: StageIndex, part: str) -> int:
    """Of the numbers of a part. Raises SnapshotError for a part that does not exist."""
    if part not in PARTS:
        raise SnapshotError(f"there is no part {part}; parts are {', '.join(PARTS)}")
    return index.plan.size(index.stage, part)


def check_fits(kept: KeptSnapshot, plan: StatePlan, parts: Iterable[str] = PARTS) -> None:
    """Raises SnapshotError that names the other optimiser, or the first tensor which is not as this stage has it."""
    parts = tuple(parts)
    if "optimiser" in parts:
        require_optimiser(kept, plan.optimiser)
    for part in parts:
        found = {name: (dtype, shape) for name, (dtype, shape, _) in tensors_of(kept, part).items()}
        if trouble := mismatch(found, structure(plan, kept.stage, part)):
            raise SnapshotError(f"{kept.folder / kept.index.parts[part].file} does not fit the run's model: {trouble}")


def require_optimiser(kept: KeptSnapshot, kind: str) -> None:
    """Raises SnapshotError unless the moments are of that kind of optimiser."""
    if kept.index.optimiser != kind:
        raise SnapshotError(f"{kept.folder} has the moments of {kept.index.optimiser}, and the run trains with {kind}")


def tensors_of(kept: KeptSnapshot, part: str) -> Mapping[str, tuple[str, tuple[int, ...], int]]:
    """Tensor → (type, shape, offset in bytes behind the header), from the file itself. Raises SnapshotError."""
    path = kept.folder / kept.index.parts[part].file
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > HEADER_BYTES_MAX:
                raise SnapshotError(f"{path} has a header of {length} bytes: it is damaged")
            return parse_header(file.read(length), path)
    except OSError as error:
        raise not_read(path, error) from None


def read_part(
    kept: KeptSnapshot, part: str, into: memoryview | None, stop: Event | None = None,
    progress: Callable[[], None] = lambda: None,
) -> None:  # fmt: skip
    """Read a part's numbers into memory of exactly their size, or nowhere, and compare the hash of the whole file.

    Raises SnapshotError, and Unreadable where the disk does not give it out; what was read is worth nothing then. So
    it does at the next piece once `stop` is set. `progress` is called after each piece.
    """
    index, size = kept.index, part_bytes(kept.index, part)
    path, wanted = kept.folder / index.parts[part].file, index.parts[part].hash
    header = part_header(index.plan, index.stage, part)
    if into is not None and len(into) != size:
        raise SnapshotError(f"{path} has {size} bytes of numbers, there is room for {len(into)}")
    spare = [memoryview(bytearray(min(size, PIECE_BYTES))) for _ in range(0 if into is not None else AHEAD + 1)]
    try:
        with path.open("rb", buffering=0) as file, PieceHash() as hashing:
            first = memoryview(bytearray(len(header)))
            _fill(file, first, path)
            hashing.add(first)
            for number, start in enumerate(range(0, size, PIECE_BYTES)):
                if stop is not None and stop.is_set():
                    raise SnapshotError(f"{path} was not read to its end: nobody wants it any more")
                length = min(PIECE_BYTES, size - start)
                piece = spare[number % len(spare)][:length] if into is None else into[start : start + length]
                read_ahead(file.fileno(), len(header) + start, PIECE_BYTES)
                _fill(file, piece, path)
                hashing.add(piece)
                progress()
            found = hashing.hexdigest()
    except OSError as error:
        raise not_read(path, error) from None
    if found != wanted:
        raise SnapshotError(f"{path} is damaged: its hash is {found[:8]}, not {wanted[:8]}")


def _fill(file: Any, view: memoryview, path: Path) -> None:
    while len(view):
        count = file.readinto(view)
        if not count:
            raise SnapshotError(f"{path} ends too early")
        view = view[count:]


def _folders_in(folder: Path) -> list[str]:
    """Their names, without links to folders: what is behind those is none of ours to count or to remove."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


@contextmanager
def _opened(folder: Path | str, inside: int | None = None) -> Iterator[int | None]:
    """A folder's descriptor, None when it is gone, or a link. `inside`: that of the folder which it is in."""
    try:
        descriptor = os.open(folder, FOLDER_FLAGS, dir_fd=inside)
    except OSError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)
