"""The frequencies of rotary positions, also of models that were made fit for a longer context than the first one.

A head of K numbers has K/2 pairs. Pair i turns by theta^(-2i/K) a position (Su et al. 2021, "RoFormer"). How a longer
context slows them is as Hugging Face's `modeling_rope_utils` names it:

- linear: all by the factor (Chen et al. 2023, "Position Interpolation").
- llama3: pairs that turn less than `rope_low` times in the original context by the factor, those that turn more than
  `rope_high` times not at all, and those between by a part of it (Llama 3's report).
- yarn: likewise, but the part falls by the number of the pair, and queries and keys are stretched a little (Peng et al.
  2023, "YaRN", sections 3.2 and 3.4).
"""

from __future__ import annotations

from math import ceil, floor, log, pi

import torch
from torch import Tensor

from ftnode.models.config import ModelConfig


def frequencies(config: ModelConfig, dtype: torch.dtype) -> Tensor:
    """[K / 2], in radians a position."""
    half = config.head_size // 2
    frequency_k = config.rope_theta ** (-torch.arange(half, dtype=dtype) / half)
    if config.rope_scaling == "none":
        return frequency_k
    slow_k = frequency_k / config.rope_factor
    if config.rope_scaling == "linear":
        return slow_k
    kept_k = _kept_llama3(config, frequency_k) if config.rope_scaling == "llama3" else _kept_yarn(config, dtype)
    return slow_k * (1 - kept_k) + frequency_k * kept_k


def stretch(config: ModelConfig) -> float:
    """Of cosines and sines, and so of queries and keys: yarn's attention factor (equation 22), else 1."""
    scaled = config.rope_scaling == "yarn" and config.rope_factor > 1
    return 0.1 * log(config.rope_factor) + 1 if scaled else 1.0


def _kept_llama3(config: ModelConfig, frequency_k: Tensor) -> Tensor:
    """How much of each frequency stays, from 0 to 1."""
    turns_k = config.rope_original * frequency_k / (2 * pi)
    return ((turns_k - config.rope_low) / (config.rope_high - config.rope_low)).clamp(0, 1)


def _kept_yarn(config: ModelConfig, dtype: torch.dtype) -> Tensor:
    """Likewise. `rope_high` is the paper's beta, `rope_low` its alpha."""
    size, half = config.head_size, config.head_size // 2

    def pair(turns: float) -> float:
        """The number of the pair that turns so many times in the original context."""
        return size * log(config.rope_original / (turns * 2 * pi)) / (2 * log(config.rope_theta))

    first, last = max(floor(pair(config.rope_high)), 0), min(ceil(pair(config.rope_low)), size - 1)
    span = last - first or 0.001  # one pair, as transformers has it
    return 1 - ((torch.arange(half, dtype=dtype) - first) / span).clamp(0, 1)
