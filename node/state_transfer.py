"""How a newcomer gets its weights: donors' chunks over `/ftnode/state/1`, blended as they come (design section 7).

    newcomer → donor   StateRequest
    donor → newcomer   StateHeader, then every StateChunk in order; or a Refusal

All donors stream at the same time and a chunk is given to compute as soon as it is here, so that memory holds one
stage and a few chunks, however large the model. A donor that is this very node is read without the network.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import trio

from ftnode.node.arena import Arena
from ftnode.node.link import LinkBroken, describe
from ftnode.node.ports import ComputeError, ComputePort, StreamOpener
from ftnode.node.state_donor import NotLent, Reading, StateDonor, call_in_time, call_with_slot, dump_weights, take_slot
from ftnode.node.streams import STREAM_ERRORS, FrameReader, write_frame
from ftnode.protocol.effects import Install
from ftnode.protocol.errors import PeerError
from ftnode.protocol.events import Installed, InstallFailed
from ftnode.protocol.messages import Donor
from ftnode.protocol.shares import shares
from ftnode.protocol.types import Handle, Peer, Rung, Version
from ftnode.protocol.wire import (
    STATE_PROTOCOL,
    Refusal,
    StateChunk,
    StateHeader,
    StateRequest,
    clean_reason,
    read_transfer,
)

log = logging.getLogger(__name__)

HEADER_SECONDS: Final = 30.0
"""Longer than a donor waits to reach the version (state_donor.py)."""
CHUNK_SECONDS: Final = 30.0
EXACT: Final = (Rung.REPLICA, Rung.HANDOVER)
"""Rungs that take optimiser state and step count along."""
FAULTS: Final = (LinkBroken, NotLent, PeerError, *STREAM_ERRORS)
"""How a donor fails us."""


@dataclass(frozen=True, slots=True)
class DonorRecord:
    """What one donor gave, for the trace. `weight`: its share of the blend; all shares add up to 1."""

    stage: int
    peer: Peer
    omega: float
    weight: float
    digest: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """`donors` is empty after a failure. `dump`: name of the file with the new weights, or ""."""

    event: Installed | InstallFailed
    donors: tuple[DonorRecord, ...]
    dump: str


class TransferFailed(Exception):
    """Why an installation cannot be finished. `donor` is None when it is our own fault."""

    def __init__(self, donor: Peer | None, reason: str) -> None:
        super().__init__(reason)
        self.donor = donor
        self.reason = reason


class Source(Protocol):
    """One donor's state, chunk by chunk."""

    header: StateHeader

    async def next_chunk(self, index: int) -> tuple[Handle, int]:
        """Chunk `index` in a slot that the caller releases, and its length in bytes.

        Raises PeerError, ComputeError, NotLent or one of STREAM_ERRORS.
        """
        ...


class RemoteSource:
    """A donor at the other end of a stream."""

    def __init__(self, arena: Arena, reader: FrameReader, header: StateHeader) -> None:
        self.header = header
        self._arena = arena
        self._reader = reader

    async def next_chunk(self, index: int) -> tuple[Handle, int]:
        with trio.fail_after(CHUNK_SECONDS):
            data, length = await self._reader.header()
        chunk = read_transfer(data, length, self._arena.slot_bytes)
        if isinstance(chunk, Refusal):
            raise NotLent(clean_reason(chunk.reason), chunk.retry)
        if not isinstance(chunk, StateChunk) or chunk.index != index:
            raise PeerError(f"something else than chunk {index}")
        handle = await take_slot(self._arena)
        try:
            payload = self._arena.view(handle)[:length]
            with trio.fail_after(CHUNK_SECONDS):
                await self._reader.payload(payload)
            if hashlib.blake2b(payload, digest_size=16).digest() != chunk.hash:
                raise PeerError(f"chunk {index} does not have its hash")
        except BaseException:
            self._arena.release(handle)
            raise
        return handle, length


class LocalSource:
    """This node holds the donating stage itself."""

    def __init__(self, reading: Reading) -> None:
        self.header = reading.header
        self._reading = reading

    async def next_chunk(self, index: int) -> tuple[Handle, int]:
        try:
            chunk = await self._reading.chunk(index)
        except ComputeError as error:
            raise NotLent(error.reason, retry=False) from None
        return chunk.handle, chunk.length


class Installer:
    """Carries out Install effects, one call of `install` each."""

    def __init__(
        self,
        me: Peer,
        run: str,
        arena: Arena,
        compute: ComputePort,
        transport: StreamOpener,
        donor: StateDonor,
        dump_folder: Path | None = None,
    ) -> None:
        """`donor` lends us the stages that we hold ourselves. `dump_folder`: rebuilt weights are written there, too."""
        self._me = me
        self._run = run
        self._arena = arena
        self._compute = compute
        self._transport = transport
        self._donor = donor
        self._dump_folder = dump_folder

    async def install(self, effect: Install) -> Outcome:
        """Fill the stage as the plan says. Never raises for what peers or compute do: that is an InstallFailed."""
        plan, base = effect.plan, effect.base
        try:
            if plan.rung == Rung.INITIAL:
                answer = await call_in_time(self._compute, "initialise", stage=plan.stage, commit=base.commit)
                return Outcome(Installed(plan.stage, base, 0, 0.0, 0.0, str(answer["digest"])), (), "")
            return await self._fetch(effect)
        except TransferFailed as failure:
            return Outcome(InstallFailed(plan.stage, base, failure.donor, failure.reason), (), "")
        except ComputeError as error:
            return Outcome(InstallFailed(plan.stage, base, None, str(error)), (), "")

    async def _fetch(self, effect: Install) -> Outcome:
        """A blend takes all donors at once; every other rung wants one, so that the next is asked when one fails."""
        donors = effect.plan.donors
        if not donors:
            raise TransferFailed(None, f"a {effect.plan.rung} without donors")
        if effect.plan.rung == Rung.BLEND:
            return await self._fetch_from(effect, donors)
        for donor in donors[:-1]:
            try:
                return await self._fetch_from(effect, (donor,))
            except TransferFailed as failure:
                log.warning("stage %d not from %s: %s", effect.plan.stage, donor.peer, failure.reason)
        return await self._fetch_from(effect, donors[-1:])

    async def _fetch_from(self, effect: Install, donors: Sequence[Donor]) -> Outcome:
        plan, base = effect.plan, effect.base
        started = trio.current_time()
        async with AsyncExitStack() as open_sources:
            sources = [await self._open(effect, donor, open_sources) for donor in donors]
            weights = shares([source.header.norm_squared for source in sources])
            await self._begin(effect, donors, sources)
            await self._copy_all(plan.stage, donors, sources, weights)
        first = sources[0].header
        answer = await self._end(effect, donors[0].peer, first)
        seconds, blend = trio.current_time() - started, float(answer["blend_seconds"])
        size = sum(source.header.size for source in sources)
        event = Installed(plan.stage, base, size, max(0.0, seconds - blend), blend, str(answer["digest"]))
        records = tuple(
            DonorRecord(donor.stage, donor.peer, source.header.norm_squared, weight, source.header.digest)
            for donor, source, weight in zip(donors, sources, weights)
        )
        return Outcome(event, records, await self._dump(effect))

    async def _open(self, effect: Install, donor: Donor, stack: AsyncExitStack) -> Source:
        base = effect.base
        parts = "all" if effect.plan.rung in EXACT else "weights"
        request = StateRequest(self._run, donor.stage, base.step, base.commit, parts)
        try:
            if donor.peer == self._me:
                return LocalSource(await stack.enter_async_context(self._donor.lend(request, self._me.id)))
            stream = await self._transport.open(donor.peer.id, STATE_PROTOCOL)
            stack.callback(stream.socket.close)
            return await self._ask(stream, request, base)
        except FAULTS as error:
            raise self._blame(donor.peer, error) from None

    async def _ask(self, stream: trio.SocketStream, request: StateRequest, base: Version) -> RemoteSource:
        reader = FrameReader(stream)
        with trio.fail_after(HEADER_SECONDS):
            await write_frame(stream, request)
            answer = read_transfer(*await reader.header(), 0)
        if isinstance(answer, Refusal):
            raise NotLent(clean_reason(answer.reason), answer.retry)
        if not isinstance(answer, StateHeader) or answer.version != base:
            raise PeerError("an answer that is not the state asked for")
        return RemoteSource(self._arena, reader, answer)

    async def _begin(self, effect: Install, donors: Sequence[Donor], sources: Sequence[Source]) -> None:
        """Every donor's shape must be what our own stage needs."""
        plan, base = effect.plan, effect.base
        exact = plan.rung in EXACT
        answer = await call_in_time(
            self._compute,
            "install_begin",
            stage=plan.stage,
            step=base.step,
            commit=base.commit,
            attempt=list(base.attempt),
            parts="all" if exact else "weights",
            rate_factor=sources[0].header.rate_factor if exact else plan.rate_factor,
        )
        for donor, header in zip(donors, (source.header for source in sources)):
            if (header.chunks, header.size) != (answer["chunks"], answer["bytes"]):
                reason = f"it has {header.size} bytes in {header.chunks} chunks instead of {answer['bytes']}"
                raise TransferFailed(donor.peer, reason)

    async def _copy_all(
        self, stage: int, donors: Sequence[Donor], sources: Sequence[Source], weights: Sequence[float]
    ) -> None:
        """All donors at the same time; the first failure ends the others after their current chunk."""
        failures: list[TransferFailed | ComputeError] = []

        async def copy(donor: Donor, source: Source, weight: float) -> None:
            try:
                for index in range(source.header.chunks):
                    await self._copy(stage, index, donor, source, weight)
            except (TransferFailed, ComputeError) as error:
                failures.append(error)
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for donor, source, weight in zip(donors, sources, weights):
                nursery.start_soon(copy, donor, source, weight)
        if failures:
            raise failures[0]

    async def _copy(self, stage: int, index: int, donor: Donor, source: Source, weight: float) -> None:
        try:
            handle, length = await source.next_chunk(index)
        except FAULTS as error:
            raise self._blame(donor.peer, error) from None
        try:
            slot = self._arena.slot(handle)
            await call_with_slot(
                self._compute, "install_chunk", stage=stage, index=index, weight=weight, slot=slot, length=length
            )
        finally:
            self._arena.release(handle)

    async def _end(self, effect: Install, donor: Peer, header: StateHeader) -> dict[str, Any]:
        plan = effect.plan
        exact = plan.rung in EXACT
        answer = await call_in_time(
            self._compute,
            "install_end",
            stage=plan.stage,
            step_count=header.step_count if exact else 0,
            norm_squared=header.norm_squared if exact else 0.0,
        )
        if exact and header.digest and answer["digest"] != header.digest:
            raise TransferFailed(donor, "the weights do not have the hash that it announced")
        return answer

    async def _dump(self, effect: Install) -> str:
        if self._dump_folder is None:
            return ""
        plan, base = effect.plan, effect.base
        name = f"installed-{plan.stage}-{base.step}-{base.commit[:12]}-{self._me.id[-6:]}.f32"
        try:
            await dump_weights(self._compute, self._arena, plan.stage, base, self._dump_folder / name)
        except (NotLent, ComputeError, OSError, trio.TooSlowError) as error:
            log.warning("the weights of stage %d are not dumped: %s", plan.stage, describe(error))
            return ""
        return name

    def _blame(self, donor: Peer, error: BaseException) -> BaseException:
        """What a failure with a donor means for the installation. A donor that is this node has no faults of a peer."""
        if isinstance(error, PeerError):
            self._transport.strike(donor.id, str(error))
        return TransferFailed(None if donor == self._me else donor, describe(error))
