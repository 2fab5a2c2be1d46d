"""Which fault took which holder, and how its stage came through: for the table of faults and rungs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftnode.protocol.recovery.standing import GOES_ON
from ftnode.protocol.words.types import Rung, spoken_stage
from ftnode.protocol.words.view import View

if TYPE_CHECKING:
    from tests.sim.world import World


class Bereaved:
    """The stages that lost a holder, of one world."""

    __slots__ = ("_left", "causes", "world")

    def __init__(self, world: World) -> None:
        self.world = world
        self.causes: dict[int, str] = {}
        """Stage to the fault that emptied it last."""
        self._left: set[str] = set()
        """Faults that took a holder of a stage that has others, in the newest view."""

    def on_view(self, before: View, view: View) -> None:
        """A view that nobody had seen."""
        world = self.world
        self._left = set()
        for stage, group in enumerate(before.holders):
            over = f"hands {spoken_stage(stage)} over" in view.reason
            lost = set(group) - set(view.holders[stage])
            world.departures += bool(lost) and not over
            taken = [] if over else [host.cause or "moved" for host in world.hosts if host.peer in lost]
            if group and not over and lost == set(group):
                self.causes[stage] = next(host for host in world.hosts if host.peer == group[0]).cause or "moved"
                world.losses += 1
            else:
                self._left.update(taken)
            for peer in set(view.holders[stage]) - set(group):
                if stage in world.by_id[peer.id].compute.weights and stage in self.causes:
                    world.met[self.causes[stage], Rung.KEPT.value] += 1

    def on_stand(self, text: str) -> None:
        """What the leader of the view decided: an attempt goes on without one of several holders, or not."""
        if GOES_ON in text:
            world = self.world
            world.met.update((cause, GOES_ON) for cause in self._left)
        self._left = set()
