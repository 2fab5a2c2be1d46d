"""A life of a node that can be told to end, with a core of our making."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import trio
import trio.testing

from ftnode.node.core_clock import CoreClock
from ftnode.node.departure import Departure
from ftnode.protocol.events import Leave, Stay
from ftnode.protocol.types import Peer, Version

ME, OTHER = Peer("me", 1), Peer("other", 2)


class FakeCompute:
    """Whether it stands still."""

    def __init__(self) -> None:
        self.frozen = self.gone = False

    def retire(self) -> None:
        self.gone = True

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        self.frozen = False


class FakeLeavers(set[Peer]):
    """The leader's list of those who leave."""

    def __init__(self, hopeful: bool) -> None:
        super().__init__()
        self.hopeful = lambda: hopeful


class Life:
    """A departure with a core of our making, and what came of it."""

    def __init__(
        self, others: bool = True, steps: int = 5, finished: bool = False, hopeful: bool = False,
        note: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        members = frozenset({ME, OTHER} if others else {ME})
        view = SimpleNamespace(holders=((ME, OTHER) if others else (ME,),))
        self.core: Any = SimpleNamespace(
            me=ME, members=members, member=True, mine=(0,), view=view,
            holder=SimpleNamespace(finished=finished, versions={0: Version(steps, "c", (1, 1))}),
            leader=SimpleNamespace(leavers=FakeLeavers(hopeful)),
            liveness=SimpleNamespace(silent=lambda peer, now: False), departing=SimpleNamespace(stayed=0),
        )  # fmt: skip
        self.compute, self.clock = FakeCompute(), CoreClock()
        self.left: list[str] = []
        self.asked_to_stay = False
        self.said: list[str] = []
        self.departure = Departure(
            self.core, self.clock, self.compute, self._deliver,
            lambda kind, text: self.said.append(f"{kind}: {text}"), note,
        )  # fmt: skip

    def _deliver(self, event: Any) -> None:
        if isinstance(event, Stay):
            self.asked_to_stay = True
        else:
            assert isinstance(event, Leave) and event.pauses == event.reason.startswith("pauses, ")
            self.left.append(event.reason)

    @property
    def done(self) -> bool:
        return self.departure.done.is_set()


def saving(trouble: str = "", forever: bool = False) -> Life:
    """Alone in a run that keeps snapshots."""
    life = Life(others=False)

    async def keep(stages: tuple[int, ...]) -> str:
        assert stages == (0,)
        before = life.clock()
        if forever:
            await trio.sleep_forever()
        assert life.clock() == before, "nothing happens meanwhile"
        return trouble

    life.departure.keep = keep
    return life


async def passes(seconds: float) -> None:
    """Time, on the clock of `run`."""
    with trio.move_on_after(seconds):
        await trio.sleep_forever()


def run(scenario: Callable[..., Any], *arguments: Any) -> None:
    trio.run(scenario, *arguments, clock=trio.testing.MockClock(autojump_threshold=0))
