"""Snapshots on a disk: what is read, what is refused and how it is said, what stays and what goes."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from ftnode.models.config import ModelConfig
from ftnode.models.state_plan import StatePlan
from ftnode.node.snapshots import store as store_module
from ftnode.node.snapshots.disk import Disk, locked
from ftnode.node.snapshots.format import FORMAT, KeptSnapshot, SnapshotError, index_bytes, parse_index
from ftnode.node.snapshots.saver import is_due
from ftnode.node.snapshots.store import SnapshotStore, check_fits, read_snapshot, runs_kept
from ftnode.node.snapshots.write import write_snapshot
from tests.node.snapshots.keeping import (
    ALLOWANCE,
    FORKS,
    MODEL,
    RUN,
    STAGES,
    STATE_BYTES,
    Counted,
    about,
    keep,
    state_of,
)


def steps(home: Path, stage: int = 1) -> list[int]:
    return [kept.version.step for kept in SnapshotStore(home, RUN).kept() if kept.stage == stage]


def test_what_was_kept_is_read_part_by_part(tmp_path: Path) -> None:
    made = keep(tmp_path, 100)
    store = SnapshotStore(tmp_path, RUN)
    (kept,) = store.kept()
    assert kept == made == read_snapshot(made.folder)
    expected = replace(about(100), digest=kept.digest, parts=kept.index.parts, sequence=1, saved=kept.index.saved)
    assert kept.index == expected
    state = state_of(100)
    weights = store.load(kept, ["weights"])
    assert weights == {"weights": state[: STATE_BYTES // 3]}
    assert store.load(kept, ["optimiser"]) == {"optimiser": state[STATE_BYTES // 3 :]}
    (kept.folder / "optimiser.safetensors").write_bytes(bytes(kept.index.parts["optimiser"].bytes))
    assert store.load(kept, ["weights"]) == weights, "an export needs no optimiser"
    assert "optimiser.safetensors is damaged" in store.verify(kept)


def test_other_programs_read_the_tensors(tmp_path: Path) -> None:
    kept = keep(tmp_path, 1)
    with safe_open(kept.folder / "optimiser.safetensors", "numpy") as file:
        moment = file.get_tensor("model.layers.1.mlp.down_proj.weight.exp_avg_sq")
        assert len(file.keys()) == 2 * 18 and moment.shape == (32, 48)
    index = json.loads((kept.folder / "index.json").read_text())
    assert index["layers"] == [0, 2] and index["tensors"]["model.layers.1.mlp.down_proj.weight"] == [32, 48]
    assert index["data"] == {"sha256": "cd" * 32, "seed": 5, "next_step": 2}


def test_the_last_ones_of_each_stage_stay(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        for stage in (1, 2):
            keep(tmp_path, step, stage)
    keep(tmp_path, 40)
    assert (steps(tmp_path), steps(tmp_path, 2)) == ([40, 30], [30, 20])
    assert sorted(path.name for path in (tmp_path / "snapshots" / RUN).iterdir()) == ["20", "30", "40"]
    assert runs_kept(tmp_path) == (RUN,)


def test_after_a_restart_from_an_earlier_step_the_last_saved_stay(tmp_path: Path) -> None:
    """Clocks go back, and steps too: what counts is the order of saving."""
    for step, commit in ((10, ""), (20, ""), (10, "f" * 24)):
        keep(tmp_path, step, commit=commit)
    assert steps(tmp_path) == [20, 10]
    keep(tmp_path, 20, commit="e" * 24)
    assert [kept.version.commit[0] for kept in SnapshotStore(tmp_path, RUN).kept()] == ["e", "f"]


def test_keeping_the_same_again_changes_nothing(tmp_path: Path) -> None:
    first = keep(tmp_path, 10)
    assert keep(tmp_path, 10).folder == first.folder
    (first.folder / "index.json").write_text("{")
    assert keep(tmp_path, 10).index.sequence == 1 and steps(tmp_path) == [10], "a broken one makes way"


@pytest.mark.parametrize("part", ["weights.safetensors", "optimiser.safetensors"])
def test_keeping_the_same_again_replaces_what_is_damaged(tmp_path: Path, part: str) -> None:
    class Looking(Counted):
        def at(self, name: str, number: int) -> None:
            assert steps(tmp_path) in ([10], [10, 10]), "not a moment without"

    path = keep(tmp_path, 10).folder / part
    bad = bytearray(path.read_bytes())
    bad[-1] ^= 1
    path.write_bytes(bad)
    store = SnapshotStore(tmp_path, RUN)
    again = keep(tmp_path, 10, disk=Looking())
    assert store.kept() == (again,) and store.verify(again) == ""
    assert keep(tmp_path, 10) == again, "which is good, and stays"


@pytest.mark.parametrize("times", range(1, 7))
def test_a_snapshot_that_cannot_be_read_for_a_moment_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    other = keep(tmp_path, 10, stage=2)
    really, failures = Path.open, [times]

    def fails(path: Path, *arguments: Any, **options: Any) -> Any:
        if path == other.folder / "index.json" and failures[0]:
            failures[0] -= 1
            raise OSError(errno.EIO, "Input/output error")
        return really(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", fails)
    keep(tmp_path, 20, stage=1)
    SnapshotStore(tmp_path, RUN).prune(2)
    failures[0] = 0
    assert steps(tmp_path, 2) == [10] and SnapshotStore(tmp_path, RUN).verify(other) == ""
    (other.folder / "index.json").unlink()
    SnapshotStore(tmp_path, RUN).prune(2)
    assert not other.folder.exists(), "what has no index is none"


@pytest.mark.parametrize("returns", [False, True], ids=["cleared away", "written anew"])
def test_what_changes_while_it_is_read_is_not_called_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, returns: bool
) -> None:
    """As by another node of this home, or by a person who removes a folder file by file."""
    changing, whole = keep(tmp_path, 10), keep(tmp_path, 20, stage=2)
    away, looks = tmp_path / "away", 0
    read = store_module.read_snapshot

    def meanwhile(folder: Path, run_id: str | None = None) -> KeptSnapshot:
        nonlocal looks
        if folder == changing.folder:
            looks += 1
            if looks == 1:
                (folder / "index.json").rename(away)
            elif returns:
                away.rename(folder / "index.json")
            else:
                shutil.rmtree(folder)
        return read(folder, run_id)

    monkeypatch.setattr(store_module, "read_snapshot", meanwhile)
    found, troubles = SnapshotStore(tmp_path, RUN).survey()
    assert troubles == () and found == ((whole, changing) if returns else (whole,))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_at_any_operation_leaves_what_was_there(tmp_path: Path, code: int) -> None:
    class Failing(Counted):
        def __init__(self, number: int) -> None:
            super().__init__()
            self._number = number

        def at(self, name: str, number: int) -> None:
            if number == self._number:
                raise OSError(code, "of this test")

    counted = Counted()
    keep(tmp_path / "counted", 1)
    keep(tmp_path / "counted", 2, disk=counted)
    for number, name in enumerate(counted.operations):
        home = tmp_path / str(number)
        keep(home, 1)
        with pytest.raises(SnapshotError, match=r"cannot keep stage 1 of step 2: ") as caught:
            keep(home, 2, disk=Failing(number))
        assert ("the disk is full" in str(caught.value)) == (code == errno.ENOSPC)
        store = SnapshotStore(home, RUN)
        kept = store.kept()
        assert kept[-1].version.step == 1 and not any(map(store.verify, kept)), (number, name)
        keep(home, 3)
        assert steps(home)[0] == 3


def limited(home: Path) -> None:
    """Target of a process: no file of it may be larger than half of the weights."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (STATE_BYTES // 6, STATE_BYTES // 6))
    try:
        keep(home, 2)
    except SnapshotError as error:
        raise SystemExit(0 if "the disk is full" in str(error) else 1) from None
    raise SystemExit(2)


def test_a_write_that_the_system_refuses_is_one_line(tmp_path: Path) -> None:
    keep(tmp_path, 1)
    process = FORKS.Process(target=limited, args=(tmp_path,))
    process.start()
    process.join(30)
    assert process.exitcode == 0
    assert steps(tmp_path) == [1]
    assert [path.name for path in (tmp_path / "snapshots" / RUN / "2").iterdir()] == [], "the draft is gone"


def test_the_limit_counts_the_new_one_and_takes_the_oldest(tmp_path: Path) -> None:
    room = STATE_BYTES + 20_000
    three = replace(ALLOWANCE, keep=9, limit_bytes=3 * room)
    for step in (1, 2, 3, 4):
        keep(tmp_path, step, allowance=three)
    assert steps(tmp_path) == [4, 3, 2]
    one = replace(ALLOWANCE, keep=9, limit_bytes=room)
    with pytest.raises(SnapshotError, match="raise --snapshot-limit, or remove some with: ftnode snapshots prune"):
        keep(tmp_path, 5, allowance=one)
    assert steps(tmp_path) == [4, 3, 2], "nothing goes when that would not help"


def test_the_newest_of_a_stage_that_is_held_makes_no_room(tmp_path: Path) -> None:
    allowance = replace(ALLOWANCE, keep=9, limit_bytes=2 * (STATE_BYTES + 20_000))
    keep(tmp_path, 1, stage=2, allowance=allowance)
    keep(tmp_path, 1, stage=1, allowance=allowance)
    with pytest.raises(SnapshotError, match="no room"):
        keep(tmp_path, 2, stage=1, allowance=allowance, held=(1, 2))
    keep(tmp_path, 2, stage=1, allowance=allowance, held=(1,))
    assert (steps(tmp_path, 1), steps(tmp_path, 2)) == ([2, 1], [])


def test_a_disk_without_room_is_not_filled(tmp_path: Path) -> None:
    class Small(Disk):
        def free(self, path: Path) -> int:
            return STATE_BYTES + 1000

    with pytest.raises(SnapshotError, match="the disk is full"):
        keep(tmp_path, 1, disk=Small(), allowance=replace(ALLOWANCE, spared_bytes=2000))


@pytest.mark.parametrize(
    ("model", "stages", "says"),
    [
        (replace(MODEL, hidden=64), STAGES, "mlp.gate_proj.weight has shape (48, 32), not (64, 32)"),
        (replace(MODEL, precision="float64"), STAGES, "q_proj.weight has numbers F32, not F64"),
        (MODEL, 1, "model.layers.2.self_attn.q_proj.weight is missing"),
        (MODEL, 4, "model.layers.1.self_attn.q_proj.weight is not of this stage"),
    ],
)
def test_another_structure_is_named(tmp_path: Path, model: ModelConfig, stages: int, says: str) -> None:
    kept = keep(tmp_path, 1)
    check_fits(kept, StatePlan(MODEL, STAGES, "adam"))
    with pytest.raises(SnapshotError, match="does not fit the run's model") as caught:
        check_fits(kept, StatePlan(model, stages, "adam"))
    assert says in str(caught.value)


def test_an_index_that_lies_is_refused(tmp_path: Path) -> None:
    kept = keep(tmp_path, 1)
    text = index_bytes(kept.index)
    assert parse_index(text, Path("x")) == kept.index
    for edited, says in (
        (text.replace(b'"step": 1,', b'"step": 2,'), "its checksum does not fit"),
        (text[:-40], "is not JSON"),
        (b"[]", "is no index of a snapshot"),
        (text.replace(b'"format": 1', b'"format": 9'), f"has format 9, this ftnode reads {FORMAT}"),
    ):
        with pytest.raises(SnapshotError) as caught:
            parse_index(edited, Path("x"))
        assert says in str(caught.value)


def test_what_a_later_version_wrote_is_left_alone(tmp_path: Path) -> None:
    kept = keep(tmp_path, 1)
    path = kept.folder / "index.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 9'))
    store = SnapshotStore(tmp_path, RUN)
    assert store.kept() == () and "format 9" in str(store.survey()[1][0])
    store.prune(0)
    assert path.exists()


def test_another_runs_snapshot_is_none_of_ours(tmp_path: Path) -> None:
    kept = keep(tmp_path, 1)
    other = tmp_path / "snapshots" / ("cd" * 16)
    kept.folder.parent.parent.rename(other)
    store = SnapshotStore(tmp_path, "cd" * 16)
    assert store.kept() == () and "is of run abababab" in str(store.survey()[1][0])


def test_a_draft_of_somebody_who_lives_stays(tmp_path: Path) -> None:
    """Two nodes of one home: neither clears away what the other is writing."""

    class Interrupted(Disk):
        def sync(self, descriptor: int) -> None:
            if not any(seen):
                seen.append(True)
                keep(tmp_path, 3, stage=2)
            super().sync(descriptor)

    seen: list[bool] = []
    keep(tmp_path, 3, stage=1, disk=Interrupted())
    assert (steps(tmp_path, 1), steps(tmp_path, 2)) == ([3], [3])


def test_what_links_lead_to_is_neither_counted_nor_removed(tmp_path: Path) -> None:
    """A home's owner may have made them, and it may be root who prunes."""
    run, elsewhere = tmp_path / "snapshots" / RUN, tmp_path / "elsewhere"
    theirs = [keep(elsewhere, step).folder for step in (1, 2)]
    (theirs[0].parent / ".ssh").mkdir()
    (theirs[0].parent / ".ssh" / "key").touch()
    keep(tmp_path, 6)
    keep(tmp_path, 7)
    (run / "5").symlink_to(theirs[0].parent)
    (run / "6" / theirs[1].name).symlink_to(theirs[1])
    (run / "7" / f".{theirs[0].name}.1.gone").symlink_to(theirs[0])
    (run / "7" / theirs[0].name).touch()
    before = sorted(elsewhere.rglob("*"))
    store = SnapshotStore(tmp_path, RUN)
    assert [kept.version.step for kept in store.kept()] == [7, 6] and store.survey()[1] == ()
    assert [kept.version.step for kept in store.prune(0)] == [7, 6]
    assert sorted(elsewhere.rglob("*")) == before
    assert sorted(path.name for path in run.rglob(".*")) == [], "a link among the drafts goes"
    assert steps(tmp_path) == [] and keep(tmp_path, 8).folder.exists()


def test_of_a_link_the_link_is_removed(tmp_path: Path) -> None:
    kept = keep(tmp_path, 1)
    (tmp_path / "link").symlink_to(kept.folder)
    Disk().remove(tmp_path / "link")
    assert not (tmp_path / "link").is_symlink() and SnapshotStore(tmp_path, RUN).verify(kept) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root acts for others")
@pytest.mark.parametrize("name", ["snapshots", f"snapshots/{RUN}"])
def test_root_does_not_clear_another_users_links(tmp_path: Path, name: str) -> None:
    kept = keep(tmp_path / "elsewhere", 1)
    link = tmp_path / "home" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "elsewhere" / name)
    os.chown(link, 12345, 12345, follow_symlinks=False)
    with pytest.raises(OSError, match="root does not follow"):
        SnapshotStore(tmp_path / "home", RUN).prune(0)
    os.chown(link, 0, 0, follow_symlinks=False)
    assert SnapshotStore(tmp_path / "home", RUN).prune(0)[0].version == kept.version


def test_a_folder_that_stays_locked_is_said(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(TimeoutError, match="another process has been at work"), locked(tmp_path, 0.0):
        pass


def test_a_state_of_another_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="has 12 bytes, not"):
        write_snapshot(SnapshotStore(tmp_path, RUN), memoryview(bytes(12)), about(1), ALLOWANCE, ())


def test_commits_that_are_due() -> None:
    assert [step for step in range(36) if is_due(step, 10, last=35)] == [10, 20, 30, 35]
    assert not any(is_due(step, 0, last=4) for step in range(5))


def test_nothing_is_kept_of_a_home_that_keeps_nothing(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path, RUN)
    assert store.kept() == () and store.prune(0) == [] and store.newest_good(1) is None and store.bytes_on_disk() == 0
    assert list(tmp_path.iterdir()) == []


def test_parts_are_named(tmp_path: Path) -> None:
    kept: KeptSnapshot = keep(tmp_path, 1)
    with pytest.raises(SnapshotError, match="there is no part gradients; parts are weights, optimiser"):
        SnapshotStore(tmp_path, RUN).load(kept, ["gradients"])
