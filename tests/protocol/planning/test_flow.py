"""The liquid against the schedule, and drafts that can be."""

from __future__ import annotations

from random import Random
from statistics import median

import pytest

from ftnode.protocol.lines.step_estimate import Line
from ftnode.protocol.manifest.boundary import BoundaryBytes
from ftnode.protocol.planning.drafts import Draft, drafts
from ftnode.protocol.planning.flow import Flow
from ftnode.protocol.planning.schedule import Batch, step_timing
from ftnode.protocol.planning.swarm import Swarm, alike, holders_of
from tests.protocol.planning.swarms import random_swarm


def seconds(flow: Flow, draft: Draft) -> tuple[float, float]:
    """By the liquid, and by the schedule."""
    holders = holders_of({flow.names[number]: one for number, one in draft.items()}, flow.stages)
    assert flow.swarm.feasible(holders), draft
    groups = [tuple(flow.names.index(name) for name in group) for group in holders]
    return flow.seconds(groups)[0], step_timing(flow.swarm.layout(holders), flow.swarm.batch).seconds


def test_it_is_near_the_schedule() -> None:
    """In swarms of eight to 32 machines, for all of their drafts."""
    ratios = []
    for seed in range(25):
        chance = Random(seed)
        swarm = random_swarm(chance, chance.choice([8, 16, 32]), chance.choice([5, 11]), chance.choice([16, 32]))
        flow = Flow(swarm)
        for _, draft in drafts(flow):
            liquid, scheduled = seconds(flow, draft)
            ratios.append(liquid / scheduled)
    ratios.sort()
    assert len(ratios) > 200 and median(ratios) == pytest.approx(1.0, abs=0.05)
    tenth = len(ratios) // 10
    assert ratios[tenth] > 0.6 and ratios[-tenth] < 1.25, (ratios[tenth], ratios[-tenth])


def test_drafts_of_small_and_tight_swarms_can_be() -> None:
    for seed in range(40):
        chance = Random(seed)
        flow = Flow(random_swarm(chance, chance.randint(1, 6), chance.randint(1, 8), 4))
        for _, draft in drafts(flow):
            seconds(flow, draft)


def test_equal_stages_take_what_odyssey_says() -> None:
    """Its equation 9, which needs no liquid."""
    machines = {f"p{stage}": alike((1.0, 2.0), (0.0, 3.0), 4) for stage in range(5)}
    flow = Flow(Swarm(machines, dict.fromkeys(machines, 5), (1,) * 5, Batch(8, 8)))
    liquid, scheduled = seconds(flow, {number: (number, number) for number in range(5)})
    assert liquid == pytest.approx(scheduled) == (4 + 8) * 3.0


def test_copies_of_the_head_count_on_the_line_of_its_holder() -> None:
    machines = {f"p{stage}": alike((1.0, 2.0), (0.0, 3.0), 3, Line(1.0, 9.0, 0.0)) for stage in range(4)}
    chain = {number: (number, number) for number in range(4)}
    found = []
    for copies in ((), (40, 0, 0, 0)):
        batch = Batch(16, 16, BoundaryBytes(4, 4), copies=copies)
        found.append(seconds(Flow(Swarm(machines, dict.fromkeys(machines, 4), (1,) * 4, batch)), chain))
    (liquid, scheduled), (with_copies, scheduled_with) = found
    assert with_copies - liquid == pytest.approx(80.0, rel=0.1), "two keepers"
    assert scheduled_with - scheduled == pytest.approx(80.0, rel=0.1)
    assert with_copies == pytest.approx(scheduled_with, rel=0.15)


def test_whoever_is_slowest_is_known() -> None:
    machines = {f"p{stage}": alike((1.0, 2.0), (0.0, 3.0), 3) for stage in range(4)}
    machines["p2"] = alike((2.0, 4.0), (0.0, 3.0), 3)
    machines["p1"] = alike((1.0, 2.0), (0.0, 3.0), 3, Line(1.0, 1.0, 0.0))
    flow = Flow(Swarm(machines, dict.fromkeys(machines, 4), (1,) * 4, Batch(8, 8, BoundaryBytes(1, 1))))
    _, done = flow.seconds([(0,), (1,), (2,), (3,)])
    assert max(range(4), key=done.__getitem__) == 2
    flow = Flow(Swarm(machines, dict.fromkeys(machines, 4), (1,) * 4, Batch(8, 8, BoundaryBytes(9, 9))))
    _, done = flow.seconds([(0,), (1,), (2,), (3,)])
    assert max(range(4), key=done.__getitem__) == 1
