"""Who may be hit: where the run stands, as somebody who sees everything knows it."""

from __future__ import annotations

from ftnode.protocol.words.view import View
from tests.sim.checks import hopeless
from tests.sim.host import Host
from tests.sim.world import World


def best_view(world: World) -> View | None:
    """The view of the lineage that committed most, as any live host knows it."""
    views = [host.view for host in world.hosts if host.alive and host.view is not None]
    if not views:
        return None
    commits = world.ledger.commits
    return max(views, key=lambda view: (max(commits.get(view.lineage.id, {0: None})), view.number))


def holders(world: World, view: View) -> dict[int, list[Host]]:
    """Per stage, the live hosts that hold it in the view and have weights."""
    known = {host.peer: host for host in world.hosts if host.alive}
    newest = max(world.ledger.commits.get(view.lineage.id, {0: None}))

    def has(host: Host, stage: int) -> bool:
        weights = host.compute.weights.get(stage)
        return weights is not None and weights.version.step >= newest - 1

    return {
        stage: [known[peer] for peer in group if peer in known and has(known[peer], stage)]
        for stage, group in enumerate(view.holders)
    }


def would_halt(world: World, losing: set[str]) -> bool:
    """Would the run halt by design without the weights of these (PeerIds)?"""
    view = best_view(world)
    if view is None or world.ledger.top_commit() == 0:
        return False
    lost = {stage for stage, group in holders(world, view).items() if not [h for h in group if h.peer.id not in losing]}
    members = {host for host in world.hosts if host.alive and host.peer in view.members()}
    copied = {stage for host in members if host.peer.id not in losing for stage in host.copies}
    return hopeless(lost - copied, world.settings.stages)
