"""Small messages of side protocols on a stream: frames of 4 bytes length, and in them msgpack of a tagged dataclass."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgpack
import trio

from ftnode.node.links.streams import write_all
from ftnode.protocol.wire.decoder import Limits, decode
from ftnode.protocol.wire.length_prefix import LENGTH_BYTES, body_length, framed
from ftnode.protocol.words.codec import from_tagged, tagged

FRAME_SECONDS: Final = 30.0
"""From its first byte on, a frame takes no longer. How long to wait for that byte is for the caller to say."""
Receive = Callable[[int], Awaitable[bytes | bytearray]]
"""Some bytes of a stream, at most so many; none at its end."""


async def say(stream: trio.SocketStream, said: Any) -> None:
    """One frame. Raises one of STREAM_ERRORS."""
    body: bytes = msgpack.packb(tagged(said), use_bin_type=True)
    await write_all(stream, [memoryview(framed(body))])


async def hear(stream: trio.SocketStream, kinds: dict[str, type], bytes_max: int) -> Any:
    """The next frame, one of `kinds` (name → dataclass), and no byte beyond. Values are of the right types, and
    otherwise as the peer chose. Raises PeerError and one of STREAM_ERRORS."""
    return from_tagged(kinds, decode(await read_frame(stream.receive_some, bytes_max), Limits(size=bytes_max)))


async def read_frame(receive: Receive, bytes_max: int, seconds: float = FRAME_SECONDS) -> bytes:
    """The one reader of such frames; it reads no byte beyond. `seconds`: from the first byte to the last.

    Raises EOFError at the end, PeerError for a length that nobody needs, trio.TooSlowError, and what `receive` raises.
    """
    prefix = bytearray(await receive(LENGTH_BYTES))
    if not prefix:
        raise EOFError("the other side hung up")
    with trio.fail_after(seconds):
        prefix += await read_exactly(receive, LENGTH_BYTES - len(prefix))
        return bytes(await read_exactly(receive, body_length(prefix, bytes_max)))


async def write_frame(stream: trio.abc.SendStream, data: bytes) -> None:
    await stream.send_all(framed(data))


async def read_exactly(receive: Receive, size: int) -> bytearray:
    """Raises EOFError at the end, and what `receive` raises."""
    data = bytearray()
    while len(data) < size:
        chunk = await receive(size - len(data))
        if not chunk:
            raise EOFError("the other side hung up")
        data += chunk
    return data
