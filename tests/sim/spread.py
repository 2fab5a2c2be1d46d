"""Copies lie at other sites than what they are of, as an onlooker sees it (I9)."""

from __future__ import annotations

from ftnode.protocol.words.types import HEAD
from ftnode.protocol.words.view import View
from tests.sim.checks import Violation
from tests.sim.host import Host
from tests.sim.world import World

SETTLED_STEPS = 5
"""Begun in a view: a keeper asks for its first copy at the first of them."""


def kept_elsewhere(world: World, view: View, stage: int, site: str) -> list[Host]:
    """Live members at other sites that hold the stage, or a copy of it."""
    members = [host for host in world.live() if host.peer in view.members() and world.site(host.peer.id) != site]
    return [host for host in members if host.peer in view.holders[stage] or stage in host.copies]


def check_spread(world: World, view: View) -> None:
    """I9: no site has the head and all copies of it, where somebody else could have kept one for long enough."""
    begun = {begin.step for begin in world.ledger.begun.values() if _of(view, begin.lineage, begin.view)}
    members = [host for host in world.live() if host.peer in view.members()]
    sites = {world.site(host.peer.id) for host in members}
    if len(begun) < SETTLED_STEPS or not world.settings.head_every or len(members) < len(view.members()):
        return
    for site in sorted(sites):
        if len(sites) > 1 and not kept_elsewhere(world, view, HEAD, site):
            raise Violation("I9", f"{site} has the head and all of its copies, and {sites - {site}} nothing")


def _of(view: View, lineage: str, number: int) -> bool:
    return (lineage, number) == (view.lineage.id, view.number)
