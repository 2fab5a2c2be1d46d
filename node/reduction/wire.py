"""What is said on `/ftnode/reduce/2`: one stream from each member of a group to each owner of a piece, both ways.

    member → owner   ReduceRequest
    owner → member   ReduceReply; or a Refusal, and the end
    member → owner   its contribution to the piece, from byte `taken` on, unless it contributes nothing
    owner → member   the sum, from byte `have` on, as it grows

In a run with checks the contribution's signature follows its last chunk (part_seals.py). Whoever does a member's visits
again has others show what was given to a piece (shown_parts.py):

    member → another   PartRequest
    another → member   PartReply, and the contribution; or a Refusal, and the end

No length is the sender's choice: a piece's bounds follow from the manifest and the group. A frame is 4 bytes length,
then msgpack; a stream that broke is opened again and goes on where the other side says.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

import trio

from ftnode.node.links.link import LinkBroken
from ftnode.node.links.side_messages import hear as hear_one_of
from ftnode.node.links.side_messages import say
from ftnode.node.links.streams import STREAM_ERRORS
from ftnode.node.reduction.part_bounds import NORM_TOLD_MAX
from ftnode.protocol.wire.frames import COUNT_MAX, Refusal, clean_reason
from ftnode.protocol.words.codec import encode_canonical
from ftnode.protocol.words.effects import Reduce
from ftnode.protocol.words.errors import PeerError
from ftnode.protocol.words.types import Attempt, Peer

REDUCE_PROTOCOL: Final = "/ftnode/reduce/2"
FRAME_BYTES_MAX: Final = 4096
IDLE_SECONDS: Final = 30.0
"""Without a chunk for so long, a stream is opened anew: it may be dead, or somebody else may be slow."""
REPLY_SECONDS: Final = 30.0
"""Longer than an owner lets an early request wait (reductions.py)."""
GROUP_HASH_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class ReduceRequest:
    """Sum up piece `piece` of a stage's gradient with mine, and give me the sum."""

    run: str
    nonce: int
    """Which life of the sender this is."""
    stage: int
    step: int
    attempt: Attempt
    view: int
    group: bytes
    """`group_hash` of who takes part, in which order, with how many visits."""
    piece: int
    have: int
    """Bytes of the sum that are here already."""
    norm: float = 0.0
    """L2, of what I have of the piece: `told_norm` of part_bounds.py."""


@dataclass(frozen=True, slots=True)
class ReduceReply:
    """`taken`: bytes of the contribution that are here already. `share`: as much of it counts, in a group of two."""

    taken: int
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class PartRequest:
    """Show me what `of` gave to a piece of this sum."""

    run: str
    nonce: int
    stage: int
    step: int
    attempt: Attempt
    view: int
    group: bytes
    piece: int
    of: Peer


@dataclass(frozen=True, slots=True)
class PartReply:
    """It follows, all of it. `signature`: by `of`, also of the norm that it told before (ReduceRequest)."""

    signature: bytes
    norm: float


Said = ReduceRequest | ReduceReply | PartRequest | PartReply | Refusal
SAID: Final[dict[str, type]] = {
    kind.__name__: kind for kind in (ReduceRequest, ReduceReply, PartRequest, PartReply, Refusal)
}
SIGNATURE_BYTES: Final = 64
"""Ed25519 (RFC 8032)."""


class TurnedAway(Exception):
    """The other side refuses. `retry`: it may not later."""

    def __init__(self, reason: str, retry: bool) -> None:
        super().__init__(reason)
        self.retry = retry


FAULTS: Final = (LinkBroken, PeerError, TurnedAway, *STREAM_ERRORS)
"""How a stream to or from another member fails."""


def group_hash(group: tuple[tuple[Peer, int], ...]) -> bytes:
    return hashlib.blake2b(encode_canonical(group), digest_size=GROUP_HASH_BYTES).digest()


def request_for(task: Reduce, run: str, nonce: int, piece: int, have: int, norm: float = 0.0) -> ReduceRequest:
    return ReduceRequest(
        run, nonce, task.stage, task.step, task.attempt, task.view, group_hash(task.group), piece, have, norm
    )


def part_request_for(task: Reduce, run: str, nonce: int, piece: int, of: Peer) -> PartRequest:
    place = task.stage, task.step, task.attempt, task.view, group_hash(task.group)
    return PartRequest(run, nonce, *place, piece, of)


async def hear(stream: trio.SocketStream) -> Said:
    """The next frame, and no byte beyond. Raises PeerError and one of STREAM_ERRORS."""
    said: Said = await hear_one_of(stream, SAID, FRAME_BYTES_MAX)
    if isinstance(said, ReduceRequest | PartRequest):
        counts = [said.nonce, said.stage, said.step, said.view, said.piece]
        counts += [said.have] if isinstance(said, ReduceRequest) else []
        if len(said.group) != GROUP_HASH_BYTES or not all(0 <= count < COUNT_MAX for count in counts):
            raise PeerError(f"a {type(said).__name__} for what cannot be")
    if isinstance(said, ReduceRequest):
        if not 0 <= said.norm <= NORM_TOLD_MAX:
            raise PeerError("a ReduceRequest with a norm that is none")
    elif isinstance(said, ReduceReply) and not 0 <= said.share <= 1:
        raise PeerError("a ReduceReply with a share that is none")
    elif isinstance(said, PartReply) and not _is_part(said):
        raise PeerError("a PartReply with a signature or a norm that is none")
    return said


def _is_part(said: PartReply) -> bool:
    return len(said.signature) == SIGNATURE_BYTES and 0 <= said.norm <= NORM_TOLD_MAX


async def ask(stream: trio.SocketStream, request: ReduceRequest | PartRequest) -> Said:
    """The answer, within REPLY_SECONDS. Raises one of FAULTS."""
    with trio.fail_after(REPLY_SECONDS):
        await say(stream, request)
        reply = await hear(stream)
    if isinstance(reply, Refusal):
        raise TurnedAway(clean_reason(reply.reason), reply.retry)
    return reply
