"""What the benchmark of encoded sums makes of its seconds and losses, and that its model sums as groups do."""

from __future__ import annotations

import numpy as np
import pytest
import trio
from rich.console import Console

from ftnode.lab.parts.sum_losses import LOOKS, MEMBERS, SIZE, SummedModel, loss_of, summed_up
from ftnode.lab.parts.sums import LOSS_BUDGET, TIME_BUDGET, passed, share, table
from ftnode.lab.recovery.whole_model import WholeModel
from ftnode.models.data import Corpus, load_corpus
from ftnode.node.reduction.encoding import encoding_of


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return load_corpus("")


@pytest.mark.parametrize(("seconds", "losses", "good"), [
    ([10.0, 10.0], {}, True),
    ([10.0, 10.0], {"exact": [2.0], "int8": [2.0 * LOSS_BUDGET]}, True),
    ([10.0, 10.0], {"exact": [2.0], "int8": [2.03]}, False),
    ([9.0, 9.0], {}, False),
    ([None, None], {}, False),
])  # fmt: skip
def test_what_misses_a_budget_has_not_passed(
    seconds: list[float | None], losses: dict[str, list[float]], good: bool
) -> None:
    assert passed({"exact": seconds, "int8": [10 * TIME_BUDGET] * 2}, losses) is good


def test_a_share_is_that_of_rounds_next_to_each_other() -> None:
    assert share({"exact": [10.0, None, 20.0, 10.0], "int8": [2.0, 1.0, 8.0, 3.0]}, "int8") == 0.3


def test_the_table_shows_both() -> None:
    seconds = {"exact": [10.0], "int8": [2.5], "int4": [None]}
    losses = {"exact": [2.0], "int8": [2.01], "int4": [2.1]}
    result = {"peers": 4, "megabytes": 100, "megabits": 20, "seconds": seconds, "steps": 300, "losses": losses}
    console = Console(width=120)
    with console.capture() as shown:
        console.print(table(result))
    assert all(words in shown.get() for words in ("0.250", "1.0050", "failed", "20 Mbit/s"))


def test_exact_sums_are_in_the_groups_order() -> None:
    chance = np.random.default_rng(0)
    parts = [chance.standard_normal(1000, np.float32) for _ in range(MEMBERS)]
    for name, near in (("exact", 0.0), ("int8", 0.1)):
        total = np.empty(1000, np.float32)
        trio.run(summed_up, total, parts, encoding_of(name, 4), ("any",))
        assert np.abs(total - (((parts[0] + parts[1]) + parts[2]) + parts[3])).max() <= near
    assert not np.array_equal(total, sum(parts))


def test_the_summed_model_learns_what_one_that_adds_up_alone_learns(corpus: Corpus) -> None:
    alone, summed = WholeModel(SIZE, corpus, 1), SummedModel(corpus, 1, encoding_of("exact", 4))
    for step in range(2):
        assert summed.train(step) == pytest.approx(alone.train(step), rel=1e-5)
    for one, other in zip(alone.stages, summed.stages):
        assert np.allclose(one.weights, other.weights, atol=1e-4)


def test_the_loss_is_looked_at_in_the_last_sixth(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(SummedModel, "train", lambda self, step: setattr(self, "step", step))
    monkeypatch.setattr(SummedModel, "validate", lambda self: float(seen.append(self.step) or self.step))
    assert loss_of(corpus, 1, encoding_of("exact", 4), 300) == sum(seen) / LOOKS
    assert seen == list(range(254, 300, 5))
