"""Whom a watcher asks next, and whose answer it prefers: what light_client.py decides without a network."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from ftnode.node.links.addresses import PeerAddress, full_addresses, parse_peers
from ftnode.node.links.dial_rules import may_be_told
from ftnode.node.watch.status import SwarmStatus
from ftnode.protocol.words.errors import UserError

log = logging.getLogger(__name__)

FOLLOWED_MAX = 16
"""Members named by a bootstrap peer that are tried."""


RUNS_MAX = 16
"""Runs that a bootstrap peer names, of which members are asked."""
PREFIX_MIN = 4
"""Letters of a run's id that name it."""


def is_meant(wanted: str, run: str, name: str) -> bool:
    """Whether a person who typed `wanted` means this run: its id, the beginning of that, or its name. Empty: any."""
    return wanted in ("", run, name) or (len(wanted) >= PREFIX_MIN and run.startswith(wanted))


def runs_named(statuses: Iterable[SwarmStatus], wanted: str) -> tuple[str, ...]:
    """Ids of the runs that are meant, of whose members these statuses tell."""
    members = [member for status in statuses for member in status.members]
    found = dict.fromkeys(member.run for member in members if is_meant(wanted, member.run, member.name))
    return tuple(found)[:RUNS_MAX]


def unheard(status: SwarmStatus) -> int:
    """Holders of whom the speaker has heard nothing: a standby hears its leader alone."""
    return sum(row.state == "unknown" for row in status.stages)


def named(status: SwarmStatus, run: str = "", asked: Sequence[PeerAddress] = ()) -> tuple[PeerAddress, ...]:
    """The members that a status names, as far as they may be dialled at its word. `asked`: peers that a person
    named."""
    members = [member for member in status.members if run in ("", member.run)][:FOLLOWED_MAX]
    return to_dial([(member.peer, member.addresses[:4]) for member in members], asked)


def to_dial(
    members: Iterable[tuple[str, Sequence[str]]], asked: Sequence[PeerAddress]
) -> tuple[PeerAddress, ...]:  # fmt: skip
    """Those of the members, with their addresses, that somebody may send us to (dial_rules.py). One that cannot be
    hides no other."""
    given = [address for peer in asked for address in peer.addresses]
    texts = list[str]()
    for peer_id, addresses in members:
        told = full_addresses(peer_id, [one for one in addresses if may_be_told(one, given)])
        try:
            parse_peers(told)
            texts += told
        except UserError as error:
            log.info("a status names an impossible peer: %s", error)
    return parse_peers(texts)


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
