"""Signatures of the virtual world: a hash that nobody makes for another, and that is checked when it arrives."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import partial

from ftnode.node.links.seals import Seals
from ftnode.protocol.words.errors import PeerError
from ftnode.protocol.words.messages import Accepted, Ballot, Certificate, Message, Proof, Roll, Rolled, Signed
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import View
from tests.sim.checks import Violation

SEALED = (Accepted, Certificate, Rolled)


def made_by(peer_id: str, data: bytes) -> bytes:
    """The signature of a peer."""
    return hashlib.blake2b(data, key=peer_id.encode(), digest_size=64).digest()


def is_made_by(peer_id: str, data: bytes, made: bytes) -> bool:
    return made == made_by(peer_id, data)


class WorldSeals:
    """What the drivers of all hosts do."""

    def __init__(self) -> None:
        self._checking = Seals(Peer("", 0), verify=is_made_by)
        self._seals: dict[Peer, Seals] = {}

    def sealed(self, sender: Peer, message: Message) -> Message:
        if type(message) in SEALED:
            return self._of(sender).sealed(message)
        return message

    def _of(self, peer: Peer) -> Seals:
        if peer not in self._seals:
            self._seals[peer] = Seals(peer, partial(made_by, peer.id))
        return self._seals[peer]

    def sealed_roll(self, keeper: Peer, roll: Roll) -> Roll:
        """As the keeper's disk keeps it."""
        return self._of(keeper).sealed_roll(roll)

    def objection(self, sender: Peer, message: Message) -> str:
        """Why the message is refused, or nothing."""
        if type(message) in SEALED:
            try:
                self._checking.check(sender, message)
            except PeerError as error:
                return str(error)
        return ""

    def check(self, sender: Peer, message: Message) -> None:
        """Honest peers sign what they send. Raises Violation."""
        objection = self.objection(sender, message)
        if objection:
            raise Violation("I9", f"{sender} sends {objection}: {message}")


def signed_by(peers: Iterable[Peer], view: View) -> Proof:
    """What these can make for a view together, whatever anybody else thinks of it."""
    made = Proof(Ballot(0, view.leader), tuple(Signed(peer, "") for peer in dict.fromkeys(peers)))
    shown = Certificate(view, True, (), 0, made)
    for peer in peers:
        message = Seals(peer, partial(made_by, peer.id)).sealed(shown)
        assert isinstance(message, Certificate)
        shown = message
    assert shown.proof is not None
    return shown.proof
