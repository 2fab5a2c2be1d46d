"""Signatures of one life of a node: each is made once, and each of others is verified once.

One word reaches a peer in several messages. A microbatch's path comes with each of its tensors, and what a member has
accumulated comes from itself and with every Ready of its group. To verify a signature takes a tenth of a millisecond,
and to find it here a hundredth of that. What is remembered is the digest of what was signed, so that an entry is small
whatever others sign, and only what was right: each has a PeerId and a signature of the usual length.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from hashlib import blake2b
from typing import Final

from ftnode.node.home.identity import Sign, Verify
from ftnode.node.links.newest import newest
from ftnode.protocol.words.types import Peer

VERIFIED_MAX: Final = 8192
"""200 bytes each: 400 voters of 20 views, or what a peer gets in some ten steps of 64 microbatches."""
MADE_MAX: Final = 512
"""Of ours: what we say to one after the other, or again."""
DIGEST_BYTES: Final = 32


class Signatures:
    """What is signed begins with what it is, a word of its own for each kind, so that one table serves all kinds."""

    def __init__(self, me: Peer, sign: Sign, verify: Verify) -> None:
        self._me, self._sign, self._verify = me, sign, verify
        self._made: dict[bytes, str] = {}
        """By the digest of what we signed."""
        self._verified: dict[tuple[str, bytes, str], None] = {}
        """(PeerId, digest of what it signed, signature)."""

    def make(self, data: bytes) -> str:
        """Ours, in base64."""
        key = _digest(data)
        known = self._made.get(key) or b64encode(self._sign(data)).decode()
        newest(self._verified, (self._me.id, key, known), None, VERIFIED_MAX)  # others say it to us again
        return newest(self._made, key, known, MADE_MAX)

    def is_by(self, peer: Peer, data: bytes, signature: str) -> bool:
        """Whether the signature, in base64, is that peer's."""
        key = peer.id, _digest(data), signature
        if key not in self._verified:
            try:
                right = self._verify(peer.id, data, b64decode(signature, validate=True))
            except ValueError:
                return False
            if not right:
                return False
        newest(self._verified, key, None, VERIFIED_MAX)
        return True


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=DIGEST_BYTES).digest()
