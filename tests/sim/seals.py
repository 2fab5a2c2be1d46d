"""Signatures of the virtual world: a hash that nobody makes for another, and that is checked when it arrives."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from ftnode.node.links.seals import Seals
from ftnode.protocol.step.admissions import path_word
from ftnode.protocol.step.routes import maker_of
from ftnode.protocol.words.errors import PeerError
from ftnode.protocol.words.messages import (
    Accepted,
    Ballot,
    Boundary,
    Certificate,
    MembersOrder,
    Message,
    Proof,
    Roll,
    Rolled,
    Seal,
    SealedTensor,
    Signed,
    UndoVote,
    WasGiven,
)
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import View
from tests.sim.checks import Violation
from tests.sim.compute import Tensor

SEALED = (Accepted, Certificate, Rolled, UndoVote)


def made_by(peer_id: str, data: bytes) -> bytes:
    """The signature of a peer."""
    return hashlib.blake2b(data, key=peer_id.encode(), digest_size=64).digest()


def is_made_by(peer_id: str, data: bytes, made: bytes) -> bool:
    return made == made_by(peer_id, data)


def tensor_seal(maker: Peer, place: tuple[object, ...], digest: str) -> str:
    """The signature of a tensor's maker; nobody makes another's."""
    return hashlib.blake2b(f"{maker}:{place}:{digest}".encode(), digest_size=16).hexdigest()


def place_of(boundary: Boundary) -> tuple[object, ...]:
    return (boundary.lineage, boundary.view, boundary.step, boundary.attempt, boundary.microbatch, boundary.visit,
            boundary.direction.value)  # fmt: skip


def signature_of(tensor: SealedTensor, about: Boundary | WasGiven) -> str:
    """Of the view, step and attempt of a message; see SealedTensor."""
    began = about.attempt.view if tensor.of_path else about.view
    at = about.lineage, began, about.step, about.attempt
    place = (*at, tensor.microbatch, tensor.visit, tensor.direction.value)
    return tensor_seal(tensor.maker, place, tensor.seal.digest)


def digest_of(tensor: Tensor) -> str:
    return f"{tensor.chain:x}/{tensor.scale}/{tensor.turned:d}"


class WorldSeals:
    """What the drivers of all hosts do. `tensors`: their makers sign them."""

    def __init__(self, tensors: bool = False) -> None:
        self._tensors = tensors
        self._checking = Seals(Peer("", 0), verify=is_made_by)
        self._seals: dict[Peer, Seals] = {}
        self._paths: dict[tuple[object, ...], str] = {}
        """What each has admitted → the path that it signed."""

    def sealed(self, sender: Peer, message: Message) -> Message:
        if type(message) in SEALED:
            return self._of(sender).sealed(message)
        return message

    def _of(self, peer: Peer) -> Seals:
        if peer not in self._seals:
            self._seals[peer] = Seals(peer, partial(made_by, peer.id))
        return self._seals[peer]

    def sealed_tensor(self, sender: Peer, boundary: Boundary, tensor: Tensor) -> Boundary:
        """As it leaves its maker."""
        word = path_word(boundary)
        if word is not None and word.maker == sender and not word.seal.signature:
            place = sender, boundary.lineage, boundary.attempt, boundary.microbatch
            once = self._paths.setdefault(place, word.seal.digest) == word.seal.digest
            made = replace(word.seal, signature=signature_of(word, boundary)) if once else None
            boundary = replace(boundary, admitted=made)
        if not self._tensors or boundary.seal is not None:
            return boundary
        digest = digest_of(tensor)
        return replace(boundary, seal=Seal(digest, tensor_seal(sender, place_of(boundary), digest)))

    def checked_tensor(self, boundary: Boundary, tensor: Tensor) -> Boundary:
        """As a core hears of it."""
        if not self._tensors:
            return boundary
        word = path_word(boundary)
        if word is None or word.seal.signature != signature_of(word, boundary):
            boundary = replace(boundary, admitted=None)
        return boundary if self.fits(boundary, tensor) else replace(boundary, seal=None)

    def fits(self, boundary: Boundary, tensor: Tensor) -> bool:
        """It has the signature of its maker."""
        seal, at = boundary.seal, maker_of(boundary.visit, boundary.direction)
        if seal is None or not 0 <= at < len(boundary.path):
            return False
        digest = digest_of(tensor)
        return seal == Seal(digest, tensor_seal(boundary.path[at], place_of(boundary), digest))

    def sealed_roll(self, keeper: Peer, roll: Roll) -> Roll:
        """As the keeper's disk keeps it."""
        return self._of(keeper).sealed_roll(roll)

    def sealed_order(self, keeper: Peer, order: MembersOrder) -> MembersOrder:
        """As the keeper's disk keeps it."""
        return self._of(keeper).sealed_order(order)

    def objection(self, sender: Peer, message: Message) -> str:
        """Why the message is refused, or nothing."""
        if type(message) in SEALED:
            try:
                self._checking.check(sender, message)
            except PeerError as error:
                return str(error)
        if type(message) is WasGiven:
            for each in message.other:
                if each.seal.signature != signature_of(each, message):
                    return f"a tensor's signature that is not by {each.maker}"
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
