"""A stranger that says valid and useless things as fast as it can loses its connection; the run does not notice."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from ftnode.lab.swarms.trial import Trial
from ftnode.node.manifests.reading import read_manifest
from ftnode.node.owner.join_options import running_nodes
from tests.swarm.conftest import OpenTrial

STAGES = 2
SECONDS = 8.0
FRAME_BYTES = 48_000
HELD = 0.9
"""Of the rate before; what is less counts as slowed."""
TRACE_BYTES_MAX = 8 << 20
"""What a flood may add to a trace, the run's own records included: far above both, and a tenth of what it was."""


def steps_at(trial: Trial) -> list[float]:
    trial.story.read()
    return [told.time for told in trial.story.commits]


def typical_seconds(commits: list[float], since: float, until: float) -> float:
    """From one commit to the next, the median in this span."""
    within = [at for at in commits if since <= at <= until]
    return median(after - before for before, after in pairwise(within))


@pytest.mark.alone
def test_a_flood_costs_the_flooder_its_connection_and_the_run_nothing(open_swarm: OpenTrial, tmp_path: Path) -> None:
    trial = open_swarm(volunteers=3, stages=STAGES)
    trial.wait("everybody to hold a stage", lambda story: story.view is not None and len(story.view.members()) == 3)
    leader = next(
        process for name, process in trial.swarm.processes.items()
        if trial.story.view is not None and trial.story.peers.get(name) == trial.story.view.leader
    )  # fmt: skip
    address = next(address for address in running_nodes(leader.home)[0].addresses if "/127.0.0.1/" in address)
    run = read_manifest(trial.swarm.manifest)[0].run_id
    time.sleep(SECONDS)
    size_before, began = leader.trace.stat().st_size, time.monotonic()
    flooder = Path(__file__).with_name("flooder.py")
    argv = [sys.executable, flooder, tmp_path / "flooder", run, STAGES + 1, SECONDS, FRAME_BYTES, address]
    told = json.loads(subprocess.run([*map(str, argv)], check=True, capture_output=True, timeout=60).stdout)
    ended, size_after = time.monotonic(), leader.trace.stat().st_size
    commits = steps_at(trial)
    before = typical_seconds(commits, began - SECONDS, began)
    during = typical_seconds(commits, began, ended)
    print(f"{told}; a step took {before:.3f} s before and {during:.3f} s meanwhile; {size_after - size_before} bytes")
    assert told["frames"] > 1
    assert max(told["open_seconds"]) < 1.0
    assert told["refused"] + told["unreached"] > 0
    assert size_after - size_before < TRACE_BYTES_MAX
    assert before / during > HELD
    trial.wait_for_step(trial.story.committed + 2)
