"""Boundary tensors that a peer made in one attempt: kept until it ends, sent again until they are acknowledged.

A neighbour that dies takes along what it was given; whoever takes its place on a path is sent the same again (rule 22).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ftnode.protocol.liveness.deadlines import Deadlines
from ftnode.protocol.step.routes import last_visit, maker_of, route_of
from ftnode.protocol.step.tensor_holds import RESEND, Holds, TensorKey
from ftnode.protocol.words.effects import Effect, Send
from ftnode.protocol.words.messages import Begin, Boundary, Stored
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Handle, Peer
from ftnode.protocol.words.view import View

USUAL_TIMES = 8
"""A receiver that is this many times as late as it ever is has stalled."""
STALLS_MAX = 10
"""A tensor that is owed for so many stalls is stuck, although its receiver acknowledges others."""


def fits(me: Peer, sender: Peer, boundary: Boundary, view: View, begin: Begin, settings: Settings) -> bool:
    """Rule 21: a tensor of this attempt in this view, for me, from its neighbour on its path."""
    path, visit, last = boundary.path, boundary.visit, last_visit(settings.stages, view)
    mine = boundary.view == view.number and boundary.attempt == begin.attempt and boundary.step == begin.step
    if not mine or len(path) != last + 1 or not 0 <= visit <= last or path[visit] != me:
        return False
    first = 0 if begin.training and not begin.skip else settings.microbatches
    evaluation = settings.evaluation_microbatches if begin.evaluate else 0
    if not first <= boundary.microbatch < settings.microbatches + evaluation:
        return False
    visited = route_of(settings, boundary.microbatch, view)
    if any(peer not in view.holders[stage] for peer, stage in zip(path, visited)):
        return False
    before = maker_of(visit, boundary.direction)
    return 0 <= before <= last and path[before] == sender


def key_of(boundary: Boundary) -> TensorKey:
    return boundary.microbatch, boundary.visit, boundary.direction


@dataclass(slots=True)
class OwedTensor:
    """A boundary tensor that we made. `made`: when it was first owed to `to`; `sent`: when it was last sent."""

    boundary: Boundary
    to: Peer
    sent: float
    made: float
    stored: bool = False

    @property
    def key(self) -> TensorKey:
        return key_of(self.boundary)


class Outbox:
    """What one peer keeps for one attempt. `me` is never sent anything. `deadlines`: how long each receiver takes to
    acknowledge; they outlive the attempt. `holds`: of the attempt."""

    def __init__(self, me: Peer, deadlines: Deadlines, holds: Holds) -> None:
        self.me = me
        self._deadlines, self._holds = deadlines, holds
        self._kept: dict[TensorKey, OwedTensor] = {}
        self._heard: dict[Peer, float] = {}
        """When a receiver last acknowledged something."""

    def put(self, boundary: Boundary, handle: Handle, now: float) -> OwedTensor:
        """Keep a tensor for the peer of its visit."""
        kept = OwedTensor(boundary, boundary.path[boundary.visit], now, now)
        kept.stored = kept.to == self.me
        key = kept.key
        self._kept[key] = kept
        self._holds.hold(RESEND, key, handle)
        return kept

    def stored(self, sender: Peer, stored: Stored, now: float) -> OwedTensor | None:
        """An acknowledgement, the first one: of this tensor."""
        kept = self._kept.get((stored.microbatch, stored.visit, stored.direction))
        if kept is None or kept.to != sender or kept.stored:
            return None
        kept.stored = True
        self._heard[sender] = now
        self._deadlines.of(sender).observe(now - kept.made)
        return kept

    def drop(self, unwanted: Callable[[OwedTensor], bool]) -> tuple[Handle, ...]:
        """Forget some; the handles to release."""
        gone = [key for key, kept in self._kept.items() if unwanted(kept)]
        for key in gone:
            del self._kept[key]
        return self._holds.let_go(RESEND, gone)

    def resend(self, now: float, due: Callable[[OwedTensor], bool]) -> list[Effect]:
        """Send the unacknowledged tensors that `due` picks again."""
        effects: list[Effect] = []
        for key, kept in self._kept.items():
            if not kept.stored and due(kept):
                kept.sent = now
                effects.append(Send(kept.to, kept.boundary, self._holds.handle(RESEND, key)))
        return effects

    def resend_late(self, now: float) -> list[Effect]:
        """Send again what its receiver has had the time to acknowledge. That time doubles with each try in vain, so
        that a line that is full is not filled with copies."""
        patience = {kept.to: self._deadlines.of(kept.to).seconds for kept in self._kept.values() if not kept.stored}
        effects = self.resend(now, lambda kept: now - kept.sent >= patience[kept.to])
        for peer in {effect.to for effect in effects if isinstance(effect, Send)}:
            self._deadlines.of(peer).passed()
        return effects

    def stalled(self, now: float, seconds: float, least: float) -> list[OwedTensor]:
        """Tensors owed for so long, one per receiver that has acknowledged nothing since: a full line is slow, and
        still brings one after the other. Of a receiver that is usually faster less is enough, but not less than
        `least`."""
        late = {}
        for kept in self._kept.values():
            if kept.stored:
                continue
            since = max(kept.made, self._heard.get(kept.to, kept.made))
            usual = self._deadlines.of(kept.to).usual
            patience = seconds if usual is None else min(seconds, max(least, USUAL_TIMES * usual))
            if now - since > patience or now - kept.made > STALLS_MAX * seconds:
                late[kept.to] = kept
        return [late[peer] for peer in sorted(late)]

    def given(self, before: float) -> Iterator[OwedTensor]:
        """Tensors that were first owed to others before then."""
        return (kept for kept in self._kept.values() if kept.made < before and kept.to != self.me)

    def kept(self, key: TensorKey) -> OwedTensor | None:
        return self._kept.get(key)

    def owes(self, key: TensorKey) -> bool:
        """It is kept and not acknowledged."""
        return key in self._kept and not self._kept[key].stored

    def reroute(self, view: int, paths: dict[int, tuple[Peer, ...]], now: float) -> list[OwedTensor]:
        """The attempt goes on in another view, on these paths: whoever is new to a tensor is owed it. Answers those
        that are now owed to ourselves."""
        ours = []
        for kept in self._kept.values():
            path = paths.get(kept.boundary.microbatch, kept.boundary.path)
            kept.boundary = replace(kept.boundary, view=view, path=path)
            to = path[kept.boundary.visit]
            if to != kept.to:
                kept.to, kept.made, kept.stored = to, now, to == self.me
                if kept.stored:
                    ours.append(kept)
        return ours
