"""Settings of an optimiser, the schedule of its rates, and what the rules of an update (update.py) are given."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import cos, isfinite, pi, sqrt
from typing import Final

from torch import Tensor

from ftnode.models.state_plan import KINDS

ADAM: Final = "adam"
DECAYS: Final = ("cosine", "constant")


@dataclass(frozen=True, slots=True)
class OptimiserConfig:
    """Weight decay is outside the moments (Loshchilov & Hutter 2017), times the rate. Raises ValueError."""

    learning_rate: float
    steps: int
    """At which the decay has reached `minimum_factor`."""
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    warmup_steps: int = 0
    decay: str = "cosine"
    minimum_factor: float = 0.1
    clip: float = 1.0
    """Largest norm of one stage's gradient; 0 does not clip."""
    kind: str = "adam"
    """One of KINDS."""
    matrix_learning_rate: float = 0.0
    """Of matrices that Muon updates; 0: `learning_rate`."""
    momentum: float = 0.95
    """Muon's."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "eps"):
            if not (isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ValueError(f"{name} must be a positive number, not {getattr(self, name)}")
        for name in ("beta1", "beta2", "minimum_factor", "momentum"):
            if not 0 <= getattr(self, name) <= 1 or (name != "minimum_factor" and getattr(self, name) == 1):
                raise ValueError(f"{name} must lie between 0 and 1, not {getattr(self, name)}")
        for name in ("weight_decay", "clip", "steps", "warmup_steps", "matrix_learning_rate"):
            if not (isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ValueError(f"{name} must not be negative, not {getattr(self, name)}")
        if self.decay not in DECAYS:
            raise ValueError(f"decay must be one of {', '.join(DECAYS)}, not {self.decay}")
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {self.kind}")


def learning_rate_at(config: OptimiserConfig, step: int) -> float:
    """Adam's, of global step 1, 2, ..."""
    return _scheduled(config.learning_rate, config, step)


def matrix_rate_at(config: OptimiserConfig, step: int) -> float:
    """Muon's."""
    return _scheduled(config.matrix_learning_rate or config.learning_rate, config, step)


def _scheduled(rate: float, config: OptimiserConfig, step: int) -> float:
    """Linear warm-up, then constant or half a cosine down to `minimum_factor`."""
    if step <= config.warmup_steps:
        return rate * step / config.warmup_steps
    if config.decay == "constant":
        return rate
    progress = min(1.0, (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps))
    low = config.minimum_factor
    return rate * (low + (1 - low) * (1 + cos(pi * progress)) / 2)


def clip_factor(config: OptimiserConfig, norm_squared: float) -> float:
    """What to multiply a gradient with, so that its norm is at most `clip`."""
    norm = sqrt(norm_squared)
    return config.clip / norm if 0 < config.clip < norm else 1.0


@dataclass(frozen=True, slots=True)
class Parameter:
    """One named tensor with its gradient and its moments, all of one shape: views of a stage's memory."""

    rule: str
    """By which it is updated, of MOMENTS."""
    weights: Tensor
    gradient: Tensor
    moments: tuple[Tensor, ...]
    parts: tuple[Tensor, ...] = ()
    """Weights of each tensor, where this is several (`joined`); else empty."""

    def decay(self, config: OptimiserConfig, rate: float) -> None:
        """Of matrices and tables; norms do not decay."""
        if config.weight_decay:
            for weights in self.parts or (self.weights,):
                if weights.dim() == 2:
                    weights.mul_(1 - rate * config.weight_decay)


def joined(parameters: Iterable[Parameter]) -> list[Parameter]:
    """Neighbours in memory as one flat parameter, where their rule looks at each number by itself: a card is asked for
    a pass over all of them, and not for thousands of small ones."""
    found: list[Parameter] = []
    for each in parameters:
        last = found[-1] if found else None
        if last is None or not (last.rule == each.rule == ADAM) or not all(map(_follows, _rows(last), _rows(each))):
            found.append(each)
            continue
        weights, gradient, *moments = (_whole(*rows) for rows in zip(_rows(last), _rows(each)))
        parts = (*(last.parts or (last.weights,)), each.weights)
        found[-1] = Parameter(each.rule, weights, gradient, tuple(moments), parts)
    return found


def _rows(parameter: Parameter) -> tuple[Tensor, ...]:
    return parameter.weights, parameter.gradient, *parameter.moments


def _follows(one: Tensor, other: Tensor) -> bool:
    """`other` begins in memory where `one` ends."""
    same = one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    return same and other.storage_offset() == one.storage_offset() + one.numel()


def _whole(one: Tensor, other: Tensor) -> Tensor:
    return one.as_strided((one.numel() + other.numel(),), (1,))


@dataclass(frozen=True, slots=True)
class Turn:
    """Which update this is: of global step `step`, number `count` (from 1) since the stage's moments were zero."""

    step: int
    count: int
    rate_factor: float
    """Of a stage that was rebuilt."""
