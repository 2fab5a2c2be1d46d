"""Two minutes of training over slow lines: slow is not dead, and who is dead is not waited for."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from ftnode.lab.demo.kills import Planned, strike
from ftnode.lab.demo.report import SURVIVORS, Recovery, recover
from ftnode.lab.swarms.trial import Trial, small_manifest
from ftnode.lab.traces.story import Story, first_commits
from ftnode.protocol.manifest.parse import Manifest, settings
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Peer
from tests.swarm.conftest import OpenTrial
from tests.swarm.slow_lines import Lines, Quality, free_port, open_lines

pytestmark = [pytest.mark.timeout(420), pytest.mark.alone]

STAGES = 2
VOLUNTEERS = STAGES + 2
TRAINING_SECONDS = 120.0
SETTLE_SECONDS = 90.0
QUALITY = Quality(delay_seconds=0.08, jitter_seconds=0.02, bytes_per_second=20e6 / 8)
STEP_SECONDS_MAX = 5.0
"""A lease. Usual are 1.5, of which delays alone are 1.1: six hops, the sum of the pair, Ready and Begin."""


@pytest.fixture
def lines() -> Iterator[Lines]:
    with open_lines(QUALITY) as lines:
        yield lines


def members(story: Story) -> tuple[Peer, ...]:
    return story.view.members() if story.view is not None else ()


def pairs(manifest: Manifest) -> Manifest:
    return replace(manifest, pipeline=replace(manifest.pipeline, replicas=2))


def volunteer_behind(trial: Trial, lines: Lines, name: str) -> None:
    """It listens on a port that nobody is told; what they are told is its line."""
    port = free_port()
    options = ("--listen", f"/ip4/127.0.0.1/tcp/{port}", "--announce", lines.lead_to(port))
    trial.volunteer(name, hold=2, options=options)


def put_meeting_point_behind(trial: Trial, lines: Lines) -> None:
    address, _, peer = trial.swarm.address.partition("/p2p/")
    trial.swarm.address = f"{lines.lead_to(int(address.rpartition('/')[2]))}/p2p/{peer}"


def heal_seconds_max(s: Settings, members: int, step_seconds: float) -> float:
    """From the SIGKILL of a member that falls silent, and whose port does not refuse, to the next commit."""
    detect = s.lease_seconds + 2 * s.heartbeat_seconds + 1.5 * s.poll_seconds
    elect = s.takeover_seconds * (1 + members) + s.ballot_seconds
    recruit = s.offer_seconds + s.search_seconds
    return detect + elect + recruit + 2 * step_seconds


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


def end_between_steps(trial: Trial) -> None:
    """The leader goes first, and when its last commit has arrived: one that was still on its way nobody would apply."""
    late = trial.story.committed + 3

    def has_arrived(story: Story) -> bool:
        held = [(name, stage) for stage in range(STAGES + 1) for name in story.holders(stage)]
        return story.committed >= late and all(story.applied.get(key) == story.committed for key in held)

    trial.wait("a commit to arrive", has_arrived, SETTLE_SECONDS)
    assert trial.story.view is not None
    leader = trial.swarm.processes[trial.story.name(trial.story.view.leader)]
    trial.expected_dead.add(leader.name)
    leader.process.terminate()
    trial.wait("it to leave", lambda story: "once more ends at once" in leader.output.read_text(), SETTLE_SECONDS)
    leader.process.terminate()
    leader.process.wait(SETTLE_SECONDS)


def kinds(story: Story, since: float) -> list[str]:
    return [str(told.record["kind"]) for told in story.notes if told.time >= since]


def test_slow_is_not_dead(open_swarm: OpenTrial, lines: Lines) -> None:
    trial: Trial = open_swarm(volunteers=0, stages=STAGES, change=pairs, numbers=True)
    put_meeting_point_behind(trial, lines)
    for number in range(1, VOLUNTEERS + 1):
        volunteer_behind(trial, lines, f"v{number}")

    def is_settled(story: Story) -> bool:
        return story.view is not None and len(story.view.members()) == VOLUNTEERS == len(story.view.voters)

    trial.wait_for_step(1)
    began, before = time.monotonic(), lines.carried() / 1e6
    trial.wait("four holders", is_settled, SETTLE_SECONDS)
    view, four = trial.story.view, members(trial.story)
    trial.wait("two minutes", lambda story: time.monotonic() >= began + TRAINING_SECONDS, TRAINING_SECONDS + 10)
    commits = [told.time for told in first_commits(trial.story.commits) if told.time >= began]
    steps = [later - earlier for earlier, later in pairwise([began, *commits, time.monotonic()])]
    told = kinds(trial.story, began)
    # By what it measures on a busy machine, the leader may have given some of them other stages.
    trial.wait("the same four", lambda story: is_settled(story) and members(story) == four, SETTLE_SECONDS)
    print(
        f"{len(commits)} commits in {TRAINING_SECONDS:.0f} s, a step takes {statistics.median(steps):.2f} s "
        f"(longest {max(steps):.2f}), {lines.carried() / 1e6 - before:.0f} MB through the lines; "
        f"notes: {dict(Counter(told))}"
    )
    assert max(steps) < STEP_SECONDS_MAX
    assert "lost" not in told and trial.story.view is not None and view is not None
    assert trial.story.view.lineage == view.lineage
    assert {told.record["rung"] for told in trial.story.installed} <= {"initial", "replica"}

    assert trial.swarm.data is not None
    rules = settings(pairs(small_manifest(trial.swarm.data, STAGES)))
    bound = heal_seconds_max(rules, VOLUNTEERS, max(steps))
    print(f"a loss must heal within {bound:.1f} s")
    pair = next(stage for stage in range(STAGES + 1) if len(trial.story.holders(stage)) == 2)
    assert kill_holder(trial, pair, bound).rung == SURVIVORS
    alone = next(stage for stage in (1, 2) if stage != pair)
    kill_holder(trial, alone, bound)
    end_between_steps(trial)
