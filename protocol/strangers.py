"""What is remembered of peers outside the view: bounded, whoever fills it (invariant I6).

Anybody can name peers: in the directory, where ids cost nothing, in an offer, or by dialling us. Members and those whom
the directory shows now are always remembered, since what they lend and hold hangs on it; of all others, the newest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ftnode.protocol.admission import sensible_presence, usable_addresses, well_formed
from ftnode.protocol.effects import Know
from ftnode.protocol.events import Directory

if TYPE_CHECKING:
    from collections.abc import Collection

    from ftnode.protocol.participant import Participant
    from ftnode.protocol.types import Peer

STRANGERS_MAX: Final = 4096
"""Of whom anything is remembered, before the tables are cut; also the presences that are looked at."""
STRANGERS_KEPT: Final = 256
"""Addresses that are left then."""
NAMED_MAX: Final = 3
"""How many of those who announce nonsense a note names."""


def know(core: Participant, peer: Peer, addresses: tuple[str, ...]) -> None:
    """Where the peer can be dialled; the newest word counts."""
    if core.contacts.get(peer) == addresses:
        return
    addresses = usable_addresses(addresses)
    if not addresses or peer == core.me or core.contacts.get(peer) == addresses:
        return
    core.contacts.pop(peer, None)
    core.contacts[peer] = addresses
    core.emit(Know(peer, addresses))
    if len(core.contacts) > len(core.members) + len(core.presences) + STRANGERS_MAX:
        _cut(core.contacts, _known(core) | {core.me})


def forget(core: Participant) -> None:
    """A new view: only who is in it, or in the directory, matters."""
    known = _known(core)
    core.liveness.forget_strangers(known)
    _cut(core.presences, core.members)
    _cut(core.contacts, known | {core.me})


def forget_many(core: Participant) -> None:
    """Too many were heard, or did not answer a dial."""
    liveness = core.liveness
    if max(map(len, (liveness.heard, liveness.down, liveness.refused))) > STRANGERS_MAX:
        liveness.forget_strangers(_known(core))


def _known(core: Participant) -> set[Peer]:
    return {*core.members, *core.presences, *core.memory.learners}


def _cut(table: dict[Peer, Any], known: Collection[Peer]) -> None:
    """Of those that are not known, leave the newest."""
    for peer in [peer for peer in table if peer not in known][:-STRANGERS_KEPT]:
        del table[peer]


def sensible_part(core: Participant, found: Directory) -> Directory:
    """What the directory says, without the records that make no sense."""
    settings, listed = core.settings, found.presences[:STRANGERS_MAX]
    presences = tuple(presence for presence in listed if sensible_presence(presence, settings))
    certificates = tuple(view for view in found.certificates if well_formed(view, settings))
    left_out = {presence.peer for presence in listed} - {presence.peer for presence in presences}
    left_out |= {view.leader for view in found.certificates} - {view.leader for view in certificates}
    if left_out:
        names = ", ".join(map(str, sorted(left_out)[:NAMED_MAX])) + (", …" if len(left_out) > NAMED_MAX else "")
        core.note("nonsense", f"the directory has records out of range, of {names}; they are left out")
    return Directory(presences, certificates)
