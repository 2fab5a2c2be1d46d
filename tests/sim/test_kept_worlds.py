"""A world that is taken up again goes on as the one that was made would have, and belongs to nobody else."""

from __future__ import annotations

from collections import deque

import pytest

from tests.sim.host import Host
from tests.sim.kept_worlds import kept
from tests.sim.planted import patched
from tests.sim.test_duty import swarm
from tests.sim.world import World

SECONDS = 12.0


def goes_on(world: World) -> tuple[deque[str], dict[str, dict[int, object]], int]:
    world.kill(world.by_id["peer2"], "kill", silently=False)
    world.run(world.now + SECONDS)
    return world.notes, {lineage: {**commits} for lineage, commits in world.ledger.commits.items()}, world.events


def test_a_world_that_is_taken_up_goes_on_as_the_one_that_was_made() -> None:
    with patched():
        made = swarm(1, 2, checks=0.5)
    first, second = swarm(1, 2, checks=0.5), swarm(1, 2, checks=0.5)
    before = second.now, second.events, len(second.notes)
    after = goes_on(made)
    assert after[2] > before[1] and goes_on(first) == after
    assert before == (second.now, second.events, len(second.notes)), "nothing of it is shared with the first"
    assert goes_on(second) == after


MADE: list[int] = []
SLOWER = (Host, "cost", lambda self, task: 2.0)


@kept
def numbers(count: int) -> list[int]:
    MADE.append(count)
    return [*range(count)]


def test_a_plant_has_worlds_of_its_own() -> None:
    MADE.clear()
    assert numbers(2) == numbers(2) and MADE == [2]
    for _ in range(2):
        with patched(SLOWER):
            assert numbers(2) == numbers(2)
            with patched(SLOWER):
                numbers(2)
    assert MADE == [2] * 5
    assert numbers(2) == numbers(2) and MADE == [2] * 5


def test_a_test_that_plants_by_hand_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    MADE.clear()
    assert numbers(2) == numbers(2) and MADE == [2, 2]
