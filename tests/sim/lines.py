"""Lines of hosts: boundary tensors wait for the sender's line up, and for the receiver's line down.

All links of a host share its lines. Those that have a tensor to send share the line up evenly. Each takes one tensor
after the other, backward before forward and early microbatches before late ones, as a node orders them. While a tensor
is still being sent, its first bytes come out at the other end, so that it has passed both lines when it has passed the
thinner one. A tensor that is there is not sent again before it has come, as in a node.

Control messages take the delay only. Sums, copies and weights take the times that the world gives them.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Final

from ftnode.node.links.tensor_lane import Urgency, urgency_of
from ftnode.protocol.lines.step_estimate import Line
from ftnode.protocol.manifest.boundary import BoundaryBytes
from ftnode.protocol.step.outbox import key_of
from ftnode.protocol.step.tensor_holds import TensorKey
from ftnode.protocol.words.messages import Boundary
from ftnode.protocol.words.types import Attempt, Direction, Peer
from tests.sim.compute import Tensor

if TYPE_CHECKING:
    from tests.sim.network import Link
    from tests.sim.world import World

UNLIMITED: Final = Line(inf, inf, 0.0)
Name = tuple[int, Attempt, TensorKey]
"""A tensor on one link."""


@dataclass(slots=True)
class Outgoing:
    link: Link
    message: Boundary
    tensor: Tensor | None
    on_line: bool = False
    left: float = 0.0
    """Bytes that have not left yet, when the line was last looked at."""
    began: float = 0.0
    on_line_seconds: float = 0.0

    @property
    def name(self) -> Name:
        return id(self.link), self.message.attempt, key_of(self.message)


@dataclass(slots=True)
class LineUp:
    """Of one host. `queues`: what waits, by link; `sending`: what is on the line, by link, as it was at `looked_at`;
    `here`: what waits, is on the line or on its way. `turn`: a number of the last change to what is on the line."""

    host: str
    queues: dict[int, list[tuple[Urgency, int, Outgoing]]] = field(default_factory=dict)
    sending: dict[int, Outgoing] = field(default_factory=dict)
    here: dict[Name, Outgoing] = field(default_factory=dict)
    looked_at: float = 0.0
    turn: int = 0


class Lines:
    """Of hosts by PeerId; whoever is not named has lines without a limit. Between two hosts lies half of the delay of
    each. `tensors`: bytes of one."""

    __slots__ = ("_downs", "_serial", "_ups", "of", "tensors", "world")

    def __init__(self, world: World) -> None:
        self.world = world
        self.of: dict[str, Line] = {}
        self.tensors = BoundaryBytes(0, 0)
        self._ups: dict[Peer, LineUp] = {}
        self._downs: dict[Peer, float] = {}
        """When the line down has passed all that has come to it."""
        self._serial = 0

    def of_host(self, peer_id: str) -> Line:
        return self.of.get(peer_id, UNLIMITED)

    def delay(self, source: str, target: str) -> float | None:
        """Seconds from one to the other; None where neither has a line."""
        if source not in self.of and target not in self.of:
            return None
        return (self.of_host(source).delay_seconds + self.of_host(target).delay_seconds) / 2

    def shape(self, link: Link) -> bool:
        """Whether tensors on this link wait for a line."""
        return bool(self.of) and (link.source.peer.id in self.of or link.target.peer.id in self.of)

    def put(self, link: Link, message: Boundary, tensor: Tensor | None) -> None:
        """The tensor waits for the line up, unless it is there. The newest header of one that waits is sent."""
        up = self._ups.setdefault(link.source.peer, LineUp(link.source.peer.id))
        outgoing = Outgoing(link, message, tensor)
        known = up.here.get(outgoing.name)
        if known is not None and not known.on_line:
            known.message = message
        if known is not None and known.message == message:
            return
        up.here[outgoing.name] = outgoing
        self._serial += 1
        heapq.heappush(up.queues.setdefault(id(link), []), (urgency_of(message), self._serial, outgoing))
        if id(link) not in up.sending:
            self._look(up)
            self._next(up, id(link))
            self._watch(up)

    def _look(self, up: LineUp) -> None:
        """What has left since the last time, the same of all links."""
        seconds, rate = self.world.now - up.looked_at, self.of_host(up.host).up
        for outgoing in up.sending.values():
            outgoing.left -= seconds * rate / len(up.sending) if rate < inf else outgoing.left
        up.looked_at = self.world.now

    def _next(self, up: LineUp, link: int) -> None:
        up.sending.pop(link, None)
        queue = up.queues[link]
        while queue and link not in up.sending:
            outgoing = heapq.heappop(queue)[2]
            if outgoing.link.open:
                outgoing.on_line, outgoing.left, outgoing.began = True, self._size(outgoing.message), self.world.now
                up.sending[link] = outgoing
            else:
                self._forget(up, outgoing)

    def _watch(self, up: LineUp) -> None:
        """Until the next tensor has left; what was expected before does not count any more."""
        up.turn += 1
        if up.sending:
            first = min(up.sending.values(), key=lambda outgoing: outgoing.left)
            seconds = max(0.0, first.left) * len(up.sending) / self.of_host(up.host).up
            self.world.at(self.world.now + seconds, self._sent, (up, first, up.turn))

    def _sent(self, up: LineUp, outgoing: Outgoing, turn: int) -> None:
        """Its last byte has left."""
        if turn != up.turn:
            return
        link, outgoing.on_line_seconds = outgoing.link, self.world.now - outgoing.began
        self._look(up)
        link.tensor_clear = max(self.world.network.arrival(link), link.tensor_clear)
        self.world.at(link.tensor_clear, self._come, (up, outgoing))
        self._next(up, id(link))
        self._watch(up)

    def _come(self, up: LineUp, outgoing: Outgoing) -> None:
        """Its last byte has come to the line down, which has passed what came to it before."""
        link, size = outgoing.link, self._size(outgoing.message)
        first = self.world.now - outgoing.on_line_seconds
        work = size / self.of_host(link.target.peer.id).down
        clear = self._downs[link.target.peer] = max(self._downs.get(link.target.peer, 0.0), first) + work
        there = max(self.world.now, clear)
        self.world.network.hand_over(link, outgoing.message, outgoing.tensor, there)
        self.world.at(there, self._forget, (up, outgoing))

    def _forget(self, up: LineUp, outgoing: Outgoing) -> None:
        if up.here.get(outgoing.name) is outgoing:
            del up.here[outgoing.name]

    def _size(self, message: Boundary) -> int:
        return self.tensors.forward if message.direction is Direction.FORWARD else self.tensors.backward
