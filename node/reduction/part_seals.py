"""What a member gives to a piece of a sum, signed, so that the piece's owner can show it to others (rule 50).

Who contributes signs the digest of the bytes that travel, with the sum and the piece that they are for, and with the
norm that it told of them before, by which the owner may cut them off (part_bounds.py). The signature follows them. The
owner takes no last chunk without it. So an owner that says that somebody gave something else has to show what that one
has signed, and nobody can be told to have given what it did not.
"""

from __future__ import annotations

from ftnode.node.home.identity import Sign, Verify
from ftnode.node.links.tensor_seals import new_digest
from ftnode.node.reduction.wire import group_hash
from ftnode.protocol.words.codec import encode_canonical
from ftnode.protocol.words.effects import Reduce
from ftnode.protocol.words.types import Peer


class PartDigest:
    """Of the bytes of a part, in order; what comes again is not counted again."""

    def __init__(self) -> None:
        self._hash, self._end = new_digest(), 0

    def add(self, at: int, content: memoryview) -> None:
        """The chunk that begins at byte `at`."""
        if at == self._end:
            self._hash.update(content)
            self._end += len(content)

    def digest(self, more: bytes | memoryview = b"") -> bytes:
        """Of all that was added, and what would be next."""
        whole = self._hash.copy()
        whole.update(more)
        return bytes(whole.digest())


class PartSeals:
    """Signatures of one node, and of those that it works with."""

    def __init__(self, run: str, sign: Sign, verify: Verify) -> None:
        self._run, self._sign, self._verify = run, sign, verify

    def sign(self, task: Reduce, piece: int, digest: bytes, norm: float) -> bytes:
        """What we gave to a piece."""
        return self._sign(_signed(self._run, task, piece, digest, float(norm)))

    def is_by(self, peer: Peer, task: Reduce, piece: int, digest: bytes, norm: float, signature: bytes) -> bool:
        return self._verify(peer.id, _signed(self._run, task, piece, digest, norm), signature)


def _signed(run: str, task: Reduce, piece: int, digest: bytes, norm: float) -> bytes:
    sum_of = task.stage, task.step, tuple(task.attempt), task.view, group_hash(task.group)
    return encode_canonical(("part of a sum", run, *sum_of, piece, digest, norm))
