"""Applies that come while their stage is being installed: a learner goes along with commits before it has the weights.

They are carried out, in order, as soon as the base that they build on is here.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from ftnode.protocol.effects import Apply, Install

SHELVED_MAX: Final = 16
"""Of one stage. Each keeps a gradient in memory; who falls behind further fetches a newer base."""


class Shelf:
    """By stage: the install under way, and what waits for it."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[Install, deque[Apply]]] = {}

    def begin(self, install: Install) -> None:
        self._waiting[install.plan.stage] = install, deque()

    def install(self, stage: int) -> Install:
        return self._waiting[stage][0]

    def put(self, effect: Apply) -> bool:
        """False when there is no room."""
        applies = self._waiting[effect.stage][1]
        if len(applies) >= SHELVED_MAX:
            return False
        applies.append(effect)
        return True

    def next(self, stage: int) -> Apply | None:
        """The oldest, taken; None when there is none."""
        applies = self._waiting[stage][1]
        return applies.popleft() if applies else None

    def end(self, stage: int) -> bool:
        """Whether something waited that is dropped now."""
        return stage in self._waiting and bool(self._waiting.pop(stage)[1])
