"""A compute process that lies (lies.py): it does the work, and gives something else to the sums of its groups, or to
the next stage.

The environment says how: FTNODE_LIE, and FTNODE_LIE_FROM, the first step of which it lies.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from torch import Tensor

from ftnode.lab.hostile.lies import LIES, TENSOR_LIES
from ftnode.models.boundary import PLAIN, SCALE_MAX, ActivationCodec
from ftnode.node.compute.group_gradients import GroupGradients
from ftnode.node.compute.process import main


def lying(way: str) -> None:
    """From now on, in this process."""
    honest, before, begins = GroupGradients.open, dict[int, Tensor](), int(os.environ.get("FTNODE_LIE_FROM", "0"))

    def opened(self: GroupGradients, stage: int, held: Any, attempt: Any, count: int) -> dict[str, Any]:
        answer = honest(self, stage, held, attempt, count)
        if count and not answer["fault"]:
            gradient = self._place(stage)
            true = gradient.clone()
            if held.version.step >= begins:
                LIES[way](gradient, before.get(stage, true))
            before[stage] = true
        return answer

    GroupGradients.open = opened  # type: ignore[method-assign]


def lying_onward(way: str) -> None:
    """From now on, in this process: of activations."""
    honest = ActivationCodec.encode

    def encode(self: ActivationCodec, x_bts: Tensor, *rest: Any, **more: Any) -> None:
        lie, kind = x_bts.detach().clone(), PLAIN.get(self._numbers.encoding)
        TENSOR_LIES[way](lie, SCALE_MAX / 2 if kind is None else torch.finfo(kind).max)
        honest(self, lie, *rest, **more)

    ActivationCodec.encode = encode  # type: ignore[method-assign]


if __name__ == "__main__":
    named = os.environ["FTNODE_LIE"]
    (lying_onward if named in TENSOR_LIES else lying)(named)
    sys.exit(main())
