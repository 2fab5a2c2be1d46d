"""A stage of a model with a subspace, as a plain LlamaForCausalLM has it. No number is rounded.

Blocks write to the first coordinates of the residual stream only. So the rows that write to the others are zero, and of
the embedding the other columns are what is fixed of each token (models/fixed_embedding.py).
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import BinaryIO, Final

from ftnode.models.config import ModelConfig
from ftnode.models.parameters import EMBEDDING, Shape, places, stage_shapes
from ftnode.models.safetensors_header import safetensors_header

PASS_BYTES: Final = 1 << 22

Entries = dict[str, tuple[int, Shape]]


def plain(model: ModelConfig) -> ModelConfig:
    """The same model without a subspace: what the checkpoint describes."""
    return replace(model, subspace=0)


def write_widened(narrow: BinaryIO, wide: BinaryIO, model: ModelConfig, stages: int, stage: int) -> None:
    """A safetensors file out of a stage's flat weights, which `narrow` has from where it stands on."""
    size = model.number_bytes
    found, _ = places(*stage_shapes(model, stages, stage))
    wanted, _ = places(*stage_shapes(plain(model), stages, stage))
    wide.write(safetensors_header(wanted, size))
    for name, (_, shape) in found.items():
        if name == EMBEDDING:
            _join_columns(narrow, wide, model)
            continue
        _pass_on(narrow, wide, prod(shape) * size)
        _write_zeros(wide, (prod(wanted[name][1]) - prod(shape)) * size)


def _join_columns(narrow: BinaryIO, wide: BinaryIO, model: ModelConfig) -> None:
    from ftnode.models.fixed_embedding import fixed_table  # nodes that export nothing do without numpy

    trained = model.stream * model.number_bytes
    for row in fixed_table(model):
        _pass_on(narrow, wide, trained)
        wide.write(row.tobytes())


def _pass_on(source: BinaryIO, into: BinaryIO, count: int) -> None:
    while count:
        piece = source.read(min(count, PASS_BYTES))
        if not piece:
            raise EOFError("weights end in the middle of a tensor")
        into.write(piece)
        count -= len(piece)


def _write_zeros(into: BinaryIO, count: int) -> None:
    for start in range(0, count, PASS_BYTES):
        into.write(bytes(min(PASS_BYTES, count - start)))
