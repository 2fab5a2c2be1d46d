"""One piece's sum at its owner: one order, whatever comes first, and no more of it in memory than it takes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import trio
import trio.testing

from ftnode.node.reduction import encoding, piece_sum
from ftnode.node.reduction.encoding import Exact, Piece
from ftnode.node.reduction.piece_sum import PieceSum
from ftnode.protocol.words.errors import PeerError
from tests.node.reduction.reducing import in_order


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "CHUNK_BYTES", 256)


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_sum_does_not_depend_on_what_comes_first(
    order: tuple[int, ...], dtype: type[np.float32] | type[np.float64]
) -> None:
    async def main() -> None:
        chance = np.random.default_rng(5)
        parts = [chance.standard_normal(100, dtype) for _ in range(4)]
        place = memoryview(bytearray(parts[2].tobytes()))
        piece = PieceSum(Piece(place, Exact(parts[2].itemsize), ()), 4, ours=2)
        sources = [(0, 1, 3)[index] for index in order]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(piece.work)
            for source in sources:
                content = parts[source].tobytes()
                while room := await piece.room(source):
                    start = piece.taken(source)
                    room[:] = content[start : start + len(room)]
                    piece.filled(source)
                await trio.testing.wait_all_tasks_blocked()
                assert piece.whole == (source == sources[-1])
        assert np.array_equal(np.frombuffer(place, dtype), in_order(parts))

    trio.run(main)


def test_who_is_ahead_waits_for_the_others(autojump_clock: trio.testing.MockClock) -> None:
    async def main() -> None:
        piece = PieceSum(Piece(memoryview(bytearray(256 * 20)), Exact(4), ()), 3, ours=0)
        with trio.move_on_after(5) as waited:
            while await piece.room(1):
                piece.filled(1)
        assert waited.cancelled_caught and piece.taken(1) == piece_sum.AHEAD * 256
        await piece.room(2)
        piece.filled(2)
        with trio.move_on_after(5):
            await piece.work()
        assert piece.done == 256 and await piece.room(1)
        with pytest.raises(PeerError):
            await piece.room(0)

    trio.run(main, clock=autojump_clock)


def test_others_have_their_turn_after_each_chunk_of_a_sum_of_one() -> None:
    """A holder sums up alone for its learner: nothing comes that it would wait for."""

    async def main() -> None:
        piece = PieceSum(Piece(memoryview(bytearray(256 * 20)), Exact(4), ()), 1, ours=0)
        turns = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(piece.work)
            while not piece.whole:
                await trio.lowlevel.checkpoint()
                turns += 1
        assert turns >= 20

    trio.run(main)
