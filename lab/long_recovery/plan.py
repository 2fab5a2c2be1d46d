"""What `ftnode lab recovery --long` runs: what a loss costs in learning, in runs of 10,000 iterations.

Byte-pair tokens, a rate that half a cosine brings down, and the failure rates of the published code as they are. All
rows with the first seed come before any with the next, and the rows that say most come first. The model and the table
of three tokens, which it has to beat by 0.3 nats, learn from the same 2.5 MB of text: a run reads them four times. With
the whole library the table counts three times as many tokens as a processor trains a model on in ten minutes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from ftnode.lab.recovery.plan import CHECKFREE, NONE, SHADOW
from ftnode.lab.recovery.runs import Policy
from ftnode.lab.recovery.whole_model import Size
from ftnode.models.config import ModelConfig

SEEDS: Final = (0, 1, 2, 3, 4)
HELD_OUT: Final = "held out"
"""The text on which a model is compared with a table."""
RANDOM: Final = Policy("random", way="random")
TOGETHER: Final = replace(CHECKFREE, name="CheckFree, head and neighbours too", head_every=10)
SHADOW_TOGETHER: Final = replace(SHADOW, name="shadow 10, head and neighbours too", head_every=10)
LEFT_OUT: Final = tuple(replace(CHECKFREE, name=f"left out for {steps}", omit_steps=steps) for steps in (20, 100, 500))


@dataclass(frozen=True, slots=True)
class Row:
    """One run of each seed. `rate`: of failures.PER_ITERATION, empty where nothing is lost. `together`: the head and
    neighbours are lost, too (failures.draw_together). `share`: of the whole length; a shorter run has its rate brought
    down by its own end, and says what so many iterations less are worth."""

    policy: Policy
    rate: str = ""
    together: bool = False
    share: float = 1.0

    @property
    def losing(self) -> str:
        return "" if not self.rate else "together" if self.together else "all"

    @property
    def name(self) -> str:
        """In file names, without the length."""
        label = re.sub(r"[^\w.+]+", "-", self.policy.name)
        return "-".join([label, *([f"{self.losing}-{self.rate.rstrip('%')}"] if self.rate else [])])


@dataclass(frozen=True, slots=True)
class LongPlan:
    """`vocabulary`: of the byte-pair tokenizer, which learns from the training text. `text_bytes_max`: about so much of
    each part of the text is used; 0: all. `windows`: batches of held-out text, on which a model is compared with a
    table when its run has ended."""

    size: Size
    rows: tuple[Row, ...]
    iterations: int
    validate_every: int
    vocabulary: int
    text_bytes_max: int = 0
    windows: int = 64

    def iterations_of(self, row: Row) -> int:
        return round(self.iterations * row.share)

    def size_of(self, row: Row) -> Size:
        return replace(self.size, decay_steps=self.iterations_of(row))


ROWS: Final = (
    Row(NONE), Row(CHECKFREE, "16%"), Row(CHECKFREE, "5%"), Row(NONE, share=0.5), Row(CHECKFREE, "10%"),
    Row(SHADOW, "16%"), Row(RANDOM, "10%"), Row(TOGETHER, "10%", together=True),
    *(Row(policy, "5%") for policy in LEFT_OUT), Row(NONE, share=0.25),
    Row(SHADOW_TOGETHER, "10%", together=True), Row(SHADOW, "10%"), Row(RANDOM, "16%"), Row(RANDOM, "5%"),
    Row(SHADOW, "5%"),
)  # fmt: skip
LONG: Final = LongPlan(
    size=Size("long", ModelConfig(96, 3, 6, 128, 256, vocabulary=512), 6, 1, 4, 5e-3, 200, 4),
    rows=ROWS, iterations=10_000, validate_every=100, vocabulary=512, text_bytes_max=2_500_000,
)  # fmt: skip
