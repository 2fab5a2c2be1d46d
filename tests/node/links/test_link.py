"""What waits in a link: a tensor that is sent again before it has left is not queued twice."""

from __future__ import annotations

from ftnode.node.links.link import Link
from ftnode.node.machine.tensor_slots import Arena
from ftnode.protocol.wire.frames import TENSOR_LANE
from ftnode.protocol.words.types import Peer

SIZE = 64


def waiting(link: Link) -> list[bytes]:
    return [frame.head for frame in link._lanes[TENSOR_LANE].queue]


def test_a_resent_tensor_waits_once_and_under_its_newest_header() -> None:
    arena = Arena(SIZE, 2)
    link = Link(Peer("p", 1), arena)
    first, second = arena.take(), arena.take()
    for _ in range(3):
        link.put(b"view 1, first", first, SIZE)
        link.put(b"view 1, second", second, SIZE)
    assert waiting(link) == [b"view 1, first", b"view 1, second"]
    link.put(b"view 2, first", first, SIZE)
    assert waiting(link) == [b"view 2, first", b"view 1, second"]
    frame = link._lanes[TENSOR_LANE].queue[0]
    assert b"".join(bytes(part) for part in frame.rest) == b"view 2, first" + bytes(SIZE)
    for handle in (first, second):
        arena.release(handle)
    assert arena.free == 0
    link._close()
    assert arena.free == 2


def test_a_tensor_that_is_half_written_is_queued_again_only_under_another_header() -> None:
    arena = Arena(SIZE, 1)
    link = Link(Peer("p", 1), arena)
    handle = arena.take()
    link.put(b"view 1", handle, SIZE)
    frame = link._lanes[TENSOR_LANE].queue[0]
    frame.rest[0] = frame.rest[0][3:]
    link.put(b"view 1", handle, SIZE)
    assert waiting(link) == [b"view 1"]
    for _ in range(2):
        link.put(b"view 2", handle, SIZE)
        assert waiting(link) == [b"view 1", b"view 2"]
    assert bytes(frame.rest[0]) == b"w 1"
    arena.release(handle)
    link._close()
    assert arena.free == 1


def test_what_was_written_can_be_sent_again() -> None:
    arena = Arena(SIZE, 1)
    link = Link(Peer("p", 1), arena)
    handle = arena.take()
    link.put(b"view 1", handle, SIZE)
    lane = link._lanes[TENSOR_LANE]
    link._done_with(lane.queue.popleft(), lane)
    link.put(b"view 1", handle, SIZE)
    assert waiting(link) == [b"view 1"]
