"""The model's numbers. No torch here: whoever plans a run needs the sizes without loading it."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from math import isfinite
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

PRECISIONS: Final = {"float32": 4, "float64": 8}
"""Bytes of one number of weights, gradients and moments."""
ROPE_SCALINGS: Final = ("none", "linear", "llama3", "yarn")
TRAINED: Final = re.compile(r"all|norms\+mlp|last ([1-9][0-9]{0,2}) layers?")
"""What of a model that exists may be trained, when not adapters are."""
HIDDEN_MULTIPLE: Final = 8
"""A hidden layer that is chosen here is as wide as a multiple of this."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A LLaMA-style decoder: RMSNorm, RoPE, SwiGLU.

    `hidden` is the width of the SwiGLU, `context` the longest sequence T. Raises ValueError for numbers that cannot
    make a model.
    """

    dim: int
    heads: int
    layers: int
    context: int
    hidden: int
    vocabulary: int = 256
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    precision: str = "float32"
    """One of PRECISIONS."""
    subspace: int = 0
    """Coordinates of the residual stream that blocks write to, the first ones; 0: all. The others are fixed by token
    (models/fixed_embedding.py), as in Protocol Models (Ramasinghe et al. 2025)."""
    kv_heads: int = 0
    """Heads of keys and values, each for heads / kv_heads queries (Ainslie et al. 2023, "GQA"); 0: as many as heads."""
    head_dim: int = 0
    """Numbers of a head; 0: dim / heads."""
    tied: bool = False
    """The embedding is the LM head, too."""
    qkv_bias: bool = False
    """Queries, keys and values have a bias each, as in Qwen 2."""
    rope_scaling: str = "none"
    """One of ROPE_SCALINGS, for a context longer than that of the first training; models/rope.py has the formulas."""
    rope_factor: float = 1.0
    rope_original: int = 0
    """Context of the first training; llama3 and yarn need it."""
    rope_low: float = 0.0
    rope_high: float = 0.0
    """Turns in that context between which frequencies are left as they are, or divided: see models/rope.py."""
    train: str = "all"
    """What of it is trained, as TRAINED has it; the rest stays as it was when the run began."""
    lora: int = 0
    """Rank of the adapters that are trained in place of the model's own weights (Hu et al. 2021, "LoRA"); 0: none."""
    lora_alpha: int = 0
    """What an adapter gives is multiplied by lora_alpha / lora."""

    def __post_init__(self) -> None:
        for name in ("dim", "heads", "layers", "context", "hidden", "vocabulary"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not self.head_dim and (self.dim % self.heads or (self.dim // self.heads) % 2):
            raise ValueError(f"dim ({self.dim}) must be heads ({self.heads}) times an even number, for RoPE's pairs")
        if self.head_dim < 0 or self.head_dim % 2:
            raise ValueError(f"head_dim must be an even number, for RoPE's pairs, not {self.head_dim}")
        if self.kv_heads < 0 or (self.kv_heads and self.heads % self.kv_heads):
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads, not of {self.kv_heads}")
        if self.tied and self.subspace:
            raise ValueError("a tied embedding is read whole, so that the model can have no subspace")
        self._check_rope()
        self._check_trained()
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, not {self.precision}")
        if not 0 <= self.subspace < self.dim:
            raise ValueError(f"subspace must be 0, or less than dim ({self.dim}), not {self.subspace}")
        for name in ("rope_theta", "norm_eps"):
            if not (isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ValueError(f"{name} must be a positive number, not {getattr(self, name)}")

    def _check_trained(self) -> None:
        """Of a model with a subspace all is trained."""
        if not TRAINED.fullmatch(self.train):
            raise ValueError(f"train must be all, norms+mlp or last N layers, not {self.train}")
        if self.last_layers > self.layers:
            raise ValueError(f"a model of {self.layers} layers has no {self.train}")
        if self.lora < 0 or (self.lora_alpha > 0) != (self.lora > 0):
            raise ValueError(f"adapters of rank {self.lora} need a lora_alpha above 0, not {self.lora_alpha}")
        if self.lora and self.train != "all":
            raise ValueError("adapters are trained in place of the model's own weights; set train = all")
        if self.subspace and not self.trains_all:
            raise ValueError("of a model with a subspace all is trained")

    def _check_rope(self) -> None:
        if self.rope_scaling not in ROPE_SCALINGS:
            raise ValueError(f"rope_scaling must be one of {', '.join(ROPE_SCALINGS)}, not {self.rope_scaling}")
        if self.rope_scaling == "none":
            return
        if not (isfinite(self.rope_factor) and self.rope_factor >= 1):
            raise ValueError(f"rope_factor must be at least 1, not {self.rope_factor}")
        if self.rope_scaling == "yarn" and self.rope_theta <= 1:
            raise ValueError(f"yarn needs a rope_theta above 1, not {self.rope_theta}")
        if self.rope_scaling != "linear" and not (self.rope_original > 0 and 0 < self.rope_low < self.rope_high):
            raise ValueError(f"{self.rope_scaling} needs rope_original, and rope_low below rope_high, all positive")

    @classmethod
    def of(cls, section: DataclassInstance) -> ModelConfig:
        """The model that a dataclass describes which has these fields: the model section of a manifest, or more."""
        return cls(**{field.name: getattr(section, field.name) for field in fields(cls)})

    def in_subspace(self, subspace: int) -> ModelConfig:
        """The parameters of the blocks that the subspace spares go into hidden layers, the widest with which a block
        has no more of them than before. Raises ValueError as the constructor does."""
        narrow = replace(self, subspace=subspace)
        spare = self.block_parameters - narrow.block_parameters
        hidden = self.hidden + spare // (2 * self.dim + narrow.stream)
        return replace(narrow, hidden=hidden - hidden % HIDDEN_MULTIPLE)

    @property
    def trains_all(self) -> bool:
        """Nothing is frozen."""
        return self.train == "all" and not self.lora

    @property
    def last_layers(self) -> int:
        """How many layers are trained, where it is the last ones; else 0."""
        found = TRAINED.fullmatch(self.train)
        return int(found[1] or 0) if found else 0

    @property
    def stream(self) -> int:
        """Coordinates that blocks write to, and that travel between stages."""
        return self.subspace or self.dim

    @property
    def fixed(self) -> int:
        """Coordinates that only the token decides."""
        return self.dim - self.stream

    @property
    def token_bytes(self) -> int:
        """Of a token that travels with its activation; 0 where none does."""
        return (2 if self.vocabulary <= 1 << 16 else 4) if self.subspace else 0

    @property
    def head_size(self) -> int:
        """Numbers of a head."""
        return self.head_dim or self.dim // self.heads

    @property
    def key_heads(self) -> int:
        """Heads of keys, and of values."""
        return self.kv_heads or self.heads

    @property
    def mixed(self) -> int:
        """Numbers that attention gives to the output projection: of all heads together."""
        return self.heads * self.head_size

    @property
    def keys(self) -> int:
        """Numbers of all keys of a token, and of its values."""
        return self.key_heads * self.head_size

    @property
    def number_bytes(self) -> int:
        return PRECISIONS[self.precision]

    @property
    def block_parameters(self) -> int:
        """Of one transformer block: q, k, v, o; gate, up, down; two norms; biases of q, k and v."""
        qkv = self.mixed + 2 * self.keys
        reads = qkv + 2 * self.hidden + 2
        return self.dim * reads + self.stream * (self.mixed + self.hidden) + self.qkv_bias * qkv

    @property
    def head_parameters(self) -> int:
        """Of stage 0: embedding, LM head unless it is the embedding, final norm."""
        return self.vocabulary * (self.stream + self.dim * (not self.tied)) + self.dim

    def layers_per_stage(self, stages: int) -> int:
        """Every block stage has equally many, so that neighbours can be blended. Raises ValueError."""
        if stages < 1 or self.layers % stages:
            raise ValueError(f"{self.layers} layers cannot be divided into {stages} equal stages")
        return self.layers // stages

    def stage_parameters(self, stages: int, stage: int) -> int:
        """Of one of the stages 0..`stages`. Raises ValueError."""
        if not 0 <= stage <= stages:
            raise ValueError(f"there is no stage {stage}; stages are 0 to {stages}")
        return self.layers_per_stage(stages) * self.block_parameters if stage else self.head_parameters

    def total_parameters(self) -> int:
        return self.head_parameters + self.layers * self.block_parameters
