"""Experiment 1 of the recovery lab: lose a stage of a trained model once, rebuild it in every way, and watch the loss.

From one trained model each loss starts anew, on the same data, so that the ways differ in nothing but the weights they
make. Numbers are differences from the undamaged model at the same step, in nats per byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ftnode.lab.rebuilding import WAYS, Way, rebuild
from ftnode.lab.whole_model import Kept, Size, WholeModel, version_of
from ftnode.models.data import Corpus
from ftnode.models.encoding import decode, encode

SHADOW_AGES = (10, 50)


@dataclass(frozen=True, slots=True)
class Plan:
    """`ages`: steps of training before a loss, ascending. `losses`: the stages lost together, each of them once.
    `after`: steps after a loss at which the loss is taken, ascending from 0. `swap`: train on swapped routes."""

    ages: tuple[int, ...]
    losses: tuple[tuple[int, ...], ...]
    ways: tuple[str, ...]
    after: tuple[int, ...]
    swap: bool = False
    shadows: bool = True


def measure(size: Size, corpus: Corpus, seed: int, plan: Plan, device: str = "cpu") -> dict[str, Any]:
    """`rows`: age, lost stages, way, excess after 0, 20, ... steps; `undamaged`: its loss at those steps by age."""
    model = WholeModel(size, corpus, seed, device, plan.swap)
    rows: list[dict[str, Any]] = []
    undamaged: dict[str, list[float]] = {}
    for age in plan.ages:
        older = _train_to(model, age)
        kept = model.keep()
        clean = _watch(model, kept, age, plan.after)
        undamaged[str(age)] = clean
        for lost in plan.losses:
            for name, damage in _ways(plan, older).items():
                model.restore(kept)
                shares = _damage(model, lost, damage)
                seen = _watch(model, None, age, plan.after)
                excess = [value - reference for value, reference in zip(seen, clean)]
                rows.append({"age": age, "lost": list(lost), "way": name, "excess": excess, "donors": shares})
        model.restore(kept)
    return {"size": size.name, "seed": seed, "swap": plan.swap, "after": list(plan.after), "undamaged": undamaged,
            "rows": rows, "parameters": size.config.total_parameters()}  # fmt: skip


def _train_to(model: WholeModel, age: int) -> dict[int, Kept]:
    """Train until step `age`; what the model was SHADOW_AGES steps before, where that was passed."""
    older: dict[int, Kept] = {}
    while model.step < age:
        if age - model.step in SHADOW_AGES:
            older[age - model.step] = model.keep()
        model.train(model.step + 1)
    return older


def _ways(plan: Plan, older: dict[int, Kept]) -> dict[str, Way | Kept]:
    ways: dict[str, Way | Kept] = {name: WAYS[name] for name in plan.ways}
    if plan.shadows:
        ways |= {f"shadow of {age} steps ago": kept for age, kept in sorted(older.items())}
    return ways


def _damage(model: WholeModel, lost: tuple[int, ...], damage: Way | Kept) -> list[list[list[float]]]:
    """Rebuild all that are lost; per stage its donors with their shares."""
    shares: list[list[list[float]]] = []
    for stage in lost:
        held = model.stages[stage]
        if isinstance(damage, Kept):
            n = held.layout.size
            held.buffers.zero_()
            held.weights.copy_(decode(encode(damage.states[stage][:n], "bfloat16"), "bfloat16", n))
            held.become(version_of(model.step), 0, 1.0, 0.0)
            shares.append([])
        else:
            rebuilt = rebuild(model, stage, damage, lost=frozenset(lost), draw=stage)
            shares.append([[float(donor), share] for donor, share in rebuilt.donors])
    return shares


def _watch(model: WholeModel, kept: Kept | None, age: int, after: tuple[int, ...]) -> list[float]:
    """Validation losses now and `after` more steps, from `kept` or as the model is; ends somewhere else."""
    if kept is not None:
        model.restore(kept)
    seen = []
    for steps in after:
        while model.step < age + steps:
            model.train(model.step + 1)
        seen.append(model.validate())
    return seen
