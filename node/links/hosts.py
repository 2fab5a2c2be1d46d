"""IP addresses as text: which two are one and the same, and which belong to one household.

One host has many spellings, and an IPv6 address may stand for an IPv4 one. A household has one IPv4 address and an IPv6
network of 2^64 or more (RFC 6177). Whatever is counted or forbidden by address goes by these functions, so that nobody
gets around it by another spelling or another address of the same household.
"""

from __future__ import annotations

import ipaddress
from typing import Final

NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
HOUSEHOLD_BITS: Final = 64

Ip = ipaddress.IPv4Address | ipaddress.IPv6Address


def ip_of(host: str) -> Ip | None:
    """What the host is reached at; None when it is a name. An interface's name behind % does not count."""
    try:
        return plain(ipaddress.ip_address(host.partition("%")[0]))
    except ValueError:
        return None


def plain(ip: Ip) -> Ip:
    """The IPv4 address that an IPv6 one leads to, if it does (RFC 4291, 2.5.5.2; RFC 6052; RFC 3056)."""
    if isinstance(ip, ipaddress.IPv6Address):
        if ip in NAT64:
            return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        return ip.ipv4_mapped or ip.sixtofour or ip
    return ip


def household(host: str) -> str:
    """What limits count as one: an IPv4 address, or the first 64 bits of an IPv6 one. A name stands for itself."""
    ip = ip_of(host)
    if isinstance(ip, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((ip, HOUSEHOLD_BITS), strict=False))
    return host if ip is None else str(ip)


def family_of(host: str) -> str:
    """ip4 or ip6, as in a multiaddr; empty for a name."""
    ip = ip_of(host)
    return "" if ip is None else f"ip{ip.version}"


def is_loopback(host: str) -> bool:
    ip = ip_of(host)
    return ip is not None and ip.is_loopback
