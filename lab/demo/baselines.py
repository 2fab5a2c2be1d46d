"""Look-up tables of one and two bytes of context: what a model that learns anything must beat.

Interpolated with the next shorter context (Jelinek-Mercer in the shape of Witten and Bell's method C, "The
zero-frequency problem", 1991): p(c | h) = (n(hc) + k p(c | h')) / (n(h) + k). On the standard library's sources they
reach about 2.4 and 1.8 nats per byte; smoothing matters by 0.01, which files the split holds out by 0.1.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ftnode.models.data import load_corpus

Bytes = npt.NDArray[np.uint8]
Table = npt.NDArray[np.float32]
PRIOR = 1.0
"""k: how many observations the shorter context is worth."""
CHUNK = 1 << 22
SYMBOLS = 256
CACHE_NAME = "baselines.json"


@dataclass(frozen=True, slots=True)
class Baselines:
    """Validation loss in nats per byte."""

    bigram: float
    trigram: float


def baselines(data: Path | None, cache: Path | None = None) -> Baselines:
    """Of the corpus at `data` (None: the standard library), kept in the folder `cache` by the corpus hash.

    Raises `ftnode.models.data.DataError` when there is no such text. 32 MB take about 2 s and 250 MB.
    """
    corpus = load_corpus("" if data is None else str(data))
    kept = cache / CACHE_NAME if cache else None
    if kept is not None and kept.exists():
        found = json.loads(kept.read_text())
        if found.pop("corpus") == corpus.sha256:
            return Baselines(**found)
    assert isinstance(corpus.training, np.ndarray) and isinstance(corpus.validation, np.ndarray)  # it is text
    measured = measure(corpus.training, corpus.validation)
    if kept is not None:
        kept.write_text(json.dumps({"corpus": corpus.sha256, **asdict(measured)}, indent=2) + "\n")
    return measured


def measure(training: Bytes, validation: Bytes) -> Baselines:
    """Train the tables on one text, evaluate them on the other; both texts need three bytes or more."""
    singles = count(training, 1).astype(np.float64) + 1.0
    unigram = (singles / singles.sum()).astype(np.float32)
    bigram = interpolate(count(training, 2).reshape(SYMBOLS, SYMBOLS), unigram[None, :])
    trigram = interpolate(count(training, 3).reshape(SYMBOLS, SYMBOLS, SYMBOLS), bigram[None, :, :])
    return Baselines(bigram=_loss(bigram, validation, 2), trigram=_loss(trigram, validation, 3))


def count(text: Bytes, length: int) -> npt.NDArray[np.uint32]:
    """How often each string of `length` bytes occurs, by its value read big-endian: [256 ** length]."""
    counts = np.zeros(SYMBOLS**length, dtype=np.uint32)
    for start in range(0, len(text) - length + 1, CHUNK):
        values, numbers = np.unique(_values(text[start : start + CHUNK + length - 1], length), return_counts=True)
        counts[values] += numbers.astype(np.uint32)
    return counts


def interpolate(counts: npt.NDArray[np.uint32], shorter: Table) -> Table:
    """p(c | h) over the last axis, from counts and the distribution with one byte of context less."""
    seen = counts.sum(axis=-1, keepdims=True, dtype=np.float32)
    table = counts.astype(np.float32)
    table += PRIOR * shorter
    table /= seen + PRIOR
    return table


def _values(text: Bytes, length: int) -> npt.NDArray[np.uint32]:
    """Each position's string of `length` bytes as one number."""
    size = len(text) - length + 1
    values = np.zeros(max(0, size), dtype=np.uint32)
    for offset in range(length):
        values = values * np.uint32(SYMBOLS) + text[offset : offset + size]
    return values


def _loss(table: Table, text: Bytes, length: int) -> float:
    """Mean negative log-probability of every byte that has its whole context."""
    flat, total, number = table.reshape(-1), 0.0, 0
    for start in range(0, len(text) - length + 1, CHUNK):
        values = _values(text[start : start + CHUNK + length - 1], length)
        total -= float(np.log(flat[values].astype(np.float64)).sum())
        number += len(values)
    return total / number
