"""A frame of 4 bytes length, big-endian, and a body: what side protocols and our own processes speak.

The step and state protocols have two lengths, since a tensor goes straight to its place (frames.py).
"""

from __future__ import annotations

from typing import Final

from ftnode.protocol.words.errors import PeerError

LENGTH_BYTES: Final = 4


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def body_length(prefix: bytes | bytearray, bytes_max: int) -> int:
    """Checked before anybody takes memory for the body. Raises PeerError for a length that nobody needs."""
    size = int.from_bytes(prefix, "big")
    if size > bytes_max:
        raise PeerError(f"it announces a frame of {size} bytes")
    return size
