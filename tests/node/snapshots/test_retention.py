"""Near the limit: the newest version that is whole stays until a newer one is, nobody gets stuck with room for two of
each stage, and those who write at once count each other's room."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from ftnode.node.snapshots import disk as disk_module
from ftnode.node.snapshots.disk import Disk, locked
from ftnode.node.snapshots.format import KeptSnapshot, SnapshotError
from ftnode.node.snapshots.retention import newest_set, order_to_go
from ftnode.node.snapshots.store import SnapshotStore
from ftnode.node.snapshots.write import write_snapshot
from tests.node.snapshots.keeping import ALLOWANCE, MODEL, RUN, about, keep, state_of

INDEX_BYTES = 8192


def there(home: Path) -> dict[int, list[int]]:
    """Step → stages."""
    found: dict[int, list[int]] = {}
    for kept in reversed(SnapshotStore(home, RUN).kept()):
        found.setdefault(kept.version.step, []).append(kept.stage)
    return {step: sorted(stages) for step, stages in found.items()}


def set_bytes(tmp_path: Path, stages: Iterable[int]) -> int:
    """Of one version of these."""
    home = tmp_path / "measured"
    for stage in stages:
        keep(home, 1, stage)
    return SnapshotStore(home, RUN).bytes_on_disk() + INDEX_BYTES


def attempt(home: Path, step: int, stage: int, held: tuple[int, ...], limit: float, keeps: int = 2) -> bool:
    """Whether it is kept."""
    try:
        keep(home, step, stage, allowance=replace(ALLOWANCE, keep=keeps, limit_bytes=int(limit)), held=held)
    except SnapshotError as error:
        assert "no room" in str(error)
        return False
    return True


ALL = (0, 1, 2)


@pytest.mark.parametrize("keeps", [1, 2, 3])
def test_a_whole_version_is_there_at_any_moment(tmp_path: Path, keeps: int) -> None:
    """With less than two sets nothing newer is kept; with two every step is."""
    one = set_bytes(tmp_path, ALL)
    for sets in (1.4, 2.0):
        home = tmp_path / str(sets)
        for step in range(1, 6):
            for stage in ALL:
                was_kept = attempt(home, step, stage, ALL, sets * one, keeps)
                assert was_kept or (sets < 2 and step > 1)
                whole = [each for each, stages in there(home).items() if stages == [*ALL]]
                assert step == 1 or whole, there(home)
                assert SnapshotStore(home, RUN).bytes_on_disk() <= sets * one
        assert (5 in whole) == (sets == 2)
        assert len(whole) == (1 if sets < 2 else min(keeps, 2))


def test_a_stage_that_was_left_out_blocks_nobody(tmp_path: Path) -> None:
    """Step 2 never becomes whole: it makes room for the steps behind it, step 1 does not."""
    limit = 2 * set_bytes(tmp_path, ALL)
    home = tmp_path / "home"
    for step in range(1, 6):
        for stage in ALL:
            if (step, stage) not in ((2, 1), (3, 2)):
                assert attempt(home, step, stage, ALL, limit), there(home)
                assert any(stages == [*ALL] for stages in there(home).values()) or step == 1
    assert there(home)[5] == [*ALL]


def test_who_keeps_one_stage_needs_room_for_two_of_it(tmp_path: Path) -> None:
    one = set_bytes(tmp_path, [1])
    assert all(attempt(tmp_path / "two", step, 1, (1,), 2 * one) for step in (1, 2, 3, 4))
    assert [attempt(tmp_path / "one", step, 1, (1,), one) for step in (1, 2)] == [True, False]


def test_stages_that_were_given_up_or_taken_over_block_nobody(tmp_path: Path) -> None:
    """0 is given up after step 1, 2 is taken over after step 2."""
    limit = 2 * set_bytes(tmp_path, ALL)
    home = tmp_path / "home"
    for step, held in ((1, (0, 1)), (2, (1,)), (3, (1, 2)), (4, (2, 1)), (5, ALL)):
        assert all(attempt(home, step, stage, held, limit) for stage in held), there(home)
    assert there(home)[5] == [*ALL]


def test_a_neighbour_that_does_not_say_what_it_holds_changes_nothing(tmp_path: Path) -> None:
    """Then all stages count as held, also those that nobody here ever had, or has no more."""
    limit = 2 * set_bytes(tmp_path, ALL)
    home = tmp_path / "home"
    for stage in (0, 1):
        assert attempt(home, 1, stage, ALL, limit)
    for step in (2, 3):
        for stage in (1, 2):
            assert attempt(home, step, stage, ALL, limit), there(home)
    assert attempt(home, 4, 1, ALL, limit) and 0 in there(home)[1] and there(home)[3] == [1, 2]


def test_the_owners_pruning_leaves_a_whole_version(tmp_path: Path) -> None:
    for step, stages in ((1, ALL), (2, ALL), (3, (0, 1))):
        for stage in stages:
            keep(tmp_path, step, stage, allowance=replace(ALLOWANCE, keep=9))
    store = SnapshotStore(tmp_path, RUN)
    store.prune(1)
    assert there(tmp_path) == {2: [0, 1, 2], 3: [0, 1]}
    store.prune(0)
    assert there(tmp_path) == {}


def kept_of(step: int, stage: int, sequence: int) -> KeptSnapshot:
    return KeptSnapshot(Path(f"{step}/{stage}/{sequence}"), replace(about(step, stage), sequence=sequence))


def test_what_goes_first() -> None:
    """The set is that with most stages, of two equal ones the one that was saved last, whatever its step."""
    kept = [kept_of(*each) for each in ((9, 0, 1), (9, 1, 2), (5, 0, 3), (5, 1, 4), (6, 0, 5), (7, 3, 6), (7, 2, 7))]
    held = (0, 1, 2)
    assert [each.index.sequence for each in newest_set(kept, held)] == [3, 4]
    assert [each.index.sequence for each in order_to_go(kept, held, about(8).version)] == [1, 2, 6, 5]
    assert newest_set([], held) == [] == newest_set(kept, ())
    added = [*kept, kept_of(8, 1, 8), kept_of(8, 2, 9)]
    assert [each.index.sequence for each in newest_set(added, (0, 1), about(8).version)] == [3, 4]


class Meeting(Disk):
    """Begins to write only when all have been heard of; `gone` has those that were refused."""

    def __init__(self, together: threading.Barrier) -> None:
        super().__init__()
        self._together, self._met = together, False

    def write(self, descriptor: int, content: memoryview | bytes, offset: int) -> None:
        if not self._met:
            self._met = True
            self._together.wait(20)
        super().write(descriptor, content, offset)


@pytest.mark.parametrize("runs", [(RUN, RUN), (RUN, "cd" * 16)])
@pytest.mark.parametrize("bound", ["limit", "disk"])
def test_two_who_write_at_once_do_not_count_on_the_same_room(tmp_path: Path, runs: tuple[str, str], bound: str) -> None:
    """Also for two runs of a home: only one limit, and one disk."""
    sizes = set_bytes(tmp_path, [1])
    home, together = tmp_path / "home", threading.Barrier(2)
    troubles: list[str] = []

    class Bounded(Meeting):
        def free(self, path: Path) -> int:
            return sizes + 1000 - SnapshotStore(home, RUN).bytes_on_disk() if bound == "disk" else 10**12

    def save(run: str, stage: int) -> None:
        made = replace(about(1, stage), run=run)
        state = memoryview(state_of(1, 3 * 4 * MODEL.stage_parameters(2, stage)))
        allowance = replace(ALLOWANCE, limit_bytes=int(1.4 * sizes) if bound == "limit" else 10**12)
        try:
            write_snapshot(SnapshotStore(home, run, Bounded(together)), state, made, allowance, (stage,))
        except SnapshotError as error:
            troubles.append(str(error))
            together.wait(20)

    threads = [threading.Thread(target=save, args=each) for each in zip(runs, (1, 2))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(troubles) == 1 and ("no room" if bound == "limit" else "the disk is full") in troubles[0]
    kept = [each for run in {*runs} for each in SnapshotStore(home, run).kept()]
    assert len(kept) == 1 and SnapshotStore(home, kept[0].index.run).verify(kept[0]) == ""
    assert SnapshotStore(home, RUN).bytes_on_disk() < 1.4 * sizes
    assert not [path for path in home.rglob("*") if path.name.startswith(".")]


def test_whoever_looks_for_room_waits_for_other_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(tmp_path, 1)
    monkeypatch.setattr(disk_module, "LOCK_SECONDS", 0.0)
    with locked(tmp_path / "snapshots"), pytest.raises(SnapshotError, match="another process has been at work in"):
        keep(tmp_path, 2)
    assert keep(tmp_path, 2)


def reserved(path: Path, size: int) -> os.stat_result:
    disk = Disk()
    descriptor = disk.create(path)
    try:
        disk.reserve(descriptor, size)
        disk.write(descriptor, b"x" * 5000, 0)
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="this system sets no room aside")
def test_room_is_set_aside_where_the_file_system_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(os, "posix_fallocate", lambda *arguments: asked.append(arguments[2]))
    monkeypatch.setattr(os, "ftruncate", lambda *_: pytest.fail("it is there"))
    reserved(tmp_path / "file", 1 << 20)
    assert asked == [1 << 20]


@pytest.mark.parametrize("code", disk_module.NOT_KNOWN)
def test_a_file_system_that_sets_no_room_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuses(*_: object) -> None:
        raise OSError(code, "of this test")

    monkeypatch.setattr(os, "posix_fallocate", refuses, raising=False)
    assert reserved(tmp_path / "file", 1 << 20).st_size == 1 << 20
    assert (tmp_path / "file").read_bytes() == b"x" * 5000 + bytes((1 << 20) - 5000)


def test_a_disk_without_that_room_is_one_line_and_keeps_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(tmp_path, 1)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(SnapshotError, match=r"^cannot keep stage 1 of step 2: the disk is full$"):
        keep(tmp_path, 2)
    assert there(tmp_path) == {1: [1]} and [*(tmp_path / "snapshots" / RUN / "2").iterdir()] == []
