"""What the node tells its compute process at start. No torch here: the node imports this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from ftnode.models.config import PRECISIONS, ModelConfig
from ftnode.models.state_plan import StatePlan
from ftnode.protocol.manifest.boundary import ENCODINGS, BoundaryBytes

CHUNK_BYTES_MAX: Final = 4 << 20
PRODUCTS: Final = ("", "float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class ComputeConfig:
    """Model, optimiser and batch of the manifest; device, arena and backend of this node. Raises ValueError."""

    dim: int
    heads: int
    layers: int
    context: int
    hidden: int
    stages: int
    """Block stages S; the head is stage 0 on top of them."""
    microbatches: int
    sequences: int
    """Per microbatch."""
    steps: int
    learning_rate: float
    slot_bytes: int
    slots: int
    vocabulary: int = 256
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    seed: int = 0
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    warmup_steps: int = 0
    decay: str = "cosine"
    minimum_factor: float = 0.1
    clip: float = 1.0
    optimiser: str = "adam"
    """Its kind."""
    matrix_learning_rate: float = 0.0
    momentum: float = 0.95
    subspace: int = 0
    """Coordinates that blocks write to and that travel; 0: all of dim."""
    kv_heads: int = 0
    head_dim: int = 0
    tied: bool = False
    qkv_bias: bool = False
    rope_scaling: str = "none"
    rope_factor: float = 1.0
    rope_original: int = 0
    rope_low: float = 0.0
    rope_high: float = 0.0
    train: str = "all"
    lora: int = 0
    lora_alpha: int = 0
    """As models/config.py has them, from kv_heads on."""
    precision: str = "float32"
    """Of weights, gradients and moments."""
    boundary: str = "float32"
    """Encoding of activations that travel. float32 and float64 only with this precision."""
    boundary_gradients: str = ""
    """Encoding of the gradients of these; empty: as theirs."""
    data: str = ""
    """Path of a text file or folder; empty: the Python standard library's sources."""
    data_kind: str = ""
    """shards: `data` is a folder of token shards, which the node fills and checks; else text."""
    corpus: str = ""
    """The hash that the run's corpus must have; empty: whatever there is."""
    device: str = "cpu"
    products: str = ""
    """What matrices are multiplied in: one of PRODUCTS; empty: what the device does best. For tests and labs."""
    threads: int = 1
    live_activations: int = 8
    """Most saved activations per stage."""
    digest_every: int = 0
    """Answer the hash of the weights at commits divisible by this; 0: never."""
    backend: str = "torch"
    """torch, or paced: no model, sleeps for the times below, and says so."""
    forward_seconds: float = 0.0
    backward_seconds: float = 0.0
    memory_share: float = 0.0
    """Of the device, what may be used at most; 0: all that is free."""
    memory_bytes: int = 0
    """The same as an amount, which wins."""
    nice: int = 0
    """Of this process, as of setpriority(2)."""
    compiled: bool = False
    """Blocks are compiled before the process says that it is ready (models/compiled.py)."""
    checks: bool = False
    """Visits of others are done again, which takes a second gradient of each stage."""

    def __post_init__(self) -> None:
        for encoding in self.encodings:
            if encoding not in ENCODINGS:
                raise ValueError(f"boundary must be one of {', '.join(ENCODINGS)}, not {encoding}")
            if encoding in PRECISIONS and encoding != self.precision:
                raise ValueError(f"boundary {encoding} does not go with precision {self.precision}")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, not {self.precision}")
        if self.products not in PRODUCTS:
            raise ValueError(f"products must be one of {', '.join(PRODUCTS[1:])}, not {self.products}")
        if self.backend not in ("torch", "paced"):
            raise ValueError(f"backend must be torch or paced, not {self.backend}")
        if min(self.stages, self.microbatches, self.sequences, self.slots, self.threads, self.live_activations) < 1:
            raise ValueError("stages, microbatches, sequences, slots, threads and live_activations must be at least 1")
        if self.slot_bytes < (needed := self.boundary_bytes.largest):
            raise ValueError(f"a slot of {self.slot_bytes} bytes cannot hold a boundary of {needed}")

    @property
    def encodings(self) -> tuple[str, str]:
        """Of boundary tensors, forward and backward."""
        return self.boundary, self.boundary_gradients or self.boundary

    @property
    def boundary_bytes(self) -> BoundaryBytes:
        """Of sequences × context rows of `stream` numbers, and their tokens."""
        vocabulary = self.vocabulary if self.subspace else 0
        return BoundaryBytes.encoded(self.encodings, self.sequences * self.context, self.stream, vocabulary)

    @property
    def stream(self) -> int:
        """Coordinates of the residual stream that blocks write to, and that travel."""
        return self.subspace or self.dim

    @property
    def chunk_bytes(self) -> int:
        """Of every chunk of state but the last: whole numbers of `precision`, at most a slot."""
        return self.chunk_numbers * self.number_bytes

    @property
    def chunk_numbers(self) -> int:
        return min(self.slot_bytes, CHUNK_BYTES_MAX) // self.number_bytes

    @property
    def number_bytes(self) -> int:
        return PRECISIONS[self.precision]

    @property
    def state_plan(self) -> StatePlan:
        """Of all stages of the run."""
        return StatePlan(ModelConfig.of(self), self.stages, self.optimiser)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def config_from_dict(plain: Mapping[str, Any]) -> ComputeConfig:
    """Raises ValueError for unknown, missing or ill-typed fields."""
    known = {field.name: field.type for field in fields(ComputeConfig)}
    if unknown := sorted(set(plain) - set(known)):
        raise ValueError(f"unknown field {unknown[0]}")
    for name, value in plain.items():
        allowed = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}[str(known[name])]
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            raise ValueError(f"{name} must be {known[name]}, not {type(value).__name__}")
    try:
        return ComputeConfig(**plain)
    except TypeError as error:
        raise ValueError(str(error)) from error
