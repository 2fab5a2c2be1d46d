"""The one decoder of bytes that others wrote: msgpack within named limits, or a PeerError.

Every protocol reads through here and says what it needs. Nobody else gives foreign bytes to msgpack, which a test of
the tree sees to. msgpack refuses counts, lengths and extension types while it reads, before it takes memory for them.
Its own stack ends at 1,024 levels, so the most that a hostile frame makes us hold for a moment is 1,024 lists of
`items` places, 8 bytes each: 32 MB at ITEMS_MAX.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NoReturn

import msgpack

from ftnode.protocol.words.codec import ITEMS_MAX, TEXT_MAX
from ftnode.protocol.words.errors import PeerError

DEPTH_MAX: Final = 16
"""The deepest message, a Begin with donors, nests 7 levels."""
TEXT_BYTES_MAX: Final = 4 * TEXT_MAX
"""UTF-8 takes up to four bytes for a letter."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one protocol needs; more is refused.

    `size`: bytes of the whole. `depth`: lists and maps around a value. `items`: of one list. `entries`: of one map, 0
    for a protocol without maps. `text`: bytes of one text or byte string.
    """

    size: int
    depth: int = DEPTH_MAX
    items: int = ITEMS_MAX
    entries: int = 0
    text: int = TEXT_BYTES_MAX


def decode(data: bytes | bytearray, limits: Limits) -> object:
    """Lists, maps with texts or bytes as keys, numbers, texts, bytes, booleans and None. Numbers may be NaN, and texts
    may hold any character. Raises PeerError, and nothing else, for whatever else the bytes are."""
    if len(data) > limits.size:
        raise PeerError(f"{len(data)} bytes, where at most {limits.size} fit")
    try:
        found: object = msgpack.unpackb(
            data, raw=False, use_list=True, strict_map_key=True, max_array_len=limits.items,
            max_map_len=limits.entries, max_str_len=limits.text, max_bin_len=limits.text, max_ext_len=0,
            ext_hook=_no_extension,
        )  # fmt: skip
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise PeerError(f"not msgpack, or beyond our limits: {type(error).__name__}") from None
    _check_depth(found, limits.depth)
    return found


def decode_extension(data: bytes, code: int, size_max: int) -> bytes:
    """The content of one value of extension type `code`, as it stands; who decodes it chooses limits anew.

    Raises PeerError for anything else.
    """
    if len(data) > size_max:
        raise PeerError(f"{len(data)} bytes, where at most {size_max} fit")
    try:
        found: object = msgpack.unpackb(
            data, raw=False, max_array_len=0, max_map_len=0, max_str_len=0, max_bin_len=0, max_ext_len=len(data),
        )  # fmt: skip
    except (ValueError, TypeError, RecursionError, OverflowError, msgpack.exceptions.UnpackException) as error:
        raise PeerError(f"not msgpack: {type(error).__name__}") from None
    if not isinstance(found, msgpack.ExtType) or found.code != code:
        raise PeerError(f"bytes that are no extension of type {code}")
    return bytes(found.data)


def _no_extension(_code: int, _content: bytes) -> NoReturn:
    raise ValueError("an extension type")


def _check_depth(found: object, depth_max: int) -> None:
    """Level by level, not by recursion: the depth is what a stranger chose."""
    level: list[object] = [found]
    for _ in range(depth_max):
        lists = [item for value in level if type(value) is list for item in value]
        level = lists + [item for value in level if type(value) is dict for item in value.values()]
        if not level:
            return
    raise PeerError(f"values nested deeper than {depth_max}")
