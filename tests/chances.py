"""Chance that hypothesis draws: what our own makers of random swarms, words and bytes take for a Random.

What fails is made smaller until nothing can be left out, and printed. How many examples there are is said in
tests/conftest.py, and by `make night` with --hypothesis-profile night. A test keeps what once failed as an @example.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from hypothesis import Phase, given, settings, strategies
from hypothesis.strategies import SearchStrategy

CHANCES: Final[SearchStrategy[Random]] = strategies.randoms(use_true_random=False, note_method_calls=False)


def at_once(of: Callable[[Random], None]) -> None:
    """What it raises for one of the examples, as it was met first: a planted bug need not be made smaller."""
    settings(phases=[Phase.generate])(given(CHANCES)(of))()
