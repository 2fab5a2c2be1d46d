"""What hostile peers send: noise, random msgpack, and valid messages with something changed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgpack

from ftnode.protocol.words.errors import PeerError

STRANGE: tuple[Any, ...] = (
    None, True, -1, 0, 2**53, 2**64 - 1, -(2**63), 1.5, float("nan"), float("inf"), -1e308, "", "x" * 5000, "\x1b[2J\0",
    "é\u202e", b"", b"\xff" * 300, [], [[]], [None] * 40, {}, {"a": {"b": []}}, {b"k": 1}, msgpack.ExtType(5, b"x"),
)  # fmt: skip
BOMBS = (
    b"", b"\xc1", b"\x80", b"\xc0", b"\x91" * 1000 + b"\x90", b"\x91" * 100_000, b"\x81\xa1a" * 1000 + b"\x80",
    b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xffabc", b"\xc6\xff\xff\xff\xff",
    b"\xc9\xff\xff\xff\xff\x05", b"\xc7\x00\x05", b"\xc7\x00\xff", b"\xd6\xff\x00\x00\x00\x00", b"\xa2\xc3\x28",
    b"\xdc\x10\x00" * 1024, b"\xdc\x0f\xff" * 1400, b"\xdd\x00\x01\x00\x00" * 1024, b"\xde\x00\x20" * 1024,
    b"\x82\xa6format\x01\xa1a" + b"\x91" * 900 + b"\x90", b"\x81\x91\x01\x02", b"\x90\x90",
)  # fmt: skip
"""Each aims at the depth, at a count or at a length."""


def hostile(valid: Sequence[bytes], chance: random.Random, count: int) -> Iterator[bytes]:
    """All of BOMBS and of `valid`, then `count` byte strings that never were."""
    yield from (*BOMBS, *valid)
    for _ in range(count):
        match chance.randrange(4):
            case 0:
                yield chance.randbytes(chance.randrange(120))
            case 1:
                yield msgpack.packb(_tree(chance, 4))
            case 2:
                yield _flipped(chance.choice(valid), chance)
            case _:
                yield _mangled(chance.choice(valid), chance)


def changed(data: bytes, chance: random.Random) -> bytes:
    """In one place: a byte, or something of the tree that it means."""
    return _flipped(data, chance) if chance.random() < 0.25 else _mangled(data, chance)


def planted(read: Callable[[bytes], Any], bug: str, slow: Callable[[], None] = lambda: None) -> Callable[[bytes], Any]:
    """The reader, with a bug where a list has another length than it should: it raises, says too much, or is slow."""

    def reads(data: bytes) -> Any:
        try:
            return read(data)
        except PeerError as error:
            if "expected a list of" in str(error):
                if bug == "raises":
                    raise KeyError("deep within") from None
                if bug == "says too much":
                    raise PeerError("x" * 5000) from None
                slow()
            raise

    return reads


def _tree(chance: random.Random, depth: int) -> Any:
    kind = chance.randrange(3) if depth else 0
    if kind == 1:
        return [_tree(chance, depth - 1) for _ in range(chance.randrange(5))]
    if kind == 2:
        return {chance.choice(("format", "run", b"show", "a")): _tree(chance, depth - 1) for _ in range(3)}
    return chance.choice(STRANGE)


def _flipped(data: bytes, chance: random.Random) -> bytes:
    new = bytearray(data or b"\0")
    for _ in range(chance.randrange(1, 4)):
        new[chance.randrange(len(new))] = chance.randrange(256)
    return bytes(new if chance.random() < 0.8 else new[: chance.randrange(len(new))])


def _mangled(data: bytes, chance: random.Random) -> bytes:
    """One place of the tree dropped, doubled or replaced."""
    try:
        plain = msgpack.unpackb(data, raw=False, strict_map_key=False)
    except (ValueError, TypeError):  # no tree, or a map whose keys nothing can be looked up by
        return _flipped(data, chance)
    return msgpack.packb(_changed(plain, chance))  # type: ignore[no-any-return]


def _changed(plain: Any, chance: random.Random) -> Any:
    if isinstance(plain, bytes) and plain and chance.random() < 0.7:
        return _mangled(plain, chance)
    if isinstance(plain, dict) and plain and chance.random() < 0.9:
        key = chance.choice(list(plain))
        return {**plain, key: _changed(plain[key], chance)}
    if isinstance(plain, list) and plain and chance.random() < 0.9:
        index = chance.randrange(len(plain))
        new = chance.choice(
            ([], [plain[index]] * 2, [_changed(plain[index], chance)], [_changed(plain[index], chance)])
        )
        return [*plain[:index], *new, *plain[index + 1 :]]
    return chance.choice(STRANGE)
