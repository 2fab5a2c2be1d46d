"""The ladder, rung by rung: what is lost, what is left, and what is done about it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftnode.protocol.recovery.rungs import Available, choose_rung, filled_from
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Rung

PLAIN = Settings(run="r", stages=6, steps=9, microbatches=2, window=2)
SWAPPED = replace(PLAIN, swap=True)
BLENDING = replace(SWAPPED, swapped="blend")
HALTING = replace(PLAIN, ends="halt")
CONTINUED = replace(SWAPPED, continued=True)
ALL = frozenset(range(7))


@pytest.mark.parametrize(
    ("settings", "stage", "lost", "copied", "rung", "lenders"),
    [
        (PLAIN, 3, {3}, {}, Rung.BLEND, (2, 4)),
        (PLAIN, 3, {3, 4}, {}, Rung.INTERPOLATE, (2, 5)),
        (PLAIN, 4, {3, 4}, {}, Rung.INTERPOLATE, (2, 5)),
        (PLAIN, 3, {2, 3, 4, 5}, {}, Rung.INTERPOLATE, (1, 6)),
        (PLAIN, 1, {1}, {}, Rung.COPY, (2,)),
        (PLAIN, 6, {6}, {}, Rung.COPY, (5,)),
        (PLAIN, 1, {1, 2}, {}, Rung.COPY, (3,)),
        (PLAIN, 2, {1, 2, 3, 4, 5}, {}, Rung.COPY, (6,)),
        (PLAIN, 2, {1, 2, 3, 4, 5, 6}, {}, None, ()),
        (PLAIN, 0, {0}, {}, None, ()),
        (PLAIN, 0, {0}, {0: 4}, Rung.HEAD, (0,)),
        (PLAIN, 0, {0, 1, 2, 3, 4, 5}, {0: 4}, Rung.HEAD, (0,)),
        (PLAIN, 3, {3}, {3: 2}, Rung.SHADOW, (3,)),
        (PLAIN, 3, {3, 4}, {4: 2}, Rung.INTERPOLATE, (2, 5)),
        (PLAIN, 3, set(), {3: 5}, Rung.REPLICA, (3,)),
        (SWAPPED, 1, {1}, {}, Rung.COPY, (2,)),
        (SWAPPED, 2, {2}, {}, Rung.COPY, (1,)),
        (SWAPPED, 5, {5}, {}, Rung.COPY, (6,)),
        (SWAPPED, 3, {3}, {}, Rung.BLEND, (2, 4)),
        (SWAPPED, 2, {1, 2}, {}, Rung.COPY, (3,)),
        (BLENDING, 2, {2}, {}, Rung.BLEND, (1, 3)),
        (BLENDING, 6, {6}, {}, Rung.COPY, (5,)),
        (HALTING, 1, {1}, {}, None, ()),
        (HALTING, 5, {5, 6}, {}, None, ()),
        (HALTING, 3, {3}, {}, Rung.BLEND, (2, 4)),
        (HALTING, 1, {1}, {1: 3}, Rung.SHADOW, (1,)),
        (CONTINUED, 1, {1}, {}, Rung.FIRST, ()),
        (CONTINUED, 3, {2, 3, 4}, {}, Rung.FIRST, ()),
        (CONTINUED, 0, {0}, {}, Rung.FIRST, ()),
        (CONTINUED, 0, {0}, {0: 4}, Rung.HEAD, (0,)),
        (CONTINUED, 3, {3}, {3: 2}, Rung.SHADOW, (3,)),
        (CONTINUED, 2, {1, 2, 3, 4, 5, 6}, {}, None, ()),
    ],
)
def test_the_first_possible_rung_is_taken(
    settings: Settings, stage: int, lost: set[int], copied: dict[int, int], rung: Rung | None, lenders: tuple[int, ...]
) -> None:
    found, stages, reason = choose_rung(stage, ALL - lost, 5, settings, copied)
    assert (found, stages) == (rung, lenders)
    assert reason


def test_before_the_first_commit_every_stage_is_a_function_of_the_seed() -> None:
    assert choose_rung(0, frozenset(), 0, PLAIN, {})[0] is Rung.INITIAL


def test_the_reason_tells_what_is_known_of_the_cost() -> None:
    assert "the loss rises much" in choose_rung(1, ALL - {1}, 5, PLAIN, {})[2]
    assert "trained to take its place" in choose_rung(1, ALL - {1}, 5, SWAPPED, {})[2]
    assert choose_rung(0, ALL - {0}, 9, PLAIN, {0: 7})[2] == "a copy of step 7 is kept, 2 steps old"
    assert "manifest says to stop" in choose_rung(1, ALL - {1}, 5, HALTING, {})[2]


@pytest.mark.parametrize(
    ("stage", "held", "copied", "stored", "rung", "lenders"),
    [
        (2, {1, 3}, {}, (), Rung.BLEND, (1, 3)),
        (2, {1, 3}, {}, (2,), Rung.SNAPSHOT, (2,)),
        (2, {1, 2, 3}, {}, (2,), Rung.REPLICA, (2,)),
        (2, {1}, {3: 4}, (), Rung.BLEND, (1, 3)),
        (2, {1}, {}, (3,), Rung.BLEND, (1, 3)),
        (2, {1, 3}, {2: 4}, (), Rung.SHADOW, (2,)),
        (0, {1, 2}, {}, (), None, ()),
        (0, {1, 2}, {}, (0,), Rung.SNAPSHOT, (0,)),
    ],
    ids=[
        "neighbours", "its snapshot first", "a holder before a snapshot", "a copy of a neighbour lends",
        "a snapshot of a neighbour lends", "its copy", "the head is gone", "the head is on a disk",
    ],
)  # fmt: skip
def test_what_a_stage_can_be_filled_from(
    stage: int, held: set[int], copied: dict[int, int], stored: tuple[int, ...], rung: Rung | None,
    lenders: tuple[int, ...],
) -> None:  # fmt: skip
    found = filled_from(stage, Available(5, frozenset(held), copied, stored), PLAIN)
    assert found[:2] == (rung, lenders)
