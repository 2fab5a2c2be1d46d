"""One stage's state from memory to a snapshot that is kept: room, draft, parts, index, name.

The order is what makes it safe. A draft is a folder with another name, locked by whoever writes it. Its parts have
their full size from the first moment, while all runs of the home are locked, so that nobody else counts on that room.
They are on the disk before its index is written, the index before the folder gets its name, the name before an older
snapshot goes. So whenever a write ends, by a kill or a full disk, the snapshots from before are there and whole, and
the draft is cleared away by the next one who writes. Runs in a thread: hashing and writing leave the interpreter to
others.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Final

from ftnode.models.state_plan import PARTS
from ftnode.node.home.size import size_text
from ftnode.node.snapshots.disk import Disk, locked, room_locked, try_lock
from ftnode.node.snapshots.format import (
    INDEX_NAME,
    KeptSnapshot,
    Part,
    SnapshotError,
    StageIndex,
    index_bytes,
    part_header,
)
from ftnode.node.snapshots.piece_hash import PieceHash
from ftnode.node.snapshots.retention import order_to_go
from ftnode.node.snapshots.store import (
    DRAFT_PREFIX,
    PIECE_BYTES,
    SnapshotStore,
    bytes_below,
    part_bytes,
    read_snapshot,
    stage_name,
)

GIGABYTE: Final = 1_000_000_000
FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class DiskAllowance:
    """What the owner gives: `keep` snapshots of each stage, `limit_bytes` for all snapshots of this home; and the
    disk is never filled beyond `spared_bytes`."""

    keep: int = 2
    limit_bytes: int = 20 * GIGABYTE
    spared_bytes: int = 1 << 30


class Stopped(SnapshotError):
    """We were told to end; nothing is wrong."""


def write_snapshot(
    store: SnapshotStore, state: memoryview, about: StageIndex, allowance: DiskAllowance, held: Collection[int],
    stop: Event | None = None,
) -> KeptSnapshot:  # fmt: skip
    """Keep `state`: the weights and the moments of a stage, one behind the other. `about` says what it is, but for
    digest, parts, sequence and time, which are found here. `held`: stages of which the newest version that is whole
    stays until a newer one is.

    Raises SnapshotError: one line with the cause. Then nothing of it is left that counts, and the disk has what it had.
    """
    held = {*held, about.stage}
    try:
        step = _step_folder(store, about.version.step)
        with ExitStack() as stack:
            with room_locked(store.folder):
                store.sweep()
                _make_room(store, about, allowance, held)
                draft = stack.enter_context(_open_draft(store, step, about.stage))
                parts = stack.enter_context(_reserved(store, draft, about))
            index = _write_parts(store, parts, state, about, stop or Event())
            sound = _sound_twin(store, index, stop)  # which may take long, and the lock is everybody's
            with locked(store.folder):
                index = replace(index, sequence=1 + max((kept.index.sequence for kept in store.kept()), default=0))
                _write_index(store, draft, index)
                kept, useless = _publish(store, draft, index, sound)
                _keep_last(store, allowance, index, useless, held)
                return kept
    except OSError as error:
        raise SnapshotError(f"cannot keep stage {about.stage} of step {about.version.step}: {_cause(error)}") from error


def _keep_last(
    store: SnapshotStore,
    allowance: DiskAllowance,
    index: StageIndex,
    useless: list[KeptSnapshot],
    held: Collection[int],
) -> None:
    try:
        for each in useless:
            store.drop(each.folder)
        store.keep_last(allowance.keep, held, index.version)
    except OSError as error:
        told = f"stage {index.stage} of step {index.version.step} is kept, but an older one cannot be removed"
        raise SnapshotError(f"{told}: {_cause(error)}") from error


def save_once(
    path: Path, state: memoryview, about: StageIndex, disk: Disk | None = None, stop: Event | None = None
) -> KeptSnapshot:
    """One stage, once, to a folder of its own that is not there yet, in the same way; nobody counts or removes it.

    Raises SnapshotError.
    """
    store = SnapshotStore(path.parent, about.run, disk or Disk())
    draft = path.with_name(f"{DRAFT_PREFIX}{path.name}.{secrets.token_hex(6)}.partial")
    try:
        if path.exists():
            raise SnapshotError(f"{path} is there already; choose another place, nothing is overwritten")
        store.disk.make_folder(draft)
        try:
            with _reserved(store, draft, about) as parts:
                index = _write_parts(store, parts, state, about, stop or Event())
            _write_index(store, draft, replace(index, sequence=1))
            store.disk.rename(draft, path)
            store.disk.sync_folder(path.parent)
        finally:
            with suppress(OSError):
                store.disk.remove(draft)
    except OSError as error:
        raise SnapshotError(f"cannot save {path}: {_cause(error)}") from error
    return read_snapshot(path)


def _cause(error: OSError) -> str:
    return "the disk is full" if error.errno in FULL else error.strerror or str(error)


def _step_folder(store: SnapshotStore, step: int) -> Path:
    folder = store.folder / str(step)
    for path in (store.root.parent, store.root, store.folder, folder):
        new = not path.is_dir()
        store.disk.make_folder(path)
        if new:
            store.disk.sync_folder(path.parent)
    return folder


def _make_room(store: SnapshotStore, about: StageIndex, allowance: DiskAllowance, held: Collection[int]) -> None:
    """Remove the oldest snapshots of this run as far as the limits ask for it, but none when that would not do, and
    none that has to stay."""
    needed = _bytes_needed(about)
    used, free = store.bytes_on_disk(), store.disk.free(store.folder)
    missing = needed - min(allowance.limit_bytes - used, free - allowance.spared_bytes)
    if missing <= 0:
        return
    may_go = {each.folder: bytes_below(each.folder) for each in order_to_go(store.kept(), held, about.version)}
    if sum(may_go.values()) < missing:
        if needed - (free - allowance.spared_bytes) > 0:
            raise OSError(errno.ENOSPC, "the disk is full")
        raise SnapshotError(
            f"no room for {size_text(needed)}: snapshots have {size_text(used)} of the "
            f"{size_text(allowance.limit_bytes)} that they may; raise --snapshot-limit, or remove some with: "
            "ftnode snapshots prune"
        )
    for folder, size in may_go.items():
        if missing <= 0:
            break
        store.drop(folder)
        missing -= size


def _bytes_needed(about: StageIndex) -> int:
    """Of all files of a snapshot; its index has hashes and times of any content."""
    parts = {part: Part(_part_name(part), _part_file_bytes(about, part), "0" * 64) for part in PARTS}
    index = replace(about, digest="0" * 32, parts=parts, sequence=1 << 32, saved=1e10 / 3)
    return index.bytes + len(index_bytes(index))


def _part_name(part: str) -> str:
    return f"{part}.safetensors"


def _part_file_bytes(about: StageIndex, part: str) -> int:
    return len(part_header(about.plan, about.stage, part)) + part_bytes(about, part)


@contextmanager
def _open_draft(store: SnapshotStore, step: Path, stage: int) -> Iterator[Path]:
    """A new folder that nobody sweeps while we live, and that is gone behind us. The run is locked when it is made."""
    if not step.is_dir():  # whoever cleared away empty folders meanwhile
        store.disk.make_folder(step)
    draft = step / f"{DRAFT_PREFIX}stage-{stage}.{secrets.token_hex(6)}.partial"
    store.disk.make_folder(draft)
    descriptor = os.open(draft, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not try_lock(descriptor):
            raise SnapshotError(f"{draft} is being written by somebody else")
        yield draft
    finally:
        with suppress(OSError):
            store.disk.remove(draft)  # it has another name by now, or no use
        os.close(descriptor)


@contextmanager
def _reserved(store: SnapshotStore, draft: Path, about: StageIndex) -> Iterator[Mapping[str, int]]:
    """Part → descriptor of its new file, which has its full size."""
    files: dict[str, int] = {}
    try:
        for part in PARTS:
            files[part] = store.disk.create(draft / _part_name(part))
            store.disk.reserve(files[part], _part_file_bytes(about, part))
        yield files
    finally:
        for descriptor in files.values():
            os.close(descriptor)


def _write_parts(
    store: SnapshotStore, files: Mapping[str, int], state: memoryview, about: StageIndex, stop: Event
) -> StageIndex:
    """The index as far as the parts decide it; they are on the disk."""
    needed = sum(part_bytes(about, part) for part in PARTS)
    if len(state) != needed:
        raise SnapshotError(f"the state of stage {about.stage} has {len(state)} bytes, not {needed}")
    parts, start = {}, 0
    with _digesting(state[: part_bytes(about, "weights")], stop) as digest:
        for part in PARTS:
            size = part_bytes(about, part)
            parts[part] = _write_part(store.disk, files[part], part, state[start : start + size], about, stop)
            start += size
    return replace(about, digest=digest.result(), parts=parts, saved=time.time())


def _write_part(
    disk: Disk, descriptor: int, part: str, numbers: memoryview, about: StageIndex, stop: Event
) -> Part:  # fmt: skip
    header = part_header(about.plan, about.stage, part)
    with PieceHash() as hashing:
        hashing.add(header)
        disk.write(descriptor, header, 0)
        for start in range(0, len(numbers), PIECE_BYTES):
            if stop.is_set():
                raise Stopped(f"stage {about.stage} of step {about.version.step} is not kept: the node ends")
            piece = numbers[start : start + PIECE_BYTES]
            hashing.add(piece)
            disk.write(descriptor, piece, len(header) + start)
            disk.settle(descriptor, len(header) + start, len(piece))
        disk.sync(descriptor)
        found = hashing.hexdigest()
    return Part(_part_name(part), len(header) + len(numbers), found)


def _write_index(store: SnapshotStore, draft: Path, index: StageIndex) -> None:
    descriptor = store.disk.create(draft / INDEX_NAME)
    try:
        store.disk.write(descriptor, index_bytes(index), 0)
        store.disk.sync(descriptor)
    finally:
        os.close(descriptor)
    store.disk.sync_folder(draft)


def _twins(store: SnapshotStore, index: StageIndex) -> list[KeptSnapshot]:
    """What is kept already of the same history and state."""
    wanted = index.stage, index.version, index.whole_digest
    return [kept for kept in store.kept() if (kept.stage, kept.version, kept.whole_digest) == wanted]


def _sound_twin(store: SnapshotStore, index: StageIndex, stop: Event | None) -> KeptSnapshot | None:
    """One whose bytes are as they were written: reads all of it."""
    return next((twin for twin in _twins(store, index) if not store.verify(twin, stop)), None)


def _publish(
    store: SnapshotStore, draft: Path, index: StageIndex, sound: KeptSnapshot | None
) -> tuple[KeptSnapshot, list[KeptSnapshot]]:
    """What is kept now: `sound` where it is still there, else the draft, which gets its name. And the twins that it
    makes useless: they go only then, so that there is one at any moment."""
    twins = _twins(store, index)
    if sound is not None and sound in twins:
        return sound, []
    name = draft.with_name(stage_name(index))
    if name.exists():
        name = draft.with_name(stage_name(index, index.sequence))
    store.disk.rename(draft, name)
    store.disk.sync_folder(name.parent)
    return read_snapshot(name, store.run_id), twins


@contextmanager
def _digesting(weights: memoryview, stop: Event) -> Iterator[Future[str]]:
    """The digest of the weights by which they are known, found meanwhile."""

    def find() -> str:
        found = hashlib.blake2b(digest_size=16)
        for start in range(0, len(weights), PIECE_BYTES):
            if stop.is_set():
                return ""
            found.update(weights[start : start + PIECE_BYTES])
        return found.hexdigest()

    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(find)
