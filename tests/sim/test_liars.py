"""Kinds of lies in the virtual world (liars.py): today's defences find them, and without a defence nobody does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

import pytest

from ftnode.protocol.leader import leader
from ftnode.protocol.leader.cases import Cases
from ftnode.protocol.leader.disputes import Disputes
from ftnode.protocol.leader.duty import Duty
from ftnode.protocol.situation import Outcome
from ftnode.protocol.step.check import Check
from ftnode.protocol.words.types import Peer
from tests.sim import liars
from tests.sim.checks import Violation
from tests.sim.planted import NOBODY_JUDGES, patched
from tests.sim.test_lying_donors import nobody_tries

ALWAYS: Final = 1.0
"""Everybody checks somebody in each step: the kinds differ in whether they are found, not in how soon."""
SOON: Final = 12


def agrees(self: Check, stage: int, distance: float, now: float) -> bool:
    self._unweighed.discard(stage)
    return True


def blind() -> AbstractContextManager[None]:
    """A comparison that says yes to everything."""
    return patched((Check, "agrees", agrees))


def patient() -> AbstractContextManager[None]:
    """A leader that asks nobody for what it owes."""
    return patched((Duty, "beat", lambda self, s: Outcome()))


def deaf_to_sums() -> AbstractContextManager[None]:
    """A leader that takes any sum of a group for the right one."""
    return patched((leader, "agree", lambda readies: True))


def forgetful() -> AbstractContextManager[None]:
    """A leader that does not remember who was at odds with somebody who went."""
    return patched((Disputes, "settle", lambda self, view, gone, suspects: None))


@pytest.mark.parametrize("kind", ["gradients", "tenth", "hashes", "unworked"])
def test_a_liar_is_found_and_nobody_honest_goes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liars, "STEPS", 3 * SOON)
    seen = liars.measure(kind, 2, ALWAYS)
    assert seen["found"] == 2 and seen["honest_removed"] == 0 and seen["steps_at_most"] <= 2 * SOON, seen


def test_one_that_lies_late_is_found_as_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liars, "STEPS", SOON)
    monkeypatch.setattr(liars, "LATER", 30)
    seen = liars.measure("later", 1, ALWAYS)
    assert seen["found"] == 1 and seen["honest_removed"] == 0, seen


def test_one_that_accuses_goes_and_takes_nobody_along() -> None:
    """Two others of its group see that nothing is wrong."""
    seen = liars.measure("accuser", 2, ALWAYS)
    assert seen["found"] == 2 and seen["honest_removed"] == 0 and seen["steps_at_most"] <= SOON, seen


COMMITTED_FIRST: Final = 14
"""A seed in which the third is asked just before the step that it is asked about is over."""


def test_a_step_is_not_committed_before_the_third_has_done_it_again() -> None:
    seen = liars.KINDS["accuser"](COMMITTED_FIRST, liars.SETTINGS)
    assert seen.removed == 0 and seen.steps is not None and seen.steps <= 1, seen


def later_than(steps: int, seed: int) -> bool:
    """An accuser goes only after more."""
    seen = liars.KINDS["accuser"](seed, liars.SETTINGS)
    return seen.steps is None or seen.steps > steps


def test_planted_a_step_is_committed_while_a_third_is_asked_about_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then what it would have to see is gone, and the accuser goes later."""
    monkeypatch.setattr(Cases, "about", lambda self, attempt: False)
    assert later_than(1, COMMITTED_FIRST)


ACCUSES_ITS_JUDGE: Final = (92, 406)
"""Seeds in which an accuser that is new says the same of the third, while that one looks at what it said before. No
other one can look at that, so that the step is tried again for it."""


@pytest.mark.parametrize("seed", ACCUSES_ITS_JUDGE)
def test_one_that_accuses_whoever_is_asked_goes_as_soon(seed: int) -> None:
    """Two of 1,000 worlds in which somebody honest went."""
    seen = liars.KINDS["accuser"](seed, liars.SETTINGS)
    assert seen.removed == 0 and seen.steps is not None and seen.steps <= SOON, seen


@pytest.mark.parametrize(("kind", "defence"), [("gradients", blind), ("tenth", blind), ("unworked", patient)])
def test_without_the_defence_it_stays(
    kind: str, defence: Callable[[], AbstractContextManager[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liars, "STEPS", SOON)
    monkeypatch.setattr(liars, "SECONDS_MAX", 60.0)
    with defence():
        seen = liars.measure(kind, 1, ALWAYS)
    assert seen["found"] == 0, seen


def test_without_comparing_sums_weights_part() -> None:
    with deaf_to_sums(), pytest.raises(Violation):
        liars.measure("hashes", 1, ALWAYS)


def test_without_a_third_and_a_memory_one_that_accuses_outlives_more_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liars, "SECONDS_MAX", 60.0)
    with forgetful(), patched(NOBODY_JUDGES):
        seen = liars.measure("accuser", 1, ALWAYS)
    assert seen["found"] == 0 or seen["honest_removed"] > 1, seen


def test_who_lends_other_weights_for_a_lost_stage_beside_it_does_no_harm() -> None:
    seen = liars.measure("donors", 4)
    assert seen["harmless"] == 4 and seen["honest_removed"] == 0, seen


def test_where_donors_are_not_tried_their_lie_gets_in() -> None:
    with nobody_tries():
        assert liars.measure("donors", 2)["harmless"] == 0


def test_a_measured_kind_is_the_same_each_time() -> None:
    first, second = liars.measure("hashes", 1), liars.measure("hashes", 1)
    assert first == second and first["worlds"] == 1


def test_identities_are_a_majority_where_more_than_half_are_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liars, "IDENTITIES", 0)
    assert liars.measure("fifty", 1)["harmless"] == 1
    ours, theirs = Peer("peer1", 1), Peer("x1", 1)
    assert not liars.majority((ours, theirs)) and not liars.majority(())
    assert liars.majority((ours, theirs, Peer("x2", 1)))
