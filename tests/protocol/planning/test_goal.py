"""The way from one layout to another by changes that a node can make, and when it is gone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftnode.protocol.planning import goal as goals
from ftnode.protocol.planning.changes import GAIN, NOISE, Changes
from ftnode.protocol.planning.costs import Costs, Risk
from ftnode.protocol.planning.goal import Goal, Limits, find_goal, next_change, same_holders, way_to
from ftnode.protocol.planning.search import best_layout
from ftnode.protocol.planning.swarm import Holders, Swarm, stages_of
from tests.protocol.planning.swarms import unequal

RISK = Risk(0.0, 2.0)


def of(swarm: Swarm, holders: Holders = ()) -> Changes:
    """At first one holds all."""
    return Changes(Costs(swarm, RISK), holders or (("p0",),) * len(swarm.sizes))


def followed(changes: Changes, goal: Goal, limits: Limits) -> list[Holders]:
    """What the layout is after each change."""
    found = [changes.present]
    while (choice := next_change(changes.after(found[-1]), goal, limits)) is not None:
        found.append(choice.place.holders)
        assert len(found) <= goals.CHANGES_MAX
    return found


@pytest.mark.parametrize("seed", range(8))
def test_from_one_who_holds_all_to_the_best_layout_or_one_as_good(seed: int) -> None:
    """Each layout in between has a holder for every stage, who has room, and is hardly slower than the first."""
    changes = of(unequal(seed))
    best = best_layout(changes.costs.swarm)
    assert best is not None
    goal = Goal(best.holders, changes.costs.liquid(changes.present).cost, frozenset(changes.costs.swarm.machines))
    way = followed(changes, goal, Limits())
    count = way_to(changes, goal)
    assert count is not None and count <= 20
    assert (1 - GAIN) * changes.costs.scheduled(way[-1]).cost < changes.costs.scheduled(best.holders).cost
    assert goal.stands(way[-1], changes.costs.swarm.machines) is not same_holders(way[-1], best.holders)
    most = (1 + NOISE) * goal.cost
    for holders in way:
        assert changes.costs.swarm.feasible(holders) and changes.costs.liquid(holders).cost <= most


@pytest.mark.parametrize("seed", range(8))
def test_a_goal_is_clearly_better_and_what_is_one_of_has_no_better_one(seed: int) -> None:
    changes = of(unequal(seed))
    goal = find_goal(changes)
    assert goal is not None and goal.cost == changes.costs.liquid(changes.present).cost
    now, then = (changes.costs.scheduled(one).cost for one in (changes.present, goal.holders))
    assert then <= (1 - goals.FASTER) * now
    assert find_goal(changes.after(goal.holders)) is None
    assert find_goal(changes, steps=0.01) is None, "the next loss comes before it is worth it"
    seconds = changes.costs.scheduled(goal.holders).seconds
    assert find_goal(changes, usual=1.1 * seconds) is None, "the present layout is faster than the estimate says"


def test_no_stage_has_more_holders_than_may_be() -> None:
    found = [find_goal(of(replace(unequal(seed), replicas=1))) for seed in range(8)]
    assert any(found) and all({*map(len, goal.holders)} == {1} for goal in found if goal is not None)


def test_in_a_run_with_checks_no_fewer_stages_have_two_holders() -> None:
    fewer = 0
    for seed in range(16):
        swarm = unequal(seed)
        beside = max((name for name in swarm.machines if name != "p0"), key=swarm.room.__getitem__)
        count = min(swarm.room[beside], len(swarm.sizes))
        changes = of(swarm, (*((("p0", beside),) * count), *((("p0",),) * (len(swarm.sizes) - count))))
        goal, unchecked = find_goal(changes, checked=True), find_goal(changes)
        assert goal is None or sum(len(group) > 1 for group in goal.holders) >= count
        fewer += unchecked is not None and sum(len(group) > 1 for group in unchecked.holders) < count
    assert fewer, "else this would show nothing"


def test_who_stays_as_it_is_neither_learns_nor_gives_up_anything() -> None:
    changes = of(unequal(3))
    goal = find_goal(changes)
    assert goal is not None
    still = next(name for name in stages_of(goal.holders) if name != "p0")
    for holders in followed(changes, goal, Limits({still})):
        assert still not in stages_of(holders)
    assert way_to(changes, goal, Limits({still})) is None
    for holders in followed(changes, goal, Limits({"p0"})):
        assert all("p0" in group for group in holders)


def test_what_somebody_may_not_learn_it_does_not() -> None:
    changes = of(unequal(3))
    goal = find_goal(changes)
    assert goal is not None
    name, stages = next((name, stages) for name, stages in stages_of(goal.holders).items() if name != "p0")
    for holders in followed(changes, goal, Limits(barred={name: stages})):
        assert name not in stages_of(holders)


def test_the_leader_does_not_give_up_all_of_its_own_accord() -> None:
    """It would stay a member without a stage, whom nobody asks to learn one."""
    swarm = unequal(0)
    other = next(name for name in swarm.machines if name != "p0" and swarm.room[name] >= 1)
    both: Holders = (("p0",), *(("p0",),) * (len(swarm.sizes) - 2), ("p0", other))
    target: Holders = (*both[:-1], ("p0",))
    changes, goal = of(swarm, both), Goal(target, 1e9, frozenset(swarm.machines))
    assert way_to(changes, goal) == 1
    assert way_to(changes, goal, Limits(stays=other)) is None
    assert next_change(changes, goal, Limits(stays=other)) is None


def test_a_goal_that_is_not_better_any_more_is_not_gone_to() -> None:
    changes = of(unequal(3))
    goal = find_goal(changes)
    assert goal is not None
    back = Goal(changes.present, goal.cost, goal.names)
    assert next_change(changes.after(goal.holders), back) is None


def test_who_is_gone_ends_it_and_who_has_nothing_to_do_with_it_does_not() -> None:
    goal = Goal((("a",), ("b",)), 1.0, frozenset("abc"))
    assert goal.stands((("a",), ("a",)), "abc") and goal.stands((("a",), ("a",)), "ab")
    assert not goal.stands((("a",), ("a",)), "ac") and not goal.stands((("a",), ("b",)), "abc")
