"""Tensors to one peer: in the order in which it needs them, none twice while one copy is on its way, and no more on the
way than its receipts allow."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from ftnode.node.links import tensor_lane
from ftnode.node.links.flow_window import WINDOW_BYTES_FIRST
from ftnode.node.links.sending_pace import SharedLine
from ftnode.node.links.streams import RECEIPT, FrameReader
from ftnode.node.links.tensor_lane import Outbound, TensorLane, Urgency, cut, urgency_of
from ftnode.node.machine.tensor_slots import Arena
from ftnode.protocol.wire.frames import encode_frame
from ftnode.protocol.words.messages import Boundary
from ftnode.protocol.words.types import Direction, Handle, Peer

SIZE = 64
SLOTS = 4
LARGE = WINDOW_BYTES_FIRST * 2
FORWARD: Urgency = (True, 0)


def waiting(lane: TensorLane) -> list[bytes]:
    return [tensor.head for _, _, tensor in sorted(lane._queue)]


def boundary(microbatch: int, direction: Direction) -> Boundary:
    return Boundary("lineage", 1, 1, (1, 1), microbatch, 1, direction, (Peer("p", 1),))


def framed(microbatch: int, direction: Direction, size: int) -> bytes:
    return encode_frame(boundary(microbatch, direction), size)


class Way:
    """A lane that writes into one end of a socket pair; what stands at the other end is read by `reader`."""

    def __init__(self, size: int) -> None:
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setblocking(False)
        self.near = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        self.far = trio.SocketStream(trio.socket.from_stdlib_socket(theirs))
        self.size = size
        self.arena = Arena(size, SLOTS)
        self.lane = TensorLane(self.arena, SharedLine())
        self.reader = FrameReader(self.far)
        self.reader.give_receipts()

    def put(self, microbatch: int, direction: Direction, handle: Handle) -> None:
        message = boundary(microbatch, direction)
        assert self.lane.put(encode_frame(message, self.size), handle, self.size, urgency_of(message))

    async def read(self) -> bytes:
        """The header of the next tensor, all of which is taken."""
        header, size = await self.reader.header()
        await self.reader.payload(memoryview(bytearray(size)))
        return header


def on_the_way(size: int, play: Callable[[Way], Awaitable[None]]) -> None:
    """`play` while a lane writes and hears receipts."""

    async def main() -> None:
        way = Way(size)
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(way.lane.write, way.near)
                nursery.start_soon(way.lane.listen, way.near)
                await play(way)
                nursery.cancel_scope.cancel()
        way.lane.drop()

    trio.run(main)


def test_a_resent_tensor_waits_once_and_under_its_newest_header() -> None:
    arena = Arena(SIZE, 2)
    lane = TensorLane(arena, SharedLine())
    first, second = arena.take(), arena.take()
    for _ in range(3):
        lane.put(b"view 1, first", first, SIZE, FORWARD)
        lane.put(b"view 1, second", second, SIZE, FORWARD)
    assert waiting(lane) == [b"view 1, first", b"view 1, second"]
    lane.put(b"view 2, first", first, SIZE, FORWARD)
    assert waiting(lane) == [b"view 2, first", b"view 1, second"]
    tensor = lane._queue[0][2]
    assert b"".join(bytes(part) for part in tensor.rest) == b"view 2, first" + bytes(SIZE)
    for handle in (first, second):
        arena.release(handle)
    assert arena.free == 0
    lane.drop()
    assert arena.free == 2


def test_a_tensor_that_is_half_written_is_queued_again_only_under_another_header() -> None:
    arena = Arena(SIZE, 1)
    lane = TensorLane(arena, SharedLine())
    handle = arena.take()
    lane.put(b"view 1", handle, SIZE, FORWARD)
    tensor = lane._queue[0][2]
    cut(tensor.rest, 3)
    lane.put(b"view 1", handle, SIZE, FORWARD)
    assert waiting(lane) == [b"view 1"]
    for _ in range(2):
        lane.put(b"view 2", handle, SIZE, FORWARD)
        assert waiting(lane) == [b"view 1", b"view 2"]
    assert bytes(tensor.rest[0]) == b"w 1"
    arena.release(handle)
    lane.drop()
    assert arena.free == 1


def test_a_lane_says_whether_it_is_full() -> None:
    async def play(way: Way) -> None:
        assert way.lane.outbound == Outbound(False, False)
        for microbatch in range(2):
            way.put(microbatch, Direction.FORWARD, way.arena.take())
        await trio.testing.wait_all_tasks_blocked()
        found = way.lane.outbound
        assert found.sending and found.full, "both are larger than the first window"
        for _ in range(2):
            await way.read()
        await trio.testing.wait_all_tasks_blocked()
        found = way.lane.outbound
        assert not found.full and not found.sending

    on_the_way(LARGE, play)


def test_a_full_queue_takes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_lane, "TENSORS_MAX", 1)
    arena = Arena(SIZE, 2)
    lane = TensorLane(arena, SharedLine())
    assert lane.put(b"one", arena.take(), SIZE, FORWARD)
    assert not lane.put(b"two", arena.take(), SIZE, FORWARD)


def test_backward_goes_before_forward_and_an_early_microbatch_before_a_late_one() -> None:
    order = [(2, Direction.FORWARD), (1, Direction.FORWARD), (3, Direction.BACKWARD), (0, Direction.BACKWARD)]

    async def play(way: Way) -> None:
        for microbatch, direction in order:
            way.put(microbatch, direction, way.arena.take())
        found = [await way.read() for _ in order]
        needed = [(0, Direction.BACKWARD), (3, Direction.BACKWARD), (1, Direction.FORWARD), (2, Direction.FORWARD)]
        assert found == [framed(*which, SIZE)[8:] for which in needed]

    on_the_way(SIZE, play)


def test_no_more_than_a_window_is_on_the_way_without_a_receipt() -> None:
    async def play(way: Way) -> None:
        way.put(0, Direction.FORWARD, way.arena.take())
        taken = 0
        with trio.move_on_after(0.2):
            while True:
                taken += len(await way.far.receive_some(1 << 16))
        assert taken == WINDOW_BYTES_FIRST
        await way.far.send_all(RECEIPT.pack(1000, 0))
        with trio.move_on_after(0.2):
            while True:
                taken += len(await way.far.receive_some(1 << 16))
        assert WINDOW_BYTES_FIRST + 1000 <= taken <= WINDOW_BYTES_FIRST + 2000

    on_the_way(LARGE, play)


def test_a_tensor_is_sent_again_only_when_the_peer_has_the_first_copy() -> None:
    async def play(way: Way) -> None:
        first = way.arena.take()
        way.put(0, Direction.FORWARD, first)
        await trio.testing.wait_all_tasks_blocked()
        way.put(0, Direction.FORWARD, first)  # all of it is written, and stands in a buffer below
        assert len(way.lane) == 0
        await way.read()
        await trio.testing.wait_all_tasks_blocked()
        way.put(0, Direction.FORWARD, first)
        assert len(way.lane) == 1
        assert await way.read() == framed(0, Direction.FORWARD, SIZE)[8:]

    on_the_way(SIZE, play)


def test_large_tensors_pass_whole_by_receipts_alone() -> None:
    async def play(way: Way) -> None:
        handles = [way.arena.take() for _ in range(3)]
        for microbatch, handle in enumerate(handles):
            way.put(microbatch, Direction.FORWARD, handle)
        for microbatch in range(3):
            assert await way.read() == framed(microbatch, Direction.FORWARD, LARGE)[8:]
        for handle in handles:
            way.arena.release(handle)
        await trio.testing.wait_all_tasks_blocked()
        assert way.arena.free == SLOTS and not way.lane._newest

    on_the_way(LARGE, play)


def test_what_the_peer_drops_has_its_receipt_too() -> None:
    async def play(way: Way) -> None:
        way.put(0, Direction.FORWARD, way.arena.take())
        await way.reader.header()
        await way.reader.skip(SIZE)
        await trio.testing.wait_all_tasks_blocked()
        assert not way.lane._newest

    on_the_way(SIZE, play)


@pytest.mark.parametrize("count", [0, SIZE * 1000])
def test_a_receipt_that_cannot_be_ends_the_stream(count: int) -> None:
    async def main() -> None:
        way = Way(SIZE)
        await way.far.send_all(RECEIPT.pack(count, 0))
        with pytest.raises(ValueError, match="a receipt for"):
            await way.lane.listen(way.near)

    trio.run(main)


def test_a_peer_that_takes_nothing_more_is_too_slow() -> None:
    async def main() -> None:
        way = Way(LARGE)
        way.put(0, Direction.FORWARD, way.arena.take())
        with pytest.raises(trio.TooSlowError):
            await way.lane.write(way.near)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.01))
