"""Idle time of a card, read off a trace."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ftnode.lab.parts.gpu_idle import between_tasks, idle_seconds
from ftnode.lab.parts.gpu_sizes import QUICK


def work(begin: float, duration: float, stream: int = 7, category: str = "kernel") -> dict[str, Any]:
    """As Kineto writes it, in microseconds."""
    return {"cat": category, "ts": begin, "dur": duration, "args": {"stream": stream}}


def test_the_longest_gaps_on_the_busiest_stream_count() -> None:
    tasks = [work(0, 100), work(101, 99), work(230, 100), work(331, 69), work(450, 200)]
    copies = [work(200, 20, stream=9, category="gpu_memcpy"), work(410, 5, stream=9)]
    others = [{"cat": "cuda_runtime", "ts": 0, "dur": 9e9}, {"ph": "M", "name": "process_name"}]
    assert between_tasks([*others, *copies, *reversed(tasks)], 3) == pytest.approx((30 + 50) / 2 / 1e6)


def test_what_overlaps_is_no_gap() -> None:
    assert between_tasks([work(0, 100), work(50, 10), work(110, 10)], 2) == pytest.approx(5e-6 * 2)


@pytest.mark.parametrize("events", [[], [work(0, 1)], [work(0, 1), {"cat": "kernel_launch", "ts": 5, "dur": 1}]])
def test_too_little_work_is_said(events: list[dict[str, Any]]) -> None:
    with pytest.raises(ValueError, match=r"no work|too few"):
        between_tasks(events, 3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_card_is_hardly_idle() -> None:
    assert idle_seconds(QUICK[2], "cuda:0", "bfloat16") < 0.01
