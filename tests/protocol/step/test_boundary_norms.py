"""Whose boundary tensors are of an unusual size is doubted at once, and honest ones are not (rule 42)."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

import pytest

from ftnode.protocol.step import boundary_norms as module
from ftnode.protocol.step import doubts as sums
from ftnode.protocol.step.boundary_norms import BoundaryNorms, Source
from ftnode.protocol.step.doubts import BUDGET_MAX, HEARD_A_STEP, HEARD_MAX, Doubt, Doubts
from ftnode.protocol.words.messages import Plan
from ftnode.protocol.words.types import Direction, Peer, Rung
from ftnode.protocol.words.view import View
from tests.protocol.step.test_check import BEGIN, VIEW

FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD
MAKERS: Final = tuple(Peer(name, 1) for name in "abc")
SEEDS: Final = 2000
LIES: Final = {"a thousand times": 1000.0, "a hundred times": 100.0, "a thousandth": 0.001, "zero": 0.0}


class Honest:
    """As they were measured (decision 0053): within a step norms are spread by `deviation` powers of two, with a tail
    that is exponential on one side, and all move together from step to step."""

    def __init__(self, seed: int, deviation: float = 0.35, drift: float = 0.2) -> None:
        self.chance, self.deviation, self.drift = Random(seed), deviation, drift
        self.level = self.chance.uniform(-10.0, 10.0)

    def step(self) -> None:
        self.level += self.chance.gauss(0.0, self.drift)

    def norm(self) -> float:
        tail = min(5.0, self.chance.expovariate(1.0)) if self.chance.random() < 0.5 else self.chance.gauss(0.0, 1.0)
        return float(2.0 ** (self.level + self.deviation * tail))


def trained(norms: BoundaryNorms, honest: Honest, steps: int, direction: Direction = FORWARD) -> list[str]:
    """Eight tensors a step, from any of three; what was said of them."""
    said = list[str]()
    for _ in range(steps):
        honest.step()
        makers = honest.chance.choices(MAKERS, k=8)
        said += [norms.see(Source(maker, 1, 1, direction), honest.norm()) for maker in makers]
    return [reason for reason in said if reason]


@pytest.mark.parametrize("direction", [FORWARD, BACKWARD])
def test_honest_norms_that_are_spread_and_drift_are_not_doubted(direction: Direction) -> None:
    for seed in range(SEEDS):
        assert trained(BoundaryNorms(), Honest(seed), 20, direction) == []


def test_nor_are_they_over_long() -> None:
    """Steadily larger, too, by a power of two in ten steps."""
    for seed in range(5):
        honest = Honest(seed, drift=0.1)
        norms, said = BoundaryNorms(), list[str]()
        for _ in range(500):
            honest.level += 0.1
            said += trained(norms, honest, 1)
        assert said == []


def test_with_a_narrower_bound_they_would_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FAR_MIN", 0.0)
    assert [reason for seed in range(100) for reason in trained(BoundaryNorms(), Honest(seed), 20)]


@pytest.mark.parametrize("lie", LIES)
def test_who_passes_on_something_else_is_doubted_at_once(lie: str) -> None:
    """In its first tensor, and by all of two thousand receivers."""
    for seed in range(SEEDS):
        norms, honest = BoundaryNorms(), Honest(seed)
        assert trained(norms, honest, 6) == []
        reason = norms.see(Source(MAKERS[2], 1, 1, FORWARD), LIES[lie] * honest.norm())
        assert reason, seed
        assert ("nothing but zeros" in reason) is (lie == "zero") and "activations" in reason


def test_also_who_has_never_given_anything_before() -> None:
    norms, honest = BoundaryNorms(), Honest(1)
    trained(norms, honest, 10, BACKWARD)
    reason = norms.see(Source(Peer("new", 1), 1, 1, BACKWARD), 1000.0 * honest.norm())
    assert "times as large as gradients usually are" in reason


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("factor", [4.0, 0.25])
def test_a_little_more_or_less_each_time_is_doubted_on_average(seed: int, factor: float) -> None:
    """Among others of its stage; before long."""
    norms, honest, said = BoundaryNorms(), Honest(seed, drift=0.1), dict[Peer, str]()
    trained(norms, honest, 20)
    for _ in range(40):
        honest.step()
        for number in range(9):
            maker = MAKERS[number % 3]
            reason = norms.see(Source(maker, 1, 1, FORWARD), honest.norm() * (factor if maker == MAKERS[2] else 1.0))
            said |= {maker: reason} if reason else {}
    assert "on average" in said[MAKERS[2]]


def test_what_is_far_out_becomes_usual_when_it_stays() -> None:
    """Training that has jumped does not make everybody check for ever, and who is honest again is not doubted then."""
    norms, honest = BoundaryNorms(), Honest(4)
    trained(norms, honest, 10)
    honest.level += 10.0
    assert trained(norms, honest, 1)
    trained(norms, honest, 20)
    assert trained(norms, honest, 50) == []


def test_who_is_far_out_does_not_make_the_others_look_it() -> None:
    norms, honest, said = BoundaryNorms(), Honest(5), set[Peer]()
    trained(norms, honest, 10)
    for _ in range(30):
        for maker in MAKERS:
            norm = honest.norm() * (1000.0 if maker == MAKERS[2] else 1.0)
            far = norms.see(Source(maker, 1, 1, FORWARD), norm)
            said |= {maker} if "usually" in far else set()
    assert said == {MAKERS[2]}


@pytest.mark.parametrize(
    "other",
    [Source(MAKERS[0], 2, 1, FORWARD), Source(MAKERS[0], 1, 2, FORWARD), Source(MAKERS[0], 1, 1, BACKWARD)],
)
def test_each_stage_visit_and_direction_counts_for_itself(other: Source) -> None:
    norms, honest = BoundaryNorms(), Honest(6)
    trained(norms, honest, 10)
    assert norms.see(other, 1e6 * honest.norm()) == ""


REBUILT: Final = Plan(1, MAKERS[0], Rung.BLEND, (), 1.1, "", None)


@pytest.mark.parametrize(
    ("view", "installs", "again"),
    [
        (VIEW, (), False),
        (replace(VIEW, number=VIEW.number + 1), (), False),  # somebody came or went beside others
        (replace(VIEW, epochs=(VIEW.number,) * len(VIEW.epochs)), (), True),
        (replace(VIEW, omitted=(2,)), (), True),
        (replace(VIEW, lineage=replace(VIEW.lineage, id="another")), (), True),
        (VIEW, (REBUILT,), True),
    ],
)
def test_it_begins_again_where_a_stage_has_other_weights(view: View, installs: tuple[Plan, ...], again: bool) -> None:
    norms, honest = BoundaryNorms(), Honest(7)
    norms.begin(VIEW, BEGIN)
    trained(norms, honest, 10)
    norms.begin(view, replace(BEGIN, installs=installs))
    reason = norms.see(Source(MAKERS[0], 1, 1, FORWARD), 1000.0 * honest.norm())
    assert (reason == "") is again


def test_tables_have_an_end() -> None:
    norms = BoundaryNorms()
    for number in range(1000):
        norms.see(Source(Peer(str(number), 1), number, 1, FORWARD), 1.0)
    assert max(len(norms._usual), len(norms._makers)) <= sums.PEERS_MAX


# -- who hears of it


def test_of_one_other_only_so_many_doubts_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def heard(steps: int) -> int:
        doubts, chance, found = Doubts(), Random(1), 0
        for step in range(steps):
            doubts.hear(MAKERS[0], Doubt(MAKERS[1], 1, step, ""), step)
            found += doubts.choose(step, MAKERS, chance) is not None
        return found

    assert HEARD_MAX < heard(1000) <= HEARD_MAX + 1000 * HEARD_A_STEP + 1
    monkeypatch.setattr(sums, "HEARD_A_STEP", 1.0)
    assert heard(1000) > 1000 / 40, "without a budget for each the common one is spent"


def test_one_that_waits_already_costs_nothing() -> None:
    doubts = Doubts()
    doubt = Doubt(MAKERS[1], 1, 1, "")
    assert [doubts.hear(MAKERS[0], doubt, 1) for _ in range(100)] == [True] + [False] * 99
    assert doubts.hear(MAKERS[0], Doubt(MAKERS[2], 1, 1, ""), 1)


def test_own_doubts_go_first() -> None:
    doubts = Doubts()
    assert doubts.hear(MAKERS[0], Doubt(MAKERS[1], 1, 1, ""), 1)
    assert doubts.notice(Doubt(MAKERS[2], 1, 1, "odd"), True)
    assert doubts.choose(1, MAKERS, Random(1)) == MAKERS[2]
    assert doubts.choose(2, MAKERS, Random(1)) == MAKERS[1]
    assert doubts.choose(3, MAKERS, Random(1)) is None


def test_what_is_of_a_stage_that_we_do_not_hold_is_named_and_not_checked_here() -> None:
    doubts = Doubts()
    assert doubts.notice(Doubt(MAKERS[2], 1, 1, "odd"), False)
    assert not doubts.notice(Doubt(MAKERS[2], 1, 2, "odd"), False), "it is named once"
    assert doubts.choose(1, MAKERS, Random(1)) is None and [doubt.reason for doubt in doubts.told] == ["odd"]


def test_all_that_is_heard_keeps_to_the_common_budget() -> None:
    doubts, chance, found = Doubts(), Random(1), 0
    for step in range(320):
        for sender in range(40):
            doubts.hear(Peer(f"s{sender}", 1), Doubt(MAKERS[sender % 3], 1, step, ""), step)
        found += doubts.choose(step, MAKERS, chance) is not None
    assert found <= BUDGET_MAX + 320 / 32 + 1
    for number in range(1000):
        doubts.hear(Peer(f"t{number}", 1), Doubt(Peer(f"u{number}", 1), 1, 320, ""), 320)
    assert max(len(doubts._heard), len(doubts._told_of)) <= sums.PEERS_MAX
