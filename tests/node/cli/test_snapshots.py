"""`ftnode snapshots`: what is listed, shown, checked and removed, and what is said when there is nothing of it."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ftnode.node.cli import snapshots
from ftnode.node.owner import control_socket
from ftnode.node.owner.control_socket import ControlError
from ftnode.node.owner.join_options import Running
from ftnode.node.snapshots import store
from ftnode.node.snapshots.format import KeptSnapshot, SnapshotError
from ftnode.node.snapshots.store import SnapshotStore
from tests.node.cli.cli_runner import Seen
from tests.node.snapshots.keeping import RUN, keep

Run = Callable[..., Seen]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    for step in (100, 200):
        for stage in (1, 2):
            keep(folder, step, stage)
    return folder


def test_what_is_kept_is_listed(ftnode: Run, home: Path) -> None:
    seen = ftnode("snapshots", "list", "--home", home)
    rows = [line.split() for line in seen.out.splitlines()]
    assert rows[0] == ["run", "step", "stage", "commit", "epoch", "size", "saved"]
    assert [(row[0], row[1]) for row in rows[1:]] == [("abababab", step) for step in ("200", "200", "100", "100")]
    found = json.loads(ftnode("snapshots", "list", "--home", home, "--json").out)
    assert {(each["step"], each["stage"]) for each in found["snapshots"]} == {(100, 1), (100, 2), (200, 1), (200, 2)}
    assert found["troubles"] == []


def test_one_that_is_not_whole_is_said(ftnode: Run, home: Path) -> None:
    broken = next(home.glob("snapshots/*/200/stage-1-*"))
    (broken / "weights.safetensors").write_bytes(b"short")
    seen = ftnode("snapshots", "list", "--home", home)
    assert seen.code == 0 and len(seen.out.splitlines()) == 4
    assert seen.err.startswith("not whole: ") and "weights.safetensors has 5 bytes" in seen.err


def test_one_is_shown_without_loading_it(ftnode: Run, home: Path) -> None:
    (found,) = json.loads(ftnode("snapshots", "show", "100/2", "--home", home, "--json", "--tensors").out)
    assert (found["step"], found["stage"], found["layers"], found["epoch"]) == (100, 2, [2, 3], 4)
    assert found["tensors"]["model.layers.3.mlp.up_proj.weight"] == {
        "part": "weights", "dtype": "F32", "shape": [48, 32],
    }  # fmt: skip
    (by_folder,) = json.loads(ftnode("snapshots", "show", found["folder"], "--home", home, "--json").out)
    assert by_folder["digest"] == found["digest"]
    text = ftnode("snapshots", "show", "100/2", "--home", home, "--tensors").out
    assert "lineage" in text and "model.layers.3.mlp.up_proj.weight.exp_avg_sq  F32 48×32  optimiser" in text


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["show", "300/1"], 66, "no snapshot of stage 1 at step 300 is kept"),
        (["show", "newest"], 64, "newest is neither STEP/STAGE, as 100/3, nor a folder"),
        (["show", "100/1", "--run", "ff"], 64, "--run ff begins no id of the runs"),
        (["show", "."], 65, "cannot read"),
        (["verify", "300/1"], 66, "no snapshot of stage 1 at step 300 is kept"),
        (["prune"], 64, "--keep"),
    ],
)
def test_bad_input_gets_one_line(ftnode: Run, home: Path, arguments: list[str], code: int, says: str) -> None:
    assert ftnode("snapshots", *arguments, "--home", home).refused(code, says)


def test_a_flipped_bit_is_found(ftnode: Run, home: Path) -> None:
    seen = ftnode("snapshots", "verify", "--home", home)
    assert seen.code == 0 and seen.out.count("is as it was written") == 4
    path = next(home.glob("snapshots/*/100/stage-2-*")) / "optimiser.safetensors"
    content = bytearray(path.read_bytes())
    content[-9] ^= 4
    path.write_bytes(content)
    seen = ftnode("snapshots", "verify", "--home", home)
    assert seen.code == 65 and seen.out.count("is as it was written") == 3
    assert "optimiser.safetensors is damaged" in seen.err and seen.err.count("\n") == 1
    assert ftnode("snapshots", "verify", "200/2", "--home", home).code == 0
    found = json.loads(ftnode("snapshots", "verify", "100/2", "--home", home, "--json").out)
    assert found["good"] == [] and len(found["damaged"]) == 1


def test_what_cannot_be_read_is_not_called_damaged(ftnode: Run, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is told to remove its folder would remove what may be whole."""
    path, really = next(home.glob("snapshots/*/100/stage-2-*")) / "optimiser.safetensors", Path.open

    def refuses(opened: Path, *arguments: Any, **options: Any) -> Any:
        if opened == path:
            raise PermissionError(errno.EACCES, "Permission denied")
        return really(opened, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuses)
    seen = ftnode("snapshots", "verify", "--home", home)
    assert seen.code == 74 and "remove" not in seen.err and f"cannot read {path}: Permission denied" in seen.err
    found = json.loads(ftnode("snapshots", "verify", "--home", home, "--json").out)
    assert (len(found["good"]), found["damaged"], len(found["unread"])) == (3, [], 1)


def test_what_a_node_removes_meanwhile_is_not_damaged(ftnode: Run, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trouble = SnapshotStore.trouble

    def trouble_after_removal(self: SnapshotStore, kept: KeptSnapshot) -> SnapshotError | None:
        if (kept.version.step, kept.stage) == (100, 2):
            shutil.rmtree(kept.folder)
        return trouble(self, kept)

    monkeypatch.setattr(SnapshotStore, "trouble", trouble_after_removal)
    seen = ftnode("snapshots", "verify", "--home", home)
    assert seen.code == 0 and seen.out.count("is as it was written") == 3 and not seen.err
    assert seen.out.count("has been removed meanwhile") == 1


def test_what_is_removed_while_it_is_listed_is_no_trouble(
    ftnode: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = store.read_snapshot

    def read_after_removal(folder: Path, *run: str) -> KeptSnapshot:
        if folder.match("100/stage-2-*"):
            shutil.rmtree(folder, ignore_errors=True)
        return read(folder, *run)

    monkeypatch.setattr(store, "read_snapshot", read_after_removal)
    seen = ftnode("snapshots", "list", "--home", home)
    assert seen.code == 0 and not seen.err and seen.out.count("\n") == 4


def test_all_but_the_last_go(ftnode: Run, home: Path) -> None:
    assert ftnode("snapshots", "prune", "--keep", 1, "--home", home).out.startswith("2 snapshots are removed, ")
    assert ftnode("snapshots", "prune", "--keep", 1, "--home", home).out == "nothing was to be removed\n"
    found = json.loads(ftnode("snapshots", "prune", "--keep", 0, "--run", RUN[:4], "--home", home, "--json").out)
    assert len(found["removed"]) == 2
    assert ftnode("snapshots", "list", "--home", home).out == "no snapshots are kept here\n"
    assert ftnode("snapshots", "verify", "--home", home).out == "no snapshots are kept here\n"


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What would be said to be waited for, were it to take long."""
    found: list[str] = []

    @contextmanager
    def noted(what: str) -> Iterator[None]:
        found.append(what)
        yield

    monkeypatch.setattr(snapshots, "spoken", noted)
    return found


def test_what_may_take_long_can_say_so(ftnode: Run, home: Path, waits: list[str]) -> None:
    assert ftnode("snapshots", "verify", "--home", home).code == 0 and waits == ["snapshots to be read"]


def answering(monkeypatch: pytest.MonkeyPatch, home: Path, answers: dict[str, dict[str, Any]]) -> list[str]:
    """A node of this home that answers so; what it was asked."""
    asked: list[str] = []

    def ask(_path: Path, do: str, **_fields: object) -> dict[str, Any]:
        asked.append(do)
        if do not in answers:
            raise ControlError(f"nothing is known as {do!r}")
        return answers[do]

    monkeypatch.setattr(control_socket, "ask", ask)
    monkeypatch.setattr(snapshots, "chosen", lambda *_: (Running(1, "12D3KooWNode", RUN, (), False),))
    return asked


@pytest.mark.parametrize(
    ("state", "why", "says"),
    [
        ("paused", "until ftnode resume", "the node is paused (until ftnode resume); try again when it works"),
        ("frozen", "alone", "the node stands still (alone)"),
        ("starting", "", "the node is only beginning; try"),
        ("handing over", "by its owner", "the node hands over what it holds (by its owner); try"),
    ],
)
def test_a_node_that_rests_saves_nothing_and_the_reason_is_said(
    ftnode: Run, home: Path, monkeypatch: pytest.MonkeyPatch, state: str, why: str, says: str
) -> None:
    asked = answering(monkeypatch, home, {"state": {"state": state, "why": why}})
    assert ftnode("snapshots", "save", home / "new", "--home", home).refused(75, says)
    assert asked == ["state"]


def test_a_node_that_works_saves(ftnode: Run, home: Path, monkeypatch: pytest.MonkeyPatch, waits: list[str]) -> None:
    saved = [{"stage": 1, "step": 7, "folder": str(home / "new"), "bytes": 10**9}]
    told = {"waiting": [1], "saved": [], "troubles": []}
    answers = {"state": {"state": "running", "why": ""}, "snapshot": told,
               "snapshot-state": {"waiting": [], "saved": saved, "troubles": []}}  # fmt: skip
    asked = answering(monkeypatch, home, answers)
    seen = ftnode("snapshots", "save", home / "new", "--home", home)
    assert seen.out == f"stage 1 of step 7 is in {home / 'new'}, 1.0 GB\n", seen
    assert asked == ["state", "snapshot", "snapshot-state"] and waits == [f"{home / 'new'} to be written"]


@pytest.mark.parametrize(
    ("state", "code", "says"),
    [
        ("paused", 75, "the node is paused (by its owner); try again when it works"),
        ("running", 73, "cannot save: nothing is known as 'snapshot-state'"),
    ],
)
def test_a_node_that_rests_meanwhile_is_said_to(
    ftnode: Run, home: Path, monkeypatch: pytest.MonkeyPatch, state: str, code: int, says: str
) -> None:
    """Its life has ended, and what was known of the save with it."""
    answers: dict[str, dict[str, Any]] = {
        "state": {"state": "running", "why": ""}, "snapshot": {"waiting": [1], "saved": [], "troubles": []},
    }  # fmt: skip
    answering(monkeypatch, home, answers)
    monkeypatch.setattr(
        snapshots.time, "sleep", lambda _: answers.update(state={"state": state, "why": "by its owner"})
    )
    assert ftnode("snapshots", "save", home / "new", "--home", home).refused(code, says)


def test_a_node_that_has_rested_meanwhile_has_saved_nothing(
    ftnode: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing: dict[str, Any] = {"waiting": [], "saved": [], "troubles": []}
    answers = {
        "state": {"state": "running", "why": ""}, "snapshot": {**nothing, "waiting": [1]}, "snapshot-state": nothing
    }  # fmt: skip
    answering(monkeypatch, home, answers)
    assert ftnode("snapshots", "save", home / "new", "--home", home).refused(75, "has rested meanwhile; try again")
