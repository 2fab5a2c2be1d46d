"""The one reader of frames with one length: what it takes memory for, and how long a frame may take."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import trio
import trio.testing

from ftnode.node.links.side_messages import FRAME_SECONDS, Receive, read_frame
from ftnode.protocol.wire.length_prefix import framed
from ftnode.protocol.words.errors import PeerError


def dripping(data: bytes, asked: list[int], pause: Callable[[int], float] = lambda at: 0.0) -> Receive:
    """A stream that gives one byte at a time, the one at `at` after `pause(at)` seconds."""
    left: Iterator[tuple[int, int]] = enumerate(data)

    async def receive(size: int) -> bytes:
        asked.append(size)
        at, byte = next(left, (len(data), -1))
        with trio.move_on_after(pause(at)):
            await trio.Event().wait()
        return b"" if byte < 0 else bytes([byte])

    return receive


def read(receive: Receive, bytes_max: int = 8) -> bytes:
    async def main() -> bytes:
        return await read_frame(receive, bytes_max)

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.0))


@pytest.mark.parametrize("body", [b"", b"x", b"12345678"])
def test_a_frame_is_read_and_no_byte_beyond(body: bytes) -> None:
    asked: list[int] = []
    assert read(dripping(framed(body) + b"beyond", asked)) == body
    assert len(asked) == len(framed(body))


def test_nothing_is_read_of_what_is_too_long() -> None:
    asked: list[int] = []
    with pytest.raises(PeerError, match="a frame of 9 bytes"):
        read(dripping(framed(b"123456789"), asked))
    assert len(asked) == 4


@pytest.mark.parametrize("data", [b"", b"\0\0", framed(b"body")[:-1]], ids=["at once", "in the length", "in the body"])
def test_an_end_is_an_end_wherever_it_comes(data: bytes) -> None:
    with pytest.raises(EOFError):
        read(dripping(data, []))


@pytest.mark.parametrize(("at", "late"), [(0, False), (1, True), (5, True)])
def test_a_frame_that_has_begun_has_a_deadline_and_its_first_byte_has_none(at: int, late: bool) -> None:
    slow = dripping(framed(b"body"), [], lambda now: FRAME_SECONDS + 1 if now == at else 0.0)
    if not late:
        assert read(slow) == b"body"
        return
    with pytest.raises(trio.TooSlowError):
        read(slow)
