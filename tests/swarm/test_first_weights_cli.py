"""What `ftnode join` of a run that goes on from a model does with --from, and with a Ctrl-C while layers come."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ftnode.lab.parts.checkpoint import write_checkpoint
from ftnode.lab.swarms.swarm import descendants, wait_until_gone
from ftnode.lab.swarms.trial import Trial, open_trial, small_manifest
from ftnode.models.config import ModelConfig
from ftnode.models.first_weights import SINGLE, layer_names
from ftnode.node.cli.manifest import manifest_text
from ftnode.node.export.continuing import described_model, with_weights
from ftnode.node.owner.join_options import shards_folder
from ftnode.protocol.manifest.parse import Manifest
from tests.swarm.conftest import WAIT_SECONDS, wait

pytestmark = pytest.mark.timeout(300)

MODEL = ModelConfig(dim=256, heads=4, layers=4, context=64, hidden=704, vocabulary=256, kv_heads=2, tied=True)
"""A layer has 1.5 MB."""
STAGES = 2
SLOWLY = ("--up", "70kB/s")
"""A layer takes 21 s."""
LEFT_SECONDS = 20.0
"""The leader looks for somebody else for two leases, 10 s, and then lets it go."""
NOWHERE = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWCbTm48LkGzrVAEQsDiPnoa4X1hbWVF9LY3fx8Pk1v7Yx"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("checkpoint") / "model"
    write_checkpoint(made, MODEL)
    return made


def manifest_of(folder: Path, text: Path) -> Manifest:
    base, taken = small_manifest(text, STAGES), described_model(folder, 32, STAGES)
    batch = replace(base.batch, microbatches=2, sequences=1)
    return with_weights(replace(base, model=taken.model, start=taken.start, batch=batch), folder)


def refused(manifest: Manifest, tmp_path: Path, text: Path, *options: object) -> tuple[int, str]:
    """Exit code of `ftnode join`, and the one line that it says on stderr."""
    path = tmp_path / "run.toml"
    path.write_text(manifest_text(manifest), encoding="utf-8")
    argv = [
        sys.executable, "-m", "ftnode.node.cli", "join", path, "--allow-unsigned", "--peer", NOWHERE, "--data", text,
        "--device", "cpu", "--threads", "1", "--home", tmp_path / "home", "--run-on-battery", *options,
    ]  # fmt: skip
    done = subprocess.run([*map(str, argv)], capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("ftnode: waits for ")]
    assert len(lines) == 1 and "Traceback" not in done.stdout, done
    return done.returncode, lines[0]


@pytest.mark.parametrize("other", ["shapes", "numbers"])
def test_from_a_folder_of_another_model_is_one_line(other: str, folder: Path, tmp_path: Path, text: Path) -> None:
    wrong = tmp_path / "wrong"
    write_checkpoint(wrong, replace(MODEL, hidden=640) if other == "shapes" else MODEL)
    if other == "numbers":
        path = wrong / SINGLE
        data = bytearray(path.read_bytes())
        data[-1000] ^= 1
        path.write_bytes(data)
    code, line = refused(manifest_of(folder, text), tmp_path, text, "--from", wrong)
    says = "has shape" if other == "shapes" else f"the weights in {wrong} are"
    assert code == 65 and line.startswith("ftnode: --from: ") and says in line and "leave it out" in line


def test_from_for_a_run_that_starts_from_random_weights_is_one_line(folder: Path, tmp_path: Path, text: Path) -> None:
    code, line = refused(small_manifest(text, STAGES), tmp_path, text, "--from", folder)
    assert code == 64 and f"--from {folder}: this run begins with random weights; leave it out" in line


def test_ctrl_c_while_layers_come_ends_soon_and_a_next_join_goes_on(folder: Path, tmp_path: Path, text: Path) -> None:
    manifest = manifest_of(folder, text)
    with open_trial(manifest, tmp_path) as trial:
        trial.volunteer("given", hold=2, options=["--data", str(text), "--from", str(folder), *SLOWLY])
        trial.wait("a run", lambda story: story.view is not None, WAIT_SECONDS)  # it has a voter that stays
        has_none = trial.volunteer("has-none")
        home = shards_folder(has_none.home, manifest.start.weights)

        def whole() -> list[str]:
            return sorted(path.name for path in home.glob("*.bin"))

        wait("one layer, and some of the next", lambda: bool(whole() and list(home.glob("*.part"))))
        kept = {path: path.stat().st_ino for path in home.glob("*.bin")}
        trial.expected_dead.add("has-none")
        seconds = _interrupted(trial)
        print(f"left after {seconds:.1f} s")
        assert seconds < LEFT_SECONDS
        assert has_none.process.returncode == 0 and "left the swarm" in has_none.output.read_text()
        assert len(kept) == 1 and whole() == [path.name for path in kept], "it fetched on"

        has_none.output.unlink()
        again = trial.volunteer("has-none")
        trial.wait_for_step(1)
        assert whole() in (layer_names(MODEL, STAGES, 1), layer_names(MODEL, STAGES, 2))
        assert all(path.stat().st_ino == number for path, number in kept.items()), "what was there stays"
        (fetched,) = [line for line in again.output.read_text().splitlines() if "come from peers" in line]
        assert not any(path.name in fetched for path in kept)


def _interrupted(trial: Trial) -> float:
    """Seconds from a Ctrl-C until the node is gone, with all of its processes."""
    process = trial.swarm.processes["has-none"].process
    family, started = descendants(process.pid), time.monotonic()
    process.send_signal(signal.SIGINT)
    process.wait(WAIT_SECONDS)
    assert not wait_until_gone(family)
    return time.monotonic() - started
