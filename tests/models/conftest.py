"""Tests of stages run on the CPU and, where there is one, on a CUDA card."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.models import tiny

ON_DEVICES = (
    "test_stage",
    "test_llama",
    "test_low_copy",
    "test_chunked_loss",
    "test_compiled",
    "test_tensors",
    "test_families",
    "test_frozen",
)
"""Modules whose numbers are computed where a node computes them."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.rpartition(".")[2] in ON_DEVICES:
        devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
        metafunc.parametrize("device", devices, indirect=True)


@pytest.fixture(autouse=True)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where the stages of the test lie, also of one that does not ask."""
    tiny.DEVICE[0] = str(getattr(request, "param", "cpu"))
    yield tiny.DEVICE[0]
    tiny.DEVICE[0] = "cpu"
