"""The compute process trains on shards as on text: the same tokens give the same losses; and only on the run's."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ftnode.models.data import training_batch
from ftnode.models.shards import open_shards
from ftnode.node.compute.config import ComputeConfig
from ftnode.node.compute.torch_backend import TorchStages
from tests.node.compute.computing import CONFIG, Direct, Refused
from tests.node.data.corpora import shards, tokenizer_file


def of_shards(folder: Path, **changes: int) -> ComputeConfig:
    return replace(CONFIG, data=str(folder), data_kind="shards", corpus=open_shards(folder).sha256, **changes)


def losses(config: ComputeConfig) -> list[float]:
    """Of the validation's first two microbatches, with the head alone."""
    compute = Direct(config)
    compute.call("initialise", stage=0, commit="lineage")
    found = []
    for microbatch in range(2):
        task = {"stage": 0, "step": 1, "attempt": [0, 1], "microbatch": microbatch, "save": False, "validation": True}
        compute.call("forward", **task, visit=0, input=None, output=0)
        found.append(float(compute.call("forward", **task, visit=config.stages + 1, input=0, output=None)["value"]))
    return found


def test_losses_are_finite_and_do_not_depend_on_where_shards_are_cut(tmp_path: Path) -> None:
    bpe = str(tokenizer_file(tmp_path / "bpe"))
    few, many = (shards(tmp_path / str(size), bpe, shard_bytes=size).folder for size in (1 << 20, 999))
    assert len(list(few.iterdir())) < len(list(many.iterdir()))
    found = losses(of_shards(few, vocabulary=400))
    assert found == losses(of_shards(many, vocabulary=400)) and np.isfinite(found).all()
    assert found == pytest.approx([np.log(400)] * 2, rel=0.1)


def test_batches_are_windows_of_the_shards(tmp_path: Path) -> None:
    folder = shards(tmp_path).folder
    compute = Direct(of_shards(folder)).backend
    assert isinstance(compute, TorchStages)
    wanted = training_batch(open_shards(folder), CONFIG.seed, 4, 1, CONFIG.sequences, CONFIG.context)
    assert np.array_equal(compute.text.batch(4, 1, False), wanted)


def test_the_node_says_what_is_here_not_compute(tmp_path: Path) -> None:
    ready = Direct(replace(CONFIG, data=str(tmp_path / "none"), data_kind="shards", corpus="0" * 64)).backend.ready()
    assert (ready["corpus"], ready["corpus_reason"]) == ("", "")


@pytest.mark.parametrize("damage", ["missing", "short", "another index"])
def test_shards_that_are_not_the_runs_are_refused(damage: str, tmp_path: Path) -> None:
    folder = shards(tmp_path).folder
    config = of_shards(folder)
    if damage == "missing":
        (folder / "training-00001.bin").unlink()
    elif damage == "short":
        (folder / "training-00001.bin").write_bytes(b"x")
    else:
        config = replace(config, corpus="0" * 64)
    with pytest.raises(Refused) as refused:
        losses(config)
    assert refused.value.kind == "invalid"


def test_shards_for_a_run_on_text_are_said(tmp_path: Path) -> None:
    ready = Direct(replace(CONFIG, data=str(shards(tmp_path).folder), data_kind="files")).backend.ready()
    assert ready["corpus"] == "" and "holds token shards, and the run trains on text" in ready["corpus_reason"]


@pytest.mark.parametrize(
    ("modules", "without"),
    [
        ("ftnode.models.shards, ftnode.node.data.shards, ftnode.node.cli.data", "torch"),
        ("ftnode.node.life.lives, ftnode.node.cli.join, ftnode.node.cli.manifest", "numpy"),
        ("ftnode.node.data.shards", "httpx"),
    ],
)
def test_nothing_is_loaded_that_is_not_needed(modules: str, without: str) -> None:
    code = f"import {modules}, sys; sys.exit({without!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
