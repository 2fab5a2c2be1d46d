"""A router that translates addresses, as those of homes and of mobile networks do (RFC 4787, RFC 5382).

What leaves gets the router's address and a port that the router chose; what comes to that port is let in if somebody
inside has sent something there before. Routers differ in two ways. The port may be the same wherever a packet goes, or
another one for each destination. And a packet may be let in from anywhere, from a host that was sent something, or from
the very port that was sent something. All names of kinds of routers are combinations of these.

Ports that the router chooses are never those of the machine behind it, so that nobody gets through by luck.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final

from ftnode.lab.lines.headers import TCP, UDP, Endpoint, Flow, flow_of, rewritten

PORTS: Final = range(20001, 65000)
PORT_STRIDE: Final = 7919
"""A prime: ports that follow each other in time do not in number."""
REMEMBERED_SECONDS: Final = {UDP: 30.0, TCP: 7440.0}
"""After the last packet from inside. Many routers at home forget UDP after 30 s; for TCP RFC 5382 asks for so long."""


@dataclass(frozen=True, slots=True)
class Kind:
    """`port_per`: endpoint or destination (RFC 4787, 4.1). `lets_in`: anybody, hosts or ports that were sent something
    (RFC 4787, 5). `routers`: how many stand in a row. `keeps_open`: how a machine inside can have a port kept open for
    everybody (door.py); empty: not at all."""

    port_per: str
    lets_in: str
    routers: int = 1
    keeps_open: str = ""


KINDS: Final = {
    "none": Kind("endpoint", "anybody", 0),
    "full-cone": Kind("endpoint", "anybody"),
    "address-restricted": Kind("endpoint", "hosts"),
    "port-restricted": Kind("endpoint", "ports"),
    "symmetric": Kind("destination", "ports"),
    "two": Kind("endpoint", "ports", 2),
}
"""What a home may be behind; the names are those of RFC 3489."""

NAT_PMP: Final = "nat-pmp"
UPNP: Final = "upnp"
MAPPINGS: Final = (NAT_PMP, UPNP)
ALL_KINDS: Final = {**KINDS, **{way: Kind("endpoint", "ports", keeps_open=way) for way in MAPPINGS}}
"""With what many routers at home are: port-restricted, until a machine behind them asks for a port."""

Inside = tuple[int, Endpoint, Endpoint | None]
"""(protocol, who is inside, to whom): what one port of the router stands for."""


@dataclass(slots=True)
class _Port:
    inside: Inside
    sent: dict[Endpoint, float]
    """To whom, and when last."""
    open_until: float = -inf
    """For everybody."""


class Router:
    """One of a kind, with this address outside. `now`: seconds of any clock that does not go back."""

    def __init__(self, kind: Kind, host: int) -> None:
        self._kind = kind
        self.host = host
        self._ports: dict[tuple[int, int], _Port] = {}
        """(protocol, port outside) → what it stands for."""
        self._chosen: dict[Inside, int] = {}
        self._came_to: dict[Flow, int] = {}
        """The flow of an answer → the port that was kept open, which what it answers came to."""
        self._next = 0

    def move(self, host: int) -> None:
        """It has another address outside from now on; connections that went by the old one are forgotten."""
        self.host = host
        self._ports.clear()
        self._chosen.clear()

    def outward(self, now: float, packet: bytes) -> bytes | None:
        """A packet from inside as it goes on; None: dropped."""
        flow = flow_of(packet)
        if flow is None:
            return None
        number = self._came_to.get(flow, 0)
        if self._living(now, flow.protocol, number) is None:
            number = self._port_of(now, flow)
        self._ports[flow.protocol, number].sent[flow.target] = now
        return rewritten(packet, flow, source=(self.host, number))

    def inward(self, now: float, packet: bytes) -> bytes | None:
        """A packet from outside as it goes on; None: dropped, without a word, as routers do."""
        flow = flow_of(packet)
        if flow is None or flow.target[0] != self.host:
            return None
        port = self._living(now, flow.protocol, flow.target[1])
        if port is None or not self._lets_in(now, port, flow):
            return None
        if now < port.open_until:
            self._came_to[Flow(flow.protocol, port.inside[1], flow.source)] = flow.target[1]
        return rewritten(packet, flow, target=port.inside[1])

    @property
    def keeps_open(self) -> str:
        """How a machine inside can have a port kept open; empty: not at all."""
        return self._kind.keeps_open

    def is_free(self, now: float, protocol: int, endpoint: Endpoint, wanted: int) -> bool:
        """Whether who is inside may have this port outside: nothing else has it."""
        there = self._living(now, protocol, wanted)
        return there is None or there.inside == (protocol, endpoint, None)

    def keep_open(self, now: float, protocol: int, endpoint: Endpoint, wanted: int, seconds: int) -> int:
        """The port outside that everybody reaches who is inside by, for so long; 0 s end it. It is the one that is
        wanted where that is free; 0: any."""
        inside: Inside = protocol, endpoint, None
        number = wanted
        if wanted and self.is_free(now, protocol, endpoint, wanted):
            self._ports.setdefault((protocol, wanted), _Port(inside, {}))
            self._chosen.setdefault(inside, wanted)
        else:
            number = self._port_of(now, Flow(protocol, endpoint, (0, 0)))
        self._ports[protocol, number].open_until = now + seconds if seconds else -inf
        return number

    def shut(self, now: float, protocol: int, host: int, number: int) -> bool:
        """End what keeps this port open for the host inside; False: nothing does."""
        port = self._living(now, protocol, number)
        if port is None or port.inside[1][0] != host or now >= port.open_until:
            return False
        port.open_until = -inf
        return True

    def _lets_in(self, now: float, port: _Port, flow: Flow) -> bool:
        since = now - REMEMBERED_SECONDS[flow.protocol]
        fresh = [endpoint for endpoint, when in port.sent.items() if when >= since]
        if self._kind.lets_in == "anybody" or now < port.open_until:
            return True
        if self._kind.lets_in == "hosts":
            return any(endpoint[0] == flow.source[0] for endpoint in fresh)
        return flow.source in fresh

    def _port_of(self, now: float, flow: Flow) -> int:
        target = flow.target if self._kind.port_per == "destination" else None
        inside: Inside = flow.protocol, flow.source, target
        number = self._chosen.get(inside, 0)
        if self._living(now, flow.protocol, number) is None:
            number = self._free_port(now, flow.protocol)
            self._chosen[inside] = number
            self._ports[flow.protocol, number] = _Port(inside, {})
        return number

    def _free_port(self, now: float, protocol: int) -> int:
        for _ in PORTS:
            self._next += PORT_STRIDE
            number = PORTS[(self.host + self._next) % len(PORTS)]
            if self._living(now, protocol, number) is None:
                return number
        raise ValueError("the router has no port left")

    def _living(self, now: float, protocol: int, number: int) -> _Port | None:
        port = self._ports.get((protocol, number))
        if port is None or now < port.open_until:
            return port
        if now - max(port.sent.values(), default=now) <= REMEMBERED_SECONDS[protocol]:
            return port
        del self._ports[protocol, number]
        if self._chosen.get(port.inside) == number:
            del self._chosen[port.inside]
        return None
