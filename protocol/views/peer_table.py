"""What is remembered of peers outside the view: bounded, whoever fills it (invariant I6).

A peer is known from its record in the directory, or because it has introduced itself, which counts until it falls
silent. Strangers can hide records among theirs, and not a voice.

Anybody can name peers: in the directory, where ids cost nothing, in an offer, or by dialling us. Members and peers that
the directory shows now are always remembered, since what they lend and hold hangs on it; of all others, the newest.

A directory that shows more than are looked at is flooded. Members, learners and peers that we have heard ourselves are
looked at in every reading then. All others have at least half of the room, and take turns like the hours of a clock:
whoever renews its record is looked at after a few readings, however many others there are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, TypeVar

from ftnode.protocol.liveness.liveness import Liveness
from ftnode.protocol.situation import Outcome
from ftnode.protocol.wire.admission import sensible_presence, usable_addresses, well_formed
from ftnode.protocol.words.crowds import Crowds
from ftnode.protocol.words.effects import Know
from ftnode.protocol.words.events import Directory
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Peer

STRANGERS_MAX: Final = 4096
"""Of whom anything is remembered, before the tables are cut; also the presences that are looked at in one reading."""
STRANGERS_KEPT: Final = 256
"""Addresses that are left then."""
INTRODUCED_MAX: Final = 512
"""Peers that have told us themselves what they can do, the newest."""
NAMED_MAX: Final = 3
"""How many of those who announce nonsense a note names."""
Value = TypeVar("Value")


class PeerTable:
    """Where peers can be dialled, and what the directory says of them."""

    def __init__(self, me: Peer, addresses: tuple[str, ...]) -> None:
        self.me = me
        self.contacts: dict[Peer, tuple[str, ...]] = {me: addresses}
        self.presences: dict[Peer, Presence] = {}
        self.networks: dict[Peer, str] = {}
        """Where our own connections with peers end; bounded."""
        self.crowds = Crowds(self.networks)
        self._listed: frozenset[Peer] = frozenset()
        """Whom the last reading of the directory showed."""
        self._introduced: dict[Peer, Presence] = {}
        """Of those who told us themselves, the newest last; bounded."""
        self._hand = me
        """Whose turn was last."""

    def known(self, members: Collection[Peer], learners: Collection[Peer]) -> set[Peer]:
        """Those that are always remembered."""
        return {*members, *self.presences, *learners}

    def remember(
        self, peer: Peer, addresses: tuple[str, ...], members: Collection[Peer], learners: Collection[Peer]
    ) -> Outcome:
        """Where the peer can be dialled; the newest word counts."""
        out = Outcome()
        addresses = usable_addresses(addresses)
        if not addresses or peer == self.me or self.contacts.get(peer) == addresses:
            return out
        self.contacts.pop(peer, None)
        self.contacts[peer] = addresses
        out.append(Know(peer, addresses))
        if len(self.contacts) > len(members) + len(self.presences) + STRANGERS_MAX:
            _cut(self.contacts, self.known(members, learners) | {self.me})
        return out

    def see(self, peer: Peer, network: str, members: Collection[Peer], learners: Collection[Peer]) -> None:
        """A connection with the peer ends there."""
        self.networks.pop(peer, None)
        self.networks[peer] = network
        if len(self.networks) > len(members) + len(self.presences) + STRANGERS_MAX:
            _cut(self.networks, self.known(members, learners))

    def vouched(self, answers: Collection[tuple[str, str]]) -> None:
        """Who answers for whom from now on."""
        self.crowds = Crowds(self.networks, dict(answers))

    def on_view(self, members: Collection[Peer], learners: Collection[Peer], liveness: Liveness) -> None:
        """A new view: only its members, and who is in the directory, matter."""
        known = self.known(members, learners)
        liveness.forget_strangers(known)
        _cut(self.contacts, known | {self.me})

    def beat(self, members: Collection[Peer], learners: Collection[Peer], liveness: Liveness) -> None:
        """Too many were heard, or did not answer a dial."""
        if max(map(len, (liveness.heard, liveness.down, liveness.refused))) > STRANGERS_MAX:
            liveness.forget_strangers(self.known(members, learners))

    def read(
        self, found: Directory, settings: Settings, members: Collection[Peer], learners: Collection[Peer],
        liveness: Liveness, now: float,
    ) -> tuple[Directory, Outcome]:  # fmt: skip
        """What the directory says, without records that make no sense; it takes the place of what it said before."""
        listed = found.presences
        if len(listed) > STRANGERS_MAX:
            listed = self._looked_at(listed, {*members, *learners}, liveness.heard)
        presences = tuple(presence for presence in listed if sensible_presence(presence, settings))
        certificates = tuple(view for view in found.certificates if well_formed(view, settings))
        left_out = {presence.peer for presence in listed} - {presence.peer for presence in presences}
        left_out |= {view.leader for view in found.certificates} - {view.leader for view in certificates}
        out = Outcome()
        if left_out:
            names = ", ".join(map(str, sorted(left_out)[:NAMED_MAX])) + (", …" if len(left_out) > NAMED_MAX else "")
            out.note("nonsense", f"the directory has records out of range, of {names}; they are left out")
        self.presences = {presence.peer: presence for presence in presences if presence.peer != self.me}
        self._introduced = {p: told for p, told in self._introduced.items() if not liveness.silent(p, now)}
        self._listed = frozenset(self.presences)
        self.presences |= self._introduced
        return Directory(presences, certificates), out

    def introduce(self, presence: Presence) -> None:
        """The peer says itself what stands in its record, which we may not have found, or not yet."""
        peer = presence.peer
        self._introduced.pop(peer, None)
        self._introduced[peer] = presence
        oldest = next(iter(self._introduced)) if len(self._introduced) > INTRODUCED_MAX else None
        if oldest is None and self.presences.get(peer) == presence:
            return
        self.presences = self.presences | {peer: presence}
        if oldest is not None:
            del self._introduced[oldest]
            if oldest not in self._listed:
                del self.presences[oldest]

    def _looked_at(
        self, shown: Sequence[Presence], ours: Collection[Peer], heard: Collection[Peer]
    ) -> tuple[Presence, ...]:
        """Of too many, all of `ours`, those that were heard, and those whose turn it is."""
        near = [one for one in shown if one.peer in ours]
        near += [one for one in shown if one.peer in heard and one.peer not in ours][: STRANGERS_MAX // 2]
        seen = {one.peer for one in near}
        others = [one for one in shown if one.peer not in seen]
        others.sort(key=lambda one: (one.peer <= self._hand, one.peer))
        turns = others[: max(0, STRANGERS_MAX - len(near))]
        self._hand = turns[-1].peer if turns else self._hand
        return (*near, *turns)


def _cut(table: dict[Peer, Value], known: Collection[Peer]) -> None:
    """Of those that are not known, leave the newest."""
    for peer in [peer for peer in table if peer not in known][:-STRANGERS_KEPT]:
        del table[peer]
