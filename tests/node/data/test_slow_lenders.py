"""Who lends slowly holds a borrower up for a turn, and no longer, while somebody lends faster; and where all are slow,
nothing that has come is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from ftnode.models.shards import INDEX_NAME
from ftnode.node.data import fetching
from ftnode.node.data.fetching import BEST_TURNS, TURN_SECONDS
from ftnode.node.data.shard_sources import Delivery
from tests.node.data.corpora import shards
from tests.node.data.shard_swarm import Network, Volunteer

HOUR = 3600.0
BLOCKS = 64
"""In which a file comes from a source here."""


class Paced:
    """A source that needs `seconds` for each file, a BLOCKS-th at a time. The index is small, and comes at once."""

    def __init__(self, label: str, built: Path, seconds: float) -> None:
        self.label, self._built, self._seconds = label, built, seconds
        self.given = Counter[str]()

    @asynccontextmanager
    async def open(self, name: str, start: int, size_max: int) -> AsyncIterator[Delivery]:
        data = (self._built / name).read_bytes()
        yield Delivery(start, len(data), self._blocks(name, data, start))

    async def _blocks(self, name: str, data: bytes, start: int) -> AsyncIterator[bytes]:
        size = -(-len(data) // BLOCKS)
        for place in range(start, len(data), size):
            if name != INDEX_NAME:
                with trio.move_on_after(self._seconds / BLOCKS):
                    await trio.sleep_forever()
            self.given[name] += len(data[place : place + size])
            yield data[place : place + size]

    def blame(self, reason: str) -> None:
        raise AssertionError(reason)


class Bait(Paced):
    """Fast with its first file, and slow with all others."""

    async def _blocks(self, name: str, data: bytes, start: int) -> AsyncIterator[bytes]:
        self._seconds = 0.5 if set(self.given) <= {INDEX_NAME} else 2400.0
        async for block in super()._blocks(name, data, start):
            yield block


@pytest.fixture
def built(tmp_path: Path) -> Path:
    return shards(tmp_path / "built").folder


@pytest.fixture(autouse=True)
def large_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte here is many of a real shard: an hour for 2 kB is what 64 MiB have."""
    monkeypatch.setattr(fetching, "SLOWEST", 2000 / HOUR)
    monkeypatch.setattr(fetching, "GROWN_BYTES", 1)


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock would not wait for them."""

    async def at_once(work: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return work(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)


def seconds_to_fetch(tmp_path: Path, built: Path, sources: list[Paced]) -> float:
    poor = Volunteer("poor", tmp_path, built, Network(), sources=sources)

    async def main() -> float:
        with trio.fail_after(1000 * HOUR):
            await poor.shards.run()
        return trio.current_time()

    took = trio.run(main, clock=MockClock(autojump_threshold=0))
    assert poor.shards.head() == (True, "")
    return took


@pytest.mark.parametrize("bug", [False, True])
def test_three_that_trickle_hold_nobody_up(
    bug: bool, tmp_path: Path, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would take 40 minutes for each file, which is in time for it. The planted bug: a turn has no end."""
    if bug:
        monkeypatch.setattr(fetching, "TURN_SECONDS", float("inf"))
    slow = [Paced(f"slow-{number}", built, 2400.0) for number in range(3)]
    took = seconds_to_fetch(tmp_path, built, [*slow, Paced("fast", built, 0.5)])
    assert (took < (len(slow) + 1) * TURN_SECONDS) is not bug
    assert (took > HOUR) is bug


def test_who_was_fast_and_trickles_then_is_left_as_well(tmp_path: Path, built: Path) -> None:
    bait, fast = Bait("bait", built, 0.5), Paced("fast", built, 0.5)
    assert seconds_to_fetch(tmp_path, built, [bait, fast]) < (2 + BEST_TURNS) * TURN_SECONDS
    assert fast.given


def test_where_all_are_slow_little_comes_twice(tmp_path: Path, built: Path) -> None:
    """Ten that need ten minutes for a file each, longer than the first turns."""
    sources = [Paced(f"slow-{number}", built, 600.0) for number in range(10)]
    took = seconds_to_fetch(tmp_path, built, sources)
    files = [path for path in built.iterdir() if path.name != INDEX_NAME]
    given = sum((source.given for source in sources), Counter[str]())
    assert took < 1.5 * 600 * len(files)
    assert given.total() < 1.5 * sum(path.stat().st_size for path in built.iterdir())
