"""A member that misbehaves: a node of ours whose core is overruled from a moment on.

    python -m ftnode.lab.hostile.traitor WAY ORDER join MANIFEST ...

Once the file ORDER is there, one of `WAYS` decides what becomes of each event and of the core's effects. Until then,
and in all else, it is the node that everybody runs. No option of `ftnode join` leads here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from ftnode.node.cli.main import main
from ftnode.node.life import node
from ftnode.protocol.participant import Participant
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words import events as ev
from ftnode.protocol.words import messages as ms

Decide = Callable[[ev.Event], list[fx.Effect]]
"""What the honest core wants after an event."""
Way = Callable[[ev.Event, Decide], list[fx.Effect]]

VOTES: Final = (ms.Prepare, ms.Promise, ms.Propose, ms.Accepted, ms.Outbid)


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


WAYS: Final[dict[str, Way]] = {way.__name__: way for way in (idle, deaf, poisoning, unready, abstaining)}

BEFORE: Final[dict[Way, Way]] = {abstaining: reluctant}
"""What some of them do until the order comes; the others are honest."""


def honest(event: ev.Event, decide: Decide) -> list[fx.Effect]:
    return decide(event)


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


def run(arguments: list[str]) -> int:
    """`WAY ORDER` and a command line of ftnode; the exit code."""
    way, order, *command = arguments
    node.Participant = traitor(WAYS[way], Path(order))  # type: ignore[attr-defined]
    return main(command)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
