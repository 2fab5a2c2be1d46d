"""What a visit reads and makes: boundary tensors out of slots and into them, and tokens of the run's text.

    slot → bytes on the device → numbers           what the stage before, or behind, has made
    numbers → bytes → slot                         for the next one
    numbers → bytes → numbers                      between two stages of one task

In the last case, too, a tensor is encoded as it would travel: numbers must not depend on who holds what.

Shapes: B sequences, T tokens of each, S numbers of a stream (model.subspace, or dim).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ftnode.models.boundary import ActivationCodec, BoundaryCodec
from ftnode.models.config import ModelConfig
from ftnode.models.faults import Misuse
from ftnode.models.number_check import NumberCheck
from ftnode.node.compute.config import ComputeConfig
from ftnode.node.compute.copy_streams import copies_of
from ftnode.node.compute.pinned_places import PinnedPlaces
from ftnode.node.compute.run_text import RunText
from ftnode.node.machine.tensor_slots import SlotMap

Activation = tuple[Tensor, Tensor | None]
"""Numbers [B, T, S], and in a model with a subspace the tokens [B, T]."""


class VisitTensors:
    """Of one device. Misuse is raised for a slot that is none, and a visit that is not of its stage."""

    def __init__(self, config: ComputeConfig, model: ModelConfig, slots: SlotMap, text: RunText) -> None:
        self._device = device = torch.device(config.device)
        self._seed, self._text = config.seed, text
        forward, backward = config.encodings
        self.shape = config.sequences, config.context, config.stream
        """[B, T, S]."""
        self.activations = ActivationCodec(forward, self.shape, device, model.token_bytes)
        self.gradients = BoundaryCodec(backward, self.shape, device, dither=True)
        self.copies, self._places = copies_of(device), PinnedPlaces(slots, torch.uint8, device)

    @property
    def tokens(self) -> int:
        """Of a microbatch."""
        return self.shape[0] * self.shape[1]

    def read(
        self, stage: int, visit: int, step: int, microbatch: int, validation: bool, slot: int | None
    ) -> Activation:
        """What a stage computes with at this visit: at visit 0 the inputs [B, T] twice, else an activation."""
        if (stage == 0) != (visit == 0):
            raise Misuse(f"stage {stage} has no visit {visit}", stage)
        if stage:
            return self.activation(slot, stage)
        tokens_bt = self._batch(step, microbatch, validation)[:, :-1]
        return tokens_bt, tokens_bt

    def targets(self, step: int, microbatch: int, validation: bool) -> Tensor:
        """Tokens [B, T] that the last visit is to predict."""
        return self._batch(step, microbatch, validation)[:, 1:]

    def activation(self, slot: int | None, stage: int) -> Activation:
        """What another stage has made."""
        return self.activations.decode(self.copies.fetch(self.place(slot, self.activations, stage)))

    def gradient(self, slot: int | None, stage: int) -> Tensor:
        """What another stage hands back, [B, T, S]."""
        return self.gradients.decode(self.copies.fetch(self.place(slot, self.gradients, stage)))

    def place(self, slot: int | None, codec: BoundaryCodec | ActivationCodec, stage: int) -> Tensor:
        """The bytes of a boundary tensor in its slot, without a copy."""
        if slot is None:
            raise Misuse("a tensor is missing", stage)
        return self._places.place(slot)[: codec.bytes]

    def within(self, codec: BoundaryCodec | ActivationCodec) -> Tensor:
        """Where the bytes of a tensor lie that passes between two stages of one task."""
        return torch.empty(codec.bytes, dtype=torch.uint8, device=self._device)

    def encode_gradient(
        self, gradient: Tensor, into: Tensor, step: int, microbatch: int, visit: int, check: NumberCheck
    ) -> None:
        """What the visit hands back, [B, T, S], into bytes. The dither depends on the numbers of the visit alone."""
        self.gradients.encode(gradient, into, (self._seed, step, microbatch, visit), check)

    def _batch(self, step: int, microbatch: int, validation: bool) -> Tensor:
        """Tokens [B, T + 1]."""
        return self.copies.fetch_new(torch.from_numpy(self._text.batch(step, microbatch, validation)))
