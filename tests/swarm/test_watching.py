"""What watchers see of a real swarm: status, peers, metrics, and a doctor's visit."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftnode.lab.trial import Trial
from ftnode.node.configuration import running_nodes
from ftnode.node.metrics_file import METRICS_NAME, read_metrics
from ftnode.protocol.manifest import Manifest

from .conftest import STAGES, OpenTrial

EVERY = 2


def with_validation(manifest: Manifest) -> Manifest:
    return replace(manifest, evaluation=replace(manifest.evaluation, every=EVERY))


def ask(trial: Trial, *arguments: str, address: str = "") -> Any:
    """What the command says as JSON."""
    command = [sys.executable, "-m", "ftnode.node.cli", *arguments, "--json", "--peer", address or trial.swarm.address]
    done = subprocess.run(
        [*command, "--home", str(trial.swarm.directory / "watcher")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def metrics_url(log: Path, output: Path) -> str:
    found = re.search(r"http://127\.0\.0\.1:\d+/metrics", output.read_text())
    assert found, f"no metrics in {output} beside {log}"
    return found[0]


def commits(log: Path) -> list[int]:
    """The steps of which a node has noted the commit."""
    return [line["step"] for line in read_metrics(log / METRICS_NAME) if line["kind"] == "commit"]


@pytest.mark.timeout(300)
def test_watchers_see_what_the_swarm_does(open_swarm: OpenTrial) -> None:
    trial = open_swarm(volunteers=STAGES + 2, change=with_validation)
    trial.wait("a validation", lambda story: len(story.evaluated) > 1)
    trial.wait_for_step(trial.story.committed + 5)

    def all_hold(found: dict[str, Any]) -> bool:
        return all(stage["holders"] == 1 and stage["step"] > 0 for stage in found["summaries"])

    # Whoever answers first is asked, and a standby hears only of the leader what it does.
    leader = next(row for row in ask(trial, "status")["peers"] if row["role"] == "leader")
    address = f"{leader['addresses'][0]}/p2p/{leader['peer']}"
    trial.wait("every stage to have told", lambda story: all_hold(ask(trial, "status", address=address)))
    status = ask(trial, "status", address=address)
    assert status["format"] == 1 and status["state"] == "training" and status["step"] > 0
    assert status["eta_seconds"] > 0 and status["tokens_per_second"] > 0
    assert status["validation_step"] % EVERY == 0 and 1 < status["perplexity"] < 300
    assert status["volunteers"] == STAGES + 2 and status["commit_age"] < 60
    assert [stage["stage"] for stage in status["summaries"]] == list(range(STAGES + 1))
    assert all_hold(status), status["summaries"]

    peers = ask(trial, "peers", address=address)["peers"]
    assert sorted(row["role"] for row in peers)[:2] == ["bootstrap", "holder"]
    others = [row for row in peers if row["role"] == "holder"]
    assert {row["path"] for row in others} == {"direct"}
    assert all(0 < row["latency"] < 5 and row["version"] for row in others), others

    volunteers = [process for process in trial.swarm.processes.values() if process.name != "bootstrap"]
    trial.wait("commits that each has seen", lambda story: all(len(commits(process.log)) > 3 for process in volunteers))
    for process in volunteers:
        text = urllib.request.urlopen(metrics_url(process.log, process.output), timeout=10).read().decode()
        assert 'ftnode_stage_holders{stage="1"} 1.0' in text
        assert re.search(r"^ftnode_validation_perplexity \d", text, re.MULTILINE)
        lines, steps = list(read_metrics(process.log / METRICS_NAME)), commits(process.log)
        assert lines[0]["kind"] == "start" and steps == sorted(set(steps))
        assert any(line["kind"] == "validation" for line in lines)

    advice = ask(trial, "doctor")
    verdicts = {check["name"]: check["verdict"] for check in advice["checks"]}
    assert verdicts["peers"] == verdicts["reachability"] == verdicts["clock"] == "ok", advice


@pytest.mark.timeout(300)
def test_the_last_copy_of_a_finished_stage_goes_only_when_it_is_meant(open_swarm: OpenTrial) -> None:
    trial = open_swarm(volunteers=0, stages=1, steps=4)
    for number in range(2):
        trial.volunteer(f"v{number}")
    trial.wait("the last weights", lambda story: len(list(trial.swarm.directory.glob("logs/*/last-*"))) == 2)
    process = trial.swarm.processes["v1"]
    said = process.output.read_text()
    (own,) = [node.addresses[0] for node in running_nodes(process.home)]
    assert f"peer={trial.swarm.address}&peer={own}" in said.partition("  reachable  ")[2], "a link of who answers now"
    command = [sys.executable, "-m", "ftnode.node.cli", "leave", "--home", str(process.home), "--timeout", "60"]
    kept = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert kept.returncode == 75 and "has the last copy of" in kept.stderr, kept
    assert process.alive and "goes with this node" in process.output.read_text()
    assert all(stage["holders"] == 1 for stage in ask(trial, "status")["summaries"])

    trial.expected_dead.add("v1")
    assert subprocess.run([*command, "--now"], capture_output=True, timeout=90).returncode == 0
    (other,) = [node for node in running_nodes(trial.swarm.processes["v0"].home) if node.run]

    def lost() -> list[dict[str, Any]]:
        found = ask(trial, "status", address=other.addresses[0])
        return [stage for stage in found["summaries"] if not stage["holders"]]

    trial.wait("its silence", lambda story: bool(lost()))
    (stage,) = lost()
    assert "can no longer be had" in stage["reason"]
    text = urllib.request.urlopen(
        metrics_url(trial.swarm.processes["v0"].log, trial.swarm.processes["v0"].output), timeout=10
    ).read()
    assert f'ftnode_stage_holders{{stage="{stage["stage"]}"}} 0.0' in text.decode()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("word", ["leave", "pause"])
def test_who_hands_over_when_the_run_ends_keeps_the_last_copy(open_swarm: OpenTrial, word: str) -> None:
    """Asked a few steps before the end, with nobody there to learn its stage."""
    trial = open_swarm(volunteers=0, stages=2, steps=150)
    for number in range(3):
        trial.volunteer(f"v{number}")
    trial.wait_for_step(130)
    name = trial.story.holder(1)
    assert name is not None
    process = trial.swarm.processes[name]
    command = [sys.executable, "-m", "ftnode.node.cli", word, "--home", str(process.home)]
    asked = subprocess.run(command, capture_output=True, text=True, timeout=120)
    print(trial.story.committed, asked)
    trial.wait("the end", lambda story: story.committed == 150)
    assert process.alive and "the last copy of stage 1" in process.output.read_text()
    assert asked.returncode == (75 if word == "leave" else 0) and "last copy" in asked.stderr + asked.stdout
    assert all(stage["holders"] == 1 for stage in ask(trial, "status")["summaries"])


@pytest.mark.timeout(300)
def test_a_relayed_peer_is_seen_as_such(open_swarm: OpenTrial) -> None:
    """Two that cannot be dialled reach each other through the meeting point only; who can be is dialled by them."""
    trial = open_swarm(volunteers=0, stages=2)
    hidden = [trial.volunteer(name, options=("--listen", "none")) for name in ("hidden1", "hidden2")]
    trial.volunteer("v1")
    trial.wait_for_step(5)
    (one,) = running_nodes(hidden[0].home)

    def paths() -> dict[str, float]:
        url = metrics_url(hidden[0].log, hidden[0].output)
        text = urllib.request.urlopen(url, timeout=10).read().decode()
        return {path: float(count) for path, count in re.findall(r'ftnode_peers{path="(\w+)"} ([0-9.]+)', text)}

    def all_seen() -> bool:
        """The meeting point, the other hidden one, and v1, which is behind the relay too when it dialled us first."""
        seen = paths()
        return (seen.get("direct"), seen.get("relayed")) in ((2.0, 1.0), (1.0, 2.0))

    trial.wait("a path to each of three", lambda story: all_seen(), 40.0)
    (open_node,) = running_nodes(trial.swarm.processes["v1"].home)
    (row,) = [row for row in ask(trial, "peers", address=open_node.addresses[0])["peers"] if row["peer"] == one.peer]
    assert "/p2p-circuit" in row["addresses"][0] and row["stages"], row
