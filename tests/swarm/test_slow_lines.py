"""Two minutes of training over slow lines: slow is not dead, and who is dead is not waited for."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from ftnode.lab.demo_kills import Planned, strike
from ftnode.lab.report import SURVIVORS, Recovery, recover
from ftnode.lab.story import Story, first_commits
from ftnode.lab.trial import Trial
from ftnode.protocol.manifest import Manifest, settings
from ftnode.protocol.settings import Settings
from tests.swarm.conftest import OpenTrial, small_manifest
from tests.swarm.slow_lines import Lines, Quality, free_port, open_lines

pytestmark = pytest.mark.timeout(420)

STAGES = 2
VOLUNTEERS = STAGES + 2
TRAINING_SECONDS = 120.0
SETTLE_SECONDS = 90.0
QUALITY = Quality(delay_seconds=0.08, jitter_seconds=0.02, bytes_per_second=20e6 / 8)
STEP_SECONDS_MAX = 5.0
"""Six tensors of 64 KB on their way out and back take 1.3 s on an idle machine."""


@pytest.fixture
def lines() -> Iterator[Lines]:
    with open_lines(QUALITY) as lines:
        yield lines


def pairs(manifest: Manifest) -> Manifest:
    return replace(manifest, pipeline=replace(manifest.pipeline, replicas=2))


def volunteer_behind(trial: Trial, lines: Lines, name: str) -> None:
    """It listens on a port that nobody is told; what they are told is its line."""
    port = free_port()
    line = lines.lead_to(name, port)
    options = ("--listen", f"/ip4/127.0.0.1/tcp/{port}", "--announce", line.address)
    trial.volunteer(name, hold=2, options=options)


def put_meeting_point_behind(trial: Trial, lines: Lines) -> None:
    address, _, peer = trial.swarm.address.partition("/p2p/")
    line = lines.lead_to("bootstrap", int(address.rpartition("/")[2]))
    trial.swarm.address = f"{line.address}/p2p/{peer}"


def heal_seconds_max(s: Settings, members: int) -> float:
    """From the SIGKILL of a member that falls silent, and whose port does not refuse, to the next commit."""
    detect = s.lease_seconds + 2 * s.heartbeat_seconds + 1.5 * s.poll_seconds
    elect = s.takeover_seconds * (1 + members) + s.ballot_seconds
    recruit = s.offer_seconds + s.search_seconds
    return detect + elect + recruit + 2 * STEP_SECONDS_MAX


def kill_holder(trial: Trial, stage: int, seconds: float) -> Recovery:
    """Of the stage, in the middle of a step; waits until it is healed."""
    (kill,) = strike(trial.swarm, trial.story, [Planned(stage, trial.story.committed + 2)])
    trial.expected_dead.add(kill.node)
    left = max(0.0, kill.time + seconds - time.monotonic())
    trial.wait(f"stage {stage} to heal", lambda story: recover(story, kill) is not None, left)
    recovery = recover(trial.story, kill)
    assert recovery is not None
    print(
        f"stage {stage} lost {kill.node} ({recovery.rung}): noticed after {recovery.detect_seconds:.1f} s, view after "
        f"{recovery.elect_seconds:.1f} s more, next commit {recovery.outage_seconds:.1f} s after the kill"
    )
    return recovery


def kinds(story: Story, since: float) -> list[str]:
    return [str(told.record["kind"]) for told in story.notes if told.time >= since]


def test_slow_is_not_dead(open_swarm: OpenTrial, lines: Lines) -> None:
    trial: Trial = open_swarm(volunteers=0, stages=STAGES, change=pairs)
    put_meeting_point_behind(trial, lines)
    for number in range(1, VOLUNTEERS + 1):
        volunteer_behind(trial, lines, f"v{number}")

    def is_settled(story: Story) -> bool:
        return story.view is not None and len(story.view.members()) == VOLUNTEERS == len(story.view.voters)

    trial.wait("four holders", is_settled)
    trial.wait_for_step(trial.story.committed + 3, SETTLE_SECONDS)
    began, view = time.monotonic(), trial.story.view
    trial.wait("two minutes", lambda story: time.monotonic() >= began + TRAINING_SECONDS, TRAINING_SECONDS + 10)
    commits = [told.time for told in first_commits(trial.story.commits) if told.time >= began]
    steps = [later - earlier for earlier, later in pairwise([began, *commits, time.monotonic()])]
    told = kinds(trial.story, began)
    print(
        f"{len(commits)} commits in {TRAINING_SECONDS:.0f} s, a step takes {statistics.median(steps):.2f} s "
        f"(longest {max(steps):.2f}); notes: {sorted(set(told))}; "
        f"MB through the lines: { {n: round((w.inwards.carried + w.outwards.carried) / 1e6) for n, w in lines.lines.items()} }"
    )
    assert max(steps) < STEP_SECONDS_MAX
    assert "lost" not in told and trial.story.view == view
    assert {told.record["rung"] for told in trial.story.installed} <= {"initial", "replica"}

    bound = heal_seconds_max(settings(pairs(small_manifest(trial.swarm.data, STAGES))), VOLUNTEERS)  # type: ignore[arg-type]
    pair = next(stage for stage in range(STAGES + 1) if len(trial.story.holders(stage)) == 2)
    assert kill_holder(trial, pair, bound).rung == SURVIVORS
    trial.wait_for_step(trial.story.committed + 3, SETTLE_SECONDS)
    alone = next(stage for stage in (1, 2) if stage != pair)
    kill_holder(trial, alone, bound)
    trial.wait_for_step(trial.story.committed + 3, SETTLE_SECONDS)
