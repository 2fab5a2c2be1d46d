"""CheckFree's residual: how far what takes a lost stage's place is from what was lost, as functions of its input.

"All is Not Lost: LLM Recovery without Checkpoints", section 4.4, bounds what a loss does to convergence by
E‖ω₁f(k+1) + ω₂f(k−1) − f(k)‖². There f is what a stage adds to the residual stream, and ω the shares of the donors. The
method itself averages weights, not functions, so that what really stands there afterwards is measured beside it. The
expectation is the mean over tokens of held-out windows, with the input that stage k has before the loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ftnode.lab.recovery.rebuilding import choose_donors
from ftnode.lab.recovery.whole_model import VALIDATION_SEED, WholeModel
from ftnode.models.data import validation_batch
from ftnode.protocol.step.routes import route
from ftnode.protocol.words.donor_shares import shares

HEAD = 0


@dataclass(frozen=True, slots=True)
class Work:
    """Of one block stage before its loss: its input and what it adds to it, both [B, T, S]."""

    input_bts: Tensor
    added_bts: Tensor


@dataclass(frozen=True, slots=True)
class Residual:
    """Mean squared norms per token. `own`: of what the lost stage added. `averaged`: section 4.4's, by the shares that
    Algorithm 1 gives. `rebuilt`: of the difference that what stands there now makes."""

    own: float
    averaged: float
    rebuilt: float


def works(model: WholeModel, stages: tuple[int, ...]) -> dict[int, Work]:
    """Of those of `stages` that are block stages on the route, on the first batch of the validation."""
    size = model.size
    windows = validation_batch(model.corpus, VALIDATION_SEED, 0, size.sequences, size.config.context)
    tokens_bt = torch.from_numpy(windows[:, :-1]).long()
    found: dict[int, Work] = {}
    x = tokens_bt
    for visit, index in enumerate(route(size.stages, 0, False, model.omitted)[:-1]):
        made = model.stages[index].forward(((0, 0), 0, visit), x, False, None)
        if index != HEAD and index in stages:
            found[index] = Work(x, made - x)
        x = made
    return found


def residual_of(model: WholeModel, stage: int, work: Work, lost: frozenset[int]) -> Residual:
    """Of a stage that was lost together with `lost`, after it was rebuilt; of one that is left out, which adds nothing
    now. The donors must be as they were at the loss."""
    chosen = choose_donors("neighbours", stage, model.size.stages, lost | {stage}, swap=False)
    norms = [model.stages[near].norm_squared for near, _ in chosen]
    given = shares(norms, [distance for _, distance in chosen])
    averaged = -work.added_bts
    for (near, _), share in zip(chosen, given):
        averaged = averaged + share * _added(model, near, work)
    now = torch.zeros_like(work.added_bts) if stage in model.omitted else _added(model, stage, work)
    return Residual(_size(work.added_bts), _size(averaged), _size(now - work.added_bts))


def _added(model: WholeModel, stage: int, work: Work) -> Tensor:
    made = model.stages[stage].forward(((0, 0), 0, stage), work.input_bts, False, None)
    return made - work.input_bts


def _size(x_bts: Tensor) -> float:
    return float(x_bts.square().sum(-1).mean())
