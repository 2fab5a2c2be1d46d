"""A compute process that lies (lies.py): it does the work, and gives something else to the sums of its groups.

The environment says how: FTNODE_LIE, and FTNODE_LIE_FROM, the first step of which it lies.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from torch import Tensor

from ftnode.lab.hostile.lies import LIES
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


if __name__ == "__main__":
    lying(os.environ["FTNODE_LIE"])
    sys.exit(main())
