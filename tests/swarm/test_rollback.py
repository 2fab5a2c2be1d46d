"""On real processes: the author, or most voters, order a swarm to undo its newest steps, and it goes on from a snapshot
(rule 47)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ftnode.lab.swarms.listing import list_volunteers
from ftnode.lab.swarms.trial import Trial, small_manifest
from ftnode.protocol.words.types import Rung
from tests.swarm.conftest import OpenTrial
from tests.swarm.test_membership import command
from tests.swarm.test_switched_off import EVERY, common, with_snapshots

pytestmark = pytest.mark.timeout(420)


def with_snapshots_of_all(open_swarm: OpenTrial, text: Path) -> tuple[Trial, str, int]:
    """A swarm of two that has stored all stages several times, its run, and the first of these steps."""
    trial = open_swarm(volunteers=0, stages=3)
    run = list_volunteers(trial.swarm, with_snapshots(small_manifest(text, 3)), ("v1", "v2")).run_id
    for name in ("v1", "v2"):
        trial.volunteer(name, hold=2, options=("--keep-snapshots", "1000"))
    trial.wait("snapshots of all stages", lambda story: len(common(trial, run)) > 2, 150.0)
    first = min(common(trial, run))
    trial.story.read()
    return trial, run, first


def test_a_swarm_goes_back_by_the_order_of_its_author_and_trains_on(open_swarm: OpenTrial, text: Path) -> None:
    trial, run, first = with_snapshots_of_all(open_swarm, text)
    seen = len(trial.story.installed), len(trial.story.commits)

    home, path = trial.swarm.directory / "author", trial.swarm.manifest
    order = ("run", "rollback", path, "--to-step", first + EVERY - 1)
    told = json.loads(command(*order, "--peer", trial.swarm.address, "--home", home, "--json"))
    assert (told["run"], told["revision"], told["to_step"]) == (run, 2, first + EVERY - 1)
    assert told["undone_steps"] == told["step"] - told["to_step"] > 0

    trial.wait("the stages' snapshots", lambda story: len(story.installed) >= seen[0] + 4, 90.0)
    trial.wait("steps after the rollback", lambda story: len(story.commits) >= seen[1] + 6, 90.0)
    installed = [each.record for each in trial.story.installed[seen[0] :]]
    assert {(each["rung"], each["step"]) for each in installed} == {(Rung.SNAPSHOT.value, first)}
    assert first + 1 in {each.record["step"] for each in trial.story.commits[seen[1] :]}
    shown = json.loads(command("status", "--json", "--peer", trial.swarm.address))
    assert (shown["rollback_ordered"], shown["rollback_went_to"]) == (first + EVERY - 1, first)
    assert f"rolled back by its author's order: to the snapshots of step {first}" in command(
        "status", "--peer", trial.swarm.address
    )


def test_a_swarm_goes_back_when_most_of_its_voters_want_it(open_swarm: OpenTrial, text: Path) -> None:
    """Nobody has the author's key. One of two is too few, and both are enough."""
    trial, run, first = with_snapshots_of_all(open_swarm, text)
    seen = len(trial.story.installed), len(trial.story.commits)

    def votes(name: str) -> dict[str, Any]:
        home = trial.swarm.directory / "homes" / name
        options = ("--to-step", first + EVERY - 1, "--by-members", "--home", home, "--json")
        found: dict[str, Any] = json.loads(command("run", "rollback", trial.swarm.manifest, *options))
        return found

    told = votes("v1")
    assert (told["run"], told["votes"], told["needed"], told["voters"], told["ordered"]) == (run, 1, 2, 2, False)
    trial.wait("steps after one vote", lambda story: len(story.commits) >= seen[1] + 3, 90.0)
    shown = json.loads(command("status", "--json", "--peer", trial.swarm.address))
    assert shown["rollback_votes"] == [{"step": first + EVERY - 1, "votes": 1, "needed": 2}]
    assert shown["rollback_ordered"] is None
    assert f"--by-members --to-step {first + EVERY - 1}" in command("status", "--peer", trial.swarm.address)
    assert votes("v2")["ordered"]
    seen = len(trial.story.installed), len(trial.story.commits)

    trial.wait("the stages' snapshots", lambda story: len(story.installed) >= seen[0] + 4, 90.0)
    trial.wait("steps after the rollback", lambda story: len(story.commits) >= seen[1] + 6, 90.0)
    installed = [each.record for each in trial.story.installed[seen[0] :]]
    assert {(each["rung"], each["step"]) for each in installed} == {(Rung.SNAPSHOT.value, first)}
    shown = json.loads(command("status", "--json", "--peer", trial.swarm.address))
    assert (shown["rollback_by"], shown["rollback_number"], shown["rollback_went_to"]) == ("members", 1, first)
    for name in ("v1", "v2"):
        assert (trial.swarm.directory / "homes" / name / "orders" / f"{run}.json").is_file()
