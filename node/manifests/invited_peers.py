"""Whom a link of ours names: peers that answer now, at addresses that somebody without a relay can dial."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ftnode.node.links.addresses import PeerAddress, full_addresses, is_dialable
from ftnode.node.watch.status import PeerRow

NAMED_MAX: Final = 3
"""Meeting points, this node and members together."""
ADDRESSES_MAX: Final = 2
"""Of each."""


def inviting_peers(rows: Sequence[PeerRow], given: Sequence[PeerAddress], reachable: bool) -> tuple[str, ...]:
    """Full multiaddrs: of meeting points that we are connected to, since they outlive volunteers, then our own when
    others reach us directly, then of members that we are connected to.

    `rows`: the peers as our status has them. `given`: what we were told of meeting points, among it old addresses. What
    is only remembered is not named: it may be gone, or of another run.
    """
    told = {peer.peer_id: peer.addresses for peer in given}
    met = [row for row in rows if row.path == "direct"]
    points = [row for row in met if row.role == "bootstrap"]
    ours = [row for row in rows if row.path == "self" and reachable]
    members = [row for row in met if row.role != "bootstrap"]
    named: list[str] = []
    for row in [*points, *ours, *members][:NAMED_MAX]:
        known = told.get(row.peer, ()) if row.role == "bootstrap" else ()
        where = row.addresses if not known or set(known) & set(row.addresses) else known
        direct = [text for text in where if is_dialable(text) and "/p2p-circuit" not in text]
        named += full_addresses(row.peer, sorted(direct, key=_only_here)[:ADDRESSES_MAX])
    return tuple(named)


def _only_here(address: str) -> bool:
    """Loopback comes last: it says something on this machine alone."""
    return address.startswith(("/ip4/127.", "/ip6/::1/"))
