"""Who gives one microbatch to two holders of a stage, each on a path of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ftnode.lab.hostile import traitor
from ftnode.protocol.step.routes import route_of
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words import events as ev
from ftnode.protocol.words.messages import Boundary, Seal, SealedTensor, Stored, path_digest
from ftnode.protocol.words.types import Direction, Peer
from ftnode.protocol.words.view import View
from tests.sim.host import Host
from tests.sim.seals import signature_of
from tests.sim.world import World

Path = tuple[Peer, ...]


class Forking:
    """Overrules the core of a host: what it gives to one holder of the next stage it gives to another one as well, on a
    path that meets the true one nowhere behind it, but at the head. It keeps up the appearance that this path is used.

    `whole`: whoever holds the head gives both their gradients; else the second path ends there. `signs`: it signs the
    second path, if it admits the microbatch; else it passes the word for the first one on."""

    def __init__(self, world: World, host: Host, whole: bool = True, signs: bool = True, meets: bool = False) -> None:
        self.world, self.host, self.whole, self.signs, self.meets = world, host, whole, signs, meets
        self.forked = 0
        self._others: dict[tuple[Any, int], Path] = {}

    def __call__(self, event: ev.Event, decide: traitor.Decide) -> list[fx.Effect]:
        message = event.message if isinstance(event, ev.Received) else None
        if isinstance(event, ev.Received) and isinstance(message, Boundary) and self._is_other(message):
            key = message.microbatch, message.visit, message.direction
            taken = Stored(message.lineage, message.step, message.attempt, *key)
            assert event.handle is not None
            return [fx.Release((event.handle,)), fx.Send(event.sender, taken, None)]
        return [each for effect in decide(event) for each in (effect, *self._once_more(effect))]

    def _is_other(self, message: Boundary) -> bool:
        return self._others.get((message.attempt, message.microbatch)) == message.path

    def _once_more(self, effect: fx.Effect) -> list[fx.Effect]:
        message = effect.message if isinstance(effect, fx.Send) else None
        if not isinstance(effect, fx.Send) or not isinstance(message, Boundary) or effect.to == self.host.peer:
            return []
        if message.microbatch >= self.world.settings.microbatches or message.path[message.visit] != effect.to:
            return []
        key, view = (message.attempt, message.microbatch), self.host.view
        if view is None:
            return []
        forward = message.direction is Direction.FORWARD
        if forward and key not in self._others:
            self._others[key] = self._other_path(message, view)
        other = self._others.get(key, message.path)
        back = self.whole and message.path[0] == self.host.peer
        if other[message.visit] == message.path[message.visit] or not (forward or back):
            return []
        self.forked += 1
        sent = replace(message, path=other)
        if self.signs and other[0] == self.host.peer:
            word = SealedTensor(message.microbatch, 0, Direction.FORWARD, other[0], Seal(path_digest(other), ""))
            sent = replace(sent, admitted=Seal(path_digest(other), signature_of(word, message)))
        return [fx.Send(other[message.visit], sent, effect.handle)]

    def _other_path(self, message: Boundary, view: View) -> Path:
        path, visited = list(message.path), route_of(self.world.settings, message.microbatch, view)
        upto = message.visit + 1 if self.meets else len(path) - (path[0] == self.host.peer)
        for visit in range(message.visit, upto):
            group = [peer for peer in view.holders[visited[visit]] if peer not in (path[visit], self.host.peer)]
            path[visit] = group[message.microbatch % len(group)] if group else path[visit]
        return tuple(path)
