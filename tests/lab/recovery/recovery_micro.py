"""A model of four stages that takes milliseconds, its text, and a schedule, for the recovery lab's tests."""

from __future__ import annotations

import numpy as np

from ftnode.lab.recovery.failures import Schedule
from ftnode.lab.recovery.whole_model import Size
from ftnode.models.config import ModelConfig
from ftnode.models.data import Corpus

MICRO = Size("micro", ModelConfig(16, 2, 4, 16, 24), 4, 2, 2, 5e-3, 2, 1)


def corpus() -> Corpus:
    text = np.frombuffer(b"a rose is a rose is a rose, said the fox to the other fox; " * 40, dtype=np.uint8)
    return Corpus(text[:1800], text[1800:], "")


def schedule(*failures: tuple[int, int], iterations: int = 8) -> Schedule:
    return Schedule("16%", 0, MICRO.stages, iterations, 1.0, 0.004, failures)
