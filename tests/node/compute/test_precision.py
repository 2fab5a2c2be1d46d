"""A run in float64: everything that the compute process holds, sends and stores is, and float32 is as it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ftnode.models.stage import Stage
from ftnode.node.compute.config import ComputeConfig
from ftnode.node.compute.state_shape import shape_of
from ftnode.node.compute.torch_backend import TorchStages
from tests.node.compute.computing import (
    CONFIG,
    SLOTS,
    STAGES,
    Direct,
    Refused,
    direct,
    exported,
    install,
    process,
    train,
)


@pytest.fixture(params=[0, 8], ids=["", "subspace"])
def narrow(text_file: Path, request: pytest.FixtureRequest) -> ComputeConfig:
    return fitting(replace(CONFIG, data=str(text_file), subspace=request.param))


@pytest.fixture
def wide(narrow: ComputeConfig) -> ComputeConfig:
    return fitting(replace(narrow, precision="float64", boundary="float64", slot_bytes=2 * narrow.slot_bytes))


def fitting(config: ComputeConfig) -> ComputeConfig:
    return replace(config, slot_bytes=config.boundary_bytes.largest)


def held(compute: Direct) -> list[Stage]:
    assert isinstance(compute.backend, TorchStages)
    return [compute.backend._stages[index] for index in range(STAGES + 1)]


def boundaries(compute: Direct, dtype: str) -> np.ndarray[Any, Any]:
    """The numbers that are in the slots after a step; tokens stand behind them."""
    size = compute.backend.config.boundary_bytes.backward
    return np.stack([np.frombuffer(compute.arena._map.view(slot)[:size], dtype) for slot in range(SLOTS - 2)])


def test_weights_gradients_moments_and_boundaries_are_float64_and_learn(wide: ComputeConfig) -> None:
    swarm = direct(wide)
    losses = [np.mean(train(swarm, step)["losses"]) for step in range(1, 7)]
    assert losses[-1] < losses[2] < losses[0]
    for stage in held(swarm):
        assert stage.memory.dtype == torch.float64
        weights = stage.tensors.blocks[0].qkv_ed if stage.index else stage.tensors.head.norm_d  # type: ignore[union-attr]
        assert weights.grad is not None and weights.dtype == weights.grad.dtype == torch.float64
        trained = stage.state("all")
        assert not torch.equal(trained, trained.float().double()), "numbers that float32 cannot hold"
    found = boundaries(swarm, "<f8")
    assert np.isfinite(found).all() and (found != found.astype("<f4")).any(axis=1).sum() >= 2 * STAGES


def test_float64_is_float32_with_more_digits(wide: ComputeConfig, narrow: ComputeConfig) -> None:
    fine, coarse = direct(wide), direct(narrow)
    for step in (1, 2):
        mine, theirs = train(fine, step), train(coarse, step)
        assert mine["losses"] == pytest.approx(theirs["losses"], rel=1e-5) and mine["losses"] != theirs["losses"]
        assert mine["digests"] != theirs["digests"]
    np.testing.assert_allclose(boundaries(fine, "<f8"), boundaries(coarse, "<f4"), rtol=1e-2, atol=1e-5)


def test_a_process_says_what_float64_takes(wide: ComputeConfig, narrow: ComputeConfig) -> None:
    with process(wide.to_dict()) as compute:
        assert compute.first is not None
        ready, half = compute.first["ready"], direct(narrow).backend.ready()
        for name in ("stage_bytes", "head_bytes"):
            assert ready[name] == 2 * half[name]
        assert ready["activation_bytes"] > 1.5 * half["activation_bytes"]
        for stage in range(STAGES + 1):
            compute.call("initialise", stage=stage, commit="lineage")
        assert train(compute, 1) == train(direct(wide), 1) == train(direct(wide), 1, recompute=True)


@pytest.mark.parametrize("backend", ["torch", "paced"])
def test_chunks_have_the_lengths_that_are_checked_before_there_is_room(backend: str, wide: ComputeConfig) -> None:
    odd = replace(wide, slot_bytes=wide.slot_bytes + 12, backend=backend)
    swarm, shape = direct(odd), shape_of(odd)
    assert odd.chunk_bytes == wide.slot_bytes + 8
    train(swarm, 1)
    for stage in range(STAGES + 1):
        begun, chunks = exported(swarm, stage, 1, "all")
        assert begun["bytes"] == shape.size(stage, "all") == 3 * 8 * shape.numbers(stage, "weights")
        assert tuple(map(len, chunks)) == shape.lengths(stage, "all", "raw")
        for encoding in ("bfloat16", "int8"):
            _, chunks = exported(swarm, stage, 1, "weights", encoding, freeze=True)
            assert tuple(map(len, chunks)) == shape.lengths(stage, "weights", encoding)
            assert sum(map(len, chunks)) < 0.26 * shape.size(stage, "weights")


def test_a_replica_goes_on_exactly(wide: ComputeConfig) -> None:
    original, replica = direct(wide), direct(wide, stages=range(0))
    train(original, 1)
    for stage in range(STAGES + 1):
        begun, chunks = exported(original, stage, 1, "all", freeze=stage % 2 == 1)
        assert install(replica, stage, 1, "all", [(1.0, chunks)], count=1)["digest"] == begun["digest"]
        assert exported(replica, stage, 1, "all")[1] == chunks
    assert train(replica, 2) == train(original, 2)
    with pytest.raises(Refused, match="a chunk of"):
        install(replica, 1, 1, "all", [(1.0, [chunk[: len(chunk) // 2] for chunk in chunks])])


def test_a_blend_keeps_the_digits(wide: ComputeConfig) -> None:
    swarm, newcomer = direct(wide), direct(wide, stages=range(0))
    train(swarm, 1)
    donors = {stage: exported(swarm, stage, 1, "weights")[1] for stage in (1, 3)}
    install(newcomer, 2, 1, "weights", [(0.3, donors[1]), (0.7, donors[3])])
    blended, before, after = (
        np.frombuffer(b"".join(chunks), "<f8") for chunks in (exported(newcomer, 2, 1, "weights")[1], *donors.values())
    )
    np.testing.assert_allclose(blended, 0.3 * before + 0.7 * after, rtol=0, atol=1e-16)
    assert [stage.dtype for stage in newcomer.backend._stages.values()] == [torch.float64]  # type: ignore[attr-defined]
