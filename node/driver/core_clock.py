"""The core's time, which stands still while the node is frozen.

A node that is alone in its run and is paused cannot hand over: it keeps its weights in memory and does nothing. To the
core no time passes then, or it would take its own tasks for stuck when it goes on. Nobody else shares that time: it has
no other member to measure.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import trio


class CoreClock:
    """Call it for the time in seconds: CLOCK_MONOTONIC, less what was spent frozen."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._behind = 0.0
        self._stopped: float | None = None
        self._goes = trio.Event()
        self._goes.set()

    def __call__(self) -> float:
        now = self._monotonic() if self._stopped is None else self._stopped
        return now - self._behind

    def stop(self) -> None:
        """A second call does nothing."""
        if self._stopped is None:
            self._stopped = self._monotonic()
            self._goes = trio.Event()

    def go(self) -> None:
        if self._stopped is not None:
            self._behind += self._monotonic() - self._stopped
            self._stopped = None
            self._goes.set()

    async def going(self) -> None:
        """Wait until it does."""
        await self._goes.wait()
