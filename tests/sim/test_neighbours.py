"""Peers with unequal ranges of stages: whoever takes over a stage in front of its own does what is missing, once.

Somebody has two stages, and each of them has one more holder. The second stage's one dies, so that what the first
stage's makes comes in the middle of the range; then that one dies, too, at every few events of the step. Each visit
still counts once, and the weights are those of an undisturbed run.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import pytest

from ftnode.protocol.step import attempt
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words.types import Peer
from tests.sim.branches import Branches, at_every_event
from tests.sim.host import Host
from tests.sim.kept_worlds import kept
from tests.sim.planted import patched, range_computed_twice
from tests.sim.targets import best_view
from tests.sim.test_every_moment import Weights, ended, next_step, trace
from tests.sim.test_groups import SETTINGS, final_weights
from tests.sim.world import World

UNEQUAL = replace(
    SETTINGS, stages=4, replicas=2, steps=40, head_every=0, microbatches=6, window=6, live_activations=6,
    evaluate_every=0, evaluation_microbatches=0,
)  # fmt: skip
SETTLED = 25
"""Of the step at whose end groups have grown."""
SEEDS = range(1, 30)
pytestmark = pytest.mark.timeout(600)


class Overlap(NamedTuple):
    """Two stages, one behind the other, that one peer holds, each with one more holder."""

    front: Peer
    behind: Peer


def overlap(world: World) -> Overlap | None:
    """Of block stages; the two are different peers and do not lead."""
    view = best_view(world)
    assert view is not None
    for first, second in pairwise(view.holders[1:]):
        both = {*first} & {*second}
        front, behind = ({*group} - both - {view.leader} for group in (first, second))
        if both and front and behind and front != behind:
            return Overlap(min(front), min(behind))
    return None


@kept
def begun() -> tuple[World, Overlap]:
    """At the beginning of a step."""
    for seed in SEEDS:
        world = World(UNEQUAL, seed, delay_max=0.02)
        world.forward_seconds = 0.05
        for index, hold in enumerate((5, 2, 1, 2, 1, 3, 1, 1)):
            world.at(0.1 * index, world.start, (f"peer{index}", hold, True))
        settled = partial(_committed, world, SETTLED)
        world.run(90.0, settled)
        if settled() and (found := overlap(world)) is not None:
            return world, found
    raise AssertionError(f"no world of {len(SEEDS)} comes to it")


def _committed(world: World, step: int) -> bool:
    return world.ledger.top_commit() >= step


def traces(every: int, one: bool = False) -> dict[str, str]:
    """The events of a step at which the second death shows."""
    world, (front, behind) = begun()
    wanted, branches = undisturbed(), Branches(one)
    world.run(world.now + 0.1)
    world.kill(world.by_id[behind.id], "kill", silently=False)

    def dies() -> str:
        world.kill(world.by_id[front.id], "kill", silently=False)
        return trace(world, wanted)

    def look(event: int) -> None:
        if event % every == 0:
            branches.off(f"event {event}", dies)

    at_every_event(world, next_step(world), 60.0, look)
    assert branches.moments > 20 and world.ledger.top_commit() + 1 < UNEQUAL.steps
    return branches.wrong()


@kept
def undisturbed() -> Weights:
    return final_weights(ended(begun()[0]))


def test_deaths_around_a_range_leaves_no_trace() -> None:
    assert traces(every=20) == {}


def test_it_would_be_seen_if_the_whole_range_were_computed_again() -> None:
    with range_computed_twice():
        assert traces(every=20, one=True)


def test_the_weights_are_those_of_one_stage_after_the_other() -> None:
    """And some tasks do have several stages."""
    together, tasks = undisturbed(), list[int]()
    perform = Host.__dict__.get("cost")
    assert perform is not None

    def counted(self: Host, task: fx.Task) -> float:
        tasks.append(len(task.stages))
        return float(perform(self, task))

    with patched((Host, "cost", counted)):
        undisturbed()
    assert max(tasks) > 1
    with patched((attempt.StepWork, "_with_neighbours", lambda self, task: task)):
        assert undisturbed() == together
