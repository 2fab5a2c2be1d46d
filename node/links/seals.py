"""Signatures of votes: made when a message leaves the node, verified before the core hears of one.

The core counts who signed what and has no keys. What it leaves empty in a message of ours is filled in here. Every
other signature was verified when it came. Each is made once and verified once (signatures.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from ftnode.node.home.identity import Sign, Verify, verify
from ftnode.node.links.signatures import Signatures
from ftnode.node.links.tensor_seals import TensorSeals
from ftnode.protocol.words.errors import LocalError, PeerError
from ftnode.protocol.words.messages import (
    Accepted,
    Certificate,
    Convicted,
    Judge,
    Link,
    MembersOrder,
    Message,
    Poisoned,
    Proof,
    Ready,
    Roll,
    Rolled,
    SealedTensor,
    Share,
    Signed,
    Status,
    UndoVote,
    Verdict,
    WasGiven,
    roll_bytes,
    undo_bytes,
    vote_bytes,
    word_bytes,
)
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import View

Word = TypeVar("Word", Poisoned, Verdict, Share)


def cannot_sign(_data: bytes) -> bytes:
    """For those who say nothing that is signed."""
    raise LocalError("a message must be signed, and there is no key for it")


class Seals:
    """The signatures of one life of a node."""

    def __init__(self, me: Peer, sign: Sign = cannot_sign, verify: Verify = verify) -> None:
        self._me, self._signatures = me, Signatures(me, sign, verify)

    def sealed(self, message: Message) -> Message:
        """The message as it leaves us."""
        if isinstance(message, Accepted):
            signed = vote_bytes(self._me, message.ballot, message.digest)
            return replace(message, signature=self._signatures.make(signed))
        if isinstance(message, Certificate):
            return self._sealed_certificate(message)
        if isinstance(message, UndoVote):
            signed = undo_bytes(self._me, message.digest, message.number, message.step)
            return replace(message, signature=self._signatures.make(signed))
        if isinstance(message, Rolled):
            return replace(message, roll=self.sealed_roll(message.roll))
        if isinstance(message, Verdict):
            return self._sealed_word(self._me, message)
        if isinstance(message, Poisoned):
            return self._sealed_word(self._me, message) if message.distance else message
        if isinstance(message, Share):
            return message if message.signature is None else self._sealed_word(self._me, message)
        if isinstance(message, Ready):
            return self._sealed_ready(message)
        if isinstance(message, Status) and message.ready is not None:
            return replace(message, ready=self._sealed_ready(message.ready))
        if isinstance(message, Convicted):
            verdicts = tuple((judge, self._sealed_word(judge, verdict)) for judge, verdict in message.verdicts)
            return replace(
                message, accusation=self._sealed_word(message.accuser, message.accusation), verdicts=verdicts
            )
        return message

    def _sealed_certificate(self, shown: Certificate) -> Certificate:
        if shown.order is not None:
            shown = replace(shown, order=self.sealed_order(shown.order))
        if shown.proof is None:
            return shown
        between = tuple(Link(link.view, self._filled(link.view, link.proof)) for link in shown.between)
        return replace(shown, proof=self._filled(shown.view, shown.proof), between=between)

    def sealed_order(self, order: MembersOrder) -> MembersOrder:
        """The order as it leaves us, and as our disk keeps it."""
        return replace(order, signed=self._with_ours(order.signed, partial(order.signed_bytes, self._me)))

    def _sealed_ready(self, ready: Ready) -> Ready:
        claims = tuple((peer, self._sealed_word(peer, share)) for peer, share in ready.claims)
        return replace(ready, claims=claims) if claims else ready

    def _sealed_word(self, speaker: Peer, word: Word) -> Word:
        if speaker != self._me or word.signature:
            return word
        return replace(word, signature=self._signatures.make(word_bytes(speaker, word)))

    def sealed_roll(self, roll: Roll) -> Roll:
        """The roll as it leaves us, and as our disk keeps it."""
        return replace(roll, signed=self._with_ours(roll.signed, lambda: roll_bytes(self._me, roll.digest())))

    def _filled(self, view: View, proof: Proof) -> Proof:
        signed = self._with_ours(proof.signed, lambda: vote_bytes(self._me, proof.ballot, view.digest()))
        return replace(proof, signed=signed)

    def _with_ours(self, signed: tuple[Signed, ...], what: Callable[[], bytes]) -> tuple[Signed, ...]:
        """Our signature of `what` is filled in where it is left empty; who has not signed makes none."""
        ours = Signed(self._me, "")
        if ours not in signed:
            return signed
        made = Signed(self._me, self._signatures.make(what()))
        return tuple(made if each == ours else each for each in signed)

    def check(self, sender: Peer, message: Message) -> None:
        """Raises PeerError when a signature in it is not by the peer that it names."""
        if isinstance(message, Accepted):
            self._check(sender, vote_bytes(sender, message.ballot, message.digest), message.signature)
        elif isinstance(message, Certificate):
            links = (*message.between, *([Link(message.view, message.proof)] if message.proof is not None else []))
            for link in links:
                digest = link.view.digest()
                for each in link.proof.signed:
                    self._check(each.voter, vote_bytes(each.voter, link.proof.ballot, digest), each.signature)
            if message.roll is not None:
                self.check_roll(message.roll)
            if message.order is not None:
                self.check_order(message.order)
        elif isinstance(message, UndoVote):
            self._check(sender, undo_bytes(sender, message.digest, message.number, message.step), message.signature)
        elif isinstance(message, Rolled):
            self.check_roll(message.roll)
        elif isinstance(message, Verdict) or (isinstance(message, Poisoned) and message.distance):
            self._check_word(sender, message)
        elif isinstance(message, Share):
            if message.signature is not None:
                self._check_word(sender, message)
        elif isinstance(message, Ready):
            for peer, share in message.claims:
                self._check_word(peer, share)
        elif isinstance(message, Status):
            if message.ready is not None:
                self.check(sender, message.ready)
        elif isinstance(message, Judge):
            self._check_claim(message)
        elif isinstance(message, Convicted):
            self._check_word(message.accuser, message.accusation)
            for judge, verdict in message.verdicts:
                self._check_word(judge, verdict)
            self._check_tensors(message.accusation, message.proof)
        elif isinstance(message, WasGiven):
            self._check_tensors(message, message.other)

    def _check_tensors(self, about: Poisoned | WasGiven, tensors: tuple[SealedTensor, ...]) -> None:
        """Of the view, step and attempt that it is about."""
        for each in tensors:
            signed = each.signed_bytes(about.lineage, about.view, about.step, about.attempt)
            if not self._is_by(each.maker, signed, each.seal.signature):
                raise PeerError(f"a tensor's signature that is not by {each.maker}")

    def _check_word(self, speaker: Peer, word: Poisoned | Verdict | Share) -> None:
        self._check(speaker, word_bytes(speaker, word), word.signature or "")
        if isinstance(word, Verdict):
            self._check_claim(word.about)

    def _check_claim(self, judge: Judge) -> None:
        if judge.claim is not None:
            self._check_word(judge.accused, judge.claim)

    def check_roll(self, roll: Roll) -> None:
        """Raises PeerError as `check` does."""
        for each in roll.signed:
            self._check(each.voter, roll_bytes(each.voter, roll.digest()), each.signature)

    def check_order(self, order: MembersOrder) -> None:
        """Raises PeerError as `check` does."""
        for each in order.signed:
            self._check(each.voter, order.signed_bytes(each.voter), each.signature)

    def _check(self, peer: Peer, signed: bytes, signature: str) -> None:
        if not self._is_by(peer, signed, signature):
            raise PeerError(f"a signature that is not by {peer}")

    def _is_by(self, voter: Peer, data: bytes, signature: str) -> bool:
        return self._signatures.is_by(voter, data, signature)

    @property
    def tensors(self) -> TensorSeals:
        """Of boundary tensors, with the same key."""
        return TensorSeals(self._me, self._signatures)
