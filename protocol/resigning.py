"""Giving stages up: said to the leader until a view without us in them comes.

A peer that leaves goes on working until others have learnt what only it holds; then a view between two steps goes on
without it. A peer that lost its weights has nothing to hand over.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from ftnode.protocol.messages import Resign

if TYPE_CHECKING:
    from ftnode.protocol.participant import Participant

NOT_LENT = "could not rebuild"
"""How the reason begins when no donor gave what the plan says."""


class Resigning:
    """What this peer wants to give up in the present view."""

    def __init__(self, core: Participant) -> None:
        self.core = core
        self._resign: Resign | None = None

    @property
    def hands_over(self) -> bool:
        """We leave, and wait for those who learn what we hold."""
        return self._resign is not None and self._resign.hand_over

    def start(self, stages: tuple[int, ...], reason: str, leaving: bool, hand_over: bool = False) -> None:
        """`leaving`: the whole peer goes, its weights stay a while; `hand_over`: not before others have them."""
        view, old = self.core.view, self._resign
        if view is not None and self.core.member:
            if old is not None:
                stages, leaving = tuple(sorted({*old.stages, *stages})), leaving or old.leaving
            self._resign = Resign(view.lineage.id, view.number, stages, leaving, hand_over, reason[:500])
            self.say()

    def at_once(self) -> None:
        """Nobody takes over what we hold: go without."""
        if self._resign is not None:
            self._resign = replace(self._resign, hand_over=False)
            self.say()

    def take_back(self) -> None:
        """We stay, with all that we hold."""
        self._resign = None

    def on_view(self, still: Collection[int]) -> None:
        """`still`: the stages that we have kept; when none of those given up is among them, it is done. Who leaves and
        is still a member leads."""
        resign = self._resign
        if resign is not None and not set(resign.stages) & set(still) and not (resign.leaving and self.core.member):
            self._resign = None

    def say(self) -> None:
        core, resign = self.core, self._resign
        if resign is None or core.view is None:
            return
        stages = core.mine if resign.leaving else resign.stages
        named = replace(resign, lineage=core.view.lineage.id, view=core.view.number, stages=stages)
        core.send(core.view.leader, named)
