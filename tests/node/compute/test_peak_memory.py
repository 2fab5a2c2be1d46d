"""The most memory that work takes at once, counted on the host."""

from __future__ import annotations

import sys

import pytest
import torch

from ftnode.node.compute.peak_memory import HOST_SLACK_BYTES, peak_of

COMPILER = "torch._dynamo"


class Refused:
    """Whoever would load torch's compiler."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        assert name != COMPILER, "0.5 s and 38 MB in every process that computes"


def test_it_is_counted_without_torchs_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, COMPILER, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Refused, *sys.meta_path])

    def work() -> None:
        first = torch.ones(1000, dtype=torch.float64)
        second = first + 1
        del first
        second.add_(1)

    assert peak_of(torch.device("cpu"), work) == 2 * 8000 + HOST_SLACK_BYTES
