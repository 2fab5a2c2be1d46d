"""Real swarms of a small model on a small text, on loopback, with a lease of five seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import pytest

from ftnode.lab.audit.audit import audit
from ftnode.lab.demo.kills import Planned, strike
from ftnode.lab.demo.report import SURVIVORS, recover
from ftnode.lab.swarms.trial import FOREVER, Trial, open_trial, small_manifest
from ftnode.lab.traces.story import Story
from ftnode.protocol.manifest.parse import Manifest

STAGES = 3
PACED = ("--compute", "paced", "--paced-seconds", "0.02", "0.04")
"""A step takes half a second, in which the machine has time for other swarms: torch would take all that there is."""
OpenTrial = Callable[..., Trial]
WAIT_SECONDS = 60.0
TAIL_LINES = 15
"""Of each process of a swarm, for whoever reads why a test failed."""
Seen = TypeVar("Seen")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/swarm" in item.path.as_posix():
            item.add_marker("swarm")


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    for number in range(40):
        (folder / f"{number}.txt").write_text(f"file {number}: the quick brown fox jumps over the lazy dog. " * 60)
    return folder


@pytest.fixture(scope="session")
def other_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Who has this one cannot hold the head."""
    folder = tmp_path_factory.mktemp("other")
    for number in range(4):
        (folder / f"{number}.txt").write_text("another text " * 400)
    return folder


STRIKES_MAX = 3


def sizes(story: Story) -> list[int]:
    """Holders of each stage."""
    return [] if story.view is None else [len(group) for group in story.view.holders]


def kill_replicas(trial: Trial, *stages: int, seconds: float) -> None:
    """SIGKILL one holder of each of these stages at once in the middle of a step, which the others finish."""
    for _ in range(STRIKES_MAX):  # on a busy machine a step may be over before it is struck
        kills = strike(trial.swarm, trial.story, [Planned(stage, trial.story.committed + 2) for stage in stages])
        if kills:
            break
    assert len(kills) == len(stages)
    trial.expected_dead.update(kill.node for kill in kills)
    for kill in kills:
        trial.wait("the step", lambda story, kill=kill: recover(story, kill) is not None, seconds)  # type: ignore[misc]
        recovery = recover(trial.story, kill)
        assert recovery is not None and recovery.rung == SURVIVORS


def wait(
    what: str, look: Callable[[], Seen], holds: Callable[[Seen], object] = bool, seconds: float = WAIT_SECONDS
) -> Seen:
    """What `look` sees as soon as it `holds`. What was seen last is told when it does not in time."""
    deadline = time.monotonic() + seconds
    while not holds(seen := look()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}; seen last: {seen!r}"
        time.sleep(0.02)
    return seen


@pytest.fixture
def open_swarm(tmp_path: Path, text: Path) -> Iterator[OpenTrial]:
    """`open_swarm(volunteers=…, stages=…, steps=…, hold=…, change=…, numbers=…)`: a swarm that has committed its first
    steps; without volunteers, a meeting point. `change` may make another manifest of the small one. Volunteers sleep
    instead of computing, unless it is `numbers` that the test is about.

    At the end everything is stopped, nothing that was started is left, and the audit of the whole run passes. What the
    processes said last is printed, which pytest shows when the test failed.
    """
    opened: list[Trial] = []
    with ExitStack() as stack:

        def start(
            volunteers: int,
            stages: int = STAGES,
            steps: int = FOREVER,
            hold: int = 1,
            change: Callable[[Manifest], Manifest] = lambda manifest: manifest,
            numbers: bool = False,
        ) -> Trial:
            manifest = change(small_manifest(text, stages, steps))
            options = () if numbers else PACED
            trial = stack.enter_context(open_trial(manifest, tmp_path, text, hash_every=1, options=options))
            opened.append(trial)
            for number in range(1, volunteers + 1):
                trial.volunteer(f"v{number}", hold=hold)
            if volunteers:
                trial.wait_for_step(min(3, steps))
            return trial

        yield start
        for process in [process for trial in opened for process in trial.swarm.processes.values()]:
            print(f"{process.name} said last:\n{process.tail(TAIL_LINES)}")
    for trial in opened:
        findings = audit(trial.swarm.directory / "logs")
        assert findings.passed, [str(finding) for finding in findings.findings[:10]]
        assert findings.steps_committed > 0
