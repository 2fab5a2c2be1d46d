"""Adam against torch's."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from ftnode.models.adam import adam
from ftnode.models.optimiser import OptimiserConfig, Parameter, Turn, joined
from ftnode.models.tensors import PASS_NUMBERS, take_root


def parameter(rows: Tensor) -> Parameter:
    """Of rows [4, ...]: weights, both moments, gradient."""
    return Parameter("adam", rows[0], rows[3], (rows[1], rows[2]))


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adam_equals_torch(weight_decay: float) -> None:
    config = OptimiserConfig(1e-3, 0, weight_decay=weight_decay, decay="constant")
    generator = torch.Generator().manual_seed(0)
    shape = PASS_NUMBERS // 64 + 16, 64  # two pieces
    rows = torch.zeros(4, *shape)
    rows[0] = torch.randn(shape, generator=generator)
    theirs = torch.nn.Parameter(rows[0].clone())
    reference = torch.optim.AdamW(
        [theirs], lr=1e-3, betas=(config.beta1, config.beta2), eps=config.eps, weight_decay=weight_decay
    )
    for count in range(1, 21):
        rows[3] = torch.randn(shape, generator=generator)
        theirs.grad = rows[3].clone()
        reference.step()
        adam(parameter(rows), config, Turn(count, count, 1.0))
    torch.testing.assert_close(rows[0], theirs.detach(), rtol=1e-6, atol=1e-6)


def test_adam_does_not_depend_on_threads_or_on_where_pieces_end() -> None:
    config, turn = OptimiserConfig(1e-3, 100, weight_decay=0.1), Turn(3, 3, 1.1)
    size = 3 * PASS_NUMBERS // 2
    rows = torch.randn(4, size, generator=torch.Generator().manual_seed(1))
    rows[2].abs_()
    whole, halves = rows.clone(), rows.clone()
    adam(parameter(whole), config, turn)
    adam(parameter(halves[:, : size // 3]), config, turn)
    adam(parameter(halves[:, size // 3 :]), config, turn)
    assert not torch.equal(whole[0], rows[0])
    assert torch.equal(whole, halves)


def test_norms_do_not_decay() -> None:
    config = OptimiserConfig(1e-3, 100, weight_decay=0.1)
    for shape, decays in (((8,), False), ((4, 2), True)):
        rows = torch.zeros(4, *shape)
        rows[0] = 1.0
        adam(parameter(rows), config, Turn(1, 1, 1.0))
        assert bool((rows[0] < 1.0).all()) == decays


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_neighbours_in_memory_are_updated_together_and_as_they_would_be_alone(weight_decay: float) -> None:
    """Also where one of them is a norm, and with a gap, which nobody touches."""
    config, turn = OptimiserConfig(1e-3, 100, weight_decay=weight_decay), Turn(3, 3, 1.1)
    shapes = [(5, 4), (7,), (3, 3), (2, 2)]
    places, at = [], 0
    for number, shape in enumerate(shapes):
        at += 2 if number == 3 else 0
        places.append(slice(at, at := at + prod(shape)))
    alone, together = (torch.rand(4, at, generator=torch.Generator().manual_seed(1)) for _ in range(2))

    def named(rows: Tensor) -> list[Parameter]:
        return [
            Parameter("adam", *(rows[row, place].view(shape) for row in (0, 3)),
                      tuple(rows[row, place].view(shape) for row in (1, 2)))
            for place, shape in zip(places, shapes)
        ]  # fmt: skip

    groups = joined(named(together))
    assert [each.weights.numel() for each in groups] == [36, 4]
    for each in named(alone):
        adam(each, config, turn)
    for each in groups:
        adam(each, config, turn)
    assert torch.equal(alone, together)


def test_what_looks_at_a_whole_matrix_stays_apart() -> None:
    rows = torch.zeros(3, 8)
    several = [
        Parameter(rule, rows[0, part].view(2, 2), rows[1, part].view(2, 2), (rows[2, part].view(2, 2),))
        for rule, part in (("muon", slice(0, 4)), ("muon", slice(4, 8)))
    ]
    assert joined(several) == several


OTHER_PROCESSORS = {
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "SSE4": {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
}
UPDATES = """
import hashlib, numpy, sys, torch
from ftnode.models import adam as module
from ftnode.models.optimiser import OptimiserConfig, Parameter, Turn
if sys.argv[1:] == ["torch's root"]:
    module.take_root = torch.Tensor.sqrt_
numbers = numpy.random.default_rng(1).standard_normal((4, 300_000), numpy.float32)
numbers[2] = numbers[2] ** 8 * 1e-6
rows = torch.from_numpy(numbers)
for step in range(1, 4):
    turn = Turn(step, step, 1.0)
    module.adam(Parameter("adam", rows[0], rows[3], (rows[1], rows[2])), OptimiserConfig(1e-3, 100), turn)
print(hashlib.sha256(numbers.tobytes()).hexdigest())
"""


def updated_with(environment: dict[str, str], *arguments: str) -> str:
    """A digest of what updates make in a process of that environment."""
    command = [sys.executable, "-c", UPDATES, *arguments]
    made = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    return made.stdout.strip()


def has_mkl_on_intel() -> bool:
    processors = Path("/proc/cpuinfo")
    return torch.backends.mkl.is_available() and processors.exists() and "GenuineIntel" in processors.read_text()


@pytest.mark.fresh
def test_processors_with_other_instructions_make_the_same_weights() -> None:
    ours = updated_with({})
    assert len(ours) == 64
    for name, environment in OTHER_PROCESSORS.items():
        assert updated_with(environment) == ours, name


@pytest.mark.fresh
@pytest.mark.skipif(not has_mkl_on_intel(), reason="MKL takes another way on each of Intel's processors alone")
def test_planted_with_torchs_root_they_go_apart() -> None:
    found = {updated_with(environment, "torch's root") for environment in ({}, *OTHER_PROCESSORS.values())}
    assert len(found) > 1


def test_roots_are_the_nearest_numbers() -> None:
    """A float64's root of a float32, rounded to float32, is: the two are never so near a tie."""
    numbers = np.random.default_rng(2).random(200_000, np.float32) ** 8
    wide = np.array([math.sqrt(float(each)) for each in numbers])
    x = torch.from_numpy(numbers.copy())
    assert take_root(x) is x and np.array_equal(x.numpy(), wide.astype(np.float32))
    assert not np.array_equal(wide**2, numbers)
