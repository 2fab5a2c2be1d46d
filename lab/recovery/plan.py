"""What the recovery lab runs, by how long it may take: `quick` in CI, `default`, `full`.

A run is named by what it depends on, so that the modes share results and a longer mode goes on from a shorter one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ftnode.lab.recovery.at_once import Plan
from ftnode.lab.recovery.runs import Policy
from ftnode.lab.recovery.whole_model import SIZES

MODES = ("quick", "default", "full")
WARM_UPS = 4
"""A run is so many times as long as its warm-up, at least."""
REFERENCE_FACTOR = 1.25
"""The run without failures goes on for longer, so that a policy that beats it can be seen to."""

NONE = Policy("no failure")
SWAPPED = Policy("no failure, swapped", swap=True)
CHECKFREE = Policy("CheckFree", way="squared-norm")
CHECKFREE_PLUS = Policy("CheckFree+", way="partner", swap=True)
SHADOW = Policy("shadow 10", way="squared-norm", shadow_every=10)
MAIN = (Policy("random", way="random"), Policy("previous", way="previous"), CHECKFREE, CHECKFREE_PLUS, SHADOW)
ALTERNATIVES = (
    *(Policy(f"checkpoint {every}", checkpoint_every=every) for every in (10, 50, 100)),
    Policy("redundant", redundant=True),
    replace(SHADOW, name="shadow 50", shadow_every=50),
)
ABLATIONS = (
    Policy("CheckFree as published", way="norm-after-clipping"),
    replace(CHECKFREE, name="rate 1.0", rate_factor=1.0),
    replace(CHECKFREE, name="rate 1.2", rate_factor=1.2),
    replace(CHECKFREE, name="optimiser blended", optimiser="blended"),
    replace(CHECKFREE, name="optimiser second moment", optimiser="second-moment"),
    replace(CHECKFREE, name="plain norm", way="norm"),
    replace(CHECKFREE, name="squared, after clipping", way="squared-norm-after-clipping"),
    replace(CHECKFREE, name="inverse norm", way="inverse-norm"),
    replace(CHECKFREE, name="uniform", way="uniform"),
    replace(SHADOW, name="shadow 10, with moments", shadow_part="all"),
    replace(SHADOW, name="shadow 10, 8 bits", shadow_encoding="int8"),
)
_HOLD = Policy(
    "hold", way="uniform", optimiser="second-moment", settle_steps=60, settle_factor=0.0, hold_above=0.3,
    boost_steps=60, boost_factor=2.0,
)  # fmt: skip
CANDIDATES = (
    _HOLD,
    replace(_HOLD, name="hold, random", way="random", optimiser="fresh"),
    Policy("gentle", way="uniform", optimiser="second-moment"),
    replace(_HOLD, name="hold, no boost", boost_steps=0, boost_factor=1.0),
    replace(CHECKFREE, name="CheckFree, hold", settle_steps=20, settle_factor=0.0, hold_above=0.3),
    replace(CHECKFREE_PLUS, name="CheckFree+, hold", settle_steps=20, settle_factor=0.0, hold_above=0.3),
    replace(CHECKFREE_PLUS, name="CheckFree+, 4th steps", swap_every=4),
    replace(CHECKFREE_PLUS, name="CheckFree+, 8th steps", swap_every=8),
)
"""Rules beyond the paper's that cost nothing in fault-free time. gentle: the rebuilt stage takes the neighbours' second
moments and no first ones. hold: the survivors stand still while the training loss is 0.3 nats above what it was."""
OTHER_CANDIDATES = (
    replace(CANDIDATES[2], name="gentle, settle 20 at 0", settle_steps=20, settle_factor=0.0),
    replace(CANDIDATES[2], name="half blend", way="half-blend"),
    replace(CANDIDATES[2], name="random outputs", way="blend-random-outputs"),
    replace(CANDIDATES[2], name="identity", way="identity"),
    # Nothing is lost in this one, but the survivors settle: what a lower rate alone does to the loss.
    Policy(
        "control: settle 20 at 0", way="uniform", shadow_every=1, shadow_encoding="raw", shadow_part="all",
        settle_steps=20, settle_factor=0.0,
    ),
)  # fmt: skip
CLIP = 0.1
"""At the sizes' own 1.0 hardly a step after the warm-up is clipped: norms are about 0.4 in the first stage, 0.05 to 0.3
in the others. At this the first stage always is, and the others in a good part of the steps."""
CLIPPED_NONE = replace(NONE, name="no failure, clip 0.1", clip=CLIP)
CLIPPED = (
    CLIPPED_NONE,
    replace(CHECKFREE, name="squared norm, clip 0.1", clip=CLIP),
    replace(CHECKFREE, name="norm after clipping, clip 0.1", way="norm-after-clipping", clip=CLIP),
)
WAYS = (
    "random", "previous", "uniform", "norm", "squared-norm", "inverse-norm", "norm-after-clipping", "identity",
    "half-blend", "blend-random-outputs",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Runs:
    """All `policies` under schedules of `rate` times `scale_rates`' common factor (see failures.scale_for)."""

    rate: str
    scale_rates: tuple[str, ...]
    policies: tuple[Policy, ...]
    losing: str = "all"
    """Which block stages fail: all, or the middle ones."""


@dataclass(frozen=True, slots=True)
class Mode:
    """What is run, in this order; seeds in the outer loop of each part."""

    size: str
    seeds: tuple[int, ...]
    iterations: int
    validate_every: int
    at_once: tuple[tuple[str, Plan], ...]
    """(size, plan)."""
    runs: tuple[Runs, ...]


def mode(name: str, size: str | None = None, seeds: tuple[int, ...] | None = None) -> Mode:
    """Raises KeyError for a name that is none of MODES."""
    return {"quick": _quick, "default": _default, "full": _full}[name](size, seeds)


def _quick(size: str | None, seeds: tuple[int, ...] | None) -> Mode:
    chosen = size or "mini"
    plan = Plan((100,), ((1,), (3,), (2, 3)), ("random", "previous", "uniform", "squared-norm"), (0, 10), shadows=False)
    policies = (*MAIN, ALTERNATIVES[0])
    return Mode(
        chosen, seeds or (0,), _long_enough(100, chosen), 10, ((chosen, plan),), (Runs("16%", ("16%",), policies),)
    )


def _long_enough(iterations: int, size: str) -> int:
    """Nothing is lost while a model warms up."""
    return max(iterations, WARM_UPS * SIZES[size].warmup_steps) if size in SIZES else iterations


def _default(size: str | None, seeds: tuple[int, ...] | None) -> Mode:
    chosen = size or "tiny"
    plan = Plan((800,), ((1,), (2,), (4,), (6,), (3, 4)), WAYS, (0, 20, 40))
    swapped = replace(
        plan, losses=((1,), (2,), (6,)), ways=("random", "partner", "squared-norm"), swap=True, shadows=False
    )
    return Mode(
        chosen, seeds or (0, 1, 2), _long_enough(800, chosen), 20,
        ((chosen, _fit(plan, chosen)), (chosen, _fit(swapped, chosen))),
        (Runs("16%", ("16%",), MAIN),),
    )  # fmt: skip


def _full(size: str | None, seeds: tuple[int, ...] | None) -> Mode:
    """The default's, experiments 3, 4 and 6 under its schedules; three higher rates; older, deeper, wider models.

    Plans of experiment 1 are known by their number: a new one comes last.
    """
    base = _default(size, seeds)
    rates = ("5%", "10%", "16%")
    few = ("random", "previous", "uniform", "squared-norm", "inverse-norm", "identity")
    older = Plan((200, 3200), ((2,), (4,)), few, (0, 20, 40))
    everything = Plan((800,), ((1,), (2,), (3,), (4,), (5,), (6,), (2, 3), (2, 3, 4, 5)), WAYS, (0, 20, 40, 80))
    other = Plan((800,), ((2,), (4,)), few, (0, 20, 40))
    many = Plan((800,), ((2, 4), (1, 2, 4, 5, 6)), ("random", "uniform", "squared-norm"), (0, 20, 40))
    sizes = (("deep", other), ("wide", other)) if base.size == "tiny" else ()
    return replace(
        base,
        at_once=(
            *base.at_once, (base.size, _fit(older, base.size)), *sizes, (base.size, _fit(everything, base.size)),
            (base.size, _fit(many, base.size)),
        ),
        runs=(
            *base.runs,
            Runs("16%", ("16%",), (SWAPPED, *ALTERNATIVES)),
            Runs("16%", ("16%",), CANDIDATES),
            Runs("16%", ("16%",), (*MAIN[:3], CANDIDATES[2], ABLATIONS[4]), losing="middle"),
            Runs("16%", ("16%",), (*ABLATIONS, *OTHER_CANDIDATES)),
            Runs("10%", rates, (*MAIN, ALTERNATIVES[0], ALTERNATIVES[1])),
            Runs("16%", rates, MAIN),
            Runs("5%", rates, MAIN),
            Runs("16%", ("16%",), CLIPPED),
        ),
    )  # fmt: skip


def _fit(plan: Plan, size: str) -> Plan:
    """Losses of stages that the model has; `small` has four."""
    stages = 4 if size == "small" else 6
    return replace(plan, losses=tuple(lost for lost in plan.losses if max(lost) <= stages))
