"""Dataclasses to plain values and back, strictly typed.

One codec for frames, directory records, view digests and traces: a dataclass is written as a list of its fields in
order; a member of a closed union as [name, fields...]. Last fields that are marked UNLESS_NONE are not written where
they are None. Reading checks every type and length and never builds anything that is not annotated, so bytes from
strangers cannot reach further than a PeerError.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from itertools import takewhile
from math import isfinite
from typing import Any

import msgpack

from ftnode.protocol.words.errors import PeerError

ITEMS_MAX = 4096
TEXT_MAX = 4096
Plain = Any
_PLAIN = frozenset((type(None), bool, int, float, str, bytes))
"""Classes of what stays as it is."""
Reader = Callable[[Plain], Any]
SHOWN_MAX = 40
"""Letters of a foreign value in an error text."""
NUMBER_MAX = 1 << 64
"""Whole numbers travel in 64 bits."""
UNLESS_NONE = {"unless none": True}
"""Metadata of a field, one of the last of its class, that most who write the class do without."""


def to_plain(value: Any) -> Plain:
    """Lists, numbers, text, bytes and None only. Total for the types that the core defines."""
    kind: Any = type(value)
    return value if kind in _PLAIN else _writer(kind)(value)


def tagged(value: Any) -> Plain:
    """A member of a closed union, with the name of its class in front."""
    return [type(value).__name__, *to_plain(value)]


@cache
def field_names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


@cache
def left_out_of(kind: type) -> int:
    """How many of its last fields are marked UNLESS_NONE."""
    return sum(1 for _ in takewhile(lambda field: field.metadata == UNLESS_NONE, reversed(fields(kind))))


@cache
def union_fields(kind: type) -> frozenset[str]:
    """Fields that hold a member of a closed union, which travels with its name."""
    hints = typing.get_type_hints(kind)
    return frozenset(name for name in field_names(kind) if len(_classes_of_union(hints[name])) > 1)


@cache
def _writer(kind: type) -> Callable[[Any], Plain]:
    """What makes lists of values of this class, which is looked at once: each message is written several times."""
    if issubclass(kind, Enum):
        return lambda value: value.value
    if issubclass(kind, frozenset):
        return lambda value: [to_plain(item) for item in sorted(value)]
    if issubclass(kind, tuple | list):
        return lambda value: [item if type(item) in _PLAIN else to_plain(item) for item in value]
    if is_dataclass(kind):
        return _write_record(kind)
    raise TypeError(f"cannot encode {kind.__name__}")


def _write_record(kind: type) -> Callable[[Any], Plain]:
    left_out, unions = left_out_of(kind), union_fields(kind)
    writers = tuple((name, tagged if name in unions else to_plain) for name in field_names(kind))

    def write(value: Any) -> Plain:
        plain = [write_field(getattr(value, name)) for name, write_field in writers]
        for _ in range(left_out):
            if plain[-1] is not None:
                break
            plain.pop()
        return plain

    return write


def _classes_of_union(hint: Any) -> list[Any]:
    if typing.get_origin(hint) not in (types.UnionType, typing.Union):
        return []
    return [argument for argument in typing.get_args(hint) if argument is not type(None)]


def encode_canonical(value: Any) -> bytes:
    """The one byte string of a value: what hashes and signatures cover."""
    return typing.cast(bytes, msgpack.packb(to_plain(value), use_bin_type=True))


def from_plain(kind: Any, plain: Plain) -> Any:
    """Rebuild a value of type `kind`. Raises PeerError for anything that does not fit to the letter."""
    return reader(kind)(plain)


def from_tagged(kinds: dict[str, type], plain: Plain) -> Any:
    """Rebuild a member of the closed union `kinds` written by `tagged`. Raises PeerError."""
    if not isinstance(plain, list) or not plain or not isinstance(plain[0], str) or plain[0] not in kinds:
        raise PeerError(f"unknown message {shown(plain)}")
    return reader(kinds[plain[0]])(plain[1:])


def shown(plain: Plain) -> str:
    """What a stranger's value is, for an error text: its beginning, or its kind and size, however large or deep."""
    if isinstance(plain, str | bytes):
        return f"{plain[:SHOWN_MAX]!r}" + (f" of {len(plain)}" if len(plain) > SHOWN_MAX else "")
    if isinstance(plain, list | tuple):
        return f"a list of {len(plain)}"
    if isinstance(plain, dict):
        return f"a map of {len(plain)}"
    if plain is None or isinstance(plain, float | bool) or (isinstance(plain, int) and abs(plain) < NUMBER_MAX):
        return str(plain)
    return f"a value of type {type(plain).__name__[:SHOWN_MAX]}"


@cache
def reader(kind: Any) -> Reader:
    """The compiled reader of one annotated type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        return _read_tuple(arguments)
    if origin in (types.UnionType, typing.Union):
        return _read_union(arguments)
    if kind is float:
        return _read_float
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _read_enum(kind)
    if isinstance(kind, type) and hasattr(kind, "_fields"):
        hints = typing.get_type_hints(kind)
        return _read_record(kind, [reader(hints[name]) for name in kind._fields])
    if is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        names, left_out = field_names(typing.cast(type, kind)), left_out_of(typing.cast(type, kind))
        return _read_record(kind, [reader(hints[name]) for name in names], left_out)
    if kind in (int, str, bytes, bool, type(None)):
        return _read_exact(kind)
    raise TypeError(f"no reader for {kind!r}")


def _read_exact(kind: type) -> Reader:
    def read(plain: Plain) -> Any:
        if type(plain) is not kind or (isinstance(plain, str | bytes) and len(plain) > TEXT_MAX):
            raise PeerError(f"expected {kind.__name__}, got {shown(plain)}")
        return plain

    return read


def _read_float(plain: Plain) -> float:
    if type(plain) is int and -NUMBER_MAX < plain < NUMBER_MAX:
        return float(plain)
    if type(plain) is not float or not isfinite(plain):
        raise PeerError(f"expected a finite number, got {shown(plain)}")
    return plain


def _read_enum(kind: type[Enum]) -> Reader:
    members = {member.value: member for member in kind}

    def read(plain: Plain) -> Any:
        if not isinstance(plain, str) or plain not in members:
            raise PeerError(f"expected one of {', '.join(members)}, got {shown(plain)}")
        return members[plain]

    return read


def _read_tuple(arguments: tuple[Any, ...]) -> Reader:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        item = reader(arguments[0])

        def read_many(plain: Plain) -> Any:
            if not isinstance(plain, list) or len(plain) > ITEMS_MAX:
                raise PeerError(f"expected a list of at most {ITEMS_MAX}, got {shown(plain)}")
            return tuple([item(value) for value in plain])

        return read_many
    readers = [reader(argument) for argument in arguments]

    def read(plain: Plain) -> Any:
        if not isinstance(plain, list) or len(plain) != len(readers):
            raise PeerError(f"expected a list of {len(readers)}, got {shown(plain)}")
        return tuple([read_item(value) for read_item, value in zip(readers, plain)])

    return read


def _read_union(arguments: tuple[Any, ...]) -> Reader:
    """An optional value, or a closed union of dataclasses, whose members are told apart by their names."""
    rest = [argument for argument in arguments if argument is not type(None)]
    if len(rest) > 1:
        kinds = {kind.__name__: kind for kind in rest}
        return lambda plain: from_tagged(kinds, plain)
    inner = reader(rest[0])
    return lambda plain: None if plain is None else inner(plain)


def _read_record(kind: Any, readers: list[Reader], left_out: int = 0) -> Reader:
    """`left_out`: of the last ones, so many may be missing."""
    size = len(readers)

    def read(plain: Plain) -> Any:
        if not isinstance(plain, list) or not size - left_out <= len(plain) <= size:
            raise PeerError(f"{kind.__name__} has {size} fields, got {shown(plain)}")
        return kind(*[read_field(value) for read_field, value in zip(readers, plain)])

    return read
