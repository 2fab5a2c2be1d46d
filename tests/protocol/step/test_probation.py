"""Who is new (rule 45)."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest

from ftnode.protocol.recovery.candidate_order import assign
from ftnode.protocol.step.check import draw
from ftnode.protocol.step.probation import CHECKED, STEPS, Probation
from ftnode.protocol.words.messages import Commit
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import CREDITED_MAX, Attempt, Given, Peer, Version
from ftnode.protocol.words.view import Lineage, View
from tests.protocol.beginnings import begun


def commit(step: int, peers: Iterable[str], visits: int = 3) -> Commit:
    given = tuple(Given(peer, visits, 0, 0) for peer in peers)
    return Commit(step, 0.0, 0, 1.0, False, (), given=given)


def after(*counted: tuple[int, Iterable[str]]) -> Probation:
    found, step = Probation(), 0
    for steps, peers in counted:
        for _ in range(steps):
            step += 1
            found.count(commit(step, peers))
    return found


@pytest.mark.parametrize(
    ("counted", "new"),
    [
        ((), ""),
        (((1, "a"),), ""),
        (((2, "a"),), "b"),
        (((100, "a"), (STEPS - 1, "ab")), "b"),
        (((100, "a"), (STEPS, "ab")), ""),
        (((10, "a"), (10, "ab")), ""),  # half of all steps
        (((10, "a"), (9, "ab")), ""),
        (((10, "a"), (8, "ab")), "b"),
    ],
)  # fmt: skip
def test_who_worked_in_few_steps_is_new(counted: tuple[tuple[int, str], ...], new: str) -> None:
    found = after(*counted)
    assert "".join(peer for peer in "ab" if found.lasts(peer)) == new


def test_a_step_counts_once_and_who_did_nothing_in_it_gains_nothing() -> None:
    found = after((100, "a"))
    for _ in range(STEPS):
        found.count(commit(100, "b"))
        found.count(commit(101, "c", visits=0))
    assert found.lasts("b") and found.lasts("c") and found.seen == 101


def test_it_is_bounded() -> None:
    found = after((100, "a"))
    for step in range(4):
        found.count(commit(101 + step, [f"{step}/{index}" for index in range(CREDITED_MAX)]))
    assert not found.lasts("a") and len(found._worked) <= 2 * CREDITED_MAX


def presence(peer: Peer, exact: bool) -> Presence:
    weights = ((1, Version(7, "c", Attempt(1, 1))),) if exact else ()
    return Presence(peer, (), "l", 1, 1, True, (), weights, (), 0.0)


@pytest.mark.parametrize("exact", [False, True])
def test_an_empty_stage_goes_to_a_newcomer_only_where_nobody_else_can_have_it(exact: bool) -> None:
    """Also where it says that it has the weights."""
    found = {A: presence(A, False), C: presence(C, exact)}
    for able, peer in ((found, A), ({C: found[C]}, C)):
        base = Version(7, "c", Attempt(1, 1))
        chosen = assign([1], able, {}, 1, base, {}, (), (), False, lambda peer, more: 1.0 if peer == A else 0.0, {C})
        assert chosen == [(1, peer)]


A, B, C = (Peer(name, 1) for name in "abc")
VIEW = View("run", Lineage("l", 0, 1), 1, "", A, ((A, B, C),), (A, B, C), (0,), "")
SETTINGS = Settings(run="run", stages=1, steps=10, microbatches=4, window=2, checks=0.02)


BEGIN = begun(view=VIEW.number, attempt=Attempt(VIEW.number, 8))


def whole(new: Iterable[Peer] = ()) -> list[Peer]:
    """Of whom all was done again, in as many of 10,000 steps."""
    chance = Random(1)
    lots = (draw(chance, VIEW, A, SETTINGS, BEGIN, new={*new}) for _ in range(10_000))
    return [lot.of for lot in lots if lot is not None and lot.whole]


def test_newcomers_are_checked_more_often() -> None:
    drawn = whole({C})
    assert abs(drawn.count(C) / 10_000 - CHECKED) < 0.02 and B not in drawn


def test_without_newcomers_the_lot_is_as_it_was() -> None:
    drawn = whole()
    assert {*drawn} == {B, C} and abs(len(drawn) / 10_000 - SETTINGS.checks / 2) < 0.005


def test_an_attempt_of_an_earlier_view_is_not_checked() -> None:
    earlier = begun(view=VIEW.number, attempt=Attempt(VIEW.number - 1, 8))
    assert all(draw(Random(seed), VIEW, A, SETTINGS, earlier, new={C}) is None for seed in range(100))


def test_who_is_new_again_works_for_as_long_as_the_first_time() -> None:
    found = after((100, "ab"))
    found.renew(["a", "nobody"])
    assert found.lasts("a") and not found.lasts("b")
    for step in range(101, 101 + STEPS):
        assert found.lasts("a")
        found.count(commit(step, "ab"))
    assert not found.lasts("a")
