"""Which addresses a meeting point tells people to dial."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence

from ftnode.node.links.addresses import full_addresses


def rank(address: str) -> int:
    """Lower is likelier to be reachable by a stranger: public, then private, then this machine only, then relayed."""
    parts = address.split("/")
    if "p2p-circuit" in parts or len(parts) < 3:
        return 4
    try:
        host = ipaddress.ip_address(parts[2])
    except ValueError:
        return 0  # a name, which somebody chose for strangers
    if host.is_loopback:
        return 3
    if host.is_link_local:
        return 4
    return 1 if host.is_global else 2


def shown_addresses(peer_id: str, addresses: Iterable[str]) -> tuple[str, ...]:
    """Full multiaddrs, the best for strangers first; TCP before other transports, which firewalls like less."""
    ordered = sorted(addresses, key=lambda address: (rank(address), "/tcp/" not in address, address))
    return full_addresses(peer_id, ordered)


def join_lines(full: Sequence[str]) -> list[str]:
    """What a meeting point prints: each address, and the line to copy."""
    lines = [f"address: {address}" for address in full]
    if full:
        lines.append(f"to join: ftnode join RUN.toml --peer {full[0]}")
    if full and all(rank(address) == 3 for address in full):
        lines.append("only this machine can reach it; listen on /ip4/0.0.0.0/tcp/31337 for others")
    return lines
