"""`ftnode snapshots divide`: what one machine kept of four stages is what a run of two starts from."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ftnode.models.config import ModelConfig
from ftnode.node.manifests.presets import preset
from ftnode.node.snapshots.format import DataPosition, Lineal, StageIndex, StageState
from ftnode.node.snapshots.store import SnapshotStore, tensors_of
from ftnode.node.snapshots.write import write_snapshot
from ftnode.node.weights.known_snapshots import snapshot_of
from ftnode.protocol.manifest.parse import Manifest, render, settings
from ftnode.protocol.recovery.disk_versions import common
from ftnode.protocol.words.types import Attempt, Peer, Version
from tests.node.cli.cli_runner import Seen
from tests.node.snapshots.keeping import ALLOWANCE, state_of

Run = Callable[..., Seen]
STEP = 20
OWNER = 12345


def manifest_of(stages: int, **recovery: int) -> Manifest:
    tiny = preset("tiny")
    small = replace(tiny.model, dim=32, heads=2, layers=4, hidden=48)
    kept = replace(tiny.recovery, **({"snapshot_every": 10, "shadow_every": 0} | recovery))
    pipeline = replace(tiny.pipeline, stages=stages, swap=False)
    return replace(tiny, model=small, pipeline=pipeline, recovery=kept)


def write(path: Path, manifest: Manifest) -> Path:
    path.write_text(render(manifest))
    return path


def kept_by(home: Path, manifest: Manifest, stages: tuple[int, ...], step: int = STEP) -> dict[str, bytes]:
    """Tensor → bytes of what is kept now of these stages."""
    found = {}
    model = ModelConfig.of(manifest.model)
    for stage in stages:
        index = StageIndex(
            manifest.run_id, stage, manifest.pipeline.stages, Version(step, f"{step:024x}", Attempt(3, 1)),
            Lineal("ee" * 8, 1, 7, 4), StageState(2.5, 1.0, step), DataPosition("cd" * 32, 5, step + 1), model, "adam",
            "", {}, 0, 0.0, "0.1.0",
        )  # fmt: skip
        size = index.plan.size(stage, "all")
        state = state_of(100 * step + stage, size)
        kept = write_snapshot(SnapshotStore(home, manifest.run_id), memoryview(state), index, ALLOWANCE, stages)
        found |= tensors(home, manifest, kept.folder)
    return found


def tensors(home: Path, manifest: Manifest, folder: Path) -> dict[str, bytes]:
    (kept,) = [each for each in SnapshotStore(home, manifest.run_id).kept() if each.folder == folder]
    found = {}
    for part, content in SnapshotStore(home, manifest.run_id).load(kept).items():
        begins = sorted(tensors_of(kept, part).items(), key=lambda item: item[1][2])
        ends = [*(begin for _, (_, _, begin) in begins[1:]), len(content)]
        found |= {name: bytes(content[begin:end]) for (name, (_, _, begin)), end in zip(begins, ends)}
    return found


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    return folder


@pytest.mark.parametrize(("stages", "others"), [(4, 2), (2, 4)])
def test_a_run_with_other_stages_starts_from_what_was_kept(
    ftnode: Run, tmp_path: Path, home: Path, stages: int, others: int
) -> None:
    before = kept_by(home, manifest_of(stages), tuple(range(stages + 1)))
    new = manifest_of(others)
    path = write(tmp_path / "new.toml", new)
    seen = ftnode("snapshots", "divide", path, "--home", home, "--json")
    made = json.loads(seen.out)
    assert [each["stage"] for each in made["made"]] == list(range(others + 1)) and not made["left_out"]
    after: dict[str, bytes] = {}
    for each in made["made"]:
        after |= tensors(home, new, Path(each["folder"]))
    assert after == before
    kept = SnapshotStore(home, new.run_id).kept()
    (best,) = common({Peer("p", 1): tuple(snapshot_of(each) for each in kept)}, settings(new))
    assert (best.version.step, best.missing) == (STEP, ())
    assert kept[0].index.data == DataPosition(new.data.sha256, new.run.seed, STEP + 1)


def test_stages_whose_layers_others_keep_are_left_out_and_said(ftnode: Run, tmp_path: Path, home: Path) -> None:
    kept_by(home, manifest_of(4), (1, 2, 3))
    seen = ftnode("snapshots", "divide", write(tmp_path / "new.toml", manifest_of(2)), "--home", home)
    assert seen.code == 0 and seen.out.startswith(f"stage 1 of step {STEP} is in ") and len(seen.out.splitlines()) == 1
    assert "stage 0 of 2 cannot be made" in seen.err and "stage 2 of 2 cannot be made" in seen.err


@pytest.mark.parametrize(
    ("stages", "changes", "arguments", "code", "says"),
    [
        ((1,), {}, [], 66, "cannot be made: nothing here has"),
        ((1, 2), {"snapshot_every": 0}, [], 78, "set recovery.snapshot_every"),
        ((1, 2), {}, ["--step", "30"], 66, "no snapshots to divide"),
        ((1, 2), {}, ["--run", "zz"], 66, "keeps no snapshots of another run"),
        ((), {}, [], 66, "keeps no snapshots of another run"),
    ],
)  # fmt: skip
def test_what_cannot_be_divided_is_one_line(
    ftnode: Run, tmp_path: Path, home: Path, stages: tuple[int, ...], changes: dict[str, int], arguments: list[str],
    code: int, says: str,
) -> None:  # fmt: skip
    kept_by(home, manifest_of(4), stages)
    path = write(tmp_path / "new.toml", manifest_of(2, **changes))
    seen = ftnode("snapshots", "divide", path, "--home", home, *arguments)
    assert seen.code == code and says in seen.err and len(seen.err.splitlines()) == 1
    assert not SnapshotStore(home, manifest_of(2).run_id).kept()


def test_of_several_runs_one_is_chosen(ftnode: Run, tmp_path: Path, home: Path) -> None:
    for steps in (900, 901):
        base = manifest_of(4)
        kept_by(home, replace(base, run=replace(base.run, steps=steps)), (1, 2))
    seen = ftnode("snapshots", "divide", write(tmp_path / "new.toml", manifest_of(2)), "--home", home)
    assert seen.code == 64 and "choose one with --run" in seen.err


def filled(home: Path, gigabytes: float) -> None:
    """So much is there already, of a run that is nobody's concern here; it takes no room of the disk."""
    with (home / "snapshots" / "filler").open("wb") as file:
        file.truncate(int(gigabytes * 1e9))


def test_at_the_limit_what_is_made_stays_and_the_rest_is_said(ftnode: Run, tmp_path: Path, home: Path) -> None:
    kept_by(home, manifest_of(4), tuple(range(5)))
    new = manifest_of(2)
    path = write(tmp_path / "new.toml", new)
    filled(home, 20 - 0.0009)
    seen = ftnode("snapshots", "divide", path, "--home", home)
    made = SnapshotStore(home, new.run_id).kept()
    assert made and seen.refused(74, f"{len(made)} of 3 stages are made: no room", "raise --snapshot-limit"), seen
    seen = ftnode("snapshots", "divide", path, "--home", home, "--snapshot-limit", 21)
    folders = [Path(line.partition(" is in ")[2]) for line in seen.out.splitlines()]
    assert seen.code == 0 and len(folders) == 3 and all(map(Path.is_dir, folders))


def test_the_owners_limit_counts(ftnode: Run, tmp_path: Path, home: Path) -> None:
    kept_by(home, manifest_of(4), tuple(range(5)))
    path = write(tmp_path / "new.toml", manifest_of(2))
    filled(home, 6)
    (home / "config.toml").write_text("[snapshots.divide]\nsnapshot-limit = 5\n")
    assert ftnode("snapshots", "divide", path, "--home", home).refused(74, "have 6.0 GB of the 5.0 GB that they may")
    filled(home, 21)
    (home / "config.toml").write_text("[snapshots.divide]\nsnapshot-limit = 200\n")
    assert ftnode("snapshots", "divide", path, "--home", home).code == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root writes for others")
def test_what_root_divides_is_the_homes_owners(ftnode: Run, tmp_path: Path, home: Path) -> None:
    kept_by(home, manifest_of(4), tuple(range(5)))
    for path in (home, *home.rglob("*")):
        os.chown(path, OWNER, OWNER)
    new = manifest_of(2)
    left = home / "snapshots" / new.run_id
    left.mkdir(mode=0o700)
    assert ftnode("snapshots", "divide", write(tmp_path / "new.toml", new), "--home", home).code == 0
    written = [left, *left.rglob("*")]
    assert len(written) == 2 + 3 * 4
    assert {(path.stat().st_uid, path.stat().st_gid) for path in written} == {(OWNER, OWNER)}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root writes for others")
def test_root_divides_into_no_link(ftnode: Run, tmp_path: Path, home: Path) -> None:
    kept_by(home, manifest_of(4), tuple(range(5)))
    os.chown(home, OWNER, OWNER)
    new, elsewhere = manifest_of(2), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (home / "snapshots" / new.run_id).symlink_to(elsewhere)
    seen = ftnode("snapshots", "divide", write(tmp_path / "new.toml", new), "--home", home)
    assert seen.refused(74, "is a link, and root follows none") and list(elsewhere.iterdir()) == []
