"""State out of this node, chunk by chunk, in slots of the arena: of compute, or a copy kept in memory.

Compute answers between two tasks of a step, so that several chunks are asked for at once. Dumps for the audit are
written from the same chunks.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Final, Protocol

import trio

from ftnode.node.links.link import describe
from ftnode.node.machine.tensor_slots import RESERVED_SLOTS, Arena
from ftnode.node.ports import ComputeError, ComputePort
from ftnode.node.weights.copies import Copy
from ftnode.protocol.wire.frames import StateHeader
from ftnode.protocol.words.types import Attempt, Handle, Version

log = logging.getLogger(__name__)

COMPUTE_SECONDS: Final = 7200.0
"""A backstop. Compute that answers nothing for task_seconds (settings.py; an hour at the longest lease) is killed, and
every call ends with it. A slot that is given back sooner may still be written to."""
SLOT_SECONDS: Final = 10.0
SLOT_POLL_SECONDS: Final = 0.005
AHEAD: Final = 8
"""Chunks that compute is asked for at once."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """`length` bytes of state in a slot, and their blake2b."""

    handle: Handle
    length: int
    hash: bytes


class Reading(Protocol):
    """State that is lent: `header`, then the chunks one after the other."""

    header: StateHeader

    async def chunk(self, index: int) -> Chunk:
        """Chunk `index` in a slot that the caller releases. Raises ComputeError; TooSlowError without a slot."""
        ...


class Dump(Protocol):
    """A file that is open."""

    def write(self, content: memoryview, /) -> object: ...


class StageReading:
    """An export of compute that has begun."""

    def __init__(self, compute: ComputePort, arena: Arena, export: int, header: StateHeader, weight_bytes: int) -> None:
        self.header = header
        self.dump: Dump | None = None
        """Gets the weights that are read, too."""
        self.ahead = AHEAD
        """Chunks that are in slots at once, at most."""
        self._compute, self._arena, self._export = compute, arena, export
        self._undumped = weight_bytes
        """Bytes of weights that the dump still lacks."""
        self._ready: deque[Chunk] = deque()

    @property
    def ready(self) -> int:
        """Chunks that are in slots already, and come next."""
        return len(self._ready)

    async def chunk(self, index: int) -> Chunk:
        """Those that follow come along, as far as the step in progress can spare the room, so that a chunk need not
        wait behind a task of compute each time."""
        if not self._ready:
            await self._read(index)
        return self._ready.popleft()

    async def _read(self, first: int) -> None:
        handles = [await take_slot(self._arena)]
        spared = max(self._arena.slots // 2, RESERVED_SLOTS)
        while len(handles) < min(self.ahead, self.header.chunks - first) and self._arena.free > spared:
            handles.append(self._arena.take())
        found: dict[int, Chunk] = {}
        failures: list[ComputeError] = []

        async def read(index: int, handle: Handle) -> None:
            slot = self._arena.slot(handle)
            try:
                answer = await call_with_slot(
                    self._compute, "export_chunk", export=self._export, index=index, slot=slot
                )
                found[index] = Chunk(handle, int(answer["length"]), bytes.fromhex(str(answer["hash"])))
            except ComputeError as error:
                failures.append(error)

        try:
            async with trio.open_nursery() as nursery:
                for index, handle in enumerate(handles, first):
                    nursery.start_soon(read, index, handle)
            if failures:
                raise failures[0]
            self._ready.extend(found[index] for index in sorted(found))
            if self.dump is not None:
                self._write(self.dump)
        except BaseException:
            self._ready.clear()
            for handle in handles:
                self._arena.release(handle)
            raise

    def _write(self, dump: Dump) -> None:
        for chunk in self._ready:
            weights = min(chunk.length, self._undumped)
            dump.write(self._arena.view(chunk.handle)[:weights])
            self._undumped -= weights

    async def end(self) -> None:
        """Compute may be gone, and the export with it."""
        while self._ready:
            self._arena.release(self._ready.popleft().handle)
        try:
            await call_with_slot(self._compute, "export_end", export=self._export)
        except ComputeError as error:
            log.info("an export did not end: %s", error)


class CopyReading:
    """A copy that we keep, as it was when it was asked for, even if a newer one takes its place meanwhile."""

    def __init__(self, arena: Arena, copy: Copy) -> None:
        self.header = copy.header
        self._arena, self._copy = arena, copy

    async def chunk(self, index: int) -> Chunk:
        handle = await take_slot(self._arena)
        content = self._copy.chunks[index]
        self._arena.view(handle)[: len(content)] = content
        return Chunk(handle, len(content), self._copy.hashes[index])


async def take_slot(arena: Arena) -> Handle:
    """A slot, as soon as the step in progress leaves one. Raises trio.TooSlowError."""
    with trio.fail_after(SLOT_SECONDS):
        while arena.free <= min(RESERVED_SLOTS, arena.slots - 1):
            await trio.sleep(SLOT_POLL_SECONDS)
    return arena.take()


async def call_in_time(compute: ComputePort, op: str, **fields: Any) -> dict[str, Any]:
    """A command that names no slot. Raises ComputeError, also when compute hangs."""
    with trio.move_on_after(COMPUTE_SECONDS):
        return await compute.call(op, **fields)
    raise ComputeError("lost", f"{op} took longer than {COMPUTE_SECONDS:g} s")


async def call_with_slot(compute: ComputePort, op: str, **fields: Any) -> dict[str, Any]:
    """A command that names a slot, or begins or ends an export. Also when we are cancelled it is awaited, for compute
    may still write there, or hold something for us that has to be given back.

    Raises ComputeError, also when compute hangs and is killed.
    """
    with trio.CancelScope(deadline=trio.current_time() + COMPUTE_SECONDS, shield=True):
        return await compute.call(op, **fields)
    raise ComputeError("lost", f"{op} took longer than {COMPUTE_SECONDS:g} s")


async def begin_reading(
    compute: ComputePort, arena: Arena, stage: int, step: int, parts: str, encoding: str = "raw", freeze: bool = False
) -> StageReading:
    """To be closed by `closing`. Raises ComputeError (`invalid`: the weights are of another step)."""
    answer = await call_with_slot(
        compute, "export_begin", stage=stage, step=step, parts=parts, encoding=encoding, freeze=freeze
    )
    version_step, version_commit, attempt = answer["version"]
    norm = float(answer["norm_squared"])
    header = StateHeader(
        version=Version(version_step, version_commit, Attempt(*attempt)),
        norm_squared=norm if isfinite(norm) else 0.0,
        chunks=int(answer["chunks"]),
        size=int(answer["bytes"]),
        digest=str(answer["digest"]),
        step_count=int(answer["step_count"]),
        rate_factor=float(answer["rate_factor"]),
        encoding=encoding,
    )
    return StageReading(compute, arena, int(answer["export"]), header, int(answer["weight_bytes"]))


@asynccontextmanager
async def closing(reading: StageReading) -> AsyncIterator[StageReading]:
    """Ends the export, so that compute need not hold anything for it."""
    try:
        yield reading
    finally:
        await reading.end()


async def dump_weights(compute: ComputePort, arena: Arena, stage: int, version: Version, path: Path) -> str:
    """Write our weights of a stage as flat little-endian numbers; their digest. Raises ComputeError, OSError."""
    async with closing(await begin_reading(compute, arena, stage, version.step, "weights")) as reading:
        with path.open("wb") as reading.dump:
            for index in range(reading.header.chunks):
                arena.release((await reading.chunk(index)).handle)
    return reading.header.digest


async def try_to_dump(compute: ComputePort, arena: Arena, stage: int, version: Version, path: Path) -> bool:
    """As above; a dump is for the audit, and training goes on without it: False, and a warning."""
    try:
        await dump_weights(compute, arena, stage, version, path)
    except (ComputeError, OSError, trio.TooSlowError) as error:
        log.warning("the weights of stage %d are not dumped: %s", stage, describe(error))
        return False
    return True
