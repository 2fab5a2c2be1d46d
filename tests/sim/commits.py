"""A commit, seen by an onlooker: is everybody who must be ready for it?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftnode.protocol.words.messages import Begin
from ftnode.protocol.words.types import Attempt, Peer
from tests.sim.checks import Violation

if TYPE_CHECKING:
    from tests.sim.world import World


def check_commit(world: World, begin: Begin) -> None:
    """I1, seen from outside: no live holder of the committed attempt's stages is short of its reduced gradient."""
    view, base = world.ledger.views[begin.lineage, begin.view], begin.base
    fresh = {(plan.stage, plan.peer) for plan in begin.installs}
    for stage, group in enumerate(view.holders):
        for peer in group:
            host = next(h for h in world.hosts if h.peer == peer)
            weights = host.compute.weights.get(stage)
            if peer.id in world.lying or not host.alive or base.step == 0 or begin.skipped or weights is None:
                continue
            if host.view is None or host.view.lineage.id != begin.lineage:
                continue
            took_part = host.working == base.attempt and _held(world, stage, peer, begin.lineage, base.attempt)
            if (stage, peer) in fresh and not took_part:
                continue
            reduction = host.compute.reduced.get(stage)
            done = reduction is not None and reduction.attempt == base.attempt and reduction.step == base.step
            if weights.version != base and not done:
                raise Violation("I1", f"{base} is committed but {peer} has stage {stage} at {weights} {reduction}")


def _held(world: World, stage: int, peer: Peer, lineage: str, attempt: Attempt) -> bool:
    """Was it a holder of the stage when the attempt began?"""
    view = world.ledger.views.get((lineage, attempt.view))
    return view is None or peer in view.holders[stage]
