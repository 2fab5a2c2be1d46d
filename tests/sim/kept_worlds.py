"""Worlds that have trained for a while: made once, and taken up again by every test that begins where they are.

What is planted into the core must have been there from the beginning. So each plant (`patched`) has worlds of its own,
as long as it is there, and a test that plants with pytest's `monkeypatch` has all made anew.
"""

from __future__ import annotations

import copyreg
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import MappingProxyType
from typing import Any, Final, ParamSpec, TypeVar

Given = ParamSpec("Given")
Made = TypeVar("Made")


def read_only(table: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(table)


copyreg.pickle(MappingProxyType, lambda shown: (read_only, (dict(shown),)))

_kept: Final[list[dict[Any, bytes] | None]] = [{}]
"""Of the core as it is, and of each plant with those that were there before it. None: nothing is kept."""


@contextmanager
def planted(at_any_time: bool = False) -> Iterator[None]:
    """Meanwhile the core is another one. `at_any_time`: and may become another one again."""
    _kept.append(None if at_any_time or _kept[-1] is None else {})
    try:
        yield
    finally:
        _kept.pop()


def kept(make: Callable[Given, Made]) -> Callable[Given, Made]:
    """The function, which makes a world (or several things that belong together) once for each set of arguments. Who
    calls it gets a copy that shares nothing with others."""

    @wraps(make)
    def take_up(*args: Given.args, **kwargs: Given.kwargs) -> Made:
        worlds, key = _kept[-1], (make, args, tuple(sorted(kwargs.items())))
        if worlds is None:
            return make(*args, **kwargs)
        if key not in worlds:
            worlds[key] = pickle.dumps(make(*args, **kwargs), pickle.HIGHEST_PROTOCOL)
        made: Made = pickle.loads(worlds[key])
        return made

    return take_up
