"""Who takes whose place, and what it takes to get there."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import permutations
from random import Random

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from ftnode.protocol.lines.step_estimate import Line
from ftnode.protocol.planning.matching import least_cost
from ftnode.protocol.planning.schedule import Batch, Machine
from ftnode.protocol.planning.swarm import Holders, Swarm, alike, holders_of, stages_of
from ftnode.protocol.planning.transition import placed, transition
from tests.protocol.planning.swarms import random_layout, random_swarm

LINE = Line(10.0, 50.0, 0.0)


def equals(count: int, stages: int) -> Swarm:
    """`count` machines a, b, … that are alike and have room for all stages."""
    machines = {chr(97 + number): alike((1.0, 2.0), (0.0, 1.0), stages, LINE) for number in range(count)}
    return Swarm(machines, dict.fromkeys(machines, stages + 1), (1,) * (stages + 1), Batch(8, 8))


def moved(present: Holders, wanted: Holders, states: tuple[int, ...]) -> int:
    had = stages_of(present)
    return sum(
        states[stage]
        for name, stages in stages_of(wanted).items()
        for stage in stages
        if stage not in had.get(name, ())
    )


@pytest.mark.parametrize("seed", range(40))
def test_the_matching_costs_what_scipy_finds(seed: int) -> None:
    chance = Random(seed)
    size, most = chance.randint(1, 30), chance.choice([2, 10, 10**9])
    costs = [[chance.randrange(most) for _ in range(size)] for _ in range(size)]
    columns = least_cost(costs)
    assert sorted(columns) == [*range(size)]
    rows, best = linear_sum_assignment(np.array(costs))
    assert sum(costs[row][column] for row, column in enumerate(columns)) == np.array(costs)[rows, best].sum()


def test_the_matching_is_fast_enough_to_plan_with() -> None:
    chance = Random(0)
    costs = [[chance.randrange(1000) for _ in range(64)] for _ in range(64)]
    began = time.process_time()
    least_cost(costs)
    assert time.process_time() - began < 0.1


def test_the_example_of_odyssey_moves_two_layers() -> None:
    """Its figure 3: nine layers on three machines, and one that has the last three as well, become four parts."""
    swarm = equals(4, 8)
    present = holders_of({"a": (0, 2), "b": (3, 5), "c": (6, 8), "d": (6, 8)}, 9)
    wanted = holders_of({"a": (2, 3), "b": (0, 1), "c": (4, 5), "d": (6, 8)}, 9)
    found = placed(swarm, present, wanted, (1,) * 9)
    assert moved(present, wanted, (1,) * 9) == 5 and moved(present, found, (1,) * 9) == 2
    assert stages_of(found)["a"] == (0, 1) and stages_of(found)["b"] == (4, 5)


@pytest.mark.parametrize("seed", range(30))
def test_no_order_of_machines_that_are_alike_moves_less(seed: int) -> None:
    chance = Random(seed)
    swarm = equals(chance.randint(1, 5), chance.randint(1, 6))
    states = tuple(chance.randint(1, 9) for _ in swarm.sizes)
    present, wanted = random_layout(chance, swarm), random_layout(chance, swarm)
    found = placed(swarm, present, wanted, states)
    names = sorted(swarm.machines)
    least = min(
        moved(present, tuple(tuple(dict(zip(names, order))[name] for name in group) for group in wanted), states)
        for order in permutations(names)
    )
    assert moved(present, found, states) == least
    assert sorted(map(len, found)) == sorted(map(len, wanted))


@pytest.mark.parametrize("seed", range(30))
def test_only_machines_that_are_alike_change_places(seed: int) -> None:
    chance = Random(seed)
    swarm = random_swarm(chance, 8, 5, 8)
    present, wanted = random_layout(chance, swarm), random_layout(chance, swarm)
    if not present or not wanted:
        return
    found = placed(swarm, present, wanted, (3,) * 6)
    assert swarm.feasible(found)
    assert moved(present, found, (3,) * 6) <= moved(present, wanted, (3,) * 6)

    def kinds(holders: Holders) -> list[list[object]]:
        return [
            sorted((repr(swarm.machines[name].line), *swarm.machines[name].paces[1]) for name in g) for g in holders
        ]

    assert kinds(found) == kinds(wanted)


def test_who_is_in_its_place_stays_there() -> None:
    swarm = equals(4, 3)
    present = holders_of({"a": (0, 1), "b": (0, 1), "c": (2, 3), "d": (2, 3)}, 4)
    assert placed(swarm, present, present, (1,) * 4) == present


def test_pairs_move_at_the_same_time() -> None:
    """Each has to send 100 bytes, at 10 a second."""
    machines = equals(4, 3).machines
    present = holders_of({"a": (0, 1), "b": (2, 3)}, 4)
    wanted = holders_of({"a": (0, 1), "b": (2, 3), "c": (1, 1), "d": (2, 2)}, 4)
    found = transition(machines, present, wanted, (100,) * 4)
    assert found is not None and found.size == 200 and found.seconds == pytest.approx(10.0)


def test_donors_share_what_there_is_to_send() -> None:
    machines = equals(4, 3).machines
    present = holders_of({"a": (0, 3), "b": (0, 3)}, 4)
    wanted = holders_of({"a": (0, 3), "b": (0, 3), "c": (0, 1)}, 4)
    found = transition(machines, present, wanted, (100,) * 4)
    assert found is not None and {move.donor for move in found.moves} == {"a", "b"}
    assert found.seconds == pytest.approx(10.0)


def test_a_thin_line_down_limits() -> None:
    machines = dict(equals(2, 3).machines)
    machines["b"] = replace(machines["b"], line=Line(10.0, 1.0, 0.5))
    found = transition(machines, holders_of({"a": (0, 3)}, 4), holders_of({"a": (0, 3), "b": (0, 3)}, 4), (10,) * 4)
    assert found is not None and found.limiting == "b" and found.seconds == pytest.approx(40.0 + 2 * 0.5)


def test_a_stage_that_nobody_has_is_blended_from_its_neighbours() -> None:
    machines: dict[str, Machine] = dict(equals(3, 3).machines)
    present = holders_of({"a": (0, 1), "z": (2, 2), "b": (3, 3)}, 4)
    wanted = holders_of({"a": (0, 1), "c": (2, 2), "b": (3, 3)}, 4)
    found = transition(machines, present, wanted, (100, 100, 100, 100))
    assert found is not None and [(move.stage, move.donor) for move in found.moves] == [(1, "a"), (3, "b")]
    assert transition(machines, holders_of({"z": (0, 3)}, 4), wanted, (1,) * 4) is None


def test_nothing_to_move_takes_no_time() -> None:
    present = holders_of({"a": (0, 3)}, 4)
    found = transition(equals(2, 3).machines, present, present, (1,) * 4)
    assert found is not None and found.seconds == 0.0 and not found.moves
