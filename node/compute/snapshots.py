"""Snapshots on the side of the tensors: from a stage into memory that the node writes down, and back from the disk."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ftnode.models.faults import DiskUnreadable, Misuse
from ftnode.models.stage import Stage, StageVersion
from ftnode.models.state_plan import PARTS, StatePlan
from ftnode.models.tensors import as_bytes
from ftnode.node.compute.pinned_places import PinnedPlaces
from ftnode.node.snapshots.format import KeptSnapshot, SnapshotError, Unreadable
from ftnode.node.snapshots.store import check_fits, read_part, read_snapshot


class SnapshotCopies:
    """`places`: None when this node keeps no snapshots."""

    def __init__(self, places: PinnedPlaces | None) -> None:
        self._places = places

    def copy(self, held: Stage, step: int | None) -> dict[str, Any]:
        """The stage's state into its place; it stays as it is until the next copy. `step`: None for
        whatever is here. Raises Misuse."""
        if self._places is None:
            raise Misuse("this node keeps no snapshots", held.index)
        if held.version is None or step not in (None, held.version.step):
            raise Misuse(f"the weights here are of step {held.version and held.version.step}, not {step}", held.index)
        started = time.perf_counter()
        state = held.state("all").detach()
        self._places.place(held.index).copy_(state)
        version = held.version
        return {
            "version": [version.step, version.commit, list(version.attempt)],
            "norm_squared": held.norm_squared,
            "rate_factor": held.rate_factor,
            "step_count": held.updates,
            "seconds": time.perf_counter() - started,
        }

    def release(self, stage: int) -> None:
        """The memory of its copy may be given back from now on. Raises Misuse."""
        if self._places is not None:
            self._places.let_go(stage)


def load_snapshot(
    stage: Stage, plan: StatePlan, folder: Path, version: StageVersion, progress: Callable[[], None] = lambda: None
) -> KeptSnapshot:
    """Make `stage` what the snapshot in `folder` holds. Raises Misuse: it is damaged, or of something else, and
    DiskUnreadable where that cannot be told now; the stage is worth nothing then. `progress`: as of `read_part`."""
    try:
        kept = read_snapshot(folder)
        found = kept.version
        if (
            StageVersion(found.step, found.commit, (found.attempt.view, found.attempt.n)) != version
            or kept.stage != stage.index
        ):
            raise SnapshotError(
                f"{folder} is stage {kept.stage} of step {found.step} ({found.commit[:8]}), not stage {stage.index} of "
                f"step {version.step} ({version.commit[:8]})"
            )
        check_fits(kept, plan)
        start = 0
        for part in PARTS:
            numbers = plan.numbers(stage.index, part)
            _read_into(stage.state("all")[start : start + numbers], kept, part, progress)
            start += numbers
    except Unreadable as error:
        raise DiskUnreadable(str(error), stage.index) from None
    except SnapshotError as error:
        raise Misuse(str(error), stage.index) from None
    state = kept.index.state
    stage.become(version, state.updates, state.rate_factor, state.norm_squared)
    return kept


def _read_into(numbers: Tensor, kept: KeptSnapshot, part: str, progress: Callable[[], None]) -> None:
    """From the disk to where the numbers lie; through host memory when that is a device."""
    if numbers.device.type == "cpu":
        read_part(kept, part, as_bytes(numbers).cast("B"), progress=progress)
        return
    host = torch.empty(numbers.shape, dtype=numbers.dtype)
    read_part(kept, part, as_bytes(host).cast("B"), progress=progress)
    with torch.no_grad():
        numbers.copy_(host)
