"""Who gets how many microbatches follows the lines: those of replicas behind thin ones, and of nobody else."""

from __future__ import annotations

from collections import defaultdict
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from statistics import median

import pytest

from ftnode.protocol.leader.duty import Duty
from ftnode.protocol.lines.step_estimate import Line
from ftnode.protocol.manifest.boundary import BoundaryBytes
from ftnode.protocol.situation import Outcome
from ftnode.protocol.words.effects import Send
from ftnode.protocol.words.messages import Boundary
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Direction, Version
from tests.sim.host import Host
from tests.sim.planted import delays_count, lines_are_not_told, patched
from tests.sim.targets import best_view
from tests.sim.test_groups import sizes
from tests.sim.world import World

MICROBATCHES = 36
SETTINGS = Settings(
    run="shares", stages=2, steps=100_000, microbatches=MICROBATCHES, window=MICROBATCHES,
    live_activations=MICROBATCHES, replicas=2, head_every=0, listed=True,
)  # fmt: skip
TENSORS = BoundaryBytes(250_000, 250_000)
"""0.1 s at 20 Mbit/s, and 1 s at 2."""
FAST, THIN = Line(20e6 / 8, 100e6 / 8, 0.03), Line(2e6 / 8, 10e6 / 8, 0.03)
NEIGHBOUR = Line(1e9 / 8, 1e9 / 8, 0.03)
DEVICE_SECONDS = 0.005
"""Forward; backward takes twice as long. Those of the stage with two holders take more."""
STAGE = 1
STEPS_ALONE, STEPS_LEARNING, STEPS = 10, 6, 4


@dataclass
class Shared:
    """Of the two replicas of one stage: microbatches of a step, and seconds of a step."""

    shares: tuple[float, float]
    seconds: float


def holder(world: World, place: int) -> Host:
    """In the group of the stage."""
    view = best_view(world)
    assert view is not None
    return world.by_id[view.holders[STAGE][place].id]


def trained(
    lines: tuple[Line, Line], seed: int, devices: tuple[float, float] = (2 * DEVICE_SECONDS, 2 * DEVICE_SECONDS)
) -> Shared:
    """The holder of stage 1 has one of these lines and devices, and a newcomer with the other one joins it. Measured is
    what comes after some steps of learning."""
    world = World(SETTINGS, seed)
    world.network.lines.tensors, world.forward_seconds = TENSORS, DEVICE_SECONDS
    shaped = world.network.lines.of
    for index in range(SETTINGS.stage_count):
        shaped[f"peer{index}"] = NEIGHBOUR
        world.start(f"peer{index}", 1, True)
    world.run(120.0, lambda: sizes(world) == [1] * SETTINGS.stage_count)
    first = holder(world, 0)
    shaped[first.peer.id], first.forward_seconds = lines[0], devices[0]
    for link in (link for host in world.live() for link in host.links.values()):
        link.delay = world.network.lines.delay(link.source.peer.id, link.target.peer.id) or link.delay
    commit = world.ledger.top_commit()
    world.run(world.now + 600.0, lambda: world.ledger.top_commit() == commit + STEPS_ALONE)
    shaped["newcomer"] = lines[1]
    world.start("newcomer", 1, True).forward_seconds = devices[1]
    world.run(world.now + 600.0, lambda: sum(sizes(world)) > SETTINGS.stage_count)
    group = (first, holder(world, 1))
    made: dict[str, set[tuple[int, int]]] = defaultdict(set)
    times: list[tuple[int, float]] = []

    def on_send(host: Host, effect: Send) -> None:
        message = effect.message
        if type(message) is Boundary and message.direction is Direction.FORWARD and message.visit == STAGE + 1:
            made[host.peer.id].add((message.step, message.microbatch))

    def on_commit(lineage: str, version: Version, skipped: bool) -> None:
        times.append((version.step, world.now))

    world.on_send, world.on_commit = on_send, on_commit
    needed = STEPS_LEARNING + STEPS + 1
    world.run(world.now + 600.0, lambda: len(times) == needed)
    assert len(times) == needed and world.losses == 0
    counted = {step for step, _ in times[STEPS_LEARNING + 1 :]}
    one, other = (sum(step in counted for step, _ in made[host.peer.id]) / STEPS for host in group)
    return Shared((one, other), median(later[1] - earlier[1] for earlier, later in pairwise(times[STEPS_LEARNING:])))


@pytest.mark.parametrize("seed", range(3))
def test_ten_times_the_line_gets_about_ten_times_the_microbatches(seed: int) -> None:
    shared = trained((FAST, THIN), seed)
    assert sum(shared.shares) == MICROBATCHES
    assert 7 <= shared.shares[0] / shared.shares[1] <= 13
    nobody_is_lost_for_it = patched((Duty, "beat", lambda self, s: Outcome()))
    with lines_are_not_told(), nobody_is_lost_for_it:
        equal = trained((FAST, THIN), seed)
    assert equal.shares == even(3)
    assert shared.seconds <= equal.seconds / 2


def even(tolerance: float) -> tuple[object, object]:
    half = pytest.approx(MICROBATCHES / 2, abs=tolerance)
    return half, half


@pytest.mark.parametrize("line", [FAST, THIN, NEIGHBOUR], ids=["20 Mbit/s", "2 Mbit/s", "1 Gbit/s"])
def test_equal_lines_get_equal_shares(line: Line) -> None:
    assert trained((line, line), 1).shares == even(3)


def test_a_fast_line_does_not_hide_a_slow_device() -> None:
    """Its device takes 0.8 s for a microbatch, where the other's line takes 0.2 s."""
    shares = trained((FAST, NEIGHBOUR), 1, (2 * DEVICE_SECONDS, 0.8 / 3)).shares
    assert 3 <= shares[0] / shares[1] <= 5


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("up", [inf, NEIGHBOUR.up], ids=["no limit", "1 Gbit/s"])
def test_a_delay_is_no_time_of_the_line(up: float, seed: int) -> None:
    """Tensors of one are there in 0.015 s and of the other in 0.1 s. Both compute 0.06 s for a microbatch."""
    assert trained((Line(up, up, 0.0), Line(up, up, 0.17)), seed, (0.02, 0.02)).shares == even(3)


@pytest.mark.parametrize("planted", [False, True], ids=["as it is", "delays count"])
def test_half_a_second_of_delay_changes_nothing(planted: bool) -> None:
    with delays_count() if planted else nullcontext():
        shares = trained((Line(inf, inf, 0.0), Line(inf, inf, 0.97)), 0, (0.1, 0.1)).shares
    assert (shares[0] > 2 * shares[1]) == planted and (shares == even(3)) != planted
