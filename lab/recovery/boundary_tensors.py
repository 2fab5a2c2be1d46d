"""Boundary tensors of a whole model in one process: encoded and decoded between two stages, as a swarm does it."""

from __future__ import annotations

import torch
from torch import Tensor

from ftnode.models.boundary import ActivationCodec, BoundaryCodec
from ftnode.models.config import ModelConfig

MadeAt = tuple[int, int, int]
"""(step, microbatch, visit)."""


class BoundaryTensors:
    """`encodings`: of activations and of gradients; "" for one that is passed on as it is. `seed`: the run's."""

    def __init__(self, config: ModelConfig, encodings: tuple[str, str], seed: int, device: torch.device) -> None:
        self._config, self._encodings, self._seed, self._device = config, encodings, seed, device
        self._forward: dict[tuple[int, int, int], ActivationCodec] = {}
        self._backward: dict[tuple[int, int, int], BoundaryCodec] = {}

    def activation(self, x_bts: Tensor, tokens_bt: Tensor) -> tuple[Tensor, Tensor]:
        """What the next stage gets of an activation, and of its tokens. Raises StageFault for numbers that are too
        large."""
        name, shape = self._encodings[0], _shape(x_bts)
        if not name:
            return x_bts, tokens_bt
        if shape not in self._forward:
            self._forward[shape] = ActivationCodec(name, shape, self._device, self._config.token_bytes)
        codec = self._forward[shape]
        content = torch.empty(codec.bytes, dtype=torch.uint8)
        codec.encode(x_bts, tokens_bt, content)
        numbers, tokens = codec.decode(content)
        return numbers, tokens_bt if tokens is None else tokens

    def gradient(self, gradient_bts: Tensor, made_at: MadeAt) -> Tensor:
        """What the stage before gets of it. Raises StageFault for numbers that are too large."""
        name, shape = self._encodings[1], _shape(gradient_bts)
        if not name:
            return gradient_bts
        if shape not in self._backward:
            self._backward[shape] = BoundaryCodec(name, shape, self._device, dither=True)
        codec = self._backward[shape]
        content = torch.empty(codec.bytes, dtype=torch.uint8)
        codec.encode(gradient_bts, content, (self._seed, *made_at))
        return codec.decode(content)


def _shape(x: Tensor) -> tuple[int, int, int]:
    b, t, s = x.shape
    return b, t, s
