"""Where may others send us? Rules on one address that somebody else named, as a pure function.

The rules keep a swarm from being turned against machines that have nothing to do with it: no services with well-known
ports, no private networks that we are not in ourselves, nothing on this machine unless the swarm is on this machine.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from ftnode.node.links.hosts import Ip, ip_of
from ftnode.node.links.listening import address_bytes

PRIVILEGED_MAX: Final = 1023
WELL_KNOWN_PORTS: Final = frozenset((
    1080, 1099, 1194, 1433, 1434, 1521, 1701, 1723, 1812, 1813, 1883, 1900, 2049, 2082, 2083, 2181, 2222, 2375,
    2376, 2379, 2380, 3000, 3128, 3260, 3268, 3269, 3306, 3389, 4369, 4443, 4444, 4505, 4506, 4786, 5000, 5060,
    5061, 5222, 5269, 5351, 5353, 5355, 5432, 5555, 5601, 5671, 5672, 5683, 5900, 5901, 5984, 5985, 5986, 6000,
    6379, 6443, 6660, 6661, 6662, 6663, 6664, 6665, 6666, 6667, 6668, 6669, 6697, 7000, 7001, 7077, 7474, 7687,
    8000, 8008, 8009, 8080, 8081, 8086, 8088, 8118, 8123, 8140, 8332, 8333, 8443, 8500, 8545, 8600, 8834, 8888,
    9000, 9042, 9050, 9090, 9092, 9100, 9160, 9200, 9300, 9418, 9999, 10000, 10250, 10255, 11211, 11434, 15672,
    25565, 26379, 27017, 27018, 28015, 30303,
))  # fmt: skip
"""Databases, proxies, remote desktops, chat, printers: what answers there is not ftnode. All are below 32768, where the
ports begin that Linux hands out by itself. Who listens at one of these is dialled by people who name it (--peer)."""
CIRCUIT: Final = "p2p-circuit"
FAMILIES: Final = ("ip4", "ip6")
NAMES: Final = ("dns", "dns4", "dns6", "dnsaddr")
TRANSPORTS: Final = ("tcp", "udp")
NEAR_ONLY: Final = tuple(
    map(
        ipaddress.ip_network,
        ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16", "fc00::/7", "fe80::/10"),
    )
)
"""RFC 1918, carrier-grade NAT, link-local, unique local: in each only somebody who is in it himself."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What a dial reaches first: of a relayed address, the relay. `host`: an IP address, or a name."""

    host: str
    port: int
    base: str
    """The address up to there, like /ip4/192.0.2.7/tcp/31337."""
    relay: str
    """PeerId of the relay; empty for a direct address."""


@lru_cache(maxsize=1024)
def endpoint_of(address: str) -> Endpoint | None:
    """None for an address of another kind, or none at all. The same few are looked at with every look at peers."""
    parts = address.strip("/").split("/")
    try:
        address_bytes(address)
    except ValueError:
        return None
    if len(parts) < 4 or parts[0] not in (*FAMILIES, *NAMES) or parts[2] not in TRANSPORTS:
        return None
    relay = ""
    if "p2p" in parts or CIRCUIT in parts:  # one relay and nothing behind it: each hop would be another dial
        if len(parts) < 7 or parts[-1] != CIRCUIT or parts[-3] != "p2p" or parts.count("p2p") != 1:
            return None
        relay, parts = parts[-2], parts[:-3]
    return Endpoint(parts[1], int(parts[3]), "/" + "/".join(parts), relay)


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """Where we are. `own`: where we listen or what we announce; `given`: of peers that a person named."""

    own: Sequence[str]
    given: Sequence[str]
    source_of: Callable[[str], str]
    """The address of ours from which packets to this IP address leave; empty: there is no way."""

    def objection(self, address: str) -> str:
        """Why this address may not be dialled at somebody else's word; empty when it may."""
        endpoint = endpoint_of(address)
        if endpoint is None:
            return "no address that can be dialled"
        ip = ip_of(endpoint.host)
        if ip is None:
            return "a name instead of an IP address"
        if endpoint.port <= PRIVILEGED_MAX:
            return f"port {endpoint.port} is privileged"
        if endpoint.port in WELL_KNOWN_PORTS:
            return f"port {endpoint.port} is that of another service"
        if ip.is_loopback:
            return "" if self._on_loopback(ip) else "this machine itself"
        near = next((network for network in NEAR_ONLY if ip.version == network.version and ip in network), None)
        if near is not None:
            return "" if self._is_in(near, ip) else f"in {near}, where we are not"
        if ip.is_global and not ip.is_multicast:
            return ""
        return "of no use on the Internet"

    def _on_loopback(self, ip: Ip) -> bool:
        """At the very address where we are, if nobody but this machine reaches us or a person has led us there."""
        own, given = _ips(self.own), _ips(self.given)
        alone = bool(own) and all(one.is_loopback for one in own)
        return ip in given or (ip in own and (alone or any(one.is_loopback for one in given)))

    def _is_in(self, network: ipaddress.IPv4Network | ipaddress.IPv6Network, ip: Ip) -> bool:
        here = [*_ips(self.own), *_ips(self.given), ip_of(self.source_of(str(ip)))]
        return any(one is not None and one.version == network.version and one in network for one in here)


def may_be_told(address: str, given: Sequence[str]) -> bool:
    """For who listens nowhere: whether a peer that was asked at one of `given` may send us to this address. Of a
    relayed one it is the relay that is dialled."""
    return address in given or not Neighbourhood((), given, source_of).objection(address)


def source_of(host: str) -> str:
    """As the kernel routes now; connecting a datagram socket sends nothing."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            name: str = probe.getsockname()[0]
    except OSError:
        return ""
    return name


def has_way(address: str) -> bool:
    """Whether this machine can send anything there now: a host with IPv4 alone has no way to an IPv6 address. True for
    a name."""
    endpoint = endpoint_of(address)
    return endpoint is None or ip_of(endpoint.host) is None or bool(source_of(endpoint.host))


def _ips(addresses: Iterable[str]) -> list[Ip]:
    """Of the direct ones."""
    endpoints = (endpoint_of(address) for address in addresses)
    found = (ip_of(endpoint.host) for endpoint in endpoints if endpoint is not None and not endpoint.relay)
    return [ip for ip in found if ip is not None]
