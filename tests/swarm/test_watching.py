"""What watchers see of a real swarm: status, peers, metrics, and a doctor's visit."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ftnode.lab.swarms.swarm import Process
from ftnode.lab.swarms.trial import Trial, small_manifest
from ftnode.node.owner.join_options import running_nodes
from ftnode.node.watch.metrics_file import METRICS_NAME, read_metrics
from ftnode.protocol.manifest.parse import Manifest

from .conftest import STAGES, OpenTrial, wait

EVERY = 2
STEPS = 25


def with_validation(manifest: Manifest) -> Manifest:
    return replace(manifest, evaluation=replace(manifest.evaluation, every=EVERY))


def ask(trial: Trial, *arguments: str, address: str = "") -> Any:
    """What the command says as JSON."""
    command = [
        sys.executable,
        "-m",
        "ftnode.node.cli",
        *arguments,
        "--json",
        "--peer",
        address or trial.swarm.address,
    ]
    done = subprocess.run(
        [*command, "--home", str(trial.swarm.directory / "watcher")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def metrics_url(log: Path, output: Path) -> str:
    found = re.search(r"http://127\.0\.0\.1:\d+/metrics", output.read_text())
    assert found, f"no metrics in {output} beside {log}"
    return found[0]


def metrics(process: Process) -> str:
    with urllib.request.urlopen(metrics_url(process.log, process.output), timeout=10) as answer:
        return str(answer.read().decode())


def all_hold(found: dict[str, Any]) -> bool:
    """By a status: every stage has its holder, and has been trained."""
    return all(stage["holders"] == 1 and stage["step"] > 0 for stage in found["summaries"])


def commits(log: Path) -> list[int]:
    """The steps of which a node has noted the commit."""
    return [line["step"] for line in read_metrics(log / METRICS_NAME) if line["kind"] == "commit"]


@pytest.mark.timeout(300)
def test_watchers_see_what_the_swarm_does(open_swarm: OpenTrial) -> None:
    trial = open_swarm(volunteers=0, change=with_validation)
    for number in range(STAGES + 2):
        trial.volunteer(f"v{number}", options=("--name", f"volunteer {number}"))
    trial.wait("a validation", lambda story: len(story.evaluated) > 1)
    trial.wait_for_step(trial.story.committed + 5)

    def of_leader(*arguments: str) -> Callable[[], Any]:
        """Asks whoever leads at that moment: a standby hears only of the leader what it does."""

        def look() -> Any:
            trial.story.read()
            assert trial.story.view is not None
            leader = trial.swarm.processes[trial.story.name(trial.story.view.leader)]
            (node,) = running_nodes(leader.home)
            return ask(trial, *arguments, address=node.addresses[0])

        return look

    status = wait("every stage to have told", of_leader("status"), all_hold)
    assert status["format"] == 1 and status["state"] == "training" and status["step"] > 0
    assert status["eta_seconds"] > 0 and status["tokens_per_second"] > 0
    assert status["validation_step"] % EVERY == 0 and 1 < status["perplexity"] < 300
    assert status["volunteers"] == STAGES + 2 and status["commit_age"] < 60
    assert [stage["stage"] for stage in status["summaries"]] == list(range(STAGES + 1))

    def others(found: dict[str, Any]) -> list[dict[str, Any]]:
        return [row for row in found["peers"] if row["role"] == "holder"]

    def all_are_met(found: dict[str, Any]) -> bool:
        """Each has answered the last round, which one on a busy machine may miss."""
        return all(row["path"] == "direct" and 0 < (row["latency"] or 0) < 5 for row in others(found))

    peers = wait("all holders to have said who they are", of_leader("peers"), all_are_met)
    assert sorted(row["role"] for row in peers["peers"])[:2] == ["bootstrap", "holder"]
    assert len(others(peers)) == STAGES and all(row["version"] for row in others(peers)), peers

    volunteers = [process for process in trial.swarm.processes.values() if process.name != "bootstrap"]
    trial.wait("commits that each has seen", lambda story: all(len(commits(process.log)) > 3 for process in volunteers))
    for process in volunteers:
        look = partial(metrics, process)
        wait("a holder of stage 1", look, lambda text: 'ftnode_stage_holders{stage="1"} 1.0' in text)
        wait("a perplexity", look, partial(re.search, r"(?m)^ftnode_validation_perplexity \d"))
        lines, steps = list(read_metrics(process.log / METRICS_NAME)), commits(process.log)
        assert lines[0]["kind"] == "start" and steps == sorted(set(steps))
        assert any(line["kind"] == "validation" for line in lines)

    def named(found: dict[str, Any]) -> Any:
        return found["credits"] and all(row["name"] for row in found["credits"])

    counted = wait("what each gave, also through a standby", lambda: ask(trial, "credits"), named)
    whole = sum(row["visits"] for row in counted["credits"])
    assert {row["name"] for row in counted["credits"]} <= {f"volunteer {number}" for number in range(STAGES + 2)}
    assert len(counted["credits"]) == STAGES + 1 and counted["credits_step"] >= counted["step"] - 1 > 0
    assert whole == counted["credits_step"] * (STAGES + 2) * small_manifest(None, STAGES).batch.microbatches
    assert all(row["seconds"] > 0 and not row["rebuilt"] for row in counted["credits"])

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
    wait("a holder of every stage", lambda: ask(trial, "status"), all_hold)

    trial.expected_dead.add("v1")
    assert subprocess.run([*command, "--now"], capture_output=True, timeout=90).returncode == 0
    (other,) = [node for node in running_nodes(trial.swarm.processes["v0"].home) if node.run]

    def lost() -> list[dict[str, Any]]:
        found = ask(trial, "status", address=other.addresses[0])
        return [stage for stage in found["summaries"] if not stage["holders"]]

    trial.wait("its silence", lambda story: bool(lost()))
    (stage,) = lost()
    assert "can no longer be had" in stage["reason"]
    assert f'ftnode_stage_holders{{stage="{stage["stage"]}"}} 0.0' in metrics(trial.swarm.processes["v0"])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("word", ["leave", "pause"])
def test_who_hands_over_when_the_run_ends_keeps_the_last_copy(open_swarm: OpenTrial, word: str) -> None:
    """Asked a few steps before the end, with nobody there to learn its stage."""
    trial = open_swarm(volunteers=0, stages=2, steps=STEPS)
    for number in range(3):
        trial.volunteer(f"v{number}")
    trial.wait_for_step(STEPS - 5)
    name = trial.story.holder(1)
    assert name is not None
    process = trial.swarm.processes[name]
    command = [sys.executable, "-m", "ftnode.node.cli", word, "--home", str(process.home)]
    asked = subprocess.run(command, capture_output=True, text=True, timeout=120)
    print(trial.story.committed, asked)
    trial.wait("the end", lambda story: story.committed == STEPS)
    assert process.alive and "the last copy of stage 1" in process.output.read_text()
    assert asked.returncode == (75 if word == "leave" else 0) and "last copy" in asked.stderr + asked.stdout
    wait("a holder of every stage", lambda: ask(trial, "status"), all_hold)


@pytest.mark.timeout(300)
def test_a_relayed_peer_is_seen_as_such(open_swarm: OpenTrial) -> None:
    """Two that cannot be dialled reach each other through the meeting point only; who can be is dialled by them."""
    trial = open_swarm(volunteers=0, stages=2)
    hidden = [trial.volunteer(name, options=("--listen", "none")) for name in ("hidden1", "hidden2")]
    trial.volunteer("v1")
    trial.wait_for_step(5)
    (one,) = running_nodes(hidden[0].home)

    def paths() -> dict[str, float]:
        found = re.findall(r'ftnode_peers{path="(\w+)"} ([0-9.]+)', metrics(hidden[0]))
        return {path: float(count) for path, count in found}

    def all_seen() -> bool:
        """The meeting point is dialled, the other hidden one never. v1 is behind the relay, or punched to, when it was
        v1 that sought us first."""
        seen = paths()
        direct, punched, relayed = (seen.get(path, 0.0) for path in ("direct", "punched", "relayed"))
        return direct >= 1.0 and relayed >= 1.0 and direct + punched + relayed == 3.0

    trial.wait("a path to each of three", lambda story: all_seen(), 40.0)
    (open_node,) = running_nodes(trial.swarm.processes["v1"].home)
    (row,) = [row for row in ask(trial, "peers", address=open_node.addresses[0])["peers"] if row["peer"] == one.peer]
    assert "/p2p-circuit" in row["addresses"][0] and row["stages"], row
