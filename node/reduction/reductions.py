"""Reductions of groups: what the core wants reduced, and the streams of those it is reduced with.

The newest Reduce of a stage counts; an earlier one is given up without an answer. One that is complete goes on serving
members that are slower, until the next one of the stage. Requests that come before our own core's Reduce wait for it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Final

import trio

from ftnode.node.links.link import describe
from ftnode.node.links.side_messages import say
from ftnode.node.machine.gradient_memory import GradientMap
from ftnode.node.ports import ComputeError, ComputePort, StreamOpener
from ftnode.node.reduction.exchange import Exchange, Noted, RelayOf
from ftnode.node.reduction.part_seals import PartSeals
from ftnode.node.reduction.piece_sum import Signal
from ftnode.node.reduction.wire import FAULTS, PartRequest, ReduceRequest, TurnedAway, hear
from ftnode.protocol.wire.frames import Refusal
from ftnode.protocol.words.effects import Reduce
from ftnode.protocol.words.errors import LocalError, PeerError
from ftnode.protocol.words.types import Attempt, Peer

log = logging.getLogger(__name__)

REQUEST_SECONDS: Final = 5.0
EARLY_SECONDS: Final = 20.0
"""How long a request waits for our own Reduce; then it may ask again."""
EARLY_MAX: Final = 128
"""Requests that wait: the newest of each sender and stage, since a sender has no use for an older one."""
GIVE_UP_SECONDS: Final = 600.0
"""So long after the time that a sum may take, a core that is well has had another view."""
WATCH_SECONDS: Final = 1.0
Answered = Callable[[dict[str, Any] | ComputeError], None]
Owed = Callable[[tuple[Peer, ...], tuple[Peer, ...]], None]
"""Gets who owes a part, and who owes a sum, whenever that changes."""


class Reductions:
    """`serve` is the stream handler of REDUCE_PROTOCOL. All else returns at once."""

    def __init__(
        self, run: str, me: Peer, memory: GradientMap, compute: ComputePort, streams: StreamOpener,
        allowed: Callable[[str], bool] = lambda peer_id: True, encoding: str = "exact",
        relay_of: RelayOf = lambda stream: "", seals: PartSeals | None = None, sum_seconds: float = 0.0,
    ) -> None:  # fmt: skip
        """`sum_seconds`: that the core lets a sum take. `seals`: in a run with checks. `allowed`: may a PeerId wait
        here for a reduction that our core does not know yet? `encoding`: the manifest's pipeline.sums. `relay_of`: who
        carries a stream."""
        self._run_id, self._me = run, me
        self._memory, self._compute, self._streams = memory, compute, streams
        self._allowed, self._encoding, self._relay_of, self._seals = allowed, encoding, relay_of, seals
        self._patience = GIVE_UP_SECONDS + sum_seconds
        self._exchanges: dict[int, Exchange] = {}
        self._ending: dict[int, Exchange] = {}
        """Cancelled ones, which may touch the memory for a moment yet."""
        self._early: dict[tuple[str, int], trio.CancelScope] = {}
        self._changed = Signal()
        self._nursery: trio.Nursery | None = None

    # What the driver asks.

    def begin(self, nursery: trio.Nursery) -> None:
        """Work until the nursery is cancelled. Calls before this are errors of ours."""
        self._nursery = nursery

    async def prepare(self) -> None:
        """Load what sums need, in a thread: the first sum would hold everything else up for a fifth of a second."""
        await trio.to_thread.run_sync(import_module, "ftnode.node.reduction.encoding")

    def start(self, task: Reduce, answered: Answered, owed: Owed = lambda parts, sums: None) -> None:
        """`answered` gets the fields of a `reduce`, the bytes that were `relayed`, and the `parts` of others as we saw
        them, or a ComputeError, once; never, when the task is given up. With a fault, `giver` is whose sum was refused.
        `owed` is told for whom it stands still."""
        from ftnode.node.reduction.encoding import encoding_of  # nodes that reduce in no group do without numpy

        if self._nursery is None:
            raise LocalError("reductions have not started")
        self.give_up(task.stage)
        memory, before = self._memory.view(task.stage), self._ending.pop(task.stage, None)
        encoding = encoding_of(self._encoding, self._memory.number_bytes)
        exchange = Exchange(
            task, self._run_id, self._me, memory, encoding, self._streams, before, self._relay_of, self._seals
        )
        self._exchanges[task.stage] = exchange
        self._nursery.start_soon(self._reduce, exchange, answered)
        self._nursery.start_soon(self._watch, exchange, owed)
        self._changed.set()

    def give_up(self, stage: int) -> None:
        """The reduction of a stage, complete or not."""
        exchange = self._exchanges.pop(stage, None)
        if exchange is not None:
            exchange.cancel()
            self._ending[stage] = exchange
            assert self._nursery is not None
            self._nursery.start_soon(self._end, exchange)

    async def _end(self, exchange: Exchange) -> None:
        """Nothing of it stays in memory, also when there is no other sum of the stage."""
        await exchange.gone()
        if self._ending.get(exchange.task.stage) is exchange:
            del self._ending[exchange.task.stage]

    def noted(self, stage: int, attempt: Attempt, of: Peer) -> Noted | None:
        """What a peer gave to the stage's sum, as of Exchange; None where no note was taken."""
        exchange = self._exchanges.get(stage)
        if exchange is None or (exchange.task.attempt, exchange.task.checked) != (attempt, of):
            return None
        return exchange.noted()

    def ask_for_part(
        self, stage: int, attempt: Attempt, owner: Peer, of: Peer, answered: Callable[[Noted | str], None]
    ) -> None:
        """What one gave to another's piece of the stage's sum, as that one shows it; or why it does not."""
        exchange = self._exchanges.get(stage)
        if exchange is None or exchange.task.attempt != attempt or self._nursery is None:
            answered("there is no such sum here")
            return
        late = f"{owner} shows nothing that {of} gave in time"
        self._nursery.start_soon(self._fetch, partial(exchange.ask_for_part, owner, of), answered, late)

    def add_up_again(
        self, stage: int, attempt: Attempt, owner: Peer, key: int, holders: Sequence[Peer],
        answered: Callable[[Noted | str], None], seconds: float = 0.0,
    ) -> None:  # fmt: skip
        """What one gave to its own piece of the stage's sum, as of Exchange, sketched by `key`; or why nobody shows all
        that the others gave to it, which is empty where nobody keeps it. `seconds`: they are asked again for so long,
        should a line be broken."""
        exchange = self._exchanges.get(stage)
        if exchange is None or not exchange.may_add_up(owner, attempt) or self._nursery is None:
            answered("")
            return
        late = "what was given to it did not come in time"
        asked = partial(exchange.add_up_again, owner, key, holders, seconds > 0)
        self._nursery.start_soon(self._fetch, asked, answered, late, seconds)

    async def _fetch(
        self, asked: Callable[[], Awaitable[Noted]], answered: Callable[[Noted | str], None], late: str,
        seconds: float = 0.0,
    ) -> None:  # fmt: skip
        found: Noted | str = late
        with trio.move_on_after(seconds or self._patience):
            try:
                found = await asked()
            except TurnedAway as refusal:
                found = str(refusal)
        answered(found)

    def replace(self, stage: int) -> None:
        """The stage is reduced alone now."""
        if stage in self._exchanges and not self._exchanges[stage].complete:
            self.give_up(stage)

    def discard(self, keep: Attempt | None) -> None:
        """What is not complete, of every attempt before `keep` (None: of all)."""
        for stage, exchange in list(self._exchanges.items()):
            if keep is None or exchange.task.attempt < keep:
                self.replace(stage)

    def lost(self) -> None:
        """Compute is gone, and with it every gradient that is not complete; and what it staged."""
        for stage in list(self._exchanges):
            self.give_up(stage)

    async def _reduce(self, exchange: Exchange, answered: Answered) -> None:
        task = exchange.task
        with trio.move_on_after(self._patience) as patience, exchange.visit(self._me):
            await exchange.alone()
            if exchange.over:
                return
            try:
                answer = await self._work(exchange)
            except ComputeError as error:
                if not exchange.over:
                    answered(error)
                return
            if not exchange.over:
                exchange.complete = not answer["fault"]
                seen = {"parts": exchange.weighed(), "sums": exchange.sums_seen()}
                answered({**answer, "relayed": dict(exchange.relayed), **seen})
        if patience.cancelled_caught:
            log.warning("stage %d's reduction of step %d is given up", task.stage, task.step)

    async def _watch(self, exchange: Exchange, owed: Owed) -> None:
        told: tuple[tuple[Peer, ...], tuple[Peer, ...]] = (), ()
        while not (exchange.over or exchange.complete):
            now = exchange.owed()
            if now != told:
                owed(*now)
                told = now
            await trio.sleep(WATCH_SECONDS)

    async def _work(self, exchange: Exchange) -> dict[str, Any]:
        """Two commands of compute, and in between what takes time."""
        task = exchange.task
        fields = {"stage": task.stage, "step": task.step, "attempt": list(task.attempt)}
        opened = await self._compute.call("reduce_open", **fields, count=exchange.count)
        if opened["fault"]:
            return {"norm_squared": 0.0, "gradient": "", **opened}
        await exchange.measure()
        exchange.open()
        await exchange.gather()
        if exchange.refused is not None:
            owner, reason = exchange.refused
            return {"norm_squared": 0.0, "gradient": "", "covered": opened["covered"], "fault": reason, "giver": owner}
        return await self._compute.call("reduce_close", **fields)

    # What others ask.

    async def serve(self, peer_id: str, stream: trio.SocketStream) -> None:
        """One stream that a member of a group opened."""
        try:
            with trio.fail_after(REQUEST_SECONDS):
                request = await hear(stream)
            if not isinstance(request, ReduceRequest | PartRequest) or request.stage >= len(self._memory.numbers):
                raise PeerError("a stream that does not begin with a proper request")
            sender = Peer(peer_id, request.nonce)
            try:
                if isinstance(request, PartRequest):
                    await self._whole(sender, request).parts.show(sender, request, stream)
                    return
                exchange = await self._awaited(sender, request)
                await exchange.serve(sender, request, stream)
            except TurnedAway as refusal:
                log.info("stage %d not reduced with %s: %s", request.stage, sender, refusal)
                with trio.fail_after(REQUEST_SECONDS):
                    await say(stream, Refusal(str(refusal), refusal.retry))
        except PeerError as error:
            self._streams.strike(peer_id, str(error))
        except FAULTS as error:
            log.info("a reduction with %s: %s", peer_id, describe(error))

    async def _awaited(self, sender: Peer, request: ReduceRequest) -> Exchange:
        """The reduction that is meant, as soon as our core wants it, too. Raises TurnedAway."""
        if request.run != self._run_id:
            raise TurnedAway("another run", retry=False)
        if (begun := self._begun(sender, request)) is not None:
            return begun
        if not self._allowed(sender.id):
            raise TurnedAway("no member of the run, as far as we know", retry=True)
        place = sender.id, request.stage
        if place in self._early:
            self._early[place].cancel()
        elif len(self._early) >= EARLY_MAX:
            raise TurnedAway("too many wait", retry=True)
        scope = self._early[place] = trio.CancelScope(deadline=trio.current_time() + EARLY_SECONDS)
        try:
            with scope:
                while (begun := self._begun(sender, request)) is None:
                    await self._changed.wait()
                return begun
        finally:
            if self._early.get(place) is scope:
                del self._early[place]
        raise TurnedAway("this reduction has not begun here", retry=True)

    def _whole(self, sender: Peer, request: PartRequest) -> Exchange:
        """The sum that is meant, which is here, at least of our piece. Raises TurnedAway."""
        exchange = self._exchanges.get(request.stage)
        asked = request.view, request.step, request.attempt
        if exchange is None or request.run != self._run_id or exchange.order != asked:
            raise TurnedAway("there is no such sum here", retry=True)
        if not (exchange.complete or exchange.has_made(request.piece)):
            raise TurnedAway("that sum is not whole here", retry=True)
        self._require_group(exchange, sender, request)
        return exchange

    def _begun(self, sender: Peer, request: ReduceRequest) -> Exchange | None:
        """The reduction that is meant; None while our core does not want it. Raises TurnedAway if it wants a later."""
        exchange, asked = self._exchanges.get(request.stage), (request.view, request.step, request.attempt)
        if exchange is None or exchange.order < asked:
            return None
        if exchange.order > asked:
            raise TurnedAway(f"by now a sum of change {exchange.task.view} of who holds what is made", retry=True)
        return self._agreed(exchange, sender, request)

    def _agreed(self, exchange: Exchange, sender: Peer, request: ReduceRequest) -> Exchange:
        """Raises TurnedAway unless both mean the same, in every word."""
        self._require_group(exchange, sender, request)
        if exchange.contributors[request.piece : request.piece + 1] != (self._me,):
            raise TurnedAway(f"piece {request.piece} is not ours", retry=False)
        return exchange

    def _require_group(self, exchange: Exchange, sender: Peer, request: ReduceRequest | PartRequest) -> None:
        """Raises TurnedAway unless the sender is another one of the group that both mean."""
        if sender not in dict(exchange.task.group) or sender == self._me:
            raise TurnedAway("not of the group", retry=False)
        if request.group != exchange.group:
            raise TurnedAway("another group", retry=False)
