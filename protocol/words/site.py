"""Where a peer is: what fails together with it. Its owner says so, or the prefix of its public addresses implies it."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import View

SITE_MAX: Final = 64
"""Characters of a name."""
PREFIXES: Final = {4: 16, 6: 40}
"""IP version → bits of the network that counts as one site: what a provider gives to a region, about."""


def implied_site(addresses: Sequence[str]) -> str:
    """`203.0.0.0/16` of the first public address, IPv4 where there is one; empty where all are private, relayed or
    names. `addresses`: multiaddrs."""
    found = [network for address in addresses if (network := _network(address)) is not None]
    return str(min(found, key=lambda network: network.version)) if found else ""


def _network(address: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    parts = address.split("/")
    if len(parts) < 3 or parts[1] not in ("ip4", "ip6") or "p2p-circuit" in parts:
        return None
    try:
        ip = ipaddress.ip_address(parts[2])
    except ValueError:
        return None
    if not ip.is_global or ip.is_multicast:
        return None
    return ipaddress.ip_network((ip, PREFIXES[ip.version]), strict=False)


def site_of(given: str, addresses: Sequence[str]) -> str:
    """What the owner says counts."""
    return given or implied_site(addresses)


def apart(site: str, others: Collection[str]) -> bool:
    """Is this another site than all of these? Of an empty one nothing is known."""
    return bool(site) and site not in others


def nearness(site: str, others: Collection[str]) -> int:
    """To others, as far as it is known where these are: 0 is another place, 1 an unknown one, 2 the place of one."""
    known = {other for other in others if other}
    return 0 if not known else 2 if site in known else int(not site)


def held_by_one_site(holders: Sequence[Sequence[Peer]], sites: Mapping[Peer, str]) -> dict[str, tuple[int, ...]]:
    """Site → stages that nobody outside of it holds, where that is more than the stages of one peer: these would go
    together. Peers of whom no site is known are outside."""
    found: dict[str, list[int]] = {}
    for stage, group in enumerate(holders):
        there = {sites.get(peer, "") for peer in group}
        if len(there) == 1 and (site := there.pop()):
            found.setdefault(site, []).append(stage)
    several = {site: {peer for stage in stages for peer in holders[stage]} for site, stages in found.items()}
    return {site: tuple(stages) for site, stages in sorted(found.items()) if len(several[site]) > 1}


def decided_by_one_site(view: View, sites: Mapping[Peer, str]) -> tuple[str, int] | None:
    """A site without which no quorum is left, and how many voters it has; None where there is none, where one peer is
    enough for that, or where nobody else votes."""
    votes = Counter(sites.get(voter, "") for voter in view.voters)
    for site, count in votes.items():
        others = [voter for voter in view.voters if sites.get(voter, "") != site]
        if site and count > 1 and others and not view.is_quorum(others):
            return site, count
    return None
