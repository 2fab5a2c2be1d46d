"""The tables against probabilities counted by hand."""

from __future__ import annotations

from collections import Counter
from math import log
from pathlib import Path

import numpy as np
import pytest

from ftnode.lab.demo.baselines import baselines, count, measure


def as_bytes(text: str) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.frombuffer(text.encode(), dtype=np.uint8)


def slow_loss(training: str, validation: str, length: int) -> float:
    """The same distribution by dictionaries."""
    counts = [Counter(training[i : i + n] for i in range(len(training) - n + 1)) for n in range(length + 1)]

    def probability(string: str) -> float:
        if len(string) == 1:
            return (counts[1][string] + 1) / (len(training) + 256)
        seen = sum(number for key, number in counts[len(string)].items() if key.startswith(string[:-1]))
        return (counts[len(string)][string] + probability(string[1:])) / (seen + 1)

    strings = [validation[i : i + length] for i in range(len(validation) - length + 1)]
    return -sum(log(probability(string)) for string in strings) / len(strings)


def test_counts_cross_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    text = as_bytes("abracadabra" * 5)
    whole = count(text, 3)
    monkeypatch.setattr("ftnode.lab.demo.baselines.CHUNK", 7)
    assert (count(text, 3) == whole).all()
    assert whole.sum() == len(text) - 2
    assert whole[int.from_bytes(b"abr", "big")] == 10


def test_losses_equal_those_counted_slowly() -> None:
    training, validation = "the cat sat on the mat; the hat", "that cat hates the mat!"
    measured = measure(as_bytes(training), as_bytes(validation))
    assert measured.bigram == pytest.approx(slow_loss(training, validation, 2), abs=1e-5)
    assert measured.trigram == pytest.approx(slow_loss(training, validation, 3), abs=1e-5)


def test_the_cache_belongs_to_its_corpus(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a rose is a rose is a rose " * 40)
    first = baselines(text, tmp_path)
    kept = (tmp_path / "baselines.json").read_text()
    assert baselines(text, tmp_path) == first
    assert (tmp_path / "baselines.json").read_text() == kept
    text.write_text("another text altogether, of other words " * 40)
    assert baselines(text, tmp_path) != first
