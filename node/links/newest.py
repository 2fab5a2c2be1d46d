"""Tables in which the newest entries are kept, and the one that was put in longest ago is forgotten first."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def newest(table: dict[Key, Value], key: Key, value: Value, most: int) -> Value:
    """Put an entry in as the newest of at most `most`, in place of an earlier one of the same key. Returns the value.

    `table`: no longer than `most` before, and changed by nothing else but removals, so that its first entry is the
    oldest.
    """
    table.pop(key, None)
    table[key] = value
    if len(table) > most:
        del table[next(iter(table))]
    return value
