"""Every rung of the ladder in a real swarm: whichever stages are lost, their holders killed in the middle of a step."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import Any

import pytest

from ftnode.lab.demo.kills import Planned, strike
from ftnode.lab.demo.report import Kill, Recovery, recover
from ftnode.lab.swarms.swarm import descendants
from ftnode.lab.swarms.trial import Trial
from ftnode.lab.traces.story import Story, Told
from ftnode.models.encoded_size import encoded_bytes
from ftnode.node.driver.trace import TraceTail
from ftnode.protocol.manifest.parse import Manifest
from tests.swarm.conftest import OpenTrial

pytestmark = pytest.mark.timeout(240)

HEAL_SECONDS = 30.0
MORE_STEPS = 5


def lose(trial: Trial, *stages: int) -> list[Kill]:
    """Kill the holders of the stages at once, in the middle of a step."""
    step = trial.story.committed + 2
    kills = strike(trial.swarm, trial.story, [Planned(stage, step) for stage in stages])
    assert [kill.stage for kill in kills] == list(stages)
    trial.expected_dead |= {kill.node for kill in kills}
    return list(kills)


def come_back(trial: Trial, kills: list[Kill]) -> list[Recovery]:
    """How they did, once more steps are committed and the interrupted one is validated."""

    def are_back(story: Story) -> bool:
        found = [recover(story, kill) for kill in kills]
        return all(one is not None and one.validation_after is not None for one in found)

    trial.wait("all stages to be back", are_back, HEAL_SECONDS)
    trial.wait_for_step(trial.story.committed + MORE_STEPS, HEAL_SECONDS)
    found = [recover(trial.story, kill) for kill in kills]
    assert all(one is not None and one.bytes_fetched > 0 and one.outage_seconds < HEAL_SECONDS for one in found)
    return [one for one in found if one is not None]


def installed(trial: Trial, stage: int) -> Told:
    """The last rebuild of a stage."""
    return [told for told in trial.story.installed if told.record["stage"] == stage and told.record["step"]][-1]


def records(trial: Trial, node: str, kind: str) -> list[dict[str, Any]]:
    """All records of a kind in a node's trace."""
    return [record for record in TraceTail(trial.swarm.processes[node].trace).read() if record["k"] == kind]


def test_the_head_comes_back_bit_exact_with_its_place_in_the_data(open_swarm: OpenTrial) -> None:
    trial = open_swarm(volunteers=5, numbers=True)
    (kill,) = kills = lose(trial, 0)
    (recovery,) = come_back(trial, kills)
    assert recovery.rung == "head"
    back = installed(trial, 0)
    lent = [each for each in records(trial, kill.node, "exported") if each["stage"] == 0]
    assert back.record["copy_step"] >= kill.step - 2, "copies of so small a head are refreshed at every commit"
    assert back.record["digest"] in {each["digest"] for each in lent if each["step"] == back.record["copy_step"]}
    history = records(trial, back.node, "history")[-1]
    assert history["last"] >= kill.step - 2 and history["count"] == history["last"], "the newcomer knows every commit"


@pytest.mark.parametrize("stage", [1, 3])
def test_an_end_of_the_pipeline_is_copied_from_its_neighbour(open_swarm: OpenTrial, stage: int) -> None:
    trial = open_swarm(volunteers=5, numbers=True)
    (recovery,) = come_back(trial, lose(trial, stage))
    assert recovery.rung == "copy"
    assert [donor[0] for donor in installed(trial, stage).record["donors"]] == [2]


def test_adjacent_stages_are_interpolated_between_the_nearest_survivors(open_swarm: OpenTrial) -> None:
    trial = open_swarm(volunteers=7, stages=4, numbers=True)
    found = come_back(trial, lose(trial, 2, 3))
    assert [one.rung for one in found] == ["interpolate", "interpolate"]
    for stage in (2, 3):
        assert [donor[0] for donor in installed(trial, stage).record["donors"]] == [1, 4]


def test_swapped_routes_let_the_partner_take_an_ends_place(open_swarm: OpenTrial) -> None:
    trial = open_swarm(volunteers=6, stages=4, change=swapped, numbers=True)
    (recovery,) = come_back(trial, lose(trial, 4))
    assert recovery.rung == "copy" and "trained to take its place" in recovery.reason


def swapped(manifest: Manifest) -> Manifest:
    return replace(manifest, pipeline=replace(manifest.pipeline, swap=True))


def shadowed(manifest: Manifest) -> Manifest:
    return replace(manifest, recovery=replace(manifest.recovery, shadow_every=2, shadow_encoding="int8"))


def test_adjacent_stages_come_back_from_their_shadows(open_swarm: OpenTrial) -> None:
    trial = open_swarm(volunteers=7, stages=4, change=shadowed, numbers=True)
    kills = lose(trial, 2, 3)
    found = come_back(trial, kills)
    assert [one.rung for one in found] == ["shadow", "shadow"]
    step = max(kill.step for kill in kills)
    for kill in kills:
        assert 0 <= step - 1 - installed(trial, kill.stage).record["copy_step"] <= 3
    numbers = 4 * 64**2 + 3 * 64 * 128 + 2 * 64
    for stage in range(1, 5):
        count, sent = trial.story.copied[stage]
        assert count >= 2 and sent == count * encoded_bytes(numbers, "int8")


def test_a_newcomer_that_dies_in_its_own_recovery_is_replaced(open_swarm: OpenTrial) -> None:
    trial = open_swarm(volunteers=6)
    (kill,) = kills = lose(trial, 2)
    trial.wait("a newcomer", lambda story: story.holder(2) not in (None, kill.node), HEAL_SECONDS)
    newcomer = trial.story.holder(2)
    assert newcomer is not None
    trial.kill(newcomer)
    trial.wait("another newcomer", lambda story: story.holder(2) not in (None, kill.node, newcomer), HEAL_SECONDS)
    (recovery,) = come_back(trial, kills)
    owners: dict[int, set[str]] = {}
    for _, view in trial.story.views:
        if view.holders[2]:
            owners.setdefault(view.epochs[2], set()).add(str(view.holders[2][0]))
    assert all(len(names) == 1 for names in owners.values()), "an epoch was used twice"
    assert recovery.rung == "blend"


def test_a_donor_that_is_stopped_while_it_gives_does_not_hold_the_recovery_up(open_swarm: OpenTrial) -> None:
    trial = open_swarm(volunteers=7)
    donor = trial.story.holder(1)
    assert donor is not None
    family = (trial.swarm.processes[donor].process.pid, *descendants(trial.swarm.processes[donor].process.pid))
    kills = lose(trial, 2)
    try:
        for pid in family:
            os.kill(pid, signal.SIGSTOP)
        trial.wait("another holder of stage 1", lambda story: story.holder(1) not in (None, donor), HEAL_SECONDS)
        come_back(trial, kills)
    finally:
        for pid in family:
            os.kill(pid, signal.SIGCONT)
