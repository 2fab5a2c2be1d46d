"""A stage as its checkpoint has it: of a model with a subspace as a plain model's, with what was frozen and what
adapters add, and rounded where that was asked.

Blocks write to the first coordinates of the residual stream only. So the rows that write to the others are zero, and of
the embedding the other columns are what is fixed of each token (models/fixed_embedding.py). What is frozen, and the
matrices that adapters add to, are in the model that the run goes on from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, BinaryIO

from ftnode.models.config import ModelConfig
from ftnode.models.first_weights import Checkpoint
from ftnode.models.parameters import EMBEDDING, NARROWING, WIDENING, Entries, places, stage_shapes, trained_shapes
from ftnode.models.rounding import EXPORT_DTYPES, Rounded, Writes
from ftnode.models.safetensors_header import StoredTensor, safetensors_header
from ftnode.node.export.pieces import PASS_BYTES, pass_on, write_zeros

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Numbers = npt.NDArray[np.float32] | npt.NDArray[np.float64]


def plain(model: ModelConfig) -> ModelConfig:
    """The same model without a subspace: what the checkpoint describes."""
    return replace(model, subspace=0)


def write_widened(
    narrow: BinaryIO, wide: BinaryIO, model: ModelConfig, stages: int, stage: int, dtype: str = "",
    base: Checkpoint | None = None,
) -> None:  # fmt: skip
    """A safetensors file out of a stage's flat weights, which `narrow` has from its start on. `dtype`: one of
    EXPORT_DTYPES, or that of the model. `base`: the model that the run goes on from, where all is not trained. Raises
    OverflowError for a number that the type does not hold; EOFError, OSError."""
    size, dtype = model.number_bytes, dtype or model.precision
    found, _ = places(*trained_shapes(model, stages, stage))
    wanted, _ = places(*stage_shapes(plain(model), stages, stage))
    name_there, size_there = EXPORT_DTYPES[dtype]
    wide.write(safetensors_header(wanted, size_there, dtype=name_there))
    into = wide if dtype == model.precision else Rounded(wide, size, dtype)
    for name, (_, whole) in wanted.items():
        if name not in found:
            assert base is not None, name
            _write_frozen(narrow, into, model, found, name, base)
            continue
        offset, shape = found[name]
        narrow.seek(offset * size)
        if name == EMBEDDING:
            _join_columns(narrow, into, model)
            continue
        pass_on(narrow, into, prod(shape) * size)
        write_zeros(into, (prod(whole) - prod(shape)) * size)


def _join_columns(narrow: BinaryIO, wide: Writes, model: ModelConfig) -> None:
    from ftnode.models.fixed_embedding import fixed_table  # nodes that export nothing do without numpy

    trained = model.stream * model.number_bytes
    if not model.subspace:
        pass_on(narrow, wide, model.vocabulary * model.stream * model.number_bytes)
        return
    for row in fixed_table(model):
        pass_on(narrow, wide, trained)
        wide.write(row.tobytes())


def _write_frozen(
    narrow: BinaryIO, into: Writes, model: ModelConfig, found: Entries, name: str, base: Checkpoint
) -> None:
    """A tensor of the base, with what its adapter adds."""
    halves = [name.replace(".weight", f".{half}.weight") for half in (NARROWING, WIDENING)]
    if halves[0] not in found:
        for block in _rows(base.tensors[name], model):
            into.write(block.tobytes())
        return
    reads, gives = (_read(narrow, found, half, model) for half in halves)
    scale, start = model.lora_alpha / model.lora, 0
    for block in _rows(base.tensors[name], model):
        into.write((block + scale * (gives[start : start + len(block)] @ reads)).astype(block.dtype).tobytes())
        start += len(block)


def _read(narrow: BinaryIO, found: Entries, name: str, model: ModelConfig) -> Numbers:
    import numpy as np

    offset, shape = found[name]
    narrow.seek(offset * model.number_bytes)
    data = narrow.read(prod(shape) * model.number_bytes)
    made: Numbers = np.frombuffer(data, {4: "<f4", 8: "<f8"}[model.number_bytes]).reshape(shape)
    return made


def _rows(tensor: StoredTensor, model: ModelConfig) -> Iterator[Numbers]:
    """The numbers of a tensor of a checkpoint in the model's precision, some rows at a time."""
    import numpy as np

    width = prod(tensor.shape[1:])
    row_bytes = tensor.size // tensor.shape[0]
    at_once = max(1, PASS_BYTES // row_bytes)
    wanted = {4: "<f4", 8: "<f8"}[model.number_bytes]
    with tensor.path.open("rb") as file:
        file.seek(tensor.start)
        for start in range(0, tensor.shape[0], at_once):
            count = min(at_once, tensor.shape[0] - start)
            data = file.read(count * row_bytes)
            if len(data) < count * row_bytes:
                raise EOFError(f"{tensor.path} is shorter than it was")
            if tensor.dtype == "BF16":
                numbers = (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
            else:
                numbers = np.frombuffer(data, {"F32": "<f4", "F16": "<f2"}[tensor.dtype])
            yield numbers.astype(wanted).reshape(count, width)
