"""How much each donor of a rebuilt stage counts. The swarm and the lab use the same function.

CheckFree ("All is Not Lost: LLM Recovery without Checkpoints", Algorithm 1) weights both neighbours by the squared norm
of their last gradient; its published code takes the plain norm after clipping. Both are here by name, with the
alternatives that the lab compares them with.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, sqrt

WEIGHTINGS = ("squared-norm", "norm", "uniform", "inverse-norm")
MEASURED = ("before-clipping", "after-clipping")


def shares(
    norms_squared: Sequence[float],
    distances: Sequence[int] = (),
    weighting: str = "squared-norm",
    clip: float = float("inf"),
) -> tuple[float, ...]:
    """Shares of the donors, which add up to 1.

    `norms_squared`: of each donor's last committed gradient, before clipping. `distances`: stages between donor and
    lost stage, 1 for a neighbour; a donor counts in inverse proportion to it, which between two donors is linear
    interpolation. `clip`: the norm that gradients are clipped to, where norms after clipping are wanted. By distance
    alone when a norm is zero everywhere, negative or not finite (docs/explanation/protocol.md, section 8).
    """
    if weighting not in WEIGHTINGS:
        raise ValueError(f"weighting is one of {', '.join(WEIGHTINGS)}, not {weighting}")
    near = [1 / distance for distance in distances] or [1.0] * len(norms_squared)
    usable = all(isfinite(norm) and norm >= 0 for norm in norms_squared)
    clipped = [min(norm, clip * clip) for norm in norms_squared]
    if not usable or weighting == "uniform":
        factors = [1.0] * len(clipped)
    elif weighting == "squared-norm":
        factors = clipped
    elif weighting == "norm":
        factors = [sqrt(norm) for norm in clipped]
    else:
        largest = max(clipped)
        factors = [sqrt(largest / norm) if norm > 0 else 0.0 for norm in clipped]
    parts = [factor * weight for factor, weight in zip(factors, near)]
    total = sum(parts)
    if not isfinite(total) or total <= 0:
        parts, total = near, sum(near)
    return tuple(part / total for part in parts)
