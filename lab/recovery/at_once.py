"""Experiment 1 of the recovery lab: lose a stage of a trained model once, rebuild it in every way, and watch the loss.

From one trained model each loss starts anew, on the same data, so that the ways differ in nothing but the weights they
make. Numbers are differences from the undamaged model at the same step, in nats per byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ftnode.lab.recovery.rebuilding import WAYS, Way, rebuild
from ftnode.lab.recovery.whole_model import Kept, Size, WholeModel, version_of
from ftnode.lab.results.cut_off_work import Slice
from ftnode.models.data import Corpus
from ftnode.models.encoding import decode, encode

SHADOW_AGES = (10, 50)
CHECKED_EVERY = 10
"""Steps of training between two looks at the clock."""


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


def measure(
    size: Size, corpus: Corpus, seed: int, plan: Plan, device: str = "cpu", slice_: Slice | None = None
) -> dict[str, Any]:
    """`rows`: age, lost stages, way, excess after 0, 20, ... steps; `undamaged`: its loss at those steps by age.

    With a `slice_` it goes on where its file says, and raises CutOff, with the file written, when the time is up.
    """
    model = WholeModel(size, corpus, seed, device, plan.swap)
    cut = slice_ or Slice()
    rows: list[dict[str, Any]] = []
    undamaged: dict[str, list[float]] = {}
    begun = cut.load(f"{size} {plan}, seed {seed}, text {corpus.sha256}")
    begun = begun or {"rows": rows, "undamaged": undamaged, "kept": None, "older": []}
    rows, undamaged = begun["rows"], begun["undamaged"]
    older = {age: Kept.from_plain(plain) for age, plain in begun["older"]}
    if begun["kept"] is not None:
        model.restore(Kept.from_plain(begun["kept"]))
    done = {(row["age"], tuple(row["lost"]), row["way"]) for row in rows}

    def check(kept: Callable[[], Kept]) -> None:
        cut.check(f"step {model.step}, {len(rows)} losses watched", lambda: {
            "rows": rows, "undamaged": undamaged, "kept": kept().as_plain(),
            "older": [(age, one.as_plain()) for age, one in older.items()],
        })  # fmt: skip

    for age in plan.ages:
        if age < model.step:
            continue
        _train_to(model, age, older, check)
        kept = model.keep()
        if str(age) not in undamaged:
            undamaged[str(age)] = _watch(model, kept, age, plan.after)
        clean = undamaged[str(age)]
        for lost in plan.losses:
            for name, damage in _ways(plan, older).items():
                if (age, lost, name) in done:
                    continue
                model.restore(kept)
                shares = _damage(model, lost, damage)
                seen = _watch(model, None, age, plan.after)
                excess = [value - reference for value, reference in zip(seen, clean)]
                rows.append({"age": age, "lost": list(lost), "way": name, "excess": excess, "donors": shares})
                check(lambda kept=kept: kept)  # type: ignore[misc]
        model.restore(kept)
        older.clear()
    return {"size": size.name, "seed": seed, "swap": plan.swap, "after": list(plan.after), "undamaged": undamaged,
            "rows": rows, "parameters": size.config.total_parameters()}  # fmt: skip


def is_of(plan: Plan, found: Mapping[str, Any]) -> bool:
    """Whether a result is of this plan: plans of the same number may differ from mode to mode."""
    wanted = {(age, lost, way) for age in plan.ages for lost in plan.losses for way in plan.ways}
    rows = {(row["age"], tuple(row["lost"]), row["way"]) for row in found["rows"]}
    return (bool(found["swap"]), tuple(found["after"])) == (plan.swap, plan.after) and wanted <= rows


def _train_to(model: WholeModel, age: int, older: dict[int, Kept], check: Callable[[Callable[[], Kept]], None]) -> None:
    """Train until step `age`; into `older` what the model was SHADOW_AGES steps before, where that was passed."""
    while model.step < age:
        if age - model.step in SHADOW_AGES:
            older[age - model.step] = model.keep()
        model.train(model.step + 1)
        if model.step % CHECKED_EVERY == 0:
            check(model.keep)


def _ways(plan: Plan, older: dict[int, Kept]) -> dict[str, Way | Kept]:
    ways: dict[str, Way | Kept] = {name: WAYS[name] for name in plan.ways}
    if plan.shadows:
        ways |= {f"shadow of {age} steps ago": kept for age, kept in sorted(older.items())}
    return ways


def _damage(model: WholeModel, lost: tuple[int, ...], damage: Way | Kept) -> list[list[list[float]]]:
    """Rebuild all that are lost; per stage its donors with their shares."""
    shares: list[list[list[float]]] = []
    for stage in lost:
        if isinstance(damage, Kept):
            become_shadow(model, stage, damage)
            shares.append([])
        else:
            rebuilt = rebuild(model, stage, damage, lost=frozenset(lost), draw=stage)
            shares.append([[float(donor), share] for donor, share in rebuilt.donors])
    return shares


def become_shadow(model: WholeModel, stage: int, kept: Kept) -> None:
    """The stage's weights as `kept` has them, rounded as a shadow is, and new moments."""
    held = model.stages[stage]
    n = held.layout.size
    held.moments.zero_()
    held.weights.copy_(decode(encode(kept.states[stage][:n], "bfloat16"), "bfloat16", n))
    held.become(version_of(model.step), 0, 1.0, 0.0)


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
