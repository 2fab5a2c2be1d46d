"""The codec reads back what it wrote, and nothing else."""

from __future__ import annotations

import random
import types
import typing
from enum import Enum
from functools import cache
from typing import Any

import msgpack
import pytest

from ftnode.protocol.words import codec
from ftnode.protocol.words.codec import encode_canonical, from_plain, from_tagged, tagged, to_plain
from ftnode.protocol.words.effects import EFFECTS
from ftnode.protocol.words.errors import PeerError
from ftnode.protocol.words.events import EVENTS, Done, Received
from ftnode.protocol.words.messages import MESSAGES, Ballot, Heartbeat, Promise, Stored
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.types import Attempt, Direction, Peer
from ftnode.protocol.words.view import Lineage, View

CLOSED_UNIONS = {**MESSAGES, **EVENTS, **EFFECTS}


hints_of = cache(typing.get_type_hints)


def draw(hint: Any, chance: random.Random) -> Any:
    """A random value of an annotated type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(draw(arguments[0], chance) for _ in range(chance.randint(0, 3)))
        return tuple(draw(argument, chance) for argument in arguments)
    if origin in (types.UnionType, typing.Union):
        return draw(chance.choice(arguments), chance)
    if hint is type(None):
        return None
    if hint is bool:
        return chance.random() < 0.5
    if hint is int:
        return chance.randint(-(2**40), 2**60)
    if hint is float:
        return chance.uniform(-1e9, 1e9)
    if hint is str:
        return "".join(chance.choice("abcé/.=") for _ in range(chance.randint(0, 12)))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return chance.choice(list(hint))
    hints = hints_of(hint)
    names = getattr(hint, "_fields", None) or codec.field_names(hint)
    return hint(**{name: draw(hints[name], chance) for name in names})


@pytest.mark.parametrize("name", sorted(CLOSED_UNIONS))
def test_every_kind_survives_the_wire(name: str) -> None:
    chance = random.Random(name)
    for _ in range(20):
        value = draw(CLOSED_UNIONS[name], chance)
        plain = msgpack.unpackb(msgpack.packb(tagged(value)), raw=False)
        assert from_tagged(CLOSED_UNIONS, plain) == value


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_no_mangled_message_is_anything_but_refused_or_another_message(name: str) -> None:
    """Whatever one change makes of a frame, reading gives a message or a PeerError, never another error."""
    chance = random.Random(name)
    strange: list[Any] = [None, -1, 2**70, 1.5, float("nan"), float("inf"), "", "x" * 5000, b"x", [], [[]], {}, True]
    for _ in range(200):
        plain = mangled(tagged(draw(MESSAGES[name], chance)), chance, strange)
        try:
            again = from_tagged(MESSAGES, plain)
        except PeerError:
            continue
        assert type(again) in MESSAGES.values()
        assert from_tagged(MESSAGES, tagged(again)) == again


def mangled(plain: list[Any], chance: random.Random, strange: list[Any]) -> list[Any]:
    """A copy with one node of the tree dropped, doubled or replaced by something strange."""
    copy = list(plain)
    if not copy:
        return [chance.choice(strange)]
    index = chance.randrange(len(copy))
    if isinstance(copy[index], list) and chance.random() < 0.6:
        copy[index] = mangled(copy[index], chance, strange)
    else:
        copy[index : index + 1] = chance.choice([[], [copy[index]] * 2, [chance.choice(strange)]])
    return copy


STORED = Stored("lineage", 3, Attempt(2, 1), 4, 5, Direction.FORWARD)


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (1, 7),
        (1, "x" * 4097),
        (1, b"lineage"),
        (2, True),
        (2, 3.0),
        (2, "3"),
        (3, [2]),
        (3, [2, 1, 0]),
        (3, {"view": 2}),
        (6, "sideways"),
        (6, 0),
    ],
)
def test_a_field_of_the_wrong_kind_is_refused(position: int, value: Any) -> None:
    plain = tagged(STORED)
    assert from_tagged(MESSAGES, plain) == STORED
    plain[position] = value
    with pytest.raises(PeerError):
        from_tagged(MESSAGES, plain)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), None, "1"])
def test_numbers_must_be_finite(number: Any) -> None:
    heartbeat = draw(Heartbeat, random.Random(1))
    plain = tagged(heartbeat)
    index = 1 + codec.field_names(Heartbeat).index("busy_seconds")
    plain[index] = 1
    assert from_tagged(MESSAGES, plain).busy_seconds == 1.0
    plain[index] = number
    with pytest.raises(PeerError):
        from_tagged(MESSAGES, plain)


@pytest.mark.parametrize("plain", [None, [], {}, "Stored", [1], ["Wake"], ["Nonsense", 1], [["Stored"]], b"Stored"])
def test_only_known_messages_are_read(plain: Any) -> None:
    with pytest.raises(PeerError):
        from_tagged(MESSAGES, plain)


def test_too_many_items_are_refused_before_they_are_read() -> None:
    plain = to_plain(draw(Presence, random.Random(2)))
    index = codec.field_names(Presence).index("addresses")
    plain[index] = ["a"] * codec.ITEMS_MAX
    assert len(from_plain(Presence, plain).addresses) == codec.ITEMS_MAX
    plain[index] = ["a"] * (codec.ITEMS_MAX + 1)
    with pytest.raises(PeerError):
        from_plain(Presence, plain)


def test_a_union_travels_with_its_name_and_an_option_without() -> None:
    done = draw(Done, random.Random(3))
    assert to_plain(done)[0][0] == type(done.task).__name__
    promise = Promise("lineage", 4, Ballot(1, Peer("a", 1)), None, None)
    assert to_plain(promise)[3:] == [None, None]
    assert from_plain(Promise, to_plain(promise)) == promise


def test_an_event_carries_its_message_by_name() -> None:
    event = Received(Peer("a", 1), STORED, None)
    plain = tagged(event)
    assert plain[2][0] == "Stored"
    plain[2][0] = "Install"
    with pytest.raises(PeerError):
        from_tagged(EVENTS, plain)


def test_equal_values_have_one_canonical_encoding() -> None:
    a, b = Peer("a", 1), Peer("b", 2)
    lineage = Lineage("root", 0, 3)
    view = View("run", lineage, 1, "", a, ((a,), (b,)), (a, b), (0, 1), "why")
    same = View("run", Lineage("root", 0, 3), 1, "", a, ((a,), (b,)), (a, b), (0, 1), "why")
    other = View("run", lineage, 1, "", a, ((a,), (b,)), (b, a), (0, 1), "why")
    assert encode_canonical(view) == encode_canonical(same)
    assert encode_canonical(view) != encode_canonical(other)
    assert view.digest() == same.digest() != other.digest()


def test_what_the_core_does_not_define_is_not_written() -> None:
    with pytest.raises(TypeError):
        to_plain(object())
