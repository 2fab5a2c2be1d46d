"""Bugs in starting again from disks: each must be seen, and nothing is where there are none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftnode.protocol.words.types import Rung
from ftnode.protocol.words.view import View
from tests.sim.checks import Violation
from tests.sim.planted import (
    any_weights_block,
    digests_do_not_matter,
    disks_are_believed,
    epochs_from_nothing,
    hearsay_does_not_matter,
    liars_are_believed,
    other_histories_mix,
    steps_do_not_matter,
    weights_do_not_matter,
)
from tests.sim.targets import best_view
from tests.sim.test_groups import final_weights
from tests.sim.test_restart import (
    SETTINGS,
    Swarm,
    test_epochs_go_on_above_those_of_the_past,
    test_who_lived_on_with_too_little_to_go_on_is_waited_for_and_then_goes_back_with_the_others,
    undisturbed,
)
from tests.sim.test_restart_misfortunes import (
    keeper_is_refused_for_a_while,
    one_lies,
    strangers_found_meanwhile,
    test_who_remembers_a_commit_and_has_no_weights_does_not_either,
)


def three_of_each(spoilt: bool) -> Swarm:
    """All stages three times; one holder's weights are not what they should be when they are saved."""
    swarm = Swarm(replace(SETTINGS, replicas=3, stages=2, steps=30), peers=9)

    def full() -> bool:
        view = best_view(swarm.world)
        return view is not None and all(len(group) == 3 for group in view.holders)

    swarm.world.disks.seconds = 0.0
    if spoilt:
        swarm.world.disks.spoils = lambda host, stage: host.peer == min(best(swarm).holders[stage])
    swarm.world.run(60.0, full)
    assert full()
    swarm.until(max(step for _, step in swarm.commits) + 7)
    swarm.world.disks.spoils = lambda host, stage: False
    swarm.power_cut()
    swarm.until(max(step for _, step in swarm.commits))
    return swarm


def best(swarm: Swarm) -> View:
    view = best_view(swarm.world)
    assert view is not None
    return view


def test_a_snapshot_that_two_others_contradict_is_not_used() -> None:
    assert set(three_of_each(True).rungs().values()) <= {Rung.SNAPSHOT, Rung.REPLICA}


def test_planted_digests_do_not_matter() -> None:
    with digests_do_not_matter(), pytest.raises(Violation, match="that was never its weights"):
        three_of_each(True)


def two_histories() -> None:
    """Some have step 9 of a history that a restart from step 6 abandoned, others of the one that came after it."""
    swarm = Swarm()
    swarm.until(7)
    swarm.world.run(swarm.world.now + 0.3)
    late = swarm.holder_of(2)
    swarm.world.disks.seconds = 0.0
    swarm.until(9)
    swarm.world.run(swarm.world.now + 0.2)
    disks = swarm.world.disks.held
    disks[late] = [one for one in disks[late] if one.snapshot.version.step < 9]
    swarm.power_cut()
    swarm.until(9)
    swarm.world.run(swarm.world.now + 0.2)
    other = swarm.holder_of(1)
    disks[other] = disks[other][:-1]
    newest = [disk[-1].snapshot.version for disk in disks.values()]
    assert {version.step for version in newest} == {9} and len(set(newest)) == 2
    swarm.power_cut()
    swarm.until(SETTINGS.steps)
    swarm.world.run(swarm.world.now + 2.0)
    assert {base.step for *_, base in swarm.installed} == {6}
    assert final_weights(swarm.world) == undisturbed()


def test_steps_of_two_histories_are_told_apart() -> None:
    two_histories()


def test_planted_other_histories_mix() -> None:
    with other_histories_mix(), pytest.raises(Violation, match="I4"):
        two_histories()


def lost_leader() -> None:
    """All snapshots there, and a leader lost in mid-step: what the others have in memory is newer."""
    swarm = Swarm()
    swarm.world.start("late", 1, True)
    swarm.until(8)
    view = best_view(swarm.world)
    assert view is not None
    swarm.world.kill(swarm.world.by_id[view.holders[2][0].id], "kill", silently=False)
    swarm.until(SETTINGS.steps)
    assert {version.step for commits in swarm.world.ledger.commits.values() for version in commits.values()} >= {
        7,
        8,
        9,
    }


def test_weights_that_somebody_has_come_first() -> None:
    lost_leader()


def test_planted_weights_do_not_matter() -> None:
    with weights_do_not_matter(), pytest.raises(Violation, match=r"I[13]: "):
        lost_leader()


def test_planted_epochs_from_nothing() -> None:
    with epochs_from_nothing(), pytest.raises(Violation, match="I2: epochs"):
        test_epochs_go_on_above_those_of_the_past()


def test_planted_any_weights_block() -> None:
    with any_weights_block():
        with pytest.raises(AssertionError):
            test_who_lived_on_with_too_little_to_go_on_is_waited_for_and_then_goes_back_with_the_others()
        with pytest.raises(AssertionError):
            test_who_remembers_a_commit_and_has_no_weights_does_not_either()


def test_planted_steps_do_not_matter() -> None:
    with steps_do_not_matter(), pytest.raises(AssertionError):
        strangers_found_meanwhile()


def test_planted_hearsay_does_not_matter() -> None:
    with hearsay_does_not_matter(), pytest.raises(AssertionError):
        keeper_is_refused_for_a_while()


def test_planted_liars_are_believed() -> None:
    """Where disks are believed. By rule 46 nobody counts on what the liar tells in the first place."""
    with disks_are_believed():
        one_lies()
        with liars_are_believed(), pytest.raises(AssertionError):
            one_lies()
