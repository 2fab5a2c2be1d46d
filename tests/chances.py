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

EXAMPLES_AT_MOST: Final = 2000
CHANCES: Final[SearchStrategy[Random]] = strategies.randoms(use_true_random=False, note_method_calls=False)


def at_once(of: Callable[[Random], None]) -> None:
    """What it raises for one of the examples, as it was met first: a planted bug need not be made smaller. There are
    more examples than else, for what shows it may be rare; whoever finds it stops."""
    settings(phases=[Phase.generate], max_examples=EXAMPLES_AT_MOST)(given(CHANCES)(of))()
