"""Nobody can hold a middle stage, and to wait costs more than to go on without it: routes leave it out (rule 41)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ftnode.protocol.leader import leader
from ftnode.protocol.leader.leader import Leader
from ftnode.protocol.recovery import standing
from ftnode.protocol.situation import Outcome, Situation
from ftnode.protocol.step import attempt, routes
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import HEAD
from tests.sim.planted import patched
from tests.sim.run import run_seeds
from tests.sim.targets import holders
from tests.sim.test_comings_and_goings import LONG, rungs, seen, started
from tests.sim.world import World
from tests.tiers import seeds

FOUR = replace(LONG, stages=4, omit=True)
FAULTS = ("bereft", "bereft", "kill", "pause", "isolate", "partition", "split", "election", "message", "memory",
          "compute", "leave", "restart", "double")  # fmt: skip


def bereft(seed: int, settings: Settings = FOUR, lost: tuple[int, ...] = (2,), spare: int = 0) -> World:
    """Everybody has room for one stage, and the holders of these are gone."""
    world = started(World(settings, seed, delay_max=0.01), settings.stage_count + spare)
    for stage in lost:
        (host,) = holders(world, seen(world))[stage]
        world.kill(host, "kill", silently=False)
    return world


def stands(world: World, seconds: float) -> bool:
    """Nothing is committed for so long."""
    commit = world.ledger.top_commit()
    world.run(world.now + seconds)
    return world.ledger.top_commit() == commit


def left_out(world: World) -> tuple[int, ...]:
    return seen(world).omitted


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_run_waits_then_goes_on_without_the_stage_and_takes_it_back(seed: int, stage: int) -> None:
    world = bereft(seed, lost=(stage,))
    world.run(world.now + 60.0, lambda: left_out(world) == (stage,))
    without = world.ledger.top_commit()
    world.run(world.now + 20.0)
    assert left_out(world) == (stage,) and world.ledger.top_commit() > without + 5
    leads = world.by_id[seen(world).leader.id].participant
    assert leads.waiting() == "" and leads.chronicle.left_out_since(stage) is not None
    world.start("newcomer", 1, True)
    world.run(world.now + 20.0, lambda: left_out(world) == ())
    assert [peer.id for peer in seen(world).holders[stage]] == ["newcomer"]
    back = world.ledger.top_commit()
    world.run(world.now + 20.0)
    assert world.ledger.top_commit() > back + 5 and "blend" in rungs(world)
    assert leads.chronicle.left_out_since(stage) is None


def test_a_newcomer_in_time_is_waited_for() -> None:
    world = bereft(1)
    world.run(world.now + 1.0)
    world.start("newcomer", 1, True)
    world.run(world.now + 20.0)
    assert not any(view.omitted for view in world.ledger.views.values()) and seen(world).holders[2]


@pytest.mark.parametrize(
    ("settings", "lost"),
    [
        (replace(FOUR, omit=False), (2,)),
        (FOUR, (1,)),
        (FOUR, (4,)),
        (FOUR, (2, 3)),
        (replace(FOUR, head_every=1), (HEAD,)),
    ],
    ids=["not declared", "the first", "the last", "more than a third", "the head"],
)
def test_what_routes_need_is_never_left_out(settings: Settings, lost: tuple[int, ...]) -> None:
    world = bereft(1, settings, lost)
    world.run(world.now + 30.0)
    assert stands(world, 120.0)
    assert not any(view.omitted for view in world.ledger.views.values())


@pytest.mark.parametrize("lost", [(1,), (4,), (2,)])
def test_with_swapped_routes_a_partner_takes_the_place_of_an_end(lost: tuple[int, ...]) -> None:
    world = bereft(1, replace(FOUR, swap=True), lost)
    world.run(world.now + 60.0, lambda: left_out(world) == lost)
    assert left_out(world) == lost and not stands(world, 10.0)


@pytest.mark.parametrize("lost", [(2, 3), (2, 5)])
def test_two_of_six_may_be_left_out_and_come_back_one_by_one(lost: tuple[int, ...]) -> None:
    world = bereft(1, replace(FOUR, stages=6), lost)
    world.run(world.now + 60.0, lambda: left_out(world) == lost)
    assert not stands(world, 10.0)
    world.start("newcomer", 1, True)
    world.run(world.now + 30.0, lambda: len(left_out(world)) == 1)
    assert len(left_out(world)) == 1 and not stands(world, 10.0)
    world.start("another", 1, True)
    world.run(world.now + 30.0, lambda: not left_out(world))
    assert not left_out(world) and not stands(world, 10.0)


@pytest.mark.timeout(600)
def test_many_seeds_with_stages_left_out_and_all_else_that_goes_wrong() -> None:
    outcomes = list(run_seeds(seeds(90), 1, FAULTS))
    for outcome in outcomes:
        assert not outcome.violation, outcome.report()
    assert sum(outcome.left_out for outcome in outcomes) > len(outcomes) // 8
    assert sum(outcome.came_back for outcome in outcomes) > len(outcomes) // 12


# -- planted bugs


def the_attempt_goes_on() -> Any:
    """An attempt that began with the stage goes on when routes leave it out."""
    return patched((standing, "same_routes", lambda view, attempt: True))


def the_head_does_not_know() -> Any:
    """Whoever holds the head makes routes as if the stage were there, and others do not."""
    original = attempt.StepWork.route

    def route(self: Any, microbatch: int) -> tuple[int, ...]:
        whole = routes.route(self.settings.stages, microbatch, self.settings.swap)
        return whole if HEAD in self.stages else original(self, microbatch)

    return patched((attempt.StepWork, "route", route))


def the_head_counts_its_last_visit_elsewhere() -> Any:
    """The head waits for its loss at the visit that it has on the whole route."""
    return patched((attempt, "last_visit", lambda stages, view: stages + 1))


def a_newcomer_comes_into_the_middle_of_a_step() -> Any:
    """Who accepts a stage that is left out comes in at once, and the attempt goes on with it."""
    original, decided = Leader.beat, standing.standing

    def beat(self: Leader, s: Situation) -> Outcome:
        out, fills = original(self, s), self.recruiting.fills
        if self.view.omitted and fills and not self.unsettled and not self.balloting.proposing:
            self.next._propose(s, out, fills, ["at once"])
        return out

    def goes_on(view: Any, statuses: Any) -> Any:
        where = decided(view, statuses)
        attempts = {status.attempt for status in statuses.values() if status.attempt is not None}
        if where.commits_now is None and len(attempts) == 1 and not view.vacancies():
            return replace(where, continues=attempts.pop())
        return where

    return patched((Leader, "beat", beat), (leader, "standing", goes_on))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "plant",
    [
        the_attempt_goes_on,
        the_head_does_not_know,
        the_head_counts_its_last_visit_elsewhere,
        a_newcomer_comes_into_the_middle_of_a_step,
    ],
)
def test_a_planted_bug_is_found(plant: Callable[[], Any]) -> None:
    with plant():
        found = next((outcome for outcome in run_seeds(range(1, 41), 1, FAULTS) if outcome.violation), None)
    assert found is not None
