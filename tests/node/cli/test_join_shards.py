"""`ftnode join` for a run on token shards: what --data may be, checked before anything starts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ftnode.lab.demo.demo import DemoConfig, _manifest
from ftnode.node.cli.join import join
from ftnode.node.compute.orders import compute_config
from ftnode.node.home.identity import home_directory, take_identity
from ftnode.node.owner.join_options import JoinConfig, shards_folder
from ftnode.protocol.words.errors import UserError
from tests.node.cli.cli_runner import Seen
from tests.node.data.corpora import shards, tokenizer_file


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[JoinConfig]:
    """What the daemon was told to do."""
    import ftnode.node.life.lives

    found: list[JoinConfig] = []
    monkeypatch.setattr(ftnode.node.life.lives, "run", found.append)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shards(tmp_path, str(tokenizer_file(tmp_path / "bpe"))).folder


@pytest.fixture
def manifest(tmp_path: Path, folder: Path, ftnode: Callable[..., Seen]) -> Path:
    path = tmp_path / "run.toml"
    assert ftnode("run", "init", path, "--data", folder).code == 0
    return path


@pytest.fixture
def joined(tmp_path: Path, ftnode: Callable[..., Seen]) -> Callable[..., Seen]:
    taken = take_identity(home_directory(str(tmp_path / "other")))
    taken.release()
    peer = f"/ip4/192.0.2.7/tcp/31337/p2p/{taken.peer_id}"
    return lambda manifest, *more: ftnode("join", manifest, "--peer", peer, "--home", tmp_path / "home", *more)


def test_a_folder_an_address_or_nothing(
    manifest: Path, folder: Path, told: list[JoinConfig], joined: Callable[..., Seen], tmp_path: Path
) -> None:
    part = tmp_path / "part"
    part.mkdir()
    shutil.copy(next(folder.glob("train*")), part)
    for data in (folder, part, "https://192.0.2.9/shards"):
        assert joined(manifest, "--data", data, "--data-limit", 0.5).code == 0
    assert joined(manifest).code == 0
    assert [(config.data, config.data_url) for config in told] == [
        (folder, ""), (part, ""), (None, "https://192.0.2.9/shards"), (None, ""),
    ]  # fmt: skip
    assert [config.data_bytes_max for config in told] == [500_000_000] * 3 + [50_000_000_000]
    computing = compute_config(told[0])
    assert (computing.data_kind, computing.vocabulary) == ("shards", 400)
    assert computing.data == str(shards_folder(tmp_path / "home", told[0].manifest.data.sha256))


def test_a_file_is_no_folder_of_shards(manifest: Path, told: list[JoinConfig], joined: Callable[..., Seen]) -> None:
    assert joined(manifest, "--data", manifest).refused(66, str(manifest), "is no folder", "trains on token shards")
    assert not told


def test_a_folder_of_something_else(
    manifest: Path, told: list[JoinConfig], joined: Callable[..., Seen], tmp_path: Path
) -> None:
    other = tmp_path / "words"
    other.mkdir()
    (other / "a.txt").write_text("something else")
    assert joined(manifest, "--data", other).refused(66, f"no index.json in {other}", "pass the folder of the run's")
    assert not told


def test_an_address_for_a_run_on_text(manifest_file: Path, told: list[JoinConfig], joined: Callable[..., Seen]) -> None:
    seen = joined(manifest_file, "--data", "http://192.0.2.9/shards")
    assert seen.refused(64, "only token shards come over http", "data.kind is files")
    assert not told


def test_a_damaged_index(manifest: Path, folder: Path, told: list[JoinConfig], joined: Callable[..., Seen]) -> None:
    path = folder / "index.json"
    path.write_text(path.read_text().replace('"uint16"', '"uint32"'))
    assert joined(manifest, "--data", folder).refused(65, "is no index of shards", "dtype that cannot be")
    assert not told


def test_a_tokenizer_that_does_not_fit_the_manifest(
    manifest: Path, folder: Path, told: list[JoinConfig], joined: Callable[..., Seen], ftnode: Callable[..., Seen]
) -> None:
    manifest.write_text(manifest.read_text().replace("vocabulary = 400", "vocabulary = 399"))
    assert ftnode("run", "sign", manifest).code == 0
    says = ("the tokenizer tokenizer.json of", "has 400 tokens, and model.vocabulary is 399", "ftnode run init --data")
    assert joined(manifest, "--data", folder).refused(78, *says)
    assert not told


def test_the_demo_takes_no_shards(folder: Path) -> None:
    demo = DemoConfig(
        stages=2, volunteers=None, replicas=1, steps=None, kills=(), swap=False, preset="tiny", device="cpu",
        data=folder, seed=None, report=None, json=False,
    )  # fmt: skip
    with pytest.raises(UserError, match="the demo compares with baselines on text"):
        _manifest(demo)


def test_the_option_says_what_it_takes() -> None:
    (data,) = [one for one in join.params if one.name == "data"]
    assert "token shards" in str(data.help)  # type: ignore[attr-defined]
