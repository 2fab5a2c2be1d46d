"""Replicas that add up different sums: the step is tried once more and then skipped, and weights never part."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftnode.protocol.words.effects import Reduce
from tests.sim.checks import Violation
from tests.sim.planted import other_sums, replicas_at_odds
from tests.sim.test_every_moment import ended
from tests.sim.test_groups import SETTINGS, final_weights, grown
from tests.sim.world import World

STEP = 7


def trained(tries: int) -> World:
    """Two holders of each stage; one of stage 2 gets another sum for a step, so many times."""
    world = grown(replace(SETTINGS, replicas=2, head_every=0))
    world.alike = False
    odd, left = next(str(peer) for peer in _second_of(world)), [tries]

    def of(owner: str, task: Reduce) -> bool:
        wrong = owner == odd and task.step == STEP and task.stage == 2 and left[0] > 0
        left[0] -= wrong
        return wrong

    with other_sums(of):
        ended(world)
    assert not left[0]
    return world


def _second_of(world: World) -> tuple[object, ...]:
    view = max((host.view for host in world.live() if host.view is not None), key=lambda view: view.number)
    return view.holders[2][1:]


@pytest.mark.parametrize(("tries", "skips"), [(0, 0), (1, 0), (2, 1)])
def test_a_step_with_two_sums_is_tried_again_and_then_skipped(tries: int, skips: int) -> None:
    world = trained(tries)
    told = [note for note in world.notes if f"step {STEP} " in note and "different gradients" in note]
    assert ["is skipped" in note for note in told] == [False, True][:tries]
    skipped = [step for step, skips in _committed(world).items() if skips]
    assert skipped == [STEP] * skips
    assert all(len(histories) == 1 for histories in final_weights(world).values())
    assert set(final_weights(world)) == set(range(SETTINGS.stage_count))


def _committed(world: World) -> dict[int, bool]:
    """Step → whether it was skipped."""
    (versions,) = world.ledger.commits.values()
    return {step: world.ledger.chain[version.commit][1] for step, version in versions.items() if step}


def test_a_leader_that_does_not_compare_them_would_be_noticed() -> None:
    with replicas_at_odds(), pytest.raises(Violation, match="another history of stage 2"):
        trained(1)
