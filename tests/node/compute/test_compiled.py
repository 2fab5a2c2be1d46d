"""Blocks are compiled before a stage is claimed, or the owner hears why not."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from ftnode.models import llama, stage
from ftnode.node.compute.config import ComputeConfig
from tests.node.compute.computing import CONFIG, STAGES, Direct, direct, process, train


@pytest.fixture
def config() -> ComputeConfig:
    return replace(CONFIG, compiled=True)


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling takes a compiler")
def test_a_process_with_compiled_blocks_trains_as_one_without(config: ComputeConfig) -> None:
    """The losses of the second step are those of the weights that the first one's gradients made."""
    with process(config.to_dict()) as compute:
        assert compute.first is not None
        ready = compute.first["ready"]
        assert (ready["compiled"], ready["not_compiled"]) == (True, "") and ready["forward_seconds"] < 1
        for number in range(STAGES + 1):
            compute.call("initialise", stage=number, commit="lineage")
        losses = [train(compute, step)["losses"] for step in (1, 2)]
        assert compute.close() == 0
    plain = direct(replace(config, compiled=False))
    for step, found in zip((1, 2), losses, strict=True):
        assert found == pytest.approx(train(plain, step)["losses"])


def test_without_a_compiler_it_computes_as_it_is_and_says_so_once(
    config: ComputeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no working C compiler\nwas found")

    monkeypatch.setattr(stage, "block_of", lambda wanted: broken if wanted else llama.block)
    backend = Direct(config).backend
    ready = backend.ready()
    assert (ready["compiled"], ready["not_compiled"]) == (False, "no working C compiler")
    assert backend.ready()["not_compiled"] == ""


def test_want_of_memory_is_no_want_of_a_compiler(config: ComputeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(stage, "block_of", lambda wanted: full if wanted else llama.block)
    with pytest.raises(RuntimeError, match="allocate"):
        Direct(config).backend.ready()
