"""What a hostile peer says: messages of every kind, built from the types of their fields and from what was said lately.

A value is one that was heard in the world, a small number, or one at a limit. A message is made anew, or it is one that
was heard with one to three of its places changed. Nothing here looks at how a message is handled.
"""

from __future__ import annotations

import typing
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass, replace
from enum import Enum
from functools import cache
from random import Random
from types import NoneType, UnionType
from typing import Any

from ftnode.protocol.words import messages as ms
from ftnode.protocol.words.codec import field_names
from ftnode.protocol.words.types import Attempt, Peer, Version
from ftnode.protocol.words.view import View

LIMITS = (-1, 0, 1, 2**31, 2**32 - 1, 2**32, 2**47, 2**48 - 1, 2**48, 2**63)
FLOATS = (0.0, -1.0, 1.0, 0.5, 5e-324, 1e-300, 1e-9, 9.9e8, 1e9, 9e23, 1e24, 9e29, 1.7e308)
TEXTS = ("", "x", "silent", "broken", "stalled", "halted: ", "could not rebuild", "x" * 120, "x" * 2400, "x" * 4096)
LENGTHS = (0, 0, 1, 1, 1, 2, 2, 3, 4)
LONG = (20, 65, 300, 600, 4096)
LONG_MAX = 2**18
"""Numbers and characters in a long list, with the lists that it holds: without a bound three of them take gigabytes."""
KEPT = 24
"""Values of one sort that are remembered, and messages of one kind."""
_FIELDS: dict[Any, list[tuple[str, Any]]] = {}
HEARD = 0.2
"""Share of the messages that values are taken from."""


class Vocabulary:
    """What was said lately, and what can be made of it. `named`: peers that anybody may speak of."""

    def __init__(self, chance: Random, stages: int) -> None:
        """`stages`: block stages of the run."""
        self.chance, self.stages = chance, stages
        self.named: list[Peer] = []
        self.extremes = 0.1
        """Share of the values that are at a limit."""
        self._values: defaultdict[Any, deque[Any]] = defaultdict(lambda: deque(maxlen=KEPT))
        """By type, and of numbers and texts by the name of their field."""
        self._messages: defaultdict[type, deque[ms.Message]] = defaultdict(lambda: deque(maxlen=KEPT))
        self._views: deque[View] = deque(maxlen=KEPT)

    def hear(self, message: ms.Message) -> None:
        """Remember a message, and now and then what it consists of."""
        said = self._messages[type(message)]
        if len(said) < KEPT or self.chance.random() < HEARD:
            said.append(message)
            self._take_apart(message, "")

    def see(self, view: View) -> None:
        """A view that somebody goes by."""
        if view not in self._views:
            self._views.append(view)
            self._take_apart(view, "")

    def _take_apart(self, value: Any, name: str) -> None:
        kind: Any = type(value)
        if kind is int or kind is str:
            self._values[name].append(value)
        elif kind is tuple:
            for item in value[:8]:
                self._take_apart(item, name)
        elif _is_record(kind):
            self._values[kind].append(value)
            for field, _ in fields_of(kind):
                self._take_apart(getattr(value, field), field)

    # -- whole messages

    def message(self, kind: type) -> ms.Message:
        """One of the kind: as it was heard, changed in some places, or made anew."""
        said, draw = self._messages[kind], self.chance.random()
        if not said or draw < 0.15:
            return typing.cast(ms.Message, self._record(kind))
        message: Any = self.chance.choice(said)
        for _ in range(0 if draw < 0.25 else self.chance.choice([1, 1, 1, 2, 2, 3])):
            message = self.changed(message)
        return typing.cast(ms.Message, message)

    def changed(self, value: Any, hint: Any = None, name: str = "") -> Any:
        """The same value with one place in it changed."""
        kind, chance = type(value), self.chance
        if kind is View and chance.random() < 0.8:
            return self.other_view(value)
        if (is_dataclass(kind) and not isinstance(value, Enum)) or hasattr(kind, "_fields"):
            field, of = chance.choice(fields_of(kind))
            new = self._other(getattr(value, field), of, field)
            return value._replace(**{field: new}) if hasattr(kind, "_fields") else replace(value, **{field: new})
        if isinstance(value, tuple):
            return self._other_tuple(value, hint, name)
        if isinstance(value, int) and not isinstance(value, bool) and chance.random() < 0.4:
            return value + chance.choice([-1, 1])
        return self.value(hint, name)

    def _other(self, value: Any, hint: Any, name: str) -> Any:
        deeper = isinstance(value, tuple | int) or is_dataclass(value)
        return self.changed(value, hint, name) if deeper and self.chance.random() < 0.7 else self.value(hint, name)

    def _other_tuple(self, value: tuple[Any, ...], hint: Any, name: str) -> tuple[Any, ...]:
        arguments, chance = typing.get_args(hint), self.chance
        if arguments and arguments[-1] is not Ellipsis:
            at = chance.randrange(len(value))
            return (*value[:at], self._other(value[at], arguments[at], name), *value[at + 1 :])
        of = arguments[0] if arguments else int
        at = chance.randrange(len(value)) if value else 0
        one = value[at : at + 1]
        ways: list[Callable[[], tuple[Any, ...]]] = [
            lambda: (),
            lambda: value[:at] + value[at + 1 :],
            lambda: (*value, *one),
            lambda: value[::-1],
            lambda: (*value[:at], self.value(of, name), *value[at + 1 :]),
            lambda: (*value[:at], *(self._other(item, of, name) for item in one), *value[at + 1 :]),
            lambda: (*value, self.value(of, name)),
        ]  # fmt: skip
        return chance.choice(ways)()

    # -- values

    def value(self, hint: Any, name: str) -> Any:
        """Any value of an annotated type."""
        origin, arguments, chance = typing.get_origin(hint), typing.get_args(hint), self.chance
        if origin in (UnionType, typing.Union):
            return None if chance.random() < 0.25 else self.value(arguments[0], name)
        if origin is tuple and arguments[-1] is Ellipsis:
            return self._many(arguments[0], name)
        if origin is tuple:
            return tuple(self.value(argument, name) for argument in arguments)
        if hint is Peer:
            return self.peer()
        if hint is View:
            return self.view()
        if isinstance(hint, type) and issubclass(hint, Enum):
            return chance.choice(list(hint))
        if is_dataclass(hint) or hasattr(hint, "_fields"):
            heard = self._values[hint]
            return chance.choice(heard) if heard and chance.random() < 0.7 else self._record(hint)
        if hint is int:
            return self.number(name)
        if name == "kind":
            return chance.choice(("silent", "broken", "stalled"))
        if hint is str:
            texts = self._heard(str, name)
            return chance.choice(texts) if texts and chance.random() < 0.85 else chance.choice(TEXTS)
        return chance.choice({float: FLOATS, bool: (True, False), NoneType: (None,)}[hint])

    def _record(self, kind: Any) -> Any:
        return kind(**{name: self.value(hint, name) for name, hint in fields_of(kind)})

    def _many(self, of: Any, name: str) -> tuple[Any, ...]:
        length = self.chance.choice(LENGTHS)
        if self.chance.random() < self.extremes / 4:
            value = self.value(of, name)
            return (value,) * min(self.chance.choice(LONG), max(1, LONG_MAX // extent(value)))
        if name in ("path", "paths") and of is Peer:
            length = self.stages + 2
        return tuple(self.value(of, name) for _ in range(length))

    def _heard(self, kind: type, name: str) -> list[Any]:
        """Of fields of this name; some have numbers and texts in them."""
        return [value for value in self._values[name] if type(value) is kind]

    def number(self, name: str) -> int:
        heard, draw = self._heard(int, name), self.chance.random()
        if draw < self.extremes:
            return self.chance.choice(LIMITS)
        if heard and draw < 0.7:
            return typing.cast(int, self.chance.choice(heard)) + self.chance.choice([0, 0, 0, 0, 1, -1])
        return self.chance.randrange(self.stages + 3)

    def peer(self) -> Peer:
        draw = self.chance.random()
        if not self.named or draw < 0.05:
            return Peer(f"invented{self.chance.randrange(10**6)}", self.chance.choice([0, 1, 7]))
        peer = self.chance.choice(self.named)
        return peer if draw < 0.95 else Peer(peer.id, peer.nonce + self.chance.choice([-1, 1]))

    # -- views

    def view(self) -> View:
        if self._views and self.chance.random() < 0.95:
            return self.other_view(self.chance.choice(self._views))
        return typing.cast(View, self._record(View))

    def other_view(self, view: View, own: Sequence[Peer] = ()) -> View:
        """The view, or one that could follow it, with one or two things otherwise; mostly one that is well formed.
        `own`: who is to have something of it."""
        chance = self.chance
        if chance.random() < 0.6:
            view = replace(view, number=view.number + 1, previous=view.digest())
        for _ in range(chance.choice([0, 1, 1, 2, 3])):
            view = self._turned(view, own)
        return self.mended(view) if chance.random() < 0.9 else view

    def _turned(self, view: View, own: Sequence[Peer]) -> View:
        chance, stage = self.chance, self.chance.randrange(len(view.holders) or 1)
        somebody = chance.choice(own) if own and chance.random() < 0.7 else self.peer()

        def group(peers: tuple[Peer, ...]) -> View:
            return replace(view, holders=(*view.holders[:stage], peers, *view.holders[stage + 1 :]))

        held = view.holders[stage] if view.holders else ()
        lineage = view.lineage
        ways: list[Callable[[], View]] = [
            lambda: group(()),
            lambda: group((somebody,)),
            lambda: group((*held, somebody)),
            lambda: group(held[1:]),
            lambda: replace(view, leader=somebody),
            lambda: replace(view, leader=somebody),
            lambda: replace(view, voters=(somebody,)),
            lambda: replace(view, voters=view.members()),
            lambda: replace(view, epochs=(view.number,) * len(view.epochs)),
            lambda: replace(view, number=self.number("number"), previous=self.value(str, "previous")),
            lambda: replace(view, lineage=replace(lineage, id=f"line{chance.randrange(50)}")),
            lambda: replace(view, lineage=self.changed(lineage)),
            lambda: replace(view, lineage=replace(lineage, start=self.value(Version, "start"))),
            lambda: replace(view, lineage=replace(lineage, id="fork", root=lineage.origin, forks=lineage.forks + 1)),
        ]  # fmt: skip
        return chance.choice(ways)()

    def mended(self, view: View) -> View:
        """Well formed, where that is a matter of a few places."""
        holders = tuple(tuple(dict.fromkeys(group)) for group in view.holders)
        view = replace(view, holders=holders)
        members = set(view.members())
        voters = tuple(peer for peer in dict.fromkeys((*view.voters, view.leader)) if peer in members)
        epochs = tuple(min(max(0, epoch), max(0, view.number)) for epoch in view.epochs)
        return replace(view, voters=voters, epochs=epochs)

    # -- aiming

    def aimed(self, message: ms.Message, view: View, step: int, attempt: Attempt | None) -> ms.Message:
        """The message, as if it were about the view that its receiver goes by, and often about its step."""
        if isinstance(message, ms.Certificate):
            return message
        if isinstance(message, ms.Propose):
            return replace(message, view=replace(message.view, lineage=view.lineage, number=view.number + 1,
                                                 previous=view.digest()))  # fmt: skip
        names = {name for name, _ in fields_of(type(message))}
        if "lineage" not in names:
            return message
        new: dict[str, Any] = {"lineage": view.lineage.id}
        if "view" in names:
            new["view"] = view.number
        if isinstance(message, ms.Prepare | ms.Promise | ms.Accepted | ms.Outbid):
            new["number"] = view.number + 1
        if attempt is not None and "step" in names and self.chance.random() < 0.6:
            new["step"] = step
            if "attempt" in names:
                new["attempt"] = attempt
        return replace(message, **new)


@cache
def _is_record(kind: type) -> bool:
    """A dataclass or a NamedTuple."""
    return not issubclass(kind, Enum) and (is_dataclass(kind) or hasattr(kind, "_fields"))


def fields_of(kind: Any) -> list[tuple[str, Any]]:
    """Of a dataclass or a NamedTuple: names and types."""
    if kind not in _FIELDS:
        names = kind._fields if hasattr(kind, "_fields") else field_names(kind)
        hints = typing.get_type_hints(kind)
        _FIELDS[kind] = [(name, hints[name]) for name in names]
    return _FIELDS[kind]


def extent(value: Any) -> int:
    """Numbers and characters that a value consists of, at least one: about its bytes on the wire."""
    if isinstance(value, str):
        return max(1, len(value))
    if isinstance(value, tuple):
        return max(1, sum(map(extent, value)))
    if is_dataclass(value) and not isinstance(value, Enum):
        return sum(extent(getattr(value, name)) for name, _ in fields_of(type(value)))
    return 1
