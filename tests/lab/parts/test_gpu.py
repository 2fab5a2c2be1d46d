"""`ftnode lab gpu` on a processor: real processes and real figures, at a size that shows nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ftnode.lab.parts import gpu, gpu_swarm
from ftnode.lab.parts.checkpoint import Begun, begin
from ftnode.lab.parts.gpu_sizes import CARD, QUICK, Size, peak_flops
from ftnode.models.config import ModelConfig

TINY = Size("tiny", 16, 2, 1, 48, 8, 2, 64, 1)


def test_a_row_has_all_figures() -> None:
    row = gpu.measured(TINY, "cpu", "cpu", "float32", 1)
    assert row["tokens_per_second"] > 0 and row["empty_tasks_per_second"] > 0
    assert row["ratio"] == pytest.approx(row["tokens_per_second"] / row["plain_tokens_per_second"])
    assert row["saved_bytes_copy"] < row["saved_bytes_autocast"] and row["mfu"] is None
    assert row["idle_seconds"] >= 0 and 0 < row["copies_share"] < 1 and row["announced_bytes"] > 0


def test_a_size_that_cannot_be_says_why() -> None:
    row = gpu.measured(replace(TINY, heads=3), "cpu", "cpu", "float32", 1)
    assert "cannot start" in row["why_not"]


def test_sizes_beyond_the_time_are_left_out_and_those_that_are_there_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []

    def row(size: Size, *_: object) -> dict[str, object]:
        done.append(size.name)
        late = {} if size is not QUICK[0] or done.count(size.name) > 1 else {"why_not": "no memory"}
        return {"size": size.name, "dim": size.dim} | late

    def swarm(*_: object) -> dict[str, object]:
        done.append("swarm")
        return {"nodes": 4, "swarm_ratio": 0.7} if done.count("swarm") > 1 else {"why_not": "late"}

    monkeypatch.setattr(gpu, "measured", row)
    monkeypatch.setattr(gpu_swarm, "measured", swarm)
    monkeypatch.setattr(gpu, "begin", lambda: Begun(1_000_000, 1.0, 1 << 20))
    names = [*(size.name for size in QUICK), "swarm"]
    assert gpu.run(False, "cpu", True, -1.0, tmp_path)["left_out"] == names and not done
    assert "call again" in capsys.readouterr().out
    for _ in range(3):
        assert len(gpu.run(True, "cpu", True, 5.0, tmp_path)["sizes"]) == len(QUICK)
    assert done == [*names, QUICK[0].name, "swarm"], "the second time they are there, but for what could not be then"
    monkeypatch.setattr(gpu, "device_name", lambda device: "another one")
    done.clear()
    gpu.run(True, "cpu", True, 5.0, tmp_path)
    assert done == names, "what another device made is not this one's"
    assert gpu.run(True, "cpu", True, 1.0, None)["left_out"] == ["swarm"], "it has no minute and a half"


def test_a_run_begins_with_a_checkpoint() -> None:
    begun = begin(ModelConfig(48, 4, 6, 64, 96, 300, kv_heads=2, tied=True))
    assert begun.parameters == 300 * 48 + 48 + 6 * (48 * 48 * 3 + 3 * 48 * 96 + 2 * 48)
    assert begun.seconds > 0 and 10 << 20 < begun.peak_bytes < 1 << 30


def test_arithmetic_of_a_size() -> None:
    """Six for each number of a matrix, and attention's."""
    assert TINY.flops_per_token == 6 * (4 * 16 * 16 + 3 * 16 * 48) + 6 * 16 * 8
    assert peak_flops("NVIDIA H100 80GB HBM3") == 989e12 and peak_flops("cpu (some)") is None
    assert all(size.dim % size.heads == 0 for size in (*CARD, *QUICK))


def test_what_is_good_enough() -> None:
    good = {"ratio": 0.95, "idle_seconds": 1e-4, "announced_of_used": 1.1}
    assert gpu._good(good)
    for worse in ({"ratio": 0.8}, {"idle_seconds": 1e-3}, {"announced_of_used": 0.9}, {"announced_of_used": 1.3}):
        assert not gpu._good({**good, **worse})
    assert not gpu._good({"why_not": "no memory"})


@pytest.mark.swarm
@pytest.mark.timeout(200)
def test_four_nodes_on_one_device_against_one_process() -> None:
    row = gpu_swarm.measured(replace(gpu_swarm.QUICK, steps=4), "cpu", "float32", 1, 120.0)
    print(gpu_swarm.said_of(row))
    assert row["swarm_ratio"] == row["swarm_tokens_per_second"] / row["single_tokens_per_second"] > 0, row
    assert gpu_swarm.good({"swarm_ratio": 0.81}) and not gpu_swarm.good({"swarm_ratio": 0.79})
    late = gpu_swarm.measured(replace(gpu_swarm.QUICK, steps=4), "cpu", "float32", 1, 0.0)
    assert "waited 1 s for step" in late["why_not"] and not gpu_swarm.good(late)
