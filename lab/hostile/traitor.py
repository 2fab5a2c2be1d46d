"""A member that misbehaves: a node of ours whose core is overruled from a moment on.

    python -m ftnode.lab.hostile.traitor WAY ORDER join MANIFEST ...

Once the file ORDER is there, one of `WAYS` decides what becomes of each event and of the core's effects. Until then,
and in all else, it is the node that everybody runs. No option of `ftnode join` leads here.
"""

from __future__ import annotations

import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final

import trio

from ftnode.lab.hostile.vocabulary import Vocabulary
from ftnode.node.cli.main import main
from ftnode.node.life import node
from ftnode.node.links.streams import STREAM_ERRORS
from ftnode.node.links.transport import Transport
from ftnode.node.reduction.reductions import Reductions
from ftnode.protocol.manifest.boundary import BoundaryBytes
from ftnode.protocol.participant import Participant
from ftnode.protocol.wire.frames import PREFIX_BYTES, Oversized, encode_frame, read_message
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words import events as ev
from ftnode.protocol.words import messages as ms
from ftnode.protocol.words.errors import PeerError
from ftnode.protocol.words.types import Handle, Peer

Decide = Callable[[ev.Event], list[fx.Effect]]
"""What the honest core wants after an event."""
Way = Callable[[ev.Event, Decide], list[fx.Effect]]

STAGES: Final = 2
"""Block stages of a usual field: what numbers a rambling member says most."""
RAMBLE_SECONDS: Final = 0.05
PEERS_NAMED: Final = 40
RAMBLED: Final = tuple(kind for kind in ms.MESSAGES.values() if kind is not ms.Boundary)
LARGEST: Final = b"\x7f"
"""A number of these bytes alone is finite, and next to the largest one: in float32 3.39e38."""
DEPTH: Final = 1000
AT_ODDS: Final = "what it gave to its sum is 1 of its size away from what its visits give"
VOTES: Final = (ms.Prepare, ms.Promise, ms.Propose, ms.Accepted, ms.Outbid)


def honest(event: ev.Event, decide: Decide) -> list[fx.Effect]:
    return decide(event)


def idle(event: ev.Event, decide: Decide) -> list[fx.Effect]:
    """It acknowledges tensors, computes nothing, and says that it is not busy."""
    return [_unsuspicious(effect) for effect in decide(event) if not isinstance(effect, fx.Compute | fx.RestartCompute)]


def deaf(event: ev.Event, decide: Decide) -> list[fx.Effect]:
    """It acknowledges no tensor, and takes none in."""
    if isinstance(event, ev.Received) and isinstance(event.message, ms.Boundary):
        return [] if event.handle is None else [fx.Release((event.handle,))]
    return [_unsuspicious(effect) for effect in decide(event)]


def poisoning(event: ev.Event, decide: Decide) -> list[fx.Effect]:
    """It names poison in every step that it hears of."""
    effects = decide(event)
    if isinstance(event, ev.Received) and isinstance(event.message, ms.Begin):
        begin = event.message
        poison = ms.Poisoned(begin.lineage, begin.view, begin.step, begin.attempt, 1, 0, "not a finite number")
        effects.append(fx.Send(event.sender, poison, None))
    return effects


def unready(event: ev.Event, decide: Decide) -> list[fx.Effect]:
    """It works, and never says that it is Ready."""
    return [_unsuspicious(effect) for effect in decide(event) if not _says(effect, (ms.Ready,))]


def reluctant(event: ev.Event, decide: Decide) -> list[fx.Effect]:
    """It votes, and stands in no election: so that it does not lead when its time comes."""
    return [effect for effect in decide(event) if not _says(effect, (ms.Prepare,))]


def abstaining(event: ev.Event, decide: Decide) -> list[fx.Effect]:
    """It says nothing in any election."""
    return [effect for effect in decide(event) if not _says(effect, VOTES)]


def other_sum(event: ev.Event, decide: Decide) -> list[fx.Effect]:
    """It says of every sum that it is another one."""
    return [_of_another_sum(effect) for effect in decide(event)]


def hiding(event: ev.Event, decide: Decide) -> list[fx.Effect]:
    """It works, and shows nobody the tensors of its visits."""
    return [] if isinstance(event, ev.Received) and isinstance(event.message, ms.Show) else decide(event)


def _of_another_sum(effect: fx.Effect) -> fx.Effect:
    if not (isinstance(effect, fx.Send) and isinstance(effect.message, ms.Ready)):
        return effect
    results = tuple(replace(result, gradient=result.gradient[::-1]) for result in effect.message.results)
    return replace(effect, message=replace(effect.message, results=results))


class Unworked:
    """It computes nothing, and is Ready with what it said in the last step that it worked in."""

    def __init__(self) -> None:
        self._said: ms.Ready | None = None

    def watch(self, event: ev.Event, decide: Decide) -> list[fx.Effect]:
        """Honest; what it says is remembered."""
        effects = decide(event)
        for effect in effects:
            if isinstance(effect, fx.Send) and isinstance(effect.message, ms.Ready):
                self._said = effect.message
        return effects

    def __call__(self, event: ev.Event, decide: Decide) -> list[fx.Effect]:
        effects = idle(event, decide)
        if isinstance(event, ev.Received) and isinstance(event.message, ms.Begin) and self._said is not None:
            begin = event.message
            ready = replace(self._said, view=begin.view, step=begin.step, attempt=begin.attempt)
            effects.append(fx.Send(event.sender, ready, None))
        return effects


class Accusing:
    """It works, and says once in every step that another one of its group lies: of each in turn."""

    def __init__(self) -> None:
        self._leader: Peer | None = None
        self._accused = 0

    def __call__(self, event: ev.Event, decide: Decide) -> list[fx.Effect]:
        if isinstance(event, ev.Received) and isinstance(event.message, ms.Begin):
            self._leader = event.sender
        effects = decide(event)
        shares = [effect for effect in effects if _says(effect, (ms.Share,))]
        if shares and self._leader is not None:
            self._accused += 1
            sent = shares[self._accused % len(shares)]
            assert isinstance(sent, fx.Send) and isinstance(sent.message, ms.Share)
            share = sent.message
            lie = ms.Poisoned(
                share.lineage, share.view, share.step, share.attempt, share.stage, -1, AT_ODDS, sent.to, 1.0
            )
            effects.append(fx.Send(self._leader, lie, None))
        return effects


class Rambling:
    """It does its work, and says random messages of every kind that the wire admits to whom it says anything."""

    def __init__(self) -> None:
        self._chance = Random(1)
        self._words = Vocabulary(self._chance, STAGES)
        self._said_at = 0.0

    def __call__(self, event: ev.Event, decide: Decide) -> list[fx.Effect]:
        effects, words, now = decide(event), self._words, time.monotonic()
        sent = [effect for effect in effects if isinstance(effect, fx.Send)]
        for each in sent:
            words.hear(each.message)
            words.named = sorted({*words.named, each.to})[-PEERS_NAMED:]
        if sent and now - self._said_at >= RAMBLE_SECONDS:
            self._said_at = now
            message = words.message(self._chance.choice(RAMBLED))
            if _travels(message):
                effects.append(fx.Send(self._chance.choice(sent).to, message, None))
        return effects


def _travels(message: ms.Message) -> bool:
    """The wire admits it."""
    try:
        read_message(encode_frame(message, 0)[PREFIX_BYTES:], 0, BoundaryBytes(0, 0))
    except (PeerError, Oversized, OverflowError):
        return False
    return True


UNWORKED: Final = Unworked()
WAYS: Final[dict[str, Way]] = {
    "idle": idle, "deaf": deaf, "poisoning": poisoning, "unready": unready, "abstaining": abstaining,
    "other_sum": other_sum, "hiding": hiding, "rambling": Rambling(), "unworked": UNWORKED,
    "accusing": Accusing(), "huge": honest, "nesting": honest,
}  # fmt: skip
"""The last two have an honest core: see `huge` and `nesting`."""

BEFORE: Final[dict[Way, Way]] = {abstaining: reluctant, UNWORKED: UNWORKED.watch}
"""What some of them do until the order comes; the others are honest."""


def _says(effect: fx.Effect, kinds: tuple[type, ...]) -> bool:
    return isinstance(effect, fx.Send) and isinstance(effect.message, kinds)


def _unsuspicious(effect: fx.Effect) -> fx.Effect:
    """Nothing is said of a task that hangs, or of a Ready that is kept back."""
    if isinstance(effect, fx.Send) and isinstance(effect.message, ms.Heartbeat):
        return replace(effect, message=replace(effect.message, busy_seconds=0.0))
    if isinstance(effect, fx.Send) and isinstance(effect.message, ms.Status):
        return replace(effect, message=replace(effect.message, ready=None))
    return effect


def traitor(way: Way, order: Path) -> type[Participant]:
    """A core that goes `way` as soon as there is a file `order`."""

    class Traitor(Participant):
        betrays = False

        def handle(self, event: ev.Event, now: float) -> list[fx.Effect]:
            self.betrays = self.betrays or order.exists()
            decide = super().handle
            goes = way if self.betrays else BEFORE.get(way, honest)
            return goes(event, lambda seen: decide(seen, now))

    return Traitor


def huge(order: Path) -> type[Transport]:
    """Links that send tensors of numbers next to the largest one, in any encoding of two or four bytes a number."""

    class Huge(Transport):
        def send(self, peer: Peer, message: ms.Message, handle: Handle | None) -> None:
            if handle is not None and order.exists():
                content = self._arena.view(handle)
                content[:] = LARGEST * len(content)
            super().send(peer, message, handle)

    return Huge


def nesting(order: Path) -> type[Reductions]:
    """Sums whose members are answered with a list in a list, a thousand deep."""

    class Nesting(Reductions):
        async def serve(self, peer_id: str, stream: trio.SocketStream) -> None:
            if not order.exists():
                await super().serve(peer_id, stream)
                return
            nested = b"\x91" * DEPTH + b"\xc0"
            with suppress(*STREAM_ERRORS):
                await stream.send_all(struct.pack(">II", len(nested), 0) + nested)

    return Nesting


def run(arguments: list[str]) -> int:
    """`WAY ORDER` and a command line of ftnode; the exit code."""
    way, order, *command = arguments
    overruled: Any = node
    overruled.Participant = traitor(WAYS[way], Path(order))
    if way == "huge":
        overruled.Transport = huge(Path(order))
    if way == "nesting":
        overruled.Reductions = nesting(Path(order))
    return main(command)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
