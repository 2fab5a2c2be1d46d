"""The trigram table against counts by hand, and its tuning against all other choices."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest

from ftnode.lab.codecs.trigram import PRIORS, Trigram, loss, measure, tuned

TOKENS = np.array([0, 1, 2, 0, 1, 1], dtype=np.uint16)


def test_counts_by_hand() -> None:
    """p(c) is 3/9, 4/9, 2/9. After 0 came 1 twice; 1 was followed by 2 once, of two times; 01 by 2 once, of two."""
    seen = Trigram(TOKENS, 3).seen(np.array([[0, 1, 2]]))
    after_0 = (2 + 1 * 4 / 9) / (2 + 1)
    after_1 = (1 + 1 * 2 / 9) / (2 + 1)
    after_01 = (1 + 2 * after_1) / (2 + 2)
    assert after_01 == pytest.approx(49 / 108)
    assert loss(seen, (1.0, 2.0)) == pytest.approx(-(log(after_0) + log(after_01)) / 2)


def test_what_never_came_before_falls_back_to_single_tokens() -> None:
    seen = Trigram(np.array([0, 0, 1, 1]), 4).seen(np.array([[3, 2, 1]]))
    assert loss(seen, (1.0, 8.0)) == pytest.approx(-(log(1 / 8) + log(3 / 8)) / 2)


def test_a_distribution_adds_up_to_one() -> None:
    """The first target of each window is the same, so that it can be taken away."""
    table, priors = Trigram(np.random.default_rng(1).integers(0, 5, 400), 5), (2.0, 4.0)
    for a, b in ((0, 1), (4, 4), (2, 3)):
        first = loss(table.seen(np.array([[a, b]])), priors)
        total = sum(exp(first - 2 * loss(table.seen(np.array([[a, b, c]])), priors)) for c in range(5))
        assert total == pytest.approx(1.0)


def test_tuning_takes_what_is_best_on_the_last_twentieth() -> None:
    chance = np.random.default_rng(2)
    tokens = chance.integers(0, 6, 3000) // (1 + chance.integers(0, 2, 3000))
    found = tuned(tokens, 6, 10)
    seen = Trigram(tokens[:2850], 6).seen(tokens[2850:].reshape(-1, 10))
    losses = {(second, third): loss(seen, (second, third)) for second in PRIORS for third in PRIORS}
    assert losses[found] == min(losses.values()) < max(losses.values())


def test_order_helps_where_there_is_one() -> None:
    """Of 0 1 2 0 1 2 … a table of three tokens knows what comes; of noise it knows nothing, and does not pretend to."""
    windows = np.tile(np.arange(3), 40).reshape(-1, 12)
    known = measure(np.tile(np.arange(3), 400), 3, windows)
    assert known["loss"] < 0.05 and known["targets"] == 110 and known["tokens"] == 1200
    noise = np.random.default_rng(3).integers(0, 3, 4000)
    assert measure(noise[:3000], 3, noise[3000:].reshape(-1, 10))["loss"] == pytest.approx(log(3), abs=0.02)
