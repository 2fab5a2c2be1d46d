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
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Final, TextIO

from ftnode.lab.lines.door import Door
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
SOURCE: Final = {4: slice(12, 16), 6: slice(8, 24)}
DESTINATION: Final = {4: slice(16, 20), 6: slice(24, 40)}
"""In the header of a packet, by the version of IP."""
PACKET_BYTES_MAX: Final = OFFLOAD_HEADER_BYTES + (1 << 16)
PACKETS_AT_ONCE: Final = 32
"""Of one home, before the others have their turn."""
NETWORK: Final = "44.77.0."
"""Of the lines. libp2p and our own rules (dial_rules.py) treat addresses of private networks in ways of their own, so
that these are none."""
NETWORK_6: Final = "2a44:77::"
BEHIND: Final = "192.168.{}.2"
"""Where a home behind a router believes itself to be."""
ROUTER: Final = "192.168.{}.1"
"""Where it sees its router, which answers to nothing but what door.py has."""
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
    `routers`: the kind of router that each home is behind (router.py); empty: nobody is behind any. `families`: the
    versions of IP that each home speaks, "4", "6" or "46"; empty: all 4. Routers translate IPv4 alone."""

    rates: tuple[tuple[float, float], ...]
    delay_seconds: float
    counts: str
    routers: tuple[str, ...] = ()
    families: tuple[str, ...] = ()

    def kind(self, home: int) -> Kind:
        return ALL_KINDS[self.routers[home] if self.routers else "none"]

    def inside(self, home: int) -> str:
        """The IPv4 address of the home's own interface, if it has one."""
        return BEHIND.format(home + 1) if self.kind(home).routers else address(home)

    def router(self, home: int) -> str:
        """The address where the home sees its router; empty without one."""
        return ROUTER.format(home + 1) if self.kind(home).routers else ""

    def addresses(self, home: int) -> tuple[str, ...]:
        """All of its own interface."""
        every = {"4": self.inside(home), "6": address_6(home)}
        return tuple(every[family] for family in (self.families[home] if self.families else "4"))

    def text(self) -> str:
        return json.dumps(asdict(self))


def packed(host: str) -> bytes:
    return ipaddress.ip_address(host).packed


def part(packet: bytes, places: Mapping[int, slice]) -> bytes:
    """Of the header behind the offload header; nothing when it is no packet."""
    header = packet[OFFLOAD_HEADER_BYTES:]
    place = places.get(header[0] >> 4) if header else None
    return header[place] if place is not None else b""


def address(home: int) -> str:
    """Where the home of this number, or its router, is reached by the others."""
    return f"{NETWORK}{home + 1}"


def address_6(home: int) -> str:
    """The same in IPv6."""
    return f"{NETWORK_6}{home + 1:x}"


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
        self._home_at = {
            packed(one): home for home in range(len(homes.rates)) for one in (address(home), *homes.addresses(home))
        }
        self._routers = [routers_of(homes, home) for home in range(len(homes.rates))]
        self._up = [Queue(up) for up, _ in homes.rates]
        self._down = [Queue(down) for _, down in homes.rates]
        self._way: list[tuple[float, int, bool, int, int, bytes]] = []
        """(when, serial, is it at its home's door, from, to, packet)"""
        self._serial = itertools.count()

    def router(self, home: int) -> Router:
        """The innermost one of a home that is behind any."""
        return self._routers[home][0]

    def move(self, home: int, outside: str) -> None:
        """The home's outermost router has another address from now on, and has forgotten all connections."""
        self._routers[home][-1].move(int(ipaddress.IPv4Address(outside)))
        self._home_at = {host: one for host, one in self._home_at.items() if one != home}
        self._home_at[packed(outside)] = home

    def offer(self, now: float, source: int, packet: bytes) -> None:
        """A home sends a packet. Without a router it is reached from now on wherever its packets come from."""
        if not self._routers[source]:
            self._home_at[part(packet, SOURCE)] = source
        target, outside = self._home_at.get(part(packet, DESTINATION)), packet
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
        arrived = []
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


def open_home(hosts: Sequence[str], router: str = "") -> tuple[int, int]:
    """A namespace of its own, which becomes ours, with its interface at the addresses `hosts`: descriptors of both. All
    ways of IPv4 lead over the `router` where there is one. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    tunnel = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tunnel, TUNSETIFF, struct.pack("16sH22x", b"line", IFF_TUN | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(tunnel, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4)
    at = [f"address add {one}/64 dev line nodad" if ":" in one else f"address add {one}/24 dev line" for one in hosts]
    over = {"-4": router and f" via {router}", "-6": ""}
    kinds = ["-6" if ":" in one else "-4" for one in hosts]
    ways = [f"{kind} route add default{over[kind]} dev line" for kind in kinds]
    for words in ("link set lo up", *at, "link set line up", *ways):
        subprocess.run(("ip", *words.split()), check=True)
    return os.open("/proc/self/ns/net", os.O_RDONLY), tunnel


class Carrier:
    """Carries packets between the homes whose interfaces end in `tunnels`. `doors`: by home, of those whose router has
    one; `orders`: a descriptor, from which orders come as `Switch.move` takes them, one a line."""

    def __init__(
        self, switch: Switch, tunnels: Sequence[int], doors: Mapping[int, Door], ready: select.epoll, orders: int
    ) -> None:
        self._switch, self._tunnels, self._doors, self._ready, self._orders = switch, tunnels, doors, ready, orders
        self._home_of = {tunnel: home for home, tunnel in enumerate(tunnels)}
        self._behind = {door.tunnel: home for home, door in doors.items()}
        for descriptor in (*tunnels, *self._behind, orders):
            ready.register(descriptor, select.EPOLLIN)

    def run(self, counts: TextIO) -> None:
        """Until we are ended."""
        next_count = 0.0
        while True:
            time.sleep(TICK_SECONDS)
            found = self._ready.poll(self._switch.next_seconds(time.monotonic()))
            now = time.monotonic()
            for descriptor, _ in found:
                self._serve(descriptor, now)
            for target, packet in self._switch.due(now):
                give(self._tunnels[target], packet)
            if now >= next_count:
                next_count = now + COUNT_SECONDS
                print(json.dumps([now, self._switch.carried()]), file=counts)

    def _serve(self, descriptor: int, now: float) -> None:
        if descriptor == self._orders:
            self._obey()
        elif descriptor in self._home_of:
            home = self._home_of[descriptor]
            door = self._doors.get(home)
            for packet in waiting(descriptor):
                if door is not None and part(packet, DESTINATION) in door.hosts:
                    give(door.tunnel, packet)
                else:
                    self._switch.offer(now, home, packet)
        elif descriptor in self._behind:
            for packet in waiting(descriptor):
                give(self._tunnels[self._behind[descriptor]], packet)
        else:
            any(door.serve(descriptor, now) for door in self._doors.values())

    def _obey(self) -> None:
        lines = os.read(self._orders, select.PIPE_BUF)
        for line in lines.splitlines():
            self._switch.move(*json.loads(line))
        if not lines:  # who gave orders has gone
            self._ready.unregister(self._orders)


def give(tunnel: int, packet: bytes) -> None:
    with suppress(OSError):  # its queue is full: lost
        os.write(tunnel, packet)


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
    switch, ready, count = Switch(homes), select.epoll(), len(homes.rates)
    opened = [open_home(homes.addresses(home), homes.router(home)) for home in range(count)]
    doors: dict[int, Door] = {}
    for home in range(count):
        if homes.kind(home).keeps_open:
            _, tunnel = open_home([homes.router(home)])
            doors[home] = Door(switch.router(home), homes.router(home), tunnel, ready)
    with open(int(sys.argv[2]), "w", encoding="utf-8") as answer:
        answer.write(json.dumps([namespace for namespace, _ in opened]) + "\n")
    carrier = Carrier(switch, [tunnel for _, tunnel in opened], doors, ready, int(sys.argv[3]))
    with open(homes.counts, "w", buffering=1, encoding="utf-8") as counts:
        carrier.run(counts)


if __name__ == "__main__":
    main()
