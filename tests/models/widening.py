"""A model with a subspace as the plain one that computes the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ftnode.models.fixed_embedding import fixed_table
from ftnode.models.parameters import EMBEDDING
from ftnode.models.stage import Stage


def named(stage: Stage, flat: Tensor) -> dict[str, Tensor]:
    return {name: stage.layout.view(flat, name) for name in stage.layout.entries}


def widened(narrow: Sequence[Stage]) -> list[Stage]:
    """Rows and columns that the narrow stages do not have are zero, or what is fixed of each token."""
    wide = []
    for ours in narrow:
        config = replace(ours.config, subspace=0)
        theirs = Stage(config, ours.stages, ours.index, ours.optimiser, ours.microbatches, str(ours.device))
        theirs.initialise(0, "widened")
        into = named(theirs, theirs.weights)
        for name, weight in named(ours, ours.weights).items():
            into[name].zero_()
            into[name][tuple(slice(size) for size in weight.shape)] = weight
            if name == EMBEDDING:
                into[name][:, ours.config.subspace :] = torch.from_numpy(fixed_table(ours.config).copy())
        wide.append(theirs)
    return wide
