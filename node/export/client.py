"""The reader's side of `/ftnode/export/1`: all stages of a run, as they were after one and the same committed step.

While the run goes on, all holders are asked for the same step, a little ahead of what is committed, and each freezes
its stage when it gets there; equal `commit`s then say that the weights have one history (types.py). When they do not
fit together, or somebody went meanwhile, all is asked for again. The stages come side by side, each straight into its
place, so that no more than a piece of each is ever in memory.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import count
from math import ceil
from typing import Final, Protocol

import numpy as np
import trio

from ftnode.node.export.search import (
    ANSWER_SECONDS,
    FAULTS,
    UNAVAILABLE,
    AnsweringMember,
    Dialer,
    ask_status,
    find_member,
    open_stream,
    reason_of,
    side_by_side,
)
from ftnode.node.export.wire import (
    EXPORT_PROTOCOL,
    WAIT_SECONDS,
    Answer,
    ExportOffer,
    ExportRequest,
    Holders,
    Place,
    SendIt,
    WhoHolds,
    Written,
    hear_answer,
)
from ftnode.node.links.addresses import PeerAddress
from ftnode.node.links.side_messages import say
from ftnode.node.links.streams import read_into
from ftnode.node.watch.stage_summary import LEFT_OUT
from ftnode.node.watch.status import SwarmStatus
from ftnode.protocol.wire.frames import Refusal, clean_reason
from ftnode.protocol.words.errors import LocalError, PeerError, UserError

ERRORS = "export_client"

log = logging.getLogger(__name__)

PIECE_BYTES: Final = 1 << 20
SEARCH_SECONDS_MIN: Final = 1.0
PAUSE_SECONDS: Final = 1.0
"""After the first attempt; twice as long after each further one."""
PAUSE_SECONDS_MAX: Final = 10.0
AHEAD_SECONDS: Final = 1.0
"""A step that is committed this much later is asked for: the requests must be there before it."""
STEP_SECONDS_LONG: Final = 10.0
"""In a run whose steps take longer, the current one is tried: all are asked within a fraction of it."""
STEP_SECONDS_SHORT: Final = 1e-3
"""No step is over sooner, whatever a member says."""
STEP_FACTOR: Final = 5.0
"""A step may take so many times as long as the last ones."""
OFFER_SECONDS: Final = 60.0
FIRST_SECONDS: Final = 600.0
"""Until the first bytes, since a holder serves few readers at a time (server.py); anew with what comes of its other
stages, for which this one may wait."""
BROKEN_MAX: Final = 3
"""So often the time in which weights came, before one holder gave no more, does not count."""
PIECE_SECONDS: Final = 60.0
DISK: Final = 74
PROTOCOL: Final = 76
TRY_AGAIN: Final = 75


class Sink(Protocol):
    """Where one stage's weights go, in order."""

    def write(self, data: memoryview) -> object: ...


@dataclass(frozen=True, slots=True)
class TakenStage:
    """What was taken of one stage, and from whom."""

    stage: int
    epoch: int
    peer: str
    digest: str


@dataclass(frozen=True, slots=True)
class TakenModel:
    """All stages after one committed step, without those that routes leave out. `status`: the run as `told_by` saw it
    then. `seconds`: the weights took."""

    step: int
    commit: str
    stages: tuple[TakenStage, ...]
    status: SwarmStatus
    told_by: str
    seconds: float = 0.0
    left_out: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WantedModel:
    """What the manifest says that there is to be: `sizes` in bytes by stage, numbers of `number_bytes` each. `omits`:
    the run may go on without a stage."""

    run: str
    steps: int
    sizes: tuple[int, ...]
    number_bytes: int
    omits: bool = False


@dataclass(frozen=True, slots=True)
class _Holder:
    place: Place
    stream: trio.SocketStream


class _Unfit(Exception):
    """This attempt gives no model; the text says why. `final`: another one will not either; `receiving`: seconds for
    which weights had come."""

    def __init__(self, reason: str, exit_code: int = TRY_AGAIN, final: bool = False, receiving: float = 0.0) -> None:
        super().__init__(reason)
        self.exit_code, self.final, self.receiving = exit_code, final, receiving


class _Awaited:
    """Streams on which nothing has come yet, of one holder."""

    def __init__(self) -> None:
        self._scopes: set[trio.CancelScope] = set()

    async def first(self, stream: trio.SocketStream, piece: memoryview) -> None:
        """Fill the first piece. Raises one of STREAM_ERRORS, also when nothing comes of any stage for too long."""
        with trio.CancelScope(deadline=trio.current_time() + FIRST_SECONDS) as scope:
            self._scopes.add(scope)
            try:
                await read_into(stream, piece)
            finally:
                self._scopes.discard(scope)
        if scope.cancelled_caught:
            raise trio.TooSlowError

    def news(self) -> None:
        """Something has come from the holder."""
        for scope in self._scopes:
            scope.deadline = trio.current_time() + FIRST_SECONDS


class ModelReader:
    """Takes a run's model. `open_sink` is called for every stage and every attempt; what it gave before is void."""

    def __init__(
        self,
        dialer: Dialer,
        wanted: WantedModel,
        open_sink: Callable[[int], Sink],
        progress: Callable[[str, int], None] = lambda what, size: None,
        tell: Callable[[str], None] = log.info,
        leave_out: Callable[[tuple[int, ...]], None] = lambda stages: None,
    ) -> None:
        """`progress`: what is being done, and how many more bytes are here. `tell`: why an attempt came to nothing.
        `leave_out`: which stages the model is without, before any is opened; it raises UserError where that cannot be.
        """
        self._dialer, self._wanted, self._tell = dialer, wanted, tell
        self._open_sink, self._progress, self._leave_out = open_sink, progress, leave_out

    async def take(
        self, peers: Sequence[PeerAddress], seconds: float, keep: Callable[[TakenModel], None]
    ) -> TakenModel:
        """The whole model; `keep` makes it durable under its final name, or raises, and only then the holders are told,
        who may leave then. New attempts are made for `seconds`, and as long as weights came in those that broke off.

        Raises UserError: 69 when a stage is missing, 75 when the stages do not come to fit together, 74 for our disk,
        76 for what cannot be the run's."""
        deadline, broken = trio.current_time() + seconds, 0
        for attempt in count():
            self._progress("looking for the run", 0)
            left = max(deadline - trio.current_time(), SEARCH_SECONDS_MIN)
            member = await find_member(self._dialer, peers, self._wanted.run, left)
            try:
                return await self._attempt(member, attempt, keep)
            except _Unfit as error:
                if error.receiving and broken < BROKEN_MAX:  # a large model takes longer than anybody looks for peers
                    deadline, broken = deadline + error.receiving, broken + 1
                pause = min(PAUSE_SECONDS * 2**attempt, PAUSE_SECONDS_MAX)
                if error.final or trio.current_time() + pause > deadline:
                    raise UserError(str(error), error.exit_code) from None
                self._tell(str(error))
            await trio.sleep(pause)
        raise LocalError("an endless count has ended")

    async def _attempt(self, member: AnsweringMember, attempt: int, keep: Callable[[TakenModel], None]) -> TakenModel:
        async with AsyncExitStack() as stack:
            asking = await self._open_member(member, stack)
            places = (await self._who_holds(asking)).places
            left_out = self._left_out(member.status, places)
            holders = await self._reach_all(places, left_out, attempt, stack)
            told = await self._who_holds(asking)  # reaching them may have taken longer than a step
            offers = await self._offers(holders, told)
            try:
                status = await ask_status(self._dialer, member.peer)
            except FAULTS as error:
                raise _Unfit(f"{member.peer.peer_id[-6:]}: {reason_of(error)}", UNAVAILABLE) from None
            if self._left_out(status, places) != left_out:
                raise _Unfit("the run leaves out other stages than when it was asked")
            self._leave_out(left_out)
            began = trio.current_time()
            await self._receive_all(holders, offers)
            seconds = trio.current_time() - began
            stages = tuple(
                TakenStage(stage, holder.place.epoch, holder.place.peer, offers[stage].digest)
                for stage, holder in holders.items()
            )
            head = offers[0]
            model = TakenModel(head.step, head.commit, stages, status, member.peer.peer_id, seconds, left_out)
            keep(model)
            await side_by_side(_tell_written, [*holders.values()])
        return model

    # -- whom to ask

    async def _open_member(self, member: AnsweringMember, stack: AsyncExitStack) -> trio.SocketStream:
        try:
            return await stack.enter_async_context(await open_stream(self._dialer, member.peer, EXPORT_PROTOCOL))
        except FAULTS as error:
            raise _Unfit(f"{member.peer.peer_id[-6:]} exports nothing: {reason_of(error)}", UNAVAILABLE) from None

    async def _who_holds(self, stream: trio.SocketStream) -> Holders:
        try:
            answer = await _ask(stream, WhoHolds(self._wanted.run), ANSWER_SECONDS)
        except FAULTS as error:
            raise _Unfit(f"the peer that was asked who holds the stages: {reason_of(error)}", UNAVAILABLE) from None
        if isinstance(answer, Refusal):
            raise _Unfit(clean_reason(answer.reason), UNAVAILABLE, not answer.retry)
        if not isinstance(answer, Holders) or answer.run != self._wanted.run:
            raise _Unfit("the peer that was asked who holds the stages said something else", PROTOCOL)
        return answer

    def _left_out(self, status: SwarmStatus, places: Sequence[Place]) -> tuple[int, ...]:
        """Block stages that nobody holds, and that the run trains without, as a member tells it."""
        if not self._wanted.omits:
            return ()
        told = {row.stage for row in status.stages if row.state == LEFT_OUT} - {place.stage for place in places}
        return tuple(stage for stage in range(1, len(self._wanted.sizes)) if stage in told)

    async def _reach_all(
        self, places: Sequence[Place], left_out: Sequence[int], attempt: int, stack: AsyncExitStack
    ) -> dict[int, _Holder]:
        """A stream to one holder of each stage, by stage; another one at each attempt, where there are several."""
        stages = [stage for stage in range(len(self._wanted.sizes)) if stage not in left_out]
        vacant = [stage for stage in stages if not any(place.stage == stage for place in places)]
        if vacant:
            raise _Unfit(f"{_names(vacant)} {_have(vacant)} no holder now; wait until it is rebuilt", UNAVAILABLE)
        self._progress("reaching a holder of each stage", 0)
        found: dict[int, _Holder] = {}
        reasons: dict[int, str] = {}

        async def reach(stage: int) -> None:
            group = [place for place in places if place.stage == stage]
            first = attempt % len(group)
            for place in [*group[first:], *group[:first]]:
                try:
                    peer = PeerAddress(place.peer, place.addresses)
                    stream = await open_stream(self._dialer, peer, EXPORT_PROTOCOL)
                except FAULTS as error:
                    reasons[stage] = f"{clean_reason(place.peer[-6:])}: {reason_of(error)}"
                else:
                    found[stage] = _Holder(place, await stack.enter_async_context(stream))
                    return

        await side_by_side(reach, stages)
        silent = [stage for stage in stages if stage not in found]
        if silent:
            raise _Unfit(f"{_names(silent)} {_have(silent)} no holder that answers ({reasons[silent[0]]})", UNAVAILABLE)
        return {stage: found[stage] for stage in stages}

    # -- one step of all

    async def _offers(self, holders: Mapping[int, _Holder], told: Holders) -> dict[int, ExportOffer]:
        step, patience = choose(told, self._wanted.steps)
        self._progress(f"waiting for step {step} of all stages", 0)
        offers: dict[int, ExportOffer] = {}
        reasons: dict[int, str] = {}

        async def ask(stage: int) -> None:
            try:
                request = ExportRequest(self._wanted.run, stage, step)
                answer = await _ask(holders[stage].stream, request, patience)
                if isinstance(answer, Refusal):
                    reasons[stage] = clean_reason(answer.reason)
                elif isinstance(answer, ExportOffer) and answer.step == step:
                    offers[stage] = answer
                else:
                    reasons[stage] = "it offered something else"
            except FAULTS as error:
                reasons[stage] = reason_of(error)
            if reasons:
                nursery.cancel_scope.cancel()  # who has offered keeps a snapshot for us

        async with trio.open_nursery() as nursery:  # all at once: the step does not wait
            for stage in holders:
                nursery.start_soon(ask, stage)
        if reasons:
            stage = min(reasons)
            raise _Unfit(f"not all stages are to be had of step {step}: {_names([stage])}: {reasons[stage]}")
        return self._fitting(offers)

    def _fitting(self, offers: dict[int, ExportOffer]) -> dict[int, ExportOffer]:
        for stage, offer in sorted(offers.items()):
            if offer.size != self._wanted.sizes[stage]:
                raise _Unfit(
                    f"{_names([stage])} has {offer.size} bytes there, and {self._wanted.sizes[stage]} by the manifest",
                    PROTOCOL,
                )
            if offer.commit != offers[0].commit:
                raise _Unfit(f"{_names([stage])} is of another history than the head after step {offer.step}")
        return offers

    # -- the weights

    async def _receive_all(self, holders: Mapping[int, _Holder], offers: Mapping[int, ExportOffer]) -> None:
        self._progress(f"receiving step {offers[0].step}", 0)
        failures: list[_Unfit | UserError] = []
        began, awaited = trio.current_time(), {holder.place.peer: _Awaited() for holder in holders.values()}
        async with trio.open_nursery() as nursery:

            async def receive(stage: int) -> None:
                place = holders[stage].place
                try:
                    await self._receive(stage, holders[stage].stream, offers[stage], awaited[place.peer])
                except FAULTS as error:
                    why = f"{_names([stage])} did not come from {clean_reason(place.peer[-6:])}: {reason_of(error)}"
                    failures.append(_Unfit(why, receiving=trio.current_time() - began))
                    nursery.cancel_scope.cancel()
                except UserError as error:  # a nursery would wrap it
                    failures.append(error)
                    nursery.cancel_scope.cancel()

            for stage in holders:
                nursery.start_soon(receive, stage)
        if failures:
            raise failures[0]

    async def _receive(self, stage: int, stream: trio.SocketStream, offer: ExportOffer, awaited: _Awaited) -> None:
        """Raises PeerError for bytes that are not what was offered, or no numbers; UserError for a full disk."""
        sink, hash_ = self._open_sink(stage), hashlib.blake2b(digest_size=16)
        kind = np.dtype(f"<f{self._wanted.number_bytes}")
        room = bytearray(min(PIECE_BYTES, offer.size))
        with trio.fail_after(ANSWER_SECONDS):
            await say(stream, SendIt())
        done = 0
        while done < offer.size:
            piece = memoryview(room)[: offer.size - done]
            if done:
                with trio.fail_after(PIECE_SECONDS):
                    await read_into(stream, piece)
            else:
                await awaited.first(stream, piece)
            awaited.news()
            hash_.update(piece)
            if not np.isfinite(np.frombuffer(piece, kind)).all():
                raise PeerError("numbers that are not finite")
            try:
                sink.write(piece)
            except OSError as error:
                raise UserError(f"cannot write {_names([stage])} down: {error.strerror}", DISK) from None
            done += len(piece)
            self._progress("", len(piece))
        if hash_.hexdigest() != offer.digest:
            raise PeerError("the weights do not have the hash that was announced")


def choose(told: Holders, steps: int) -> tuple[int, float]:
    """The step to ask for, and for how many seconds to wait for it: whatever a member says, hardly longer than a holder
    does."""
    if not told.seconds or told.seconds > STEP_SECONDS_LONG or told.step >= steps:
        return told.step, OFFER_SECONDS + min(STEP_FACTOR * told.seconds, WAIT_SECONDS)
    seconds = max(told.seconds, STEP_SECONDS_SHORT)
    more = 1 + ceil(AHEAD_SECONDS / seconds)
    return min(steps, told.step + more), OFFER_SECONDS + min(STEP_FACTOR * more * seconds, WAIT_SECONDS)


async def _ask(stream: trio.SocketStream, asked: WhoHolds | ExportRequest, seconds: float) -> Answer:
    """Raises one of FAULTS."""
    with trio.fail_after(seconds):
        await say(stream, asked)
        return await hear_answer(stream)


async def _tell_written(holder: _Holder) -> None:
    """That they know is a courtesy. They hang up when they have heard it; our p2pd must not end before."""
    try:
        with trio.fail_after(ANSWER_SECONDS):
            await say(holder.stream, Written())
            await holder.stream.receive_some(1)
    except FAULTS as error:
        log.info("%s was not told: %s", holder.place.peer, error)


def _have(stages: Sequence[int]) -> str:
    return "has" if len(stages) == 1 else "have"


def _names(stages: Sequence[int]) -> str:
    """As people call them; two are enough for a message."""
    shown = ["the head (stage 0)" if stage == 0 else f"stage {stage}" for stage in stages[:2]]
    return " and ".join(shown) + (f" and {len(stages) - 2} more" if len(stages) > 2 else "")
