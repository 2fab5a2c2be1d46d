"""A life of a node that can be told to end, with a core that shows what we like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio
import trio.testing

from ftnode.node.driver.core_clock import CoreClock
from ftnode.node.life.departure import Departure
from ftnode.protocol.words.events import Leave, Stay
from ftnode.protocol.words.types import Attempt, Version
from tests.protocol.pictures import picture, signs
from tests.protocol.situations import A as ME
from tests.protocol.situations import B as OTHER
from tests.protocol.situations import Held, view_of

OTHERS, ALONE = view_of((ME, OTHER)), view_of((ME,))


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


class Life:
    """A departure from a run that this node leads, and what came of it."""

    def __init__(
        self, others: bool = True, steps: int = 5, finished: bool = False, hopeful: bool = False,
        note: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        own = Held(finished=finished, versions={0: Version(steps, "c", Attempt(1, 1))})
        self.picture = picture(
            view=OTHERS if others else ALONE, own=own, leads=True, alone=not others and not hopeful, signs=signs()
        )
        self.compute, self.clock = FakeCompute(), CoreClock()
        self.left: list[str] = []
        self.words: list[Leave] = []
        self.asked_to_stay = False
        self.said: list[str] = []
        self.departure = Departure(
            lambda: self.picture, self.clock, self.compute, self._deliver,
            lambda kind, text: self.said.append(f"{kind}: {text}"), note,
        )  # fmt: skip

    def shows(self, **changes: Any) -> None:
        """What its core shows from now on."""
        self.picture = self.picture._replace(**changes)

    def loses_the_others(self) -> None:
        self.shows(view=ALONE, members=frozenset({ME}), alone=True, other_leavers=frozenset())

    def _deliver(self, event: Any) -> None:
        if isinstance(event, Stay):
            self.asked_to_stay = True
        else:
            assert isinstance(event, Leave) and event.pauses == event.reason.startswith("pauses, ")
            self.left.append(event.reason)
            self.words.append(event)

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
