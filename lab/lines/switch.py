"""Homes on shaped lines: network namespaces that reach each other through this process alone.

Each home has one interface (TUN), whose other end we hold. A packet that a home sends leaves no faster than its line
carries upwards, takes the delay of the way, and enters the other home no faster than that one's line carries downwards.
What a line cannot carry at once waits in its router's queue; what finds that queue full is lost, as packets are, and
TCP sends it again. A home may be behind a router that translates its address (router.py). Several segments may pass as
one packet, as they do between the kernel and a network card.

Namespaces and interfaces belong to processes and descriptors, and nothing has a name outside of them. So they end with
us and with those inside, however we end; `python -m ftnode.lab.lines.switch` takes its `Homes` as JSON and answers on
its standard output with the number of a descriptor for each namespace.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import ipaddress
import itertools
import json
import os
import select
import socket
import struct
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import Final

from ftnode.lab.lines.headers import OFFLOAD_HEADER_BYTES
from ftnode.lab.lines.router import ALL_KINDS, Kind, Router

CLONE_NEWNET: Final = 0x40000000
TUNSETIFF: Final = 0x400454CA
TUNSETOFFLOAD: Final = 0x400454D0
IFF_TUN: Final = 0x0001
IFF_NO_PI: Final = 0x1000
IFF_VNET_HDR: Final = 0x4000
TUN_F_CSUM: Final = 0x01
TUN_F_TSO4: Final = 0x02
"""From linux/sched.h and linux/if_tun.h."""
OFFLOAD_SIZES: Final = struct.Struct("<HH")
"""At its third byte: how long the headers are, and how much of the rest one segment has; 0: it is one."""
DESTINATION: Final = slice(OFFLOAD_HEADER_BYTES + 16, OFFLOAD_HEADER_BYTES + 20)
"""Of an IPv4 header."""
PACKET_BYTES_MAX: Final = OFFLOAD_HEADER_BYTES + (1 << 16)
PACKETS_AT_ONCE: Final = 32
"""Of one home, before the others have their turn."""
NETWORK: Final = "44.77.0."
"""Of the lines. libp2p and our own rules (dial_rules.py) treat addresses of private networks in ways of their own, so
that these are none."""
BEHIND: Final = "192.168.{}.2"
"""Where a home behind a router believes itself to be."""
ROUTER: Final = "192.168.{}.1"
"""Where it sees its router, which answers to nothing but what port_mapping.py has."""
BETWEEN: Final = "100.64.0.{}"
"""The address of a router behind another one (RFC 6598)."""
QUEUE_SECONDS: Final = 0.25
"""What a router at home keeps before it drops: a quarter of a second is much, and usual."""
COUNT_SECONDS: Final = 0.1
TICK_SECONDS: Final = 0.002
"""We look so often, and no oftener: fewer wake-ups for many packets, and no byte less, since lines have queues."""


@dataclass(frozen=True, slots=True)
class Homes:
    """`rates`: bytes a second of each home's line, up and down. `delay_seconds`: one way from any home to another.
    `counts`: the file for bytes carried, one line each COUNT_SECONDS: [monotonic time, [up, down] of each home].
    `routers`: the kind of router that each home is behind (router.py); empty: nobody is behind any."""

    rates: tuple[tuple[float, float], ...]
    delay_seconds: float
    counts: str
    routers: tuple[str, ...] = ()

    def kind(self, home: int) -> Kind:
        return ALL_KINDS[self.routers[home] if self.routers else "none"]

    def inside(self, home: int) -> str:
        """The address of the home's own interface."""
        return BEHIND.format(home + 1) if self.kind(home).routers else address(home)

    def router(self, home: int) -> str:
        """The address where the home sees its router; empty without one."""
        return ROUTER.format(home + 1) if self.kind(home).routers else ""

    def text(self) -> str:
        return json.dumps(asdict(self))


def address(home: int) -> str:
    """Where the home of this number, or its router, is reached by the others."""
    return f"{NETWORK}{home + 1}"


def routers_of(homes: Homes, home: int) -> tuple[Router, ...]:
    """From the inside to the outside."""
    kind = homes.kind(home)
    hosts = [BETWEEN.format(home + 1)] * (kind.routers - 1) + [address(home)] * min(1, kind.routers)
    return tuple(Router(kind, int(ipaddress.IPv4Address(host))) for host in hosts)


class Queue:
    """One direction of a line. `free_at`: when it has sent all that it was given."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self.free_at = 0.0
        self.carried = 0

    def leaves(self, now: float, count: int) -> float | None:
        """When `count` bytes that are offered now are through; None when they are lost."""
        if self.free_at > now + QUEUE_SECONDS:
            return None
        self.free_at = max(self.free_at, now) + count / self._rate
        return self.free_at


class Switch:
    """All homes and what is on its way between them, in the order in which it arrives."""

    def __init__(self, homes: Homes) -> None:
        self._delay = homes.delay_seconds
        self._home_at = {socket.inet_aton(address(home)): home for home in range(len(homes.rates))}
        self._routers = [routers_of(homes, home) for home in range(len(homes.rates))]
        self._up = [Queue(up) for up, _ in homes.rates]
        self._down = [Queue(down) for _, down in homes.rates]
        self._way: list[tuple[float, int, bool, int, int, bytes]] = []
        """(when, serial, is it at its home's door, from, to, packet)"""
        self._serial = itertools.count()
        self._inside = [socket.inet_aton(ROUTER.format(home + 1)) for home in range(len(homes.rates))]
        self._answers: list[tuple[int, bytes]] = []
        """Of routers to those behind them."""

    def offer(self, now: float, source: int, packet: bytes) -> None:
        """A home sends a packet."""
        if self._routers[source] and packet[DESTINATION] == self._inside[source]:
            answer = self._routers[source][0].asked(now, packet, int.from_bytes(self._inside[source], "big"))
            if answer is not None:
                self._answers.append((source, answer))
            return
        target, outside = self._home_at.get(packet[DESTINATION]), packet
        for router in self._routers[source] if target is not None else ():
            translated = router.outward(now, outside)
            if translated is None:
                return
            outside = translated
        if target is None or target == source:
            return
        packet = outside
        through = self._up[source].leaves(now, bytes_on_the_line(packet))
        if through is not None:
            heapq.heappush(self._way, (through + self._delay, next(self._serial), False, source, target, packet))

    def due(self, now: float) -> list[tuple[int, bytes]]:
        """(home, packet) that arrive by now."""
        arrived, self._answers = self._answers, []
        while self._way and self._way[0][0] <= now:
            when, serial, at_door, source, target, packet = heapq.heappop(self._way)
            if at_door:
                self._down[target].carried += bytes_on_the_line(packet)
                let_in = self._let_in(when, target, packet)
                if let_in is not None:
                    arrived.append((target, let_in))
                continue
            size = bytes_on_the_line(packet)
            self._up[source].carried += size
            through = self._down[target].leaves(when, size)
            if through is not None:
                heapq.heappush(self._way, (through, serial, True, source, target, packet))
        return arrived

    def _let_in(self, now: float, home: int, packet: bytes) -> bytes | None:
        """What the home gets of a packet at its door; None: nothing."""
        inside: bytes | None = packet
        for router in reversed(self._routers[home]):
            inside = router.inward(now, inside) if inside is not None else None
        return inside

    def next_seconds(self, now: float) -> float:
        """Until something arrives, COUNT_SECONDS at most."""
        return min(COUNT_SECONDS, max(0.0, self._way[0][0] - now)) if self._way else COUNT_SECONDS

    def carried(self) -> list[tuple[int, int]]:
        return [(up.carried, down.carried) for up, down in zip(self._up, self._down)]


def open_home(inside: str, router: str = "") -> tuple[int, int]:
    """A namespace of its own, which becomes ours, with its interface at the address `inside`: descriptors of both. All
    ways lead over the `router` where there is one. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    tunnel = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tunnel, TUNSETIFF, struct.pack("16sH22x", b"line", IFF_TUN | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(tunnel, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4)
    way = f"route add default{router and f' via {router}'} dev line"
    for words in ("link set lo up", f"address add {inside}/24 dev line", "link set line up", way):
        subprocess.run(("ip", *words.split()), check=True)
    return os.open("/proc/self/ns/net", os.O_RDONLY), tunnel


def carry(homes: Homes, tunnels: list[int]) -> None:
    """Carry packets until we are ended."""
    switch, home_of = Switch(homes), {tunnel: home for home, tunnel in enumerate(tunnels)}
    ready, next_count = select.epoll(), 0.0
    for tunnel in tunnels:
        ready.register(tunnel, select.EPOLLIN)
    with open(homes.counts, "w", buffering=1, encoding="utf-8") as counts:
        while True:
            time.sleep(TICK_SECONDS)
            found = ready.poll(switch.next_seconds(time.monotonic()))
            now = time.monotonic()
            for tunnel, _ in found:
                for packet in waiting(tunnel):
                    switch.offer(now, home_of[tunnel], packet)
            for target, packet in switch.due(now):
                try:
                    os.write(tunnels[target], packet)
                except OSError:  # its queue is full: lost
                    continue
            if now >= next_count:
                next_count = now + COUNT_SECONDS
                print(json.dumps([now, switch.carried()]), file=counts)


def bytes_on_the_line(packet: bytes) -> int:
    """Of a packet that may stand for several segments, each with headers of its own."""
    headers, segment = OFFLOAD_SIZES.unpack_from(packet, 2)
    whole = len(packet) - OFFLOAD_HEADER_BYTES
    return whole + headers * ((whole - headers - 1) // segment) if segment else whole


def waiting(tunnel: int) -> list[bytes]:
    """What a home has sent since we looked."""
    found: list[bytes] = []
    try:
        while len(found) < PACKETS_AT_ONCE:
            found.append(os.read(tunnel, PACKET_BYTES_MAX))
    except BlockingIOError:
        pass
    return found


def main() -> None:
    homes = Homes(**json.loads(sys.argv[1]))
    opened = [open_home(homes.inside(home), homes.router(home)) for home in range(len(homes.rates))]
    with open(int(sys.argv[2]), "w", encoding="utf-8") as answer:
        answer.write(json.dumps([namespace for namespace, _ in opened]) + "\n")
    carry(homes, [tunnel for _, tunnel in opened])


if __name__ == "__main__":
    main()
