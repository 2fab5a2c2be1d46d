"""Settings of an optimiser, and the schedule against its definition."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftnode.models.optimiser import OptimiserConfig, clip_factor, learning_rate_at, matrix_rate_at

CONFIG = OptimiserConfig(learning_rate=1e-3, steps=100, weight_decay=0.1, warmup_steps=10, minimum_factor=0.1)


def test_the_schedule() -> None:
    assert learning_rate_at(CONFIG, 1) == pytest.approx(1e-4)
    assert learning_rate_at(CONFIG, 10) == pytest.approx(1e-3)
    assert learning_rate_at(CONFIG, 55) == pytest.approx(1e-3 * (0.1 + 0.9 / 2))
    assert learning_rate_at(CONFIG, 100) == pytest.approx(1e-4)
    assert learning_rate_at(CONFIG, 1000) == pytest.approx(1e-4)
    assert learning_rate_at(replace(CONFIG, decay="constant"), 90) == 1e-3
    assert learning_rate_at(replace(CONFIG, warmup_steps=0), 1) < 1e-3


def test_muons_rate_follows_the_same_schedule() -> None:
    assert matrix_rate_at(CONFIG, 55) == learning_rate_at(CONFIG, 55)
    other = replace(CONFIG, matrix_learning_rate=1e-2)
    for step in (1, 10, 55, 1000):
        assert matrix_rate_at(other, step) == pytest.approx(10 * learning_rate_at(other, step))


def test_clip_factor() -> None:
    assert clip_factor(CONFIG, 4.0) == 0.5
    assert clip_factor(CONFIG, 0.25) == 1.0
    assert clip_factor(replace(CONFIG, clip=0.0), 1e6) == 1.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"learning_rate": 0.0},
        {"beta1": 1.0},
        {"decay": "linear"},
        {"weight_decay": -1.0},
        {"kind": "sgd"},
        {"momentum": 1.0},
        {"matrix_learning_rate": -1.0},
        {"eps": float("nan")},
    ],
)
def test_impossible_numbers_are_refused(wrong: dict[str, float | str]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        replace(CONFIG, **wrong)  # type: ignore[arg-type]
