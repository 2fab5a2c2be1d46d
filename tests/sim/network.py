"""Links between hosts: directed, FIFO per lane, with delays of their own; what breaks loses what is in flight."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from ftnode.protocol.words.events import LinkDown, LinkUp, Seen
from ftnode.protocol.words.messages import Boundary, Message
from ftnode.protocol.words.types import Peer
from tests.sim.checks import Violation
from tests.sim.compute import Tensor
from tests.sim.lines import Lines

if TYPE_CHECKING:
    from tests.sim.host import Host
    from tests.sim.world import World

DIALING, UP, BROKEN = range(3)
BACKLOG_MAX = 2000
"""I6: what one link may have waiting for its dial."""
DIAL_SECONDS = 2.0
"""How long a dial waits for an address that does not answer."""


class Link:
    """One direction between two hosts. `cut`: nothing of it arrives after this time."""

    __slots__ = ("backlog", "control_clear", "cut", "delay", "source", "state", "target", "tensor_clear")

    def __init__(self, source: Host, target: Host, delay: float) -> None:
        self.source = source
        self.target = target
        self.delay = delay
        self.state = DIALING
        self.cut = inf
        self.control_clear = 0.0
        self.tensor_clear = 0.0
        self.backlog: list[tuple[Message, Tensor | None]] = []

    @property
    def open(self) -> bool:
        """What is sent on it now arrives, as far as its source knows."""
        return self.source.alive and self.state == UP


class Network:
    """Knows who can reach whom."""

    __slots__ = ("blocked", "delays", "duplicates", "lines", "stalls", "tensor_seconds", "world")

    def __init__(self, world: World, duplicates: float, tensor_seconds: float, stalls: float) -> None:
        self.world = world
        self.stalls = stalls
        """Chance that a message stalls for up to a lease, and what follows it on its lane with it."""
        self.duplicates = duplicates
        """Chance that a message arrives a second time, late: the buffer of a connection that was replaced."""
        self.tensor_seconds = tensor_seconds
        self.lines = Lines(world)
        self.blocked: set[tuple[str, str]] = set()
        """(PeerId, PeerId): nothing gets from the first to the second."""
        self.delays: dict[tuple[str, str], float] = {}

    def delay(self, source: Host, target: Host) -> float:
        key = (min(source.peer.id, target.peer.id), max(source.peer.id, target.peer.id))
        if key not in self.delays:
            shaped = self.lines.delay(*key)
            self.delays[key] = self.world.chance.uniform(0.002, self.world.delay_max) if shaped is None else shaped
        return self.delays[key]

    def send(self, source: Host, to: Peer, message: Message, tensor: Tensor | None) -> None:
        link = source.links.get(to) or self.dial(source, to)
        if link is None:
            return
        if link.state == UP:
            self.transmit(link, message, tensor)
        elif link.state == DIALING:
            link.backlog.append((message, tensor))
            if len(link.backlog) > BACKLOG_MAX:
                raise Violation("I6", f"{source.peer} has {BACKLOG_MAX} messages waiting for a dial to {to}")

    def transmit(self, link: Link, message: Message, tensor: Tensor | None) -> None:
        if type(message) is Boundary and self.lines.shape(link):
            self.lines.put(link, message, tensor)
            return
        arrival = self.arrival(link)
        if type(message) is Boundary:
            arrival = link.tensor_clear = max(arrival + self.tensor_seconds, link.tensor_clear)
        else:
            arrival = link.control_clear = max(arrival, link.control_clear)
        self.hand_over(link, message, tensor, arrival)

    def arrival(self, link: Link) -> float:
        """Of what leaves now, when nothing is before it."""
        world = self.world
        arrival = world.now + link.delay * (1 + 0.2 * world.chance.random())
        if self.stalls and world.chance.random() < self.stalls:
            arrival += world.chance.random() * world.settings.lease_seconds
        return arrival

    def hand_over(self, link: Link, message: Message, tensor: Tensor | None, arrival: float) -> None:
        """The receiver has it at `arrival`."""
        world = self.world
        world.at(arrival, world.receive, (link, message, tensor))
        if self.duplicates and world.chance.random() < self.duplicates:
            world.at(arrival + world.chance.expovariate(1.0), world.receive, (link, message, tensor))

    def dial(self, source: Host, to: Peer) -> Link | None:
        """Start a link unless there is one. None when no address is known; then LinkDown is under way."""
        link = source.links.get(to)
        if link is not None:
            if link.state == UP:
                self.world.at(self.world.now, self.world.deliver, (source, LinkUp(to)))
            return link
        target = self.world.by_id.get(to.id)
        if target is None or to.id not in source.known:
            down = LinkDown(to, False, "no address known")
            self.world.at(self.world.now + 0.001, self.world.deliver, (source, down))
            return None
        link = source.links[to] = Link(source, target, self.delay(source, target))
        self.world.at(self.world.now + 2 * link.delay, self.answer, (link, to))
        return link

    def answer(self, link: Link, to: Peer) -> None:
        """The dial of `link` has reached its address, or not."""
        source, target = link.source, link.target
        if not source.alive or source.links.get(to) is not link or link.state != DIALING:
            return
        pair = (source.peer.id, to.id)
        if pair in self.blocked or pair[::-1] in self.blocked or target.paused or target.vanished:
            link.state = BROKEN
            self.world.at(self.world.now + DIAL_SECONDS, self.down, (link, to, False, "the dial timed out"))
            return
        current = self.world.by_id[to.id]
        if not current.alive or current.peer != to:
            reason = "connection refused" if not current.alive else "another life answers"
            self.down(link, to, True, reason)
            return
        link.state = UP
        current.known.add(source.peer.id)
        self.world.deliver(source, LinkUp(to))
        if to.id in self.world.networks and source.alive:
            self.world.deliver(source, Seen(to, self.world.networks[to.id]))
        backlog, link.backlog = link.backlog, []
        for message, tensor in backlog:
            if link.state == UP:
                self.transmit(link, message, tensor)

    def down(self, link: Link, to: Peer, refused: bool, reason: str) -> None:
        if link.source.alive and link.source.links.get(to) is link:
            del link.source.links[to]
            self.world.deliver(link.source, LinkDown(to, refused, reason))

    def break_link(self, link: Link, to: Peer, notice_seconds: float, reason: str) -> None:
        """Messages in flight are lost from some moment on; the sender hears of it later."""
        if link.state == BROKEN:
            return
        link.state = BROKEN
        link.backlog.clear()
        link.cut = self.world.now + self.world.chance.random() * link.delay
        self.world.at(self.world.now + notice_seconds, self.down, (link, to, False, reason))

    def block(self, pairs: set[tuple[str, str]]) -> None:
        """Cut these directions; links that lead across break without a word for a while."""
        self.blocked |= pairs
        chance = self.world.chance
        for host in self.world.hosts:
            for to, link in list(host.links.items()):
                if host.alive and (host.peer.id, to.id) in pairs:
                    self.break_link(
                        link, to, chance.choice([0.05, 0.3, 1.5]) * self.world.settings.lease_seconds, "reset"
                    )

    def heal(self, pairs: set[tuple[str, str]]) -> None:
        self.blocked -= pairs

    def host_ended(self, host: Host, silently: bool, in_flight: bool) -> None:
        """All links of a host that was killed go; `silently`: its machine vanished, so nobody gets a reset."""
        for other in self.world.hosts:
            link = other.links.get(host.peer)
            if other.alive and link is not None:
                notice = self.world.chance.uniform(2, 4) * self.world.settings.lease_seconds if silently else link.delay
                self.break_link(link, host.peer, notice, "reset")
        for link in host.links.values():
            link.cut = (
                min(link.cut, self.world.now + 2 * self.world.delay_max)
                if in_flight
                else self.world.now + self.world.chance.random() * link.delay
            )
        host.links.clear()
