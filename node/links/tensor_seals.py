"""Signatures of boundary tensors in runs with checks: by who makes one when it leaves, looked at by who gets it.

What is signed is the digest of the bytes as they travel, and the place in the step that they are for (rule 42). A large
tensor is hashed in a thread, so that links and heartbeats go on meanwhile. The core hears of a tensor whose signature
is wrong or missing without a seal, and decides what follows. Who admits a microbatch signs its path likewise (rule 21).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import trio
from blake3 import blake3

from ftnode.node.links.newest import newest
from ftnode.node.links.signatures import Signatures
from ftnode.protocol.step.admissions import path_word
from ftnode.protocol.step.routes import maker_of
from ftnode.protocol.words.messages import Boundary, Seal, SealedTensor, tensor_bytes
from ftnode.protocol.words.types import Attempt, Handle, Peer

AT_ONCE_BYTES: Final = 1 << 18
"""What is no larger takes a thirtieth of a millisecond, less than another thread would cost."""
DIGESTS_MAX: Final = 4096
"""Digests of our own tensors that are remembered: one is sent again, and shown."""
PATHS_MAX: Final = 4096
"""Microbatches of which it is remembered which path we signed: more than a head admits in several attempts."""


def new_digest() -> Any:
    """A hash of what travels, to be fed and read: BLAKE3, which is seven times as fast as BLAKE2."""
    return blake3()


def digest_of(content: memoryview) -> str:
    """In hex."""
    whole = new_digest()
    whole.update(content)
    return str(whole.hexdigest())


def signed_bytes(maker: Peer, boundary: Boundary, digest: str) -> bytes:
    place = boundary.microbatch, boundary.visit, boundary.direction
    return tensor_bytes(maker, boundary.lineage, boundary.view, boundary.step, boundary.attempt, *place, digest)


class TensorSeals:
    """Of one life of a node."""

    def __init__(self, me: Peer, signatures: Signatures) -> None:
        self._me, self._signatures = me, signatures
        self._digests: dict[Handle, str] = {}
        self._paths: dict[tuple[str, int, Attempt, int], Seal] = {}
        """Of microbatches that we admitted."""

    def ready(self, boundary: Boundary, content: memoryview, handle: Handle) -> bool:
        """Whether it can leave at once: it is sealed, or its digest is known, or soon made."""
        if boundary.seal is None and handle not in self._digests and len(content) <= AT_ONCE_BYTES:
            newest(self._digests, handle, digest_of(content), DIGESTS_MAX)
        return boundary.seal is not None or handle in self._digests

    async def prepare(self, content: memoryview, handle: Handle) -> None:
        """Its digest. The content does not change meanwhile."""
        newest(self._digests, handle, await _hashed(content), DIGESTS_MAX)

    def sealed(self, boundary: Boundary, handle: Handle) -> Boundary:
        """As it leaves us. What another one made has that one's seal."""
        word = path_word(boundary)
        if word is not None and word.maker == self._me and not word.seal.signature:
            boundary = replace(boundary, admitted=self._path_seal(word, boundary))
        if boundary.seal is not None:
            return boundary
        digest = self._digests[handle]
        return replace(boundary, seal=Seal(digest, self._signatures.make(signed_bytes(self._me, boundary, digest))))

    def _path_seal(self, word: SealedTensor, boundary: Boundary) -> Seal | None:
        """Of one microbatch we sign one path in an attempt, also when our compute was lost meanwhile and the core has
        admitted it anew."""
        place = boundary.lineage, boundary.step, boundary.attempt, boundary.microbatch
        known = self._paths.get(place)
        if known is None:
            signature = self._signatures.make(_signed_path(word, boundary))
            known = newest(self._paths, place, replace(word.seal, signature=signature), PATHS_MAX)
        return known if known.digest == word.seal.digest else None

    async def checked(self, boundary: Boundary, content: memoryview) -> Boundary:
        """As the core hears of it: without a seal where that is not its maker's, for these bytes, and without a word
        for its path where that is not by who comes first on it."""
        if boundary.admitted is not None and not self._has_its_word(boundary):
            boundary = replace(boundary, admitted=None)
        seal, at = boundary.seal, maker_of(boundary.visit, boundary.direction)
        if seal is not None and 0 <= at < len(boundary.path) and await _hashed(content) == seal.digest:
            maker = boundary.path[at]
            if self._signatures.is_by(maker, signed_bytes(maker, boundary, seal.digest), seal.signature):
                return boundary
        return replace(boundary, seal=None)

    def _has_its_word(self, boundary: Boundary) -> bool:
        word = path_word(boundary)
        if word is None:
            return False
        return self._signatures.is_by(word.maker, _signed_path(word, boundary), word.seal.signature)


def _signed_path(word: SealedTensor, boundary: Boundary) -> bytes:
    return word.signed_bytes(boundary.lineage, boundary.view, boundary.step, boundary.attempt)


async def _hashed(content: memoryview) -> str:
    if len(content) <= AT_ONCE_BYTES:
        return digest_of(content)
    return await trio.to_thread.run_sync(digest_of, content)
