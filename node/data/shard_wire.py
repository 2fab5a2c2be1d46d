"""What is said on `/ftnode/data/2`: one file of the run's token shards for each stream.

    borrower → lender   ShardRequest
    lender → borrower   ShardReply, and the file's bytes from `start` on; or a Refusal

A frame is 4 bytes length, then msgpack. How long a file is, and what it hashes to, the borrower knows from the index;
the index itself has the hash that the manifest says, and INDEX_BYTES_MAX. A lender may end the stream before the file
does, when others wait (turns.py). The borrower asks again for the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import trio

from ftnode.node.links.side_messages import hear as hear_one_of
from ftnode.protocol.wire.frames import Refusal
from ftnode.protocol.words.errors import PeerError

DATA_PROTOCOL: Final = "/ftnode/data/2"
FRAME_BYTES_MAX: Final = 4096
FILE_NAME_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class ShardRequest:
    """Give me this file of the corpus of the run: its index, tokenizer, or a shard, without its first `start` bytes."""

    run: str
    name: str
    start: int = 0


@dataclass(frozen=True, slots=True)
class ShardReply:
    """The file has `size` bytes, and those asked for follow."""

    size: int


Said = ShardRequest | ShardReply | Refusal
SAID: Final[dict[str, type]] = {kind.__name__: kind for kind in (ShardRequest, ShardReply, Refusal)}


async def hear(stream: trio.SocketStream) -> Said:
    """The next frame, and no byte beyond. Raises PeerError and one of STREAM_ERRORS."""
    said: Said = await hear_one_of(stream, SAID, FRAME_BYTES_MAX)
    if isinstance(said, ShardRequest) and not (len(said.name) <= FILE_NAME_MAX and said.start >= 0):
        raise PeerError("a ShardRequest for what cannot be")
    if isinstance(said, ShardReply) and said.size < 0:
        raise PeerError("a ShardReply of what cannot be")
    return said
