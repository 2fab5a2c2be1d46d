"""Initial weights: those of a model that exists, or a pure function of (seed, stage), the same on every machine.
Adapters of a model that exists are drawn, too, and add nothing before the first step.

Integers from a counter-seeded generator, exact sums, one multiplication: no vectorised logarithm or cosine whose last
bit depends on the processor. Four 16-bit integers add up to nearly a normal number (Irwin-Hall, cut at 3.5 deviations).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any, Final

import torch
from torch import Tensor

from ftnode.models.config import ModelConfig
from ftnode.models.faults import StageFault, WrongLayer
from ftnode.models.first_weights import Span, layer_names, layer_shapes, read_spans
from ftnode.models.llama import RESIDUAL_OUTPUTS
from ftnode.models.parameters import NARROWING, WIDENING, Shape
from ftnode.models.tensors import PASS_NUMBERS, Layout, is_finite

DEVIATION: Final = 0.02
_LEVELS: Final = 1 << 16
_TERMS: Final = 4
_UNIT: Final = sqrt(12 / (_TERMS * (_LEVELS**2 - 1)))
"""Makes a sum of four integers below 65536 have deviation 1."""


def initialise(flat: Tensor, layout: Layout, config: ModelConfig, seed: int, stage: int) -> None:
    """Fill the flat weights [layout.size] of any precision: norms 1, biases 0, matrices of deviation 0.02, some
    smaller. Adapters as PEFT does: A with the deviation of a uniform draw within 1/√reads, B zero."""
    name_of_stream = hashlib.blake2b(f"ftnode/initial/{seed}/{stage}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(name_of_stream, "little") >> 1)
    for name, (offset, shape) in layout.entries.items():
        if len(shape) == 1:
            flat[offset : offset + prod(shape)] = 0.0 if name.endswith(".bias") else 1.0
        else:
            deviation = _deviation(name, shape, config)
            for piece in torch.split(flat[offset : offset + prod(shape)], PASS_NUMBERS):
                piece.copy_(_nearly_normal(piece.numel(), generator, flat.dtype) * (deviation * _UNIT))


def _deviation(name: str, shape: Shape, config: ModelConfig) -> float:
    """Of a matrix."""
    if f".{WIDENING}." in name:
        return 0.0
    if f".{NARROWING}." in name:
        return 1 / sqrt(3 * shape[1])
    return DEVIATION / sqrt(2 * config.layers) if name.endswith(RESIDUAL_OUTPUTS) else DEVIATION


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of a checkpoint: which tensors its bytes are, in order; where they lie; what they hash to."""

    shapes: Mapping[str, Shape]
    dtype: str
    sha256: str
    spans: tuple[Span, ...]


def stage_layers(config: ModelConfig, stages: int, stage: int, plain: Mapping[str, Any]) -> list[Layer]:
    """Of one stage, as node/data/first_layers.py tells of them. Raises ValueError."""
    names = layer_names(config, stages, stage)
    return [
        Layer(layer_shapes(config, name), plain["dtype"], sha256, tuple(Span(*span) for span in spans))
        for name, (sha256, spans) in zip(names, plain["layers"], strict=True)
    ]


def take_layers(place: Callable[[str], Tensor | None], layers: Iterable[Layer], stage: int) -> None:
    """Fill the tensors of layers, in blocks of a MiB. `place`: where a tensor belongs, of any precision and device;
    None: nowhere, though it is read for the hash. Raises WrongLayer for one that does not have its hash, or is gone;
    StageFault for a number that is not finite."""
    for layer in layers:
        digest, blocks = hashlib.sha256(), read_spans(layer.spans)
        rest, dtype = b"", {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[layer.dtype]
        try:
            for name, shape in layer.shapes.items():
                view, filled = place(name), 0
                while filled < prod(shape):
                    data = rest or next(blocks, b"")
                    taken = min(len(data), (prod(shape) - filled) * dtype.itemsize)
                    if not taken or taken % dtype.itemsize:
                        raise WrongLayer("a layer of the first weights ends early", stage)
                    numbers = torch.frombuffer(bytearray(data[:taken]), dtype=dtype)
                    if not is_finite(numbers):
                        raise StageFault("the first weights have a number that is not finite", stage)
                    if view is not None:
                        view.view(-1)[filled : filled + len(numbers)] = numbers
                    digest.update(data[:taken])
                    filled, rest = filled + len(numbers), data[taken:]
        except (OSError, EOFError) as error:
            raise WrongLayer(f"a layer of the first weights cannot be read: {error}", stage) from None
        if rest or next(blocks, b"") or digest.hexdigest() != layer.sha256:
            raise WrongLayer("a layer of the first weights does not have its hash", stage)


def _nearly_normal(count: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    draws = torch.randint(_LEVELS, (_TERMS, count), generator=generator, dtype=torch.int32)
    return (2 * draws.sum(0) - _TERMS * (_LEVELS - 1)).to(dtype) / 2
