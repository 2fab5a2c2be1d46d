"""What p2pd lists as connections: which of them are direct, and which are circuits through a relay."""

from __future__ import annotations

from collections.abc import Iterable

from ftnode.node.links.dial_rules import CIRCUIT

Connection = tuple[str, str]
"""(PeerId, address at the other end)."""


def direct_ends(peer_id: str, connections: Iterable[Connection]) -> list[str]:
    """Addresses at the other end of direct connections with a peer."""
    return [end for owner, end in connections if owner == peer_id and CIRCUIT not in end]


def direct_peers(connections: Iterable[Connection]) -> list[str]:
    """PeerIds of those with a direct connection."""
    return list(dict.fromkeys(peer for peer, end in connections if CIRCUIT not in end))


def circuits_of(connections: Iterable[Connection]) -> dict[str, str]:
    """PeerId → address at the other end, of those to whom there is a circuit and nothing else."""
    listed = list(connections)
    direct = direct_peers(listed)
    return {peer: end for peer, end in listed if CIRCUIT in end and peer not in direct}
