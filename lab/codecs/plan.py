"""What `ftnode lab codecs` trains: its rows, the model that they share, and the order in which they are measured.

All rows have the same weights at the start, and the same batches. Adam and Muon have a rate each, which suits them.
Rows differ in what is done to boundary tensors and in the rule of an update. A subspace spares parameters of what
writes to the stream. These go into a wider hidden layer, so that a row neither wins by fewer parameters nor loses by
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ftnode.lab.recovery.whole_model import Size
from ftnode.models.config import ModelConfig
from ftnode.models.optimiser import OptimiserConfig
from ftnode.protocol.words.errors import UserError

ERRORS = "lab_codecs"

SUBSPACES: Final = (64, 32, 128)
"""Of 256 coordinates, the first one first."""


@dataclass(frozen=True, slots=True)
class Row:
    """`boundary`: the encoding of activations, and of their gradients unless `gradients` names another one. `subspace`:
    coordinates that blocks write to; 0: all. `optimiser`: a kind of models/optimiser.py."""

    boundary: str
    optimiser: str
    subspace: int = 0
    gradients: str = ""

    @property
    def name(self) -> str:
        """As --only has it, and the file of a result."""
        codec = f"{self.boundary}+{self.gradients}" if self.gradients else self.boundary
        return "-".join([codec, *([f"subspace{self.subspace}"] if self.subspace else []), self.optimiser])

    @property
    def encodings(self) -> tuple[str, str]:
        """Of activations, and of their gradients."""
        return self.boundary, self.gradients or self.boundary

    def described(self) -> dict[str, str | int | None]:
        """As results and tables have it."""
        apart = {"gradients": self.gradients} if self.gradients else {}
        return {"boundary": self.boundary, "subspace": self.subspace or None, "optimiser": self.optimiser} | apart


@dataclass(frozen=True)
class Contestant(Size):
    """A row's model. Its rate is constant after the warm-up, so that equal losses are equally far into a run, whatever
    its length."""

    kind: str = "adam"

    def optimiser(self) -> OptimiserConfig:
        return OptimiserConfig(
            self.learning_rate, 0, beta2=0.99, warmup_steps=self.warmup_steps, decay="constant", clip=self.clip,
            kind=self.kind,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scale:
    """One contest: `start` is the model of all rows without a subspace. `rows`: in the order of their importance.

    `target`: the validation loss that steps are counted to, nats per token. `text_bytes_max`: about so much
    of each part of the corpus is used; 0: all. `parameters_min`: outside of the embedding and the LM head.
    `below_trigram`: whether the target has to be below the loss of a trigram table. `rates`: of kinds of optimiser, the
    rates that suit them; of others it is that of `start`.
    """

    name: str
    start: Contestant
    rows: tuple[Row, ...]
    vocabulary: int
    target: float
    steps_max: int
    validate_every: int
    text_bytes_max: int = 0
    parameters_min: int = 0
    below_trigram: bool = True
    rates: Mapping[str, float] = field(default_factory=dict)

    def contestant(self, row: Row, vocabulary: int) -> Contestant:
        """`vocabulary`: how many tokens the tokenizer really has."""
        config = replace(self.start.config, vocabulary=vocabulary)
        if row.subspace:
            config = config.in_subspace(row.subspace)
        assert config.layers * config.block_parameters >= self.parameters_min
        return replace(
            self.start, name=row.name, config=config, encodings=row.encodings, kind=row.optimiser,
            learning_rate=self.rates.get(row.optimiser, self.start.learning_rate),
        )  # fmt: skip

    def chosen(self, only: Sequence[str]) -> tuple[Row, ...]:
        """Rows of these names, all without any. Raises UserError (64)."""
        known = {row.name for row in self.rows}
        for name in only:
            if name not in known:
                raise UserError(f"no row is called {name}; there are {', '.join(row.name for row in self.rows)}")
        return tuple(row for row in self.rows if not only or row.name in only)


def _rows() -> tuple[Row, ...]:
    """What decides the contest first, then what explains it."""
    first = (
        Row("bfloat16", "adam"), Row("bfloat16", "muon"), Row("int4", "muon"), Row("int8", "muon"),
        Row("int8", "muon", 64), Row("int4", "muon", 64), Row("int8", "adam"), Row("int4", "adam"),
        Row("int4", "muon", 32), Row("int8", "muon", 32), Row("int8", "adam", 64), Row("bfloat16", "adam", 64),
        Row("bfloat16", "muon", 64), Row("float32", "adam"), Row("float32", "muon"),
    )  # fmt: skip
    apart = (Row("int4", "muon", gradients="int8"), Row("int8", "muon", gradients="int4"))
    rest = tuple(
        Row(boundary, optimiser, subspace)
        for optimiser in ("muon", "adam")
        for subspace in SUBSPACES
        for boundary in ("int4", "int8", "bfloat16")
    )
    return tuple(dict.fromkeys((*first, *apart, *rest)))


FULL: Final = Scale(
    name="full",
    # 2,048 tokens a step, 8,192 for a validation.
    start=Contestant("", ModelConfig(256, 8, 8, 128, 688), 8, 2, 8, 4e-3, 20, 8),
    rows=_rows(),
    vocabulary=4096,
    target=3.9,
    steps_max=1600,
    validate_every=10,
    # About as much as 1,000 steps read, so that a table learns from no more text than a model does.
    text_bytes_max=7_000_000,
    parameters_min=5_000_000,
    rates={"adam": 1e-3},
)
QUICK: Final = Scale(
    name="quick",
    start=Contestant("", ModelConfig(32, 2, 2, 32, 88), 2, 2, 8, 1e-2, 5, 2),
    rows=(Row("bfloat16", "adam"), Row("int4", "muon"), Row("int8", "muon", 16)),
    vocabulary=400,
    target=5.2,
    steps_max=120,
    validate_every=5,
    text_bytes_max=400_000,
    below_trigram=False,
)
"""Seconds: everything is done once, and nothing is shown."""
