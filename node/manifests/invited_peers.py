"""Whom a link of ours names: peers that answer now, at addresses that somebody without a relay can dial."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ftnode.node.links.addresses import PeerAddress, best_of_each, full_addresses, is_dialable, rank
from ftnode.node.links.names import name_in
from ftnode.node.watch.status import PeerRow

NAMED_MAX: Final = 3
"""Meeting points, this node and members together."""
LOCALHOST: Final = "localhost"
"""Another machine for everybody."""
PUBLIC: Final = 1
"""By `rank`: what somebody on the Internet can dial."""


def inviting_peers(rows: Sequence[PeerRow], given: Sequence[PeerAddress], reachable: bool) -> tuple[str, ...]:
    """Full multiaddrs, of each peer one for each version of IP: of meeting points that we are connected to, since they
    outlive volunteers, then our own when others reach us directly. Members that we are connected to are named where
    there is neither.

    `rows`: the peers as our status has them. `given`: what we were told of meeting points, among it old addresses. What
    is only remembered is not named: it may be gone, or of another run. Nor is an address that fewer people can use than
    another one here: on a private network beside a public one, of this machine alone beside both.
    """
    told = {peer.peer_id: [text for text in peer.addresses if name_in(text) != LOCALHOST] for peer in given}
    met = [row for row in rows if row.path == "direct"]
    points = [row for row in met if row.role == "bootstrap"]
    ours = [row for row in rows if row.path == "self" and reachable]
    named: list[tuple[int, str]] = []
    for row in ([*points, *ours] or met)[:NAMED_MAX]:
        known = told.get(row.peer, []) if row.role == "bootstrap" else []
        names = [text for text in known if name_in(text)]  # which outlive the numbers where we met it
        elsewhere = bool(known) and not set(known) & set(row.addresses)
        where = names or (known if elsewhere else [*row.addresses, *known])
        direct = [text for text in where if is_dialable(text) and "/p2p-circuit" not in text]
        if direct:
            best = best_of_each(direct)
            named += [(max(rank(best[0]), PUBLIC), full) for full in full_addresses(row.peer, best)]
    reach = min((reach for reach, _ in named), default=PUBLIC)
    return tuple(text for found, text in named if found == reach)


def is_news(peers: Sequence[str], told: Sequence[str]) -> bool:
    """Whether a link to `peers` should be shown after one to `told`: the first, or one of those is of no use now."""
    return bool(peers) and (not told or not set(told) <= set(peers))
