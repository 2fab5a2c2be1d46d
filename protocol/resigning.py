"""Giving stages up: said to the leader until a view without us in them comes."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ftnode.protocol.messages import Resign

if TYPE_CHECKING:
    from ftnode.protocol.participant import Participant


class Resigning:
    """What this peer wants to give up in the present view."""

    def __init__(self, core: Participant) -> None:
        self.core = core
        self._resign: Resign | None = None

    def start(self, stages: tuple[int, ...], reason: str, leaving: bool) -> None:
        """`leaving`: the whole peer goes, its weights stay a while."""
        view, old = self.core.view, self._resign
        if view is not None and self.core.member:
            if old is not None:
                stages, leaving = tuple(sorted({*old.stages, *stages})), leaving or old.leaving
            self._resign = Resign(view.lineage.id, view.number, stages, leaving, reason[:500])
            self.say()

    def on_view(self, still: Collection[int]) -> None:
        """`still`: the stages that we have kept; when none of those given up is among them, it is done."""
        if self._resign is not None and not set(self._resign.stages) & set(still):
            self._resign = None

    def say(self) -> None:
        core, resign = self.core, self._resign
        if resign is None or core.view is None:
            return
        message = Resign(core.view.lineage.id, core.view.number, resign.stages, resign.leaving, resign.reason)
        targets = core.view.voters if resign.leaving and core.leader is not None else (core.view.leader,)
        for peer in targets:
            core.send(peer, message)
