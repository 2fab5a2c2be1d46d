"""On real processes: a disk tells of a later step, with other weights, after everybody was switched off (rule 46)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ftnode.node.snapshots.roll_book import NAME
from ftnode.node.snapshots.store import SnapshotStore
from ftnode.node.snapshots.write import DiskAllowance, write_snapshot
from ftnode.protocol.manifest.parse import parse
from ftnode.protocol.words.types import Attempt, Rung, Version
from tests.swarm.conftest import OpenTrial
from tests.swarm.test_switched_off import common, switch_off, with_snapshots

pytestmark = pytest.mark.timeout(280)


def tell_of_later_step(honest: list[Path], liar: Path, run: str, later: int) -> None:
    """The liar's disk: all stages as they were on the honest ones, with noise for weights and another name."""
    store, noise = SnapshotStore(liar, run), np.random.default_rng(0)
    version = Version(later, "0" * 24, Attempt(3, later))
    newest = {kept.stage: kept for home in honest for kept in reversed(SnapshotStore(home, run).kept())}
    for _, kept in sorted(newest.items()):
        parts = SnapshotStore(kept.folder.parents[3], run).load(kept)
        weights = np.frombuffer(parts["weights"], np.float32)
        wrong = noise.normal(0, 10, weights.size).astype(np.float32)
        state = memoryview(bytearray(wrong.tobytes() + bytes(parts["optimiser"])))
        lineal = replace(kept.index.lineal, view=kept.index.lineal.view + 1)
        about = replace(kept.index, version=version, lineal=lineal, parts={}, digest="")
        write_snapshot(store, state, about, DiskAllowance(), {*newest})
    assert {kept.stage for kept in store.kept()} == {0, 1, 2, 3}


def test_a_swarm_that_starts_again_does_not_go_on_from_what_a_liar_has(open_swarm: OpenTrial) -> None:
    trial = open_swarm(volunteers=2, hold=2, change=with_snapshots, numbers=True)
    run = parse(trial.swarm.manifest.read_text()).run_id
    homes = [trial.swarm.processes[name].home for name in ("v1", "v2")]
    books = [home / "snapshots" / run / NAME for home in homes]
    trial.wait("a snapshot of all stages, and its roll", lambda story: bool(
        len(common(trial, run)) > 1 and all(book.exists() for book in books)
    ), 90.0)  # fmt: skip
    switch_off(trial, "v1", "v2")
    newest = max(common(trial, run))
    trial.story.read()
    seen = len(trial.story.installed), len(trial.story.commits)
    tell_of_later_step(homes, homes[0].with_name("liar"), run, newest + 9)
    for name, home in zip(("v1", "v2"), homes, strict=True):
        home.rename(home.with_name(f"{name}-again"))
        trial.volunteer(f"{name}-again", hold=2)
    trial.volunteer("liar", hold=2)
    trial.wait("steps after the restart", lambda story: len(story.commits) >= seen[1] + 6, 120.0)
    installed = [told.record for told in trial.story.installed[seen[0] :]]
    from_disks = [record for record in installed if record["rung"] == Rung.SNAPSHOT.value]
    assert {record["stage"] for record in from_disks} == {0, 1, 2, 3}
    assert {record["step"] for record in from_disks} == {newest}
    assert min(told.record["step"] for told in trial.story.commits[seen[1] :]) == newest + 1
