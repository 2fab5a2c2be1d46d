"""Small messages of side protocols on a stream: 4 bytes length, then msgpack of a tagged dataclass."""

from __future__ import annotations

from typing import Any

import msgpack
import trio

from ftnode.node.streams import read_exactly, write_all
from ftnode.protocol.codec import from_tagged, tagged
from ftnode.protocol.errors import PeerError


async def say(stream: trio.SocketStream, said: Any) -> None:
    """One frame. Raises one of STREAM_ERRORS."""
    body: bytes = msgpack.packb(tagged(said), use_bin_type=True)
    await write_all(stream, [memoryview(len(body).to_bytes(4, "big") + body)])


async def hear(stream: trio.SocketStream, kinds: dict[str, type], bytes_max: int) -> Any:
    """The next frame, one of `kinds` (name → dataclass), and no byte beyond. Values are of the right types, and
    otherwise as the peer chose. Raises PeerError and one of STREAM_ERRORS."""
    size = int.from_bytes(await read_exactly(stream, 4), "big")
    if not 0 < size <= bytes_max:
        raise PeerError(f"a header of {size} bytes")
    return from_tagged(kinds, _unpack(bytes(await read_exactly(stream, size))))


def _unpack(body: bytes) -> Any:
    try:
        return msgpack.unpackb(body, raw=False, use_list=True, strict_map_key=True, max_map_len=0, max_ext_len=0)
    except (ValueError, TypeError, RecursionError) as error:  # msgpack's own and broken UTF-8 are ValueErrors
        raise PeerError(f"a header that is no msgpack: {type(error).__name__}") from None
