"""Borrowers that take what they are lent bit by bit: none keeps its place for longer than a slow line takes."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable

import trio
from trio.testing import MockClock

from ftnode.node.links.bandwidth import Bandwidth, Gate
from ftnode.node.links.streams import FrameReader, write_frame
from ftnode.node.weights import donor as donor_module
from ftnode.protocol.wire.frames import StateRequest
from tests.node.weights.lending import CHUNK, Host

NUMBERS = 10_000
SIZE = 4 * NUMBERS
WANTED = StateRequest("run", 1, 5, "c5", "weights", "raw", False, False, -1)
PAUSE = donor_module.CHUNK_SECONDS - 1
LONGEST = donor_module.CHUNK_SECONDS + SIZE / donor_module.SLOWEST
STEP = 4096


def run(main: Callable[[], Awaitable[None]]) -> None:
    """On a clock that begins at zero, and waits for nobody."""

    async def bounded() -> None:
        with trio.fail_after(36_000):
            await main()

    trio.run(bounded, clock=MockClock(autojump_threshold=0.005))


def narrow_pair() -> tuple[trio.SocketStream, trio.SocketStream]:
    """A donor's end, which holds little that is not read, and a borrower's."""
    donor, borrower = trio.socket.socketpair()
    donor.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    return trio.SocketStream(donor), trio.SocketStream(borrower)


def test_a_borrower_that_reads_slowly_loses_its_place() -> None:
    """The planted bug: a deadline for each chunk alone. This one never takes longer than that."""

    async def borrow(stream: trio.SocketStream) -> None:
        await write_frame(stream, WANTED)
        while await stream.receive_some(STEP):
            with trio.move_on_after(PAUSE):
                await trio.sleep_forever()

    async def main() -> None:
        host = Host("donor").holds(1, 0.0, 1.0, numbers=NUMBERS)
        theirs, ours = narrow_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(borrow, ours)
            await host.donor.serve("newcomer", theirs)
            assert trio.current_time() <= LONGEST
            assert not host.donor._lendings and host.arena.free == host.arena.slots
            nursery.cancel_scope.cancel()

    run(main)


def test_a_limit_of_ours_takes_nothing_of_a_borrowers_time() -> None:
    """It reads at once, and it is we who send it 500 bytes a second."""
    numbers = NUMBERS // 3

    async def main() -> None:
        host = Host("donor").holds(1, 0.0, 1.0, numbers=numbers)
        theirs, ours = narrow_pair()
        limited = Bandwidth(up=Gate(500.0)).limited(theirs, "/ftnode/state/1")
        got = bytearray(CHUNK)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.donor.serve, "newcomer", limited)
            await write_frame(ours, WANTED)
            reader = FrameReader(ours)
            await reader.header()
            for _ in range(4 * numbers // CHUNK):
                await reader.header()
                await reader.payload(memoryview(got))
        assert trio.current_time() > LONGEST

    run(main)
