"""One world at many moments: each time a copy of it, in a process of its own, takes another way to the end.

The copies are forks, so that nothing before the moment is run again, and what is patched here is patched there.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection, wait

from ftnode.protocol.words.effects import Send
from tests.sim.checks import Violation
from tests.sim.host import Host
from tests.sim.world import World

FORK = multiprocessing.get_context("fork")
AT_ONCE = 2


class Branches:
    """The copies of one world. A way to the end answers what was wrong with it, empty if nothing was. `one`: once
    anything was, no more are made."""

    def __init__(self, one: bool = False) -> None:
        self.moments = 0
        self._one = one
        self._open: dict[Connection, str] = {}
        self._wrong: dict[str, str] = {}

    def off(self, moment: str, way: Callable[[], str]) -> None:
        """The world goes this way in a copy; here it goes on as if nothing had been."""
        while len(self._open) >= AT_ONCE:
            self._gather()
        self.moments += 1
        if self._one and self._wrong:
            return
        answer, told = FORK.Pipe(duplex=False)
        FORK.Process(target=_go, args=(way, told), daemon=True).start()
        told.close()
        self._open[answer] = moment

    def wrong(self) -> dict[str, str]:
        """Moment → what was wrong, when all copies have come to their ends."""
        while self._open:
            self._gather()
        return self._wrong

    def _gather(self) -> None:
        for answer in wait(list(self._open)):
            assert isinstance(answer, Connection)
            moment = self._open.pop(answer)
            try:
                text = answer.recv()
            except EOFError:
                text = "it came to no end"
            if text:
                self._wrong[moment] = text
            answer.close()


def _go(way: Callable[[], str], told: Connection) -> None:
    try:
        text = way()
    except Violation as violation:
        text = str(violation)
    except Exception as error:  # noqa: BLE001  what the core raises is a finding, whatever it is
        text = f"core: {error!r}"
    told.send(text)


def at_every_event(world: World, ends: Callable[[], bool], seconds: float, look: Callable[[int], None]) -> None:
    """Let the world run until it `ends`, and look at it after each event."""
    seen = world.events

    def after() -> bool:
        nonlocal seen
        if world.events > seen:
            seen = world.events
            look(seen)
        return ends()

    world.run(world.now + seconds, after)
    assert ends()


def before_every_send(
    world: World, ends: Callable[[], bool], seconds: float, look: Callable[[Host, str, str], None]
) -> None:
    """Let the world run until it `ends`, and look at it when somebody is about to send something: (who, the kind of
    message, the moment in words)."""

    def before(host: Host, effect: Send) -> None:
        kind = type(effect.message).__name__
        look(host, kind, f"{world.now:.3f} {host.peer} before its {kind} to {effect.to}")

    world.on_send = before
    world.run(world.now + seconds, ends)
    world.on_send = None
    assert ends()
