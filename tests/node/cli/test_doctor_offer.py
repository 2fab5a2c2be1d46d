"""`ftnode doctor RUN` on this machine: a real compute process computes one microbatch of the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ftnode.node.cli import doctor
from ftnode.node.compute import devices
from tests.node.cli.cli_runner import Seen


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_probe", lambda: {"torch": "2", "cuda": None, "devices": []})
    monkeypatch.setattr(doctor, "NVIDIA", Path("/nonexistent"))
    monkeypatch.setattr(devices, "built_for_cards", lambda: False)


def greedy(manifest: Path, ftnode: Callable[..., Seen]) -> Path:
    """The same run with more live activations than fit into a GB."""
    text = manifest.read_text()
    assert "live_activations = 8" in text
    path = manifest.with_name("greedy.toml")
    path.write_text(text.replace("live_activations = 8", "live_activations = 1024"))
    assert ftnode("run", "sign", path).code == 0
    return path


def test_what_this_machine_gives_a_run(manifest_file: Path, tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    seen = ftnode("doctor", manifest_file, "--home", tmp_path, "--up", "20Mbit", "--json")
    found = json.loads(seen.out)
    offer = found["offer"]
    assert seen.code == 0 and found["passed"] is True, seen
    (device,) = offer["devices"]
    assert device["precision"] == "float32" and device["tokens_per_second"] > 0
    assert 0 < device["stage_bytes"] < device["memory_free"]
    assert offer["stages"] == offer["of"] == 3 and offer["stages_limited_by"] == ""
    assert offer["up"] == 2.5e6 and offer["up_known"] is True and offer["pace_limited_by"] in ("line", "pace")
    told = {check["name"]: check["text"] for check in found["checks"]}
    assert told["device"] == "computes on the CPU: no CUDA device (this torch is built without CUDA)"
    assert "float32, about " in told["measured"] and " limits it" in told["offer"]


def test_two_processes_share_this_machine(manifest_file: Path, tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    seen = ftnode("doctor", manifest_file, "--home", tmp_path, "--device", "cpu,cpu")
    lines = [line.split(maxsplit=2)[:2] for line in seen.out.splitlines()]
    assert seen.code == 0 and lines.count(["ok", "measured"]) == 2 and lines.count(["ok", "offer"]) == 2, seen
    assert ["ok", "device"] not in lines, "the owner named it"


def test_a_run_whose_activations_do_not_all_fit(
    manifest_file: Path, tmp_path: Path, ftnode: Callable[..., Seen]
) -> None:
    seen = ftnode("doctor", greedy(manifest_file, ftnode), "--home", tmp_path, "--vram", "1GiB")
    (line,) = [line for line in seen.out.splitlines() if "computes the others again" in line]
    kept = int(line.split("has memory for ")[1].split()[0])
    assert seen.code == 0 and 0 < kept < 1024, seen
    assert "room for" in seen.out


def test_a_device_that_cannot_compute(manifest_file: Path, tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    seen = ftnode("doctor", manifest_file, "--home", tmp_path, "--vram", "1MB", "--json")
    found = json.loads(seen.out)
    (failed,) = [check for check in found["checks"] if check["verdict"] == "failed"]
    assert seen.code == 1 and "offer" not in found
    assert failed["text"].startswith("cannot compute on cpu: --vram leaves no room") and "--vram" in failed["fix"]


def test_a_run_that_is_none(tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    seen = ftnode("doctor", tmp_path / "none.toml", "--home", tmp_path)
    assert seen.code == 66 and "none.toml" in seen.err
    assert ftnode("doctor", "--device", "tpu").refused(64, "--device tpu is unknown")
