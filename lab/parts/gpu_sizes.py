"""The stages that `ftnode lab gpu` measures, and how much arithmetic they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ftnode.models.config import ModelConfig
from ftnode.node.compute.config import ComputeConfig

MICROBATCHES: Final = 8
"""Of a step."""
LIVE_ACTIVATIONS: Final = 2


@dataclass(frozen=True, slots=True)
class Size:
    """One block stage of `layers`, and its microbatch."""

    name: str
    dim: int
    heads: int
    layers: int
    hidden: int
    context: int
    sequences: int
    vocabulary: int
    steps: int
    """That are timed."""

    @property
    def model(self) -> ModelConfig:
        return ModelConfig(self.dim, self.heads, self.layers, self.context, self.hidden, self.vocabulary)

    @property
    def tokens(self) -> int:
        """Of a microbatch."""
        return self.sequences * self.context

    @property
    def flops_per_token(self) -> float:
        """Forward and backward, two for a multiplication with its sum; of attention the half that a causal mask leaves.
        As Narayanan et al. 2021 count, without recomputation."""
        matrices = self.layers * (4 * self.dim**2 + 3 * self.dim * self.hidden)
        return 6.0 * matrices + 6.0 * self.layers * self.dim * self.context

    def compute_config(self, device: str, products: str, threads: int) -> ComputeConfig:
        return ComputeConfig(
            dim=self.dim, heads=self.heads, layers=self.layers, context=self.context, hidden=self.hidden, stages=1,
            microbatches=MICROBATCHES, sequences=self.sequences, steps=1000, learning_rate=1e-4,
            slot_bytes=4 * self.tokens * self.dim, slots=4, vocabulary=self.vocabulary, device=device, threads=threads,
            live_activations=LIVE_ACTIVATIONS, products=products,
        )  # fmt: skip


CARD: Final = (
    Size("small", 1024, 16, 4, 2736, 1024, 8, 32_000, 8),
    Size("medium", 2048, 16, 4, 5504, 2048, 4, 32_000, 6),
    Size("large", 4096, 32, 2, 11_008, 2048, 4, 128_000, 4),
)
QUICK: Final = (
    Size("small", 64, 4, 2, 176, 64, 4, 512, 6),
    Size("medium", 128, 4, 2, 352, 128, 4, 2048, 4),
    Size("large", 256, 8, 2, 688, 128, 4, 8192, 2),
)
"""For a processor, where they take seconds."""

PEAK_FLOPS: Final = {
    "H100": 989e12, "H200": 989e12, "A100": 312e12, "L40": 181e12, "L4": 121e12, "A10": 125e12, "4090": 165e12,
    "3090": 71e12, "V100": 125e12, "T4": 65e12,
}  # fmt: skip
"""Of products in 16 bits without sparsity, by a part of the card's name, as its maker says; the first that fits."""


def peak_flops(device_name: str) -> float | None:
    """None: not known, as of a processor."""
    return next((peak for part, peak in PEAK_FLOPS.items() if part in device_name), None)
