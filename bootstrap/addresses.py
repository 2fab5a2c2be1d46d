"""Which addresses a meeting point tells people to dial."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ftnode.node.links.addresses import best_of_each, full_addresses, rank


def shown_addresses(peer_id: str, addresses: Iterable[str]) -> tuple[str, ...]:
    """Full multiaddrs, the best for strangers first; TCP before other transports, which firewalls like less."""
    ordered = sorted(addresses, key=lambda address: (rank(address), "/tcp/" not in address, address))
    return full_addresses(peer_id, ordered)


def join_lines(full: Sequence[str]) -> list[str]:
    """What a meeting point prints: each address, and the line to copy."""
    lines = [f"address: {address}" for address in full]
    if full:
        lines.append("to join: ftnode join RUN.toml " + " ".join(f"--peer {one}" for one in best_of_each(full)))
    if full and all(rank(address) == 3 for address in full):
        port = full[0].split("/")[4]
        lines.append(f"only this machine can reach it; listen on /ip4/0.0.0.0/tcp/{port} for others")
    return lines
