"""A stage as its checkpoint has it: of a model with a subspace as a plain model's, and rounded where that was asked.

Blocks write to the first coordinates of the residual stream only. So the rows that write to the others are zero, and of
the embedding the other columns are what is fixed of each token (models/fixed_embedding.py).
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import BinaryIO, Final

from ftnode.models.config import ModelConfig
from ftnode.models.parameters import EMBEDDING, Shape, places, stage_shapes
from ftnode.models.rounding import EXPORT_DTYPES, Rounded, Writes
from ftnode.models.safetensors_header import safetensors_header

PASS_BYTES: Final = 1 << 22

Entries = dict[str, tuple[int, Shape]]


def plain(model: ModelConfig) -> ModelConfig:
    """The same model without a subspace: what the checkpoint describes."""
    return replace(model, subspace=0)


def write_widened(
    narrow: BinaryIO, wide: BinaryIO, model: ModelConfig, stages: int, stage: int, dtype: str = ""
) -> None:
    """A safetensors file out of a stage's flat weights, which `narrow` has from where it stands on. `dtype`: one of
    EXPORT_DTYPES, or that of the model. Raises OverflowError for a number that it does not hold."""
    size, dtype = model.number_bytes, dtype or model.precision
    found, _ = places(*stage_shapes(model, stages, stage))
    wanted, _ = places(*stage_shapes(plain(model), stages, stage))
    name_there, size_there = EXPORT_DTYPES[dtype]
    wide.write(safetensors_header(wanted, size_there, dtype=name_there))
    into = wide if dtype == model.precision else Rounded(wide, size, dtype)
    for name, (_, shape) in found.items():
        if name == EMBEDDING:
            _join_columns(narrow, into, model)
            continue
        _pass_on(narrow, into, prod(shape) * size)
        _write_zeros(into, (prod(wanted[name][1]) - prod(shape)) * size)


def _join_columns(narrow: BinaryIO, wide: Writes, model: ModelConfig) -> None:
    from ftnode.models.fixed_embedding import fixed_table  # nodes that export nothing do without numpy

    trained = model.stream * model.number_bytes
    if not model.subspace:
        _pass_on(narrow, wide, model.vocabulary * model.stream * model.number_bytes)
        return
    for row in fixed_table(model):
        _pass_on(narrow, wide, trained)
        wide.write(row.tobytes())


def _pass_on(source: BinaryIO, into: Writes, count: int) -> None:
    while count:
        piece = source.read(min(count, PASS_BYTES))
        if not piece:
            raise EOFError("weights end in the middle of a tensor")
        into.write(piece)
        count -= len(piece)


def _write_zeros(into: Writes, count: int) -> None:
    for start in range(0, count, PASS_BYTES):
        into.write(bytes(min(PASS_BYTES, count - start)))
