"""The leader is replaced in the middle of a plan: the next one comes to a layout as good, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ftnode.protocol.leader.learners import Learners
from tests.sim.checks import Violation
from tests.sim.plans import KINDS, MOMENTS, begin
from tests.sim.planted import patched


def wrongs(seed: int, kind: str, moment: str, way: str) -> list[str]:
    try:
        plan = begin(seed, kind, moment, way)
        plan.settle()
        return list(plan.wrong())
    except Violation as violation:
        return [str(violation)]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("seed", range(len(KINDS)))
def test_a_leader_that_is_replaced_in_the_middle_of_its_plan(moment: str, seed: int) -> None:
    """Each moment with each move and each way to be replaced; of those that every change has to pass, others each."""
    kind, way = KINDS[(seed + 5 * MOMENTS.index(moment)) % len(KINDS)]
    assert wrongs(seed, kind, moment, way) == [], f"{kind}, {way}"


# -- planted bugs


def nobody_plans_anew(first: str) -> Any:
    """Whoever leads after the first leader asks nobody to learn anything."""
    original = Learners._ask_standbys

    def ask_standbys(self: Any, s: Any, out: Any, standbys: Any) -> None:
        if self.view.leader.id == first:
            original(self, s, out, standbys)

    return patched((Learners, "_ask_standbys", ask_standbys))


def who_is_taken_up_has_learnt(first: str) -> Any:
    """Whoever leads after the first leader takes a learner that the last Begin named for one that has learnt."""
    original = Learners.ready

    def ready(self: Any) -> Any:
        return original(self) if self.view.leader.id == first else self.named()

    return patched((Learners, "ready", ready))


@pytest.mark.parametrize(
    ("plant", "first", "kind", "moment", "shows"),
    [
        (nobody_plans_anew, "b", "all that another holds", "asked", "as long as in the layout that was to be"),
        (who_is_taken_up_has_learnt, "a", "beside others", "learning", "have never been Ready"),
    ],
)
def test_a_planted_bug_is_found(plant: Callable[[str], Any], first: str, kind: str, moment: str, shows: str) -> None:
    with plant(first):
        found = wrongs(0, kind, moment, "suspended")
    assert shows in "\n".join(found)
    assert wrongs(0, kind, moment, "suspended") == []
