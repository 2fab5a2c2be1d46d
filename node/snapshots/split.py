"""Snapshots for a model that is divided otherwise: a stage of the new run from the layers of old ones.

Tensors are found by their names, which say their layer, not their stage. A new stage whose layers come from several old
ones takes of their counts what errs to the slow side: that of updates is the highest (Adam's correction for young
moments is then too small, never too large), the rate factor the lowest. Norms add up, by the share of each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from math import prod

from ftnode.models.parameters import Entries
from ftnode.models.state_plan import PARTS, StatePlan
from ftnode.node.snapshots.format import (
    KeptSnapshot,
    SnapshotError,
    StageIndex,
    StageState,
    mismatch,
)
from ftnode.node.snapshots.store import part_bytes, read_part, require_optimiser, tensors_of
from ftnode.protocol.words.types import INITIAL_ATTEMPT, Version


def sources_of(kept: Iterable[KeptSnapshot], plan: StatePlan, stage: int) -> list[KeptSnapshot]:
    """Of these snapshots of one step, those that together hold a stage of the other division; none twice.

    Raises SnapshotError that names the first tensor which none of them has, or has otherwise.
    """
    stages = plan.stages
    wanted = {name: shape for name, (_, shape) in plan.entries(stage, "weights").items()}
    chosen: list[KeptSnapshot] = []
    covered: set[str] = set()
    for each in kept:
        names = set(each.index.plan.entries(each.stage, "weights")) & set(wanted)
        if not names <= covered:
            _require_same_kind(each, plan, wanted, names)
            chosen.append(each)
            covered |= names
    missing = next((name for name in wanted if name not in covered), "")
    if missing:
        raise SnapshotError(f"stage {stage} of {stages} cannot be made: nothing here has {missing}")
    if len({each.version.commit for each in chosen}) > 1:
        raise SnapshotError(f"stage {stage} of {stages} cannot be made: its layers are of different commits")
    return chosen


def split(sources: Collection[KeptSnapshot], run: str, plan: StatePlan, stage: int) -> tuple[StageIndex, bytearray]:
    """The new stage, as `write_snapshot` takes it: what it is, and its weights and moments. Reads one old stage at a
    time, and compares its hashes. Raises SnapshotError."""
    state = bytearray(plan.size(stage, "all"))
    start, norm_squared = 0, 0.0
    for part in PARTS:
        entries = plan.entries(stage, part)
        for source in sources:
            _copy_tensors(source, part, entries, memoryview(state)[start:], plan.model.number_bytes)
        start += plan.size(stage, part)
    weights = plan.entries(stage, "weights")
    for source in sources:
        theirs = source.index.plan.entries(source.stage, "weights")
        share = sum(prod(shape) for name, (_, shape) in theirs.items() if name in weights)
        whole = sum(prod(shape) for _, shape in theirs.values())
        norm_squared += source.index.state.norm_squared * share / whole
    states = [source.index.state for source in sources]
    first = next(iter(sources)).index
    index = replace(
        first, run=run, stage=stage, stages=plan.stages, model=plan.model, version=version_in(run, first.version),
        state=StageState(
            norm_squared, min(each.rate_factor for each in states), max(each.updates for each in states)
        ), parts={},
    )  # fmt: skip
    return index, state


def version_in(run: str, version: Version) -> Version:
    """Of the same step in the other run: whoever divides the same snapshots gets the same."""
    commit = hashlib.blake2b(f"{version.commit}/divided for {run}".encode(), digest_size=12).hexdigest()
    return Version(version.step, commit, INITIAL_ATTEMPT)


def _require_same_kind(
    kept: KeptSnapshot, plan: StatePlan, wanted: Mapping[str, tuple[int, ...]], names: Collection[str]
) -> None:
    """The tensors that both have are alike, and so is all that shapes do not show."""
    require_optimiser(kept, plan.optimiser)
    model, theirs = plan.model, kept.index.plan.entries(kept.stage, "weights")
    common = {name: ("", shape) for name, shape in wanted.items() if name in names}
    trouble = mismatch({name: ("", theirs[name][1]) for name in common}, common)
    told = replace(kept.index.model, context=model.context)  # positions have no weights
    if not trouble and told != model:
        differs = [name for name in model.__slots__ if getattr(told, name) != getattr(model, name)]
        trouble = f"model.{differs[0]} is {getattr(told, differs[0])}, not {getattr(model, differs[0])}"
    if trouble:
        raise SnapshotError(f"{kept.folder} does not fit: {trouble}")


def _copy_tensors(source: KeptSnapshot, part: str, entries: Entries, into: memoryview, number_bytes: int) -> None:
    there = tensors_of(source, part)
    common = [name for name in entries if name in there]
    if not common:
        return
    content = memoryview(bytearray(part_bytes(source.index, part)))
    read_part(source, part, content)
    for name in common:
        offset, shape = entries[name]
        length, begin = number_bytes * prod(shape), there[name][2]
        into[number_bytes * offset : number_bytes * offset + length] = content[begin : begin + length]
