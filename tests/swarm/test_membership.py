"""Who may join: a signed list, a link, and an update that lets somebody else into a run that goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from ftnode.lab.swarms.listing import list_volunteers, peer_id
from ftnode.lab.swarms.trial import small_manifest
from ftnode.node.manifests.invitation import Invitation
from ftnode.protocol.manifest.parse import parse
from tests.swarm.conftest import OpenTrial

HEAL_SECONDS = 60.0


def command(*arguments: object) -> str:
    argv = [sys.executable, "-m", "ftnode.node.cli", *map(str, arguments)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_listed_peers_train_and_a_signed_update_admits_another_by_a_link(open_swarm: OpenTrial, text: Path) -> None:
    trial = open_swarm(volunteers=0, stages=2)
    v3 = peer_id(trial.swarm, "v3")
    manifest = list_volunteers(trial.swarm, small_manifest(text, 2), ("v1", "v2"))
    trial.volunteer("v1", hold=2)
    trial.volunteer("v2")
    trial.wait_for_step(3)

    trial.expected_dead.add("v3")
    process = trial.swarm.start_volunteer("v3")
    assert process.process.wait(60) == 77
    assert "this run is for listed peers" in process.tail() and v3 in process.tail()

    path = trial.swarm.manifest
    path.write_text(path.read_text().replace("peers = [", f'peers = ["{v3}", '))
    home = trial.swarm.directory / "author"
    assert "revision 2 of who may join" in command("run", "sign", path, "--home", home)
    assert "the swarm has revision 2" in command("run", "push", path, "--peer", trial.swarm.address, "--home", home)

    told = command("run", "announce", path, "New data on Monday", "--peer", trial.swarm.address, "--home", home)
    assert "the swarm has revision 3" in told
    seen = json.loads(command("status", "--json", "--peer", trial.swarm.address))
    assert (seen["revision"], seen["announcement"]) == (3, "New data on Monday")
    assert "the run's author says: New data on Monday" in trial.swarm.processes["v2"].output.read_text()

    link = str(Invitation(manifest.run_id, manifest.run.author, (trial.swarm.address,)))
    assert parse(command("run", "fetch", link)).membership.revision == 3
    trial.expected_dead.discard("v3")
    trial.volunteer("v3", link=link)
    trial.wait("v3 to know the view", lambda story: any(told.node == "v3" for told, _ in story.views), HEAL_SECONDS)
    trial.kill("v2")
    trial.wait(
        "v3 in v2's place",
        lambda story: story.view is not None and any(peer.id == v3 for peer in story.view.members()),
        HEAL_SECONDS,
    )
    trial.wait_for_step(trial.story.committed + 3)
    for name in ("v1", "v3"):
        assert parse(trial.swarm.manifest.read_text()).run_id in (
            file.stem for file in (trial.swarm.directory / "homes" / name / "manifests").iterdir()
        )
