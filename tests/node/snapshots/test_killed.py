"""A process that is killed while it keeps a snapshot leaves those from before as they were, and nothing half-written
that is taken for good."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from statistics import median

import pytest

from ftnode.node.snapshots.store import SnapshotStore
from tests.node.snapshots.keeping import FORKS, RUN, Counted, keep, keep_and_die, keep_when_told, state_of

KILLS = int(os.environ.get("FTNODE_KILLS", "60"))
"""At random moments, after one at each operation."""


def whole(home: Path, steps: set[int]) -> bool:
    """Whether what counts are some of these steps, bytes and all, and the newest of them is chosen."""
    store = SnapshotStore(home, RUN)
    kept = store.kept()
    chosen = store.newest_good(1)
    assert chosen is not None and chosen.version.step == max(each.version.step for each in kept)
    for each in kept:
        assert each.version.step in steps
        assert b"".join(store.load(each).values()) == state_of(each.version.step)
    return True


def test_killed_at_each_operation_the_one_before_stays(tmp_path: Path) -> None:
    """Two are kept already, so that the oldest has to go within the save as well."""
    counted = Counted()
    for step in (1, 2):
        keep(tmp_path / "counted", step)
    keep(tmp_path / "counted", 3, disk=counted)
    operations = {"make_folder", "create", "reserve", "write", "sync", "sync_folder", "rename", "unlink"}
    assert operations == set(counted.operations)
    for number in range(len(counted.operations)):
        home = tmp_path / str(number)
        for step in (1, 2):
            keep(home, step)
        process = FORKS.Process(target=keep_and_die, args=(home, 3, number, ()))
        process.start()
        process.join(30)
        assert process.exitcode == -9, counted.operations[number]
        kept = {each.version.step for each in SnapshotStore(home, RUN).kept()}
        assert kept >= {2} and whole(home, {1, 2, 3}), (number, counted.operations[number])
        keep(home, 4)
        assert {each.version.step for each in SnapshotStore(home, RUN).kept()} == {4, 3 if 3 in kept else 2}
        assert not [path for path in home.rglob("*") if path.name.startswith(".")], "drafts are cleared away"


def test_killed_at_random_moments_the_one_before_stays(tmp_path: Path) -> None:
    chance = random.Random(7)
    keep(tmp_path, 1)
    taken = [duration_of_a_save(tmp_path, step) for step in range(2, 7)]
    last, finished = 6, 0
    for _ in range(KILLS):
        step = last + 1
        process, link = begin(tmp_path, step)
        process.join(chance.uniform(0, 1.5 * median(taken)))
        process.kill()
        process.join(30)
        link.close()
        steps = {each.version.step for each in SnapshotStore(tmp_path, RUN).kept()}
        assert steps & {last, step}, (last, steps)
        assert whole(tmp_path, {last - 1, last, step, *steps})
        last, finished = max(steps), finished + (step in steps)
    assert KILLS / 20 < finished < KILLS * 0.95, f"{finished} of {KILLS} were through: the moments do not cover a save"


def begin(home: Path, step: int):  # type: ignore[no-untyped-def]
    ours, theirs = FORKS.Pipe()
    process = FORKS.Process(target=keep_when_told, args=(home, step, theirs))
    process.start()
    theirs.close()
    assert ours.recv() == "begun"
    return process, ours


def duration_of_a_save(home: Path, step: int) -> float:
    process, link = begin(home, step)
    began = time.perf_counter()
    assert link.recv() == "done"
    seconds = time.perf_counter() - began
    process.join(30)
    return seconds


@pytest.mark.parametrize("part", ["weights.safetensors", "optimiser.safetensors", "index.json"])
def test_a_flipped_bit_is_found_and_the_one_before_chosen(tmp_path: Path, part: str) -> None:
    keep(tmp_path, 1)
    newest = keep(tmp_path, 2)
    store, chance = SnapshotStore(tmp_path, RUN), random.Random(3)
    path = newest.folder / part
    good = path.read_bytes()
    for _ in range(20):
        bad = bytearray(good)
        bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
        path.write_bytes(bad)
        chosen = store.newest_good(1)
        assert chosen is not None and chosen.version.step == 1
    path.write_bytes(good)
    chosen = store.newest_good(1)
    assert chosen is not None and chosen.version.step == 2


@pytest.mark.parametrize("lost", ["weights.safetensors", "optimiser.safetensors", "index.json", ""])
def test_a_missing_file_or_folder_leaves_the_one_before(tmp_path: Path, lost: str) -> None:
    keep(tmp_path, 1)
    newest = keep(tmp_path, 2)
    for path in [newest.folder / lost] if lost else sorted(newest.folder.iterdir()):
        path.unlink()
    assert [each.version.step for each in SnapshotStore(tmp_path, RUN).kept()] == [1]
