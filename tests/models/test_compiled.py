"""Compiled blocks make the numbers of plain ones, whatever a step needs of them."""

from __future__ import annotations

import shutil

import pytest
import torch

from ftnode.models.stage import Stage
from tests.models.tiny import run_step, stages, windows

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="compiling takes a compiler")


def test_a_step_with_compiled_blocks_is_one_without(device: str) -> None:
    plain, compiled = stages(), stages(compiled=True)
    assert [run_step(compiled, step) for step in (1, 2)] == pytest.approx([run_step(plain, step) for step in (1, 2)])
    for one, other in zip(plain, compiled, strict=True):
        torch.testing.assert_close(one.weights, other.weights, rtol=1e-4, atol=1e-5)
    assert _looked_at(compiled) == pytest.approx(_looked_at(plain))


def _looked_at(swarm: list[Stage]) -> float:
    """The loss of a microbatch that nobody learns from."""
    tokens = windows(7)
    x = swarm[0].forward(((0, 3), 7, 0), tokens[:, :-1], False)
    for stage in swarm[1:]:
        x = stage.forward(((0, 3), 7, stage.index), x, False)
    return swarm[0].evaluate(x, tokens[:, 1:])
