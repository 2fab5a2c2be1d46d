"""A table of three tokens: the loss that a model has to be below before its steps count as learning.

Each distribution leans on the one with a token of context less (Jelinek-Mercer in the shape of Witten and Bell's method
C, as lab/demo/baselines.py has it for bytes):

    p(c)      = (n(c) + 1) / (n + V)
    p(c | b)  = (n(bc) + k₂ p(c)) / (n(b·) + k₂)
    p(c | ab) = (n(abc) + k₃ p(c | b)) / (n(ab·) + k₃)

k₂ and k₃ are tuned on the last twentieth of the training tokens, with counts of the others. Then all are counted. The
validation is that of the models: the same windows, and no context from outside of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

PRIORS: Final = tuple(2.0**power for power in range(-2, 15))
"""How many observations the shorter context may be worth."""
HELD_OUT: Final = 20
"""One in so many training tokens tunes, the last ones."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Counts:
    """How often strings of tokens occur: `strings` sorted, each as one number."""

    strings: Ints
    counts: Ints

    @classmethod
    def of(cls, strings: Ints) -> Counts:
        found, counts = np.unique(strings, return_counts=True)
        return cls(found, counts.astype(np.int64))

    def __getitem__(self, strings: Ints) -> Floats:
        """Of each; 0 for one that never occurred."""
        places = np.minimum(np.searchsorted(self.strings, strings), len(self.strings) - 1)
        return np.where(self.strings[places] == strings, self.counts[places], 0).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Seen:
    """Of targets: p(c), n(bc), n(b·), n(abc), n(ab·). The last two are 0 where a window does not have `a`."""

    unigram: Floats
    pairs: Floats
    pair_contexts: Floats
    triples: Floats
    triple_contexts: Floats


class Trigram:
    """Counted from `tokens` [n] below `vocabulary`, at least three."""

    def __init__(self, tokens: NDArray[Any], vocabulary: int) -> None:
        tokens = tokens.astype(np.int64)
        self._vocabulary = vocabulary
        singles = np.bincount(tokens, minlength=vocabulary) + 1.0
        self._unigram: Floats = singles / singles.sum()
        pairs = tokens[:-1] * vocabulary + tokens[1:]
        self._contexts = (Counts.of(tokens[:-1]), Counts.of(pairs[:-1]))
        self._pairs, self._triples = Counts.of(pairs), Counts.of(pairs[:-1] * vocabulary + tokens[2:])

    def seen(self, windows: NDArray[Any]) -> Seen:
        """Of all but the first token of each window [N, T + 1]: N · T targets."""
        a, b, c = (windows[:, start : windows.shape[1] - 2 + start].astype(np.int64) for start in range(3))
        first_b, first_c = windows[:, 0].astype(np.int64), windows[:, 1].astype(np.int64)
        b_all, c_all = np.concatenate([first_b, b.ravel()]), np.concatenate([first_c, c.ravel()])
        ab = (a * self._vocabulary + b).ravel()
        none = np.zeros(len(first_b))
        return Seen(
            self._unigram[c_all],
            self._pairs[b_all * self._vocabulary + c_all],
            self._contexts[0][b_all],
            np.concatenate([none, self._triples[ab * self._vocabulary + c.ravel()]]),
            np.concatenate([none, self._contexts[1][ab]]),
        )


def loss(seen: Seen, priors: tuple[float, float]) -> float:
    """Mean over the targets, nats per token. `priors`: k₂ and k₃."""
    second, third = priors
    pair = (seen.pairs + second * seen.unigram) / (seen.pair_contexts + second)
    triple = (seen.triples + third * pair) / (seen.triple_contexts + third)
    return float(-np.log(triple).mean())


def tuned(tokens: NDArray[Any], vocabulary: int, length: int) -> tuple[float, float]:
    """The priors that make the loss of held-out training text least, in windows of `length` tokens."""
    cut = len(tokens) - max(length, len(tokens) // HELD_OUT)
    held_out = tokens[cut:]
    windows = held_out[: len(held_out) // length * length].reshape(-1, length)
    seen = Trigram(tokens[:cut], vocabulary).seen(windows)
    return min(product(PRIORS, PRIORS), key=lambda priors: loss(seen, priors))


def measure(tokens: NDArray[Any], vocabulary: int, windows: NDArray[Any]) -> dict[str, Any]:
    """The loss of a table of `tokens` on `windows` [N, T + 1], as JSON has it."""
    priors = tuned(tokens, vocabulary, windows.shape[1])
    return {
        "loss": loss(Trigram(tokens, vocabulary).seen(windows), priors), "priors": list(priors),
        "tokens": len(tokens), "vocabulary": vocabulary, "targets": windows.shape[0] * (windows.shape[1] - 1),
    }  # fmt: skip
