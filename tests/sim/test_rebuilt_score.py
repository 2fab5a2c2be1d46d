"""A rebuilt stage with which the model is far worse than it should be is made once more, of others (rule 29)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final

import pytest

from ftnode.protocol.recovery.rebuilt_score import Scores
from ftnode.protocol.words.types import Rung
from tests.sim.planted import patched
from tests.sim.test_lying_donors import SETTINGS, STEPS, Swarm

VALIDATED: Final = replace(SETTINGS, evaluate_every=5, evaluation_microbatches=1)
STAGE: Final = 3
BLEND: Final = (Rung.BLEND, (2, 4))
FARTHER: Final = (Rung.INTERPOLATE, (1, 5))
FIRST_SCORE: Final = 3.0


class Scored(Swarm):
    """What a validation says follows from what stage 3 was made of last; before it is lost, 3 nats."""

    def __init__(self, seed: int, scores: dict[Any, float], **changes: Any) -> None:
        super().__init__(seed, replace(VALIDATED, **changes))
        self.scores = scores
        for host in self.world.live():
            host.compute.score = self._score
        self.world.run(self.world.now + 20.0)

    def _score(self) -> float:
        ways = self.rungs(STAGE)
        return self.scores[ways[-1]] if ways and ways[-1] in self.scores else FIRST_SCORE

    def loses_a_stage(self) -> list[tuple[Rung, tuple[int, ...]]]:
        """How it came back, each time."""
        self.installed.clear()
        self.lose(*self.holders_of(STAGE))
        before = self.world.ledger.top_commit()
        self.world.run(self.world.now + 60.0, lambda: self.world.ledger.top_commit() >= before + 20)
        assert self.world.ledger.top_commit() >= before + STEPS
        return self.rungs(STAGE)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_stage_that_scores_far_too_badly_is_made_of_others(seed: int) -> None:
    assert Scored(seed, {BLEND: 9.0, FARTHER: 3.5}).loses_a_stage() == [BLEND, FARTHER]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_where_that_is_worse_the_first_is_made_again_and_no_more(seed: int) -> None:
    assert Scored(seed, {BLEND: 9.0, FARTHER: 10.0}).loses_a_stage() == [BLEND, FARTHER, BLEND]


@pytest.mark.parametrize("seed", [1, 2])
def test_what_a_blend_usually_costs_is_borne(seed: int) -> None:
    assert Scored(seed, {BLEND: 4.5, FARTHER: 3.0}).loses_a_stage() == [BLEND]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_run_without_checks_goes_on_with_what_it_got(seed: int) -> None:
    assert Scored(seed, {BLEND: 9.0, FARTHER: 3.0}, checks=0.0).loses_a_stage() == [BLEND]


def test_of_few_stages_there_are_no_others() -> None:
    way = (Rung.BLEND, (2, 4))
    assert Scored(1, {way: 9.0}, stages=4).loses_a_stage()[0] == way


def flapping() -> AbstractContextManager[None]:
    """Each validation is judged as if it were the first one."""
    honest: Callable[..., Any] = Scores.judge
    return patched((Scores, "judge", lambda self, *given: honest(Scores(), *given)))


def test_judging_each_score_by_itself_never_ends() -> None:
    with flapping(), pytest.raises(AssertionError):
        Scored(1, {BLEND: 9.0, FARTHER: 9.5}).loses_a_stage()
