"""Limits on real processes: what they are given is what they take, and nobody is lost for being slow."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftnode.lab.benchmarks.limits import VRAM_BYTES, own_bytes, processor_seconds, trained
from ftnode.lab.swarms.memory import process_kind
from ftnode.lab.swarms.swarm import descendants
from ftnode.lab.swarms.trial import Trial
from ftnode.lab.traces.story import Story
from tests.swarm.conftest import OpenTrial

pytestmark = pytest.mark.timeout(180)

STAGES = 2
LIMITS = ("--up", "4Mbit", "--down", "4Mbit", "--vram", "1GiB", "--threads", "1", "--nice", "10")
TRAINING_SECONDS = 20.0
STEPS = 4
"""In that time at least: a step carries 2 MB up from the busiest of three, four seconds of its line."""


def compute_of(pid: int) -> int:
    return next(child for child in descendants(pid) if process_kind(child) == "compute")


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """What a service manager would hear of all nodes of a test."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(str(tmp_path / "notify"))
        ear.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", ear.getsockname())
        yield ear


def heard(ear: socket.socket) -> list[str]:
    found: list[str] = []
    while True:
        try:
            found += ear.recv(4096).decode().splitlines()
        except BlockingIOError:
            return found


def health(home: Path, seconds: int = 30) -> tuple[int, str]:
    command = [sys.executable, "-m", "ftnode.node.cli", "health", "--home", str(home), "--timeout", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    return done.returncode, done.stdout + done.stderr


def test_health_and_service_managers_are_told_how_it_is(open_swarm: OpenTrial, manager: socket.socket) -> None:
    trial: Trial = open_swarm(volunteers=STAGES + 1, stages=STAGES)
    code, text = health(trial.swarm.processes["v1"].home)
    assert code == 0 and "healthy: " in text and "connected to" in text and text.count("\n") == 1
    assert health(trial.swarm.processes["bootstrap"].home)[0] == 0
    words = heard(manager)
    assert words.count("READY=1") == STAGES + 2 and "STATUS=meeting point" in words
    assert sum(word.startswith("STATUS=volunteer of run ") for word in words) == STAGES + 1
    silent = trial.swarm.processes["v2"]
    silent.process.send_signal(signal.SIGSTOP)
    try:
        code, text = health(silent.home, 3)
    finally:
        silent.process.send_signal(signal.SIGCONT)
    assert code == 1 and "does not answer" in text
    trial.kill("v2")
    assert health(silent.home)[0] == 69
    gone = trial.story.peers["v2"]
    trial.wait("a view without it", lambda story: story.view is not None and gone not in story.view.members(), 60)


@pytest.mark.alone
@pytest.mark.fresh
def test_a_swarm_trains_within_narrow_limits_and_loses_nobody(open_swarm: OpenTrial) -> None:
    trial: Trial = open_swarm(volunteers=0, stages=STAGES, numbers=True)
    nodes = [trial.volunteer(f"v{number}", options=LIMITS) for number in range(1, STAGES + 2)]
    trial.wait_for_step(1)
    families = [(node.process.pid, *descendants(node.process.pid)) for node in nodes]
    view, first, began = trial.story.view, trial.story.committed, time.monotonic()
    used = [sum(map(processor_seconds, family)) for family in families]
    trial.wait("some time", lambda story: time.monotonic() >= began + TRAINING_SECONDS, TRAINING_SECONDS + 10)
    took = time.monotonic() - began
    cores = [(sum(map(processor_seconds, family)) - before) / took for family, before in zip(families, used)]
    sizes = [own_bytes(compute_of(node.process.pid)) for node in nodes]
    priorities = {os.getpriority(os.PRIO_PROCESS, compute_of(node.process.pid)) for node in nodes}
    print(f"{trial.story.committed - first} steps in {took:.1f} s; cores {cores}; sizes {[p >> 20 for p in sizes]} MiB")
    assert trial.story.committed - first >= STEPS
    assert lost(trial.story) == [] and trial.story.view == view
    assert max(cores) <= 1.1
    assert max(sizes) <= 1 << 30
    assert priorities == {max(10, os.getpriority(os.PRIO_PROCESS, 0))}


@pytest.mark.alone
@pytest.mark.fresh
def test_who_has_everything_to_do_keeps_to_one_core_and_its_memory() -> None:
    """All processes of a node that holds a whole run, which nothing but its limits holds up."""
    found = trained(8.0)
    print(found)
    assert found["cores"] <= 1.1 and found["by_process"]["compute"] > 0.1
    assert found["compute_bytes"] <= VRAM_BYTES


def lost(story: Story) -> list[str]:
    return [str(told.record["text"]) for told in story.notes if told.record["kind"] == "lost"]
