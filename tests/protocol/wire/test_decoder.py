"""The decoder's limits: each lets through what just fits, and refuses one more, before it takes memory for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgpack
import pytest

from ftnode.protocol.wire.decoder import DEPTH_MAX, Limits, decode, decode_extension
from ftnode.protocol.words.codec import from_tagged, shown
from ftnode.protocol.words.errors import PeerError

LIMITS = Limits(size=256, depth=4, items=5, entries=3, text=8)


def nested(depth: int) -> Any:
    """A number with so many lists and maps around it, in turn."""
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


@pytest.mark.parametrize(
    ("fits", "beyond"),
    [
        (nested(LIMITS.depth - 1), nested(LIMITS.depth)),
        ([1] * LIMITS.items, [1] * (LIMITS.items + 1)),
        (dict.fromkeys("abc"), dict.fromkeys("abcd")),
        ("é" * 4, "é" * 4 + "a"),
        (b"a" * 8, b"a" * 9),
        ({"k" * 8: 1}, {"k" * 9: 1}),
        ([[["x" * 8] * 5] * 4], [[["x" * 8] * 5] * 5, "y" * 8, "y" * 8, "y" * 8]),
    ],
    ids=["depth", "items", "entries", "text", "bytes", "key", "size"],
)
def test_what_just_fits_is_read_and_one_more_is_refused(fits: Any, beyond: Any) -> None:
    assert decode(msgpack.packb(fits), LIMITS) == fits
    with pytest.raises(PeerError):
        decode(msgpack.packb(beyond), LIMITS)
    assert decode(msgpack.packb(beyond), Limits(1 << 20, 20, 100, 100, 100)) == beyond


def test_maps_are_refused_where_a_protocol_has_none() -> None:
    with pytest.raises(PeerError):
        decode(msgpack.packb({"a": 1}), replace(LIMITS, entries=0))
    with pytest.raises(PeerError):
        decode(msgpack.packb({1: 1}), LIMITS)


@pytest.mark.parametrize("data", [b"\xc7\x00\x05", b"\xd4\x05\x00", b"\xd6\xff\x00\x00\x00\x00", b"\x91\xc7\x00\x05"])
def test_extension_types_are_refused_also_empty_ones(data: bytes) -> None:
    with pytest.raises(PeerError):
        decode(data, LIMITS)


def test_an_extension_is_opened_by_one_level_only() -> None:
    inner = msgpack.packb(msgpack.ExtType(7, b"deeper"))
    outer = msgpack.packb(msgpack.ExtType(7, inner))
    assert decode_extension(outer, 7, 256) == inner
    for data, code in ((outer, 8), (msgpack.packb([1]), 7), (msgpack.packb("a"), 7), (b"", 7), (b"\xc7\x05\x07a", 7)):
        with pytest.raises(PeerError):
            decode_extension(data, code, 256)
    with pytest.raises(PeerError):
        decode_extension(outer, 7, len(outer) - 1)


def test_an_error_text_shows_the_beginning_or_the_size_of_a_foreign_value() -> None:
    assert shown("x" * 5000) == f"{'x' * 40!r} of 5000"
    assert (shown([[]] * 9), shown({"a": 1}), shown(None), shown(True), shown(2**63)) == (
        "a list of 9", "a map of 1", "None", "True", str(2**63),
    )  # fmt: skip
    assert shown(10**5000) == "a value of type int"
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(PeerError, match="unknown message a list of 1"):
        from_tagged({}, deep)


def test_deeper_than_any_message_is_refused_by_default() -> None:
    assert decode(b"\x91" * (DEPTH_MAX - 1) + b"\x90", Limits(size=256))
    with pytest.raises(PeerError):
        decode(b"\x91" * DEPTH_MAX + b"\x90", Limits(size=256))
