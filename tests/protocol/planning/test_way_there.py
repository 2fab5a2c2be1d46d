"""The way from one layout to another by changes that a node can make."""

from __future__ import annotations

import pytest

from ftnode.protocol.planning.costs import Costs, Risk
from ftnode.protocol.planning.search import best_layout
from tests.protocol.planning.growing import unequal
from tests.protocol.planning.way_there import alike, way


@pytest.mark.parametrize("seed", range(6))
def test_from_one_who_holds_all_to_the_best_layout(seed: int) -> None:
    swarm = unequal(seed)
    costs = Costs(swarm, Risk(0.0, 0.0, (0.0,) * len(swarm.sizes)))
    best = best_layout(swarm)
    assert best is not None
    there = way(swarm, costs, (("p0",),) * len(swarm.sizes), best.holders)
    assert there.arrives and alike(there.holders, best.holders)
    assert there.costs[-1] <= there.costs[0] and len(there.costs) - 1 <= 20
