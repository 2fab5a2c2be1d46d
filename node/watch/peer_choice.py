"""Whom a watcher asks next, and whose answer it prefers: what light_client.py decides without a network."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ftnode.node.links.addresses import PeerAddress, full_addresses, is_dialable, parse_peers
from ftnode.node.watch.status import SwarmStatus
from ftnode.protocol.words.errors import UserError

log = logging.getLogger(__name__)

FOLLOWED_MAX = 16
"""Members named by a bootstrap peer that are tried."""


def unheard(status: SwarmStatus) -> int:
    """Holders of whom the speaker has heard nothing: a standby hears its leader alone."""
    return sum(row.state == "unknown" for row in status.stages)


def named(status: SwarmStatus, run: str = "") -> tuple[PeerAddress, ...]:
    """The members that a status names, as far as their addresses can be dialled without a relay."""
    members = [member for member in status.members if run in ("", member.run)]
    texts = [
        text
        for member in members[:FOLLOWED_MAX]
        for text in full_addresses(member.peer, member.addresses[:4])
        if is_dialable(text) and "/p2p-circuit" not in text
    ]
    try:
        return parse_peers(texts)
    except UserError as error:
        log.info("a status names an impossible peer: %s", error)
        return ()


def news(told: Sequence[PeerAddress], asked: Sequence[PeerAddress]) -> list[PeerAddress]:
    """Those named, with all addresses of each, as far as they were not asked there yet: whoever is gone from an old
    address may be at a new one."""
    tried = {(peer.peer_id, address) for peer in asked for address in peer.addresses}
    found: dict[str, tuple[str, ...]] = {}
    for peer in told:
        fresh = [address for address in peer.addresses if (peer.peer_id, address) not in tried]
        if fresh:
            found[peer.peer_id] = tuple(dict.fromkeys([*found.get(peer.peer_id, ()), *fresh]))
    return [PeerAddress(peer_id, addresses) for peer_id, addresses in found.items()]
