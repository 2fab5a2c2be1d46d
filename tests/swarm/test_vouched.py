"""Volunteers that others vouch for: a text from one home to another, and a run that goes on with who brings it."""

from __future__ import annotations

import json
from pathlib import Path

from ftnode.lab.swarms.listing import list_volunteers, peer_id
from ftnode.lab.swarms.trial import small_manifest
from tests.swarm.conftest import OpenTrial
from tests.swarm.test_membership import HEAL_SECONDS, command


def test_a_vouched_for_volunteer_takes_a_lost_ones_place_and_the_next_one_knows_it(
    open_swarm: OpenTrial, text: Path
) -> None:
    trial = open_swarm(volunteers=0, stages=2)
    v3, v4 = (peer_id(trial.swarm, name) for name in ("v3", "v4"))
    list_volunteers(trial.swarm, small_manifest(text, 2), ("v1", "v2"), join="vouched")
    trial.volunteer("v1", hold=2)
    trial.volunteer("v2")
    trial.wait_for_step(3)

    trial.expected_dead.add("v3")
    process = trial.swarm.start_volunteer("v3")
    assert process.process.wait(60) == 77
    assert f"no voucher for {v3} counts" in process.tail()

    home = trial.swarm.directory / "homes" / "v1"
    voucher, second = (
        json.loads(command("run", "vouch", trial.swarm.manifest, peer, "--json", "--home", home))["voucher"]
        for peer in (v3, v4)
    )
    trial.expected_dead.add("v4")
    process = trial.swarm.start_volunteer("v4", options=("--voucher", voucher))
    assert process.process.wait(60) == 77 and f"the voucher is for {v3}" in process.tail()

    trial.expected_dead.discard("v3")
    trial.volunteer("v3", options=("--voucher", voucher))
    trial.wait("v3 to know the view", lambda story: any(told.node == "v3" for told, _ in story.views), HEAL_SECONDS)
    trial.kill("v2")
    trial.wait(
        "v3 in v2's place",
        lambda story: story.view is not None and any(peer.id == v3 for peer in story.view.members()),
        HEAL_SECONDS,
    )
    trial.wait_for_step(trial.story.committed + 3)

    trial.expected_dead.discard("v4")
    trial.volunteer("v4", options=("--voucher", second))
    trial.wait("v4 to know the view", lambda story: any(told.node == "v4" for told, _ in story.views), HEAL_SECONDS)
    kept = trial.swarm.directory / "homes" / "v4" / "manifests"
    (path,) = kept.glob("*.vouchers")
    assert v3 in path.read_text(), "it has learnt the other one's voucher"
