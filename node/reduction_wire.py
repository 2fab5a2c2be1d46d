"""What is said on `/ftnode/reduce/1`: one stream from each member of a group to each owner of a piece, both ways.

    member → owner   ReduceRequest
    owner → member   ReduceReply; or a Refusal, and the end
    member → owner   its contribution to the piece, from byte `taken` on, unless it contributes nothing
    owner → member   the sum, from byte `have` on, as it grows

No length is the sender's choice: a piece's bounds follow from the manifest and the group. A frame is 4 bytes length,
then msgpack; a stream that broke is opened again and goes on where the other side says.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final

import msgpack
import trio

from ftnode.node.streams import read_exactly, write_all
from ftnode.protocol.codec import encode_canonical, from_tagged, tagged
from ftnode.protocol.effects import Reduce
from ftnode.protocol.errors import PeerError
from ftnode.protocol.types import Attempt, Peer
from ftnode.protocol.wire import COUNT_MAX, Refusal

REDUCE_PROTOCOL: Final = "/ftnode/reduce/1"
FRAME_BYTES_MAX: Final = 4096
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


@dataclass(frozen=True, slots=True)
class ReduceReply:
    """`taken`: bytes of the contribution that are here already."""

    taken: int


Said = ReduceRequest | ReduceReply | Refusal
SAID: Final[dict[str, type]] = {kind.__name__: kind for kind in (ReduceRequest, ReduceReply, Refusal)}


def group_hash(group: tuple[tuple[Peer, int], ...]) -> bytes:
    return hashlib.blake2b(encode_canonical(group), digest_size=GROUP_HASH_BYTES).digest()


def request_for(task: Reduce, run: str, nonce: int, piece: int, have: int) -> ReduceRequest:
    return ReduceRequest(
        run, nonce, task.stage, task.step, task.attempt, task.view, group_hash(task.group), piece, have
    )


async def say(stream: trio.SocketStream, said: Said) -> None:
    """One frame. Raises one of STREAM_ERRORS."""
    body: bytes = msgpack.packb(tagged(said), use_bin_type=True)
    await write_all(stream, [memoryview(len(body).to_bytes(4, "big") + body)])


async def hear(stream: trio.SocketStream) -> Said:
    """The next frame, and no byte beyond. Raises PeerError and one of STREAM_ERRORS."""
    size = int.from_bytes(await read_exactly(stream, 4), "big")
    if not 0 < size <= FRAME_BYTES_MAX:
        raise PeerError(f"a header of {size} bytes")
    said: Said = from_tagged(SAID, _unpack(bytes(await read_exactly(stream, size))))
    if isinstance(said, ReduceRequest):
        counts = (said.nonce, said.stage, said.step, said.view, said.piece, said.have)
        if len(said.group) != GROUP_HASH_BYTES or not all(0 <= count < COUNT_MAX for count in counts):
            raise PeerError("a ReduceRequest for what cannot be")
    return said


def _unpack(body: bytes) -> Any:
    try:
        return msgpack.unpackb(body, raw=False, use_list=True, strict_map_key=True, max_map_len=0, max_ext_len=0)
    except (ValueError, TypeError) as error:  # msgpack's own errors and broken UTF-8 are ValueErrors
        raise PeerError(f"a header that is no msgpack: {type(error).__name__}") from None
