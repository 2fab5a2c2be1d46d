"""A world in which some things may go wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from ftnode.protocol.words.settings import Settings
from tests.sim.checks import Violation
from tests.sim.world import World


class ForgivingWorld(World):
    """`accidents`: what was forgiven, by its invariant."""

    def __init__(self, settings: Settings, seed: int, **nature: float) -> None:
        super().__init__(settings, seed, **nature)
        self.accidents = Counter[str]()

    def forgive(self, violation: Violation) -> None:
        """Raises what may not go wrong."""
        raise violation

    def run(self, until: float, stop: Callable[[], bool] | None = None) -> None:
        """As in any world; it goes on behind what is forgiven."""
        while self.now < until:
            try:
                super().run(until, stop)
                return
            except Violation as violation:
                self.forgive(violation)
