"""The situation that roles are given is made once for an event, and says what is the case all the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ftnode.protocol.participant import Participant
from ftnode.protocol.situation import Situation
from tests.sim.planted import patched
from tests.sim.scenario import run_seed
from tests.sim.test_pauses import WAYS

SEEDS = (5, 17, 44, 141, 197, 1005)


@contextmanager
def looked_at() -> Iterator[list[str]]:
    """Names of what a situation said that was not so any more, when somebody asked for it."""
    kept = Participant.situation.fget
    assert kept is not None
    stale: list[str] = []

    def situation(core: Participant) -> Situation:
        said = kept(core)
        core._situation = None
        fresh = kept(core)
        stale.extend(name for name in Situation._fields if getattr(said, name) is not getattr(fresh, name))
        return fresh

    with patched((Participant, "situation", property(situation))):
        yield stale


@pytest.mark.parametrize("seed", SEEDS)
def test_a_situation_is_never_stale(seed: int) -> None:
    with looked_at() as stale:
        run_seed(seed)
    assert stale == []


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_nor_while_a_wish_is_taken_back(way: object) -> None:
    assert callable(way)
    with looked_at() as stale:
        for seed in range(1, 4):
            way(seed)
    assert stale == []


def test_planted_changes_are_not_told() -> None:
    with looked_at() as stale, patched((Participant, "changed", lambda core: None)):
        run_seed(SEEDS[0])
    assert {"view", "members", "quorate_at"} <= {*stale}
