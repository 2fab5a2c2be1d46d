"""Seconds that pass on trio's MockClock, where nothing else is waited for."""

from __future__ import annotations

import trio


async def passed(seconds: float) -> None:
    with trio.move_on_after(seconds):
        await trio.sleep_forever()
