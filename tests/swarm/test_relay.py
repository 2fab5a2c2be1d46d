"""A volunteer that listens nowhere holds a stage: what it sends and gets goes through the meeting point."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ftnode.lab.swarms.listing import list_volunteers, peer_id
from ftnode.lab.swarms.swarm import Process
from ftnode.lab.swarms.trial import Trial, open_trial, small_manifest
from ftnode.node.links.address_cards import bare
from ftnode.node.manifests.invitation import Invitation
from ftnode.node.watch.told_on import Words, read_words
from ftnode.protocol.manifest.parse import parse
from tests.swarm.conftest import PACED, STAGES, OpenTrial, wait
from tests.swarm.test_dashboard import dashboard
from tests.swarm.test_membership import command
from tests.swarm.test_watching import ask

pytestmark = pytest.mark.timeout(240)

MORE_STEPS = 20
HEAL_SECONDS = 30.0


def places(trace: Path) -> list[str]:
    """The addresses that a node found out it has, as its core was told them last."""
    records = [json.loads(line) for line in trace.read_text().splitlines()]
    moved = [record["e"] for record in records if record["k"] == "event" and record["e"][0] == "Moved"]
    return list(bare(moved[-1][1]))


def stage_of(trial: Trial, name: str) -> int | None:
    return next((stage for stage in range(STAGES + 1) if trial.story.holder(stage) == name), None)


def test_a_volunteer_behind_a_relay_trains_and_can_be_replaced(open_swarm: OpenTrial, other_text: Path) -> None:
    trial = open_swarm(volunteers=0, numbers=True)
    # With other data it cannot hold the head, whose loss would end the run.
    hidden = trial.volunteer("hidden", options=("--listen", "none", "--data", str(other_text)))
    trial.wait("it to found the run", lambda story: stage_of(trial, "hidden") is not None)
    for number in range(1, STAGES + 2):
        trial.volunteer(f"v{number}", options=("--relay", "off"))
    trial.wait_for_step(MORE_STEPS)
    stage = stage_of(trial, "hidden")
    assert stage is not None
    assert places(hidden.trace) == [f"{trial.swarm.address}/p2p-circuit"]
    point = trial.swarm.address.rpartition("/p2p/")[2]
    assert f"relay: through {point}; we listen nowhere" in hidden.output.read_text()

    trial.wait("a standby", lambda story: len({told.node for told, _ in story.views}) == STAGES + 2)
    killed = time.monotonic()
    trial.kill("hidden")
    trial.wait("another holder", lambda story: story.holder(stage) not in (None, "hidden"), HEAL_SECONDS)
    print(f"another holder after {time.monotonic() - killed:.1f} s")
    trial.wait_for_step(trial.story.committed + 5, HEAL_SECONDS)


def bytes_read(process: Process) -> int:
    """By its system calls, which is how a relay gets what it passes on; see proc(5)."""
    (line,) = re.findall(r"rchar: (\d+)", Path(f"/proc/{process.process.pid}/io").read_text())
    return int(line)


def relayed_by(trial: Trial, relay: str) -> tuple[int, int]:
    """(step, bytes until then), as members say; nobody else relays, and it gave nothing else."""
    told = ask(trial, "credits")
    (row,) = [row for row in told["credits"] if row["relayed_bytes"]]
    assert (row["peer"], row["visits"], row["seconds"]) == (relay, 0, 0.0), row
    return told["credits_step"], row["relayed_bytes"]


def test_who_relays_is_credited_with_what_goes_through_it(open_swarm: OpenTrial) -> None:
    """Nobody can be dialled, so every tensor goes through the meeting point, which itself says nothing of it."""
    trial = open_swarm(volunteers=0)
    point = trial.swarm.processes["bootstrap"]
    for number in range(STAGES + 1):
        trial.volunteer(f"v{number}", options=("--listen", "none"))
    trial.wait(
        "a holder of its own for each stage", lambda story: len({*map(story.holder, range(STAGES + 1))}) > STAGES
    )
    trial.wait_for_step(trial.story.committed + 3)
    relay, manifest = trial.swarm.address.rpartition("/p2p/")[2], small_manifest(None, STAGES)
    outside = -bytes_read(point)
    began, before = relayed_by(trial, relay)
    inside = -bytes_read(point)
    trial.wait_for_step(began + MORE_STEPS)
    inside += bytes_read(point)
    ended, after = relayed_by(trial, relay)
    outside += bytes_read(point)
    of_step = manifest.batch.microbatches * (STAGES + 1) * manifest.boundary_bytes.both
    print(f"{after - before:,} bytes in {ended - began} steps, {inside:,} to {outside:,} read by the relay")
    assert after - before == (ended - began) * of_step
    assert 0.8 * inside < after - before < outside


def test_who_watches_sees_a_run_that_nobody_can_dial(open_swarm: OpenTrial, text: Path, tmp_path: Path) -> None:
    """Each command comes through the meeting point, which is all that it knows, or by a link that names nobody else."""
    trial = open_swarm(volunteers=0, numbers=True)
    point, path, names = trial.swarm.address, trial.swarm.manifest, [f"v{number}" for number in range(STAGES + 1)]
    manifest = list_volunteers(trial.swarm, small_manifest(text, STAGES), names)
    link = str(Invitation(manifest.run_id, manifest.run.author, (point,)))
    for name in names:
        trial.volunteer(name, options=("--listen", "none"))
    trial.wait_for_step(MORE_STEPS)
    found = ask(trial, "status")
    assert found["step"] >= MORE_STEPS and found["speaker"]["role"] == "volunteer" and not found["told_by"]
    assert all(stage["holders"] == 1 for stage in found["summaries"])
    assert json.loads(command("status", link, "--json"))["step"] >= found["step"]
    assert {row["role"] for row in ask(trial, "peers")["peers"]} >= {"leader", "holder", "bootstrap"}
    assert sum(row["visits"] for row in ask(trial, "credits")["credits"]) > 0
    assert {check["name"]: check["verdict"] for check in ask(trial, "doctor")["checks"]}["peers"] == "ok"

    exported = ask(trial, "export", str(path), str(tmp_path / "model"))
    assert exported["step"] >= MORE_STEPS and (tmp_path / "model" / "provenance.json").exists()
    assert command("export", link, tmp_path / "again") and (tmp_path / "again" / "provenance.json").exists()
    assert len(command("generate", tmp_path / "model", "import ", "--tokens", 8, "--seed", 1)) > len("import ")

    author = trial.swarm.directory / "author"
    path.write_text(path.read_text().replace("peers = [", f'peers = ["{peer_id(trial.swarm, "v9")}", '))
    command("run", "sign", path, "--home", author)
    assert "the swarm has revision 2" in command("run", "push", path, "--peer", point, "--home", author)
    assert "revision 3" in command("run", "announce", path, "Hello", "--peer", point, "--home", author)
    assert parse(command("run", "fetch", link)).membership.revision == 3
    with dashboard(trial.swarm.directory / "watcher", link) as look:
        page = wait("the page", look, lambda page: (page["status"] or {}).get("announcement"), 30.0)
        assert page["status"]["announcement"] == "Hello" and page["commits"]["rows"]


def test_when_no_member_can_be_reached_the_meeting_point_tells_on_what_they_signed(text: Path, tmp_path: Path) -> None:
    start = small_manifest(text, 1)
    manifest = replace(start, liveness=replace(start.liveness, lease_seconds=15.0))
    """What stands in the directory lives three times as long, and is signed anew each time a third of that is over."""
    with open_trial(manifest, tmp_path, text, options=PACED) as trial:
        for name in ("v0", "v1"):
            trial.volunteer(name, options=("--listen", "none"))
        trial.wait_for_step(MORE_STEPS)
        point, link = trial.swarm.address, str(Invitation(manifest.run_id, "", (trial.swarm.address,)))
        with dashboard(tmp_path / "watcher", link) as look:
            seen = wait("their words", lambda: words_at(trial), lambda words: any(one.step > 0 for one in words))
            wait("the page", look, lambda page: page["status"])
            trial.kill("v0")
            trial.kill("v1")
            told = ask(trial, "status")
            assert told["told_by"] == point.rpartition("/")[2] and 0 <= told["told_age"] < 60
            assert (told["run"], told["steps"]) == (manifest.run_id, manifest.run.steps)
            assert told["state"] in ("training", "waiting"), "as the one who signed it saw it"
            assert told["step"] > 0 and told["loss"] is not None
            assert told["speaker"]["peer"] in {one.peer for one in seen}
            page = wait("what is told on", look, lambda page: "tells it on" in page["trouble"], 30.0)
            assert page["status"]["told_by"] == told["told_by"] and page["status"]["step"] > 0
            assert "no member could be reached: 12D3KooW" in command("status", link)


MEMBERS = """
import json, sys
from dataclasses import asdict
from ftnode.node.links.addresses import parse_peers
from ftnode.node.watch.light_client import ask_status, open_stream, with_host
async def members(host):
    async with open_stream(host, *parse_peers(sys.argv[1:]), 10) as stream:
        print(json.dumps([asdict(member) for member in (await ask_status(stream)).members]))
with_host(members)
"""


def words_at(trial: Trial) -> list[Words]:
    """What the meeting point could tell on now."""
    argv = [sys.executable, "-c", MEMBERS, trial.swarm.address]
    asked = subprocess.run(argv, capture_output=True, timeout=60, check=True)
    return [read_words(one["words"], one["peer"], one["run"]) for one in json.loads(asked.stdout) if one["words"]]
