"""What one peer may pile up at our side: a flood neither starves the other tasks nor fills queues or slots."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
import trio
import trio.testing

from ftnode.node.links import streams
from ftnode.node.links.attention import STRANGER, TENSORS, Attention, Flood
from ftnode.node.links.inbound import (
    BACKLOG_MAX,
    COMPUTE_RESERVE,
    HEADER_BYTES_PER_COST,
    TENSOR_COST,
    TURN_FRAMES,
    Backlog,
    Intake,
)
from ftnode.node.links.streams import STRANGER_HEADER_MAX, FrameReader, Patience
from ftnode.node.machine.tensor_slots import Arena
from ftnode.protocol.manifest.boundary import BoundaryBytes
from ftnode.protocol.wire.frames import CONTROL_LANE, TENSOR_LANE, encode_frame
from ftnode.protocol.words.errors import LocalError, PeerError
from ftnode.protocol.words.events import Received
from ftnode.protocol.words.messages import Boundary, Suspect
from ftnode.protocol.words.types import Attempt, Direction, Peer

SENDER = Peer("sender", 1)
BOUNDARY_BYTES = 100_000
SIZES = BoundaryBytes(BOUNDARY_BYTES, BOUNDARY_BYTES)
SMALL = BoundaryBytes(64, 64)
WORD = encode_frame(Suspect("l", 0, SENDER, "silent", ""))
LONG_WORD = encode_frame(Suspect("l", 0, SENDER, "silent", "y" * HEADER_BYTES_PER_COST))
TENSOR = encode_frame(Boundary("l", 0, 1, Attempt(0, 0), 0, 1, Direction.FORWARD, ()), BOUNDARY_BYTES)


class Endless(FrameReader):
    """A stream on which data is always there."""

    def __init__(self, frames: list[bytes], payload_bytes: int) -> None:
        self.left = itertools.cycle(frames)
        self.payload_bytes = payload_bytes
        self.given = 0

    async def wait(self) -> None:
        pass

    async def announced(self) -> tuple[int, int]:
        return 100, self.payload_bytes

    async def header(self, limit: int = 0) -> tuple[bytes, int]:
        self.given += 1
        if self.given > 20 * TURN_FRAMES:
            raise EOFError("a flood must not go on for ever where nobody has a turn")
        return next(self.left)[8:], self.payload_bytes

    async def payload(self, view: memoryview) -> None:
        view[:4] = b"data"

    async def skip(self, size: int) -> None:
        pass


def intake_of(
    deliver: Callable[[Received], None], arena: Arena, boundary_bytes: BoundaryBytes = SIZES, known: bool = True
) -> Intake:
    """`known`: whether everybody is a member, or nobody."""
    attention = Attention(lambda peer: known)
    return Intake(arena, boundary_bytes, deliver, lambda peer: known, attention, lambda sender, message: "")


def run(main: Callable[[trio.Nursery], Awaitable[None]], clock: trio.abc.Clock | None = None) -> None:
    async def bounded() -> None:
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                await main(nursery)
                nursery.cancel_scope.cancel()

    trio.run(bounded, clock=clock)


def test_a_flood_lets_other_tasks_run() -> None:
    async def main(nursery: trio.Nursery) -> None:
        reader = Endless([WORD], 0)
        intake = intake_of(lambda event: intake.backlog.handled(event.sender.id), Arena(64, 1), SMALL)
        nursery.start_soon(intake.receive_all, SENDER, CONTROL_LANE, reader)
        for turn in range(5):
            await trio.lowlevel.checkpoint()
            assert reader.given <= (turn + 1) * TURN_FRAMES
        assert reader.given

    run(main)


@pytest.mark.parametrize(
    ("frame", "payload_bytes", "lane", "waiting"),
    [
        (WORD, 0, CONTROL_LANE, BACKLOG_MAX),
        (LONG_WORD, 0, CONTROL_LANE, BACKLOG_MAX // 2),
        (TENSOR, BOUNDARY_BYTES, TENSOR_LANE, BACKLOG_MAX // (TENSOR_COST + 1) + 1),
    ],
)
def test_no_more_is_read_from_a_peer_than_is_handled(frame: bytes, payload_bytes: int, lane: str, waiting: int) -> None:
    async def main(nursery: trio.Nursery) -> None:
        events: list[Received] = []
        reader = Endless([frame], payload_bytes)
        intake = intake_of(events.append, Arena(BOUNDARY_BYTES, 100))
        nursery.start_soon(intake.receive_all, SENDER, lane, reader)
        await trio.testing.wait_all_tasks_blocked()
        assert len(events) == waiting
        other = Endless([WORD], 0)
        nursery.start_soon(intake.receive_all, Peer("other", 1), CONTROL_LANE, other)
        await trio.testing.wait_all_tasks_blocked()
        assert other.given == BACKLOG_MAX and len(events) == waiting + BACKLOG_MAX
        intake.backlog.handled(SENDER.id)
        intake.backlog.handled(SENDER.id)
        await trio.testing.wait_all_tasks_blocked()
        assert reader.given == waiting + 2

    run(main)


@pytest.mark.parametrize(("slots", "known", "why"), [(COMPUTE_RESERVE + 1, False, "no member"), (9, True, "no slot")])
def test_an_unwanted_tensor_takes_no_slot_and_is_no_offence(
    slots: int, known: bool, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Slots are left to the outputs of our own tasks. What is dropped comes again, for it was not acknowledged."""

    async def main(nursery: trio.Nursery) -> None:
        events: list[Received] = []
        arena = Arena(BOUNDARY_BYTES, slots)
        while arena.free > COMPUTE_RESERVE + (not known):
            arena.take()
        reader = Endless([TENSOR], BOUNDARY_BYTES)
        intake = intake_of(events.append, arena, known=known)
        nursery.start_soon(intake.receive_all, SENDER, TENSOR_LANE, reader)
        for _ in range(10):
            await trio.lowlevel.checkpoint()
        assert reader.given > 1 and not events
        assert arena.free == COMPUTE_RESERVE + (not known)

    run(main)
    assert caplog.text.count(why) == 1  # said once, however many there are


def test_a_tensor_on_the_control_lane_is_an_offence() -> None:
    async def main(nursery: trio.Nursery) -> None:
        intake = intake_of(lambda event: None, Arena(BOUNDARY_BYTES, 9))
        with pytest.raises(PeerError, match="control lane"):
            await intake.receive_all(SENDER, CONTROL_LANE, Endless([TENSOR], BOUNDARY_BYTES))

    run(main)


class Unsound(Endless):
    """Tensors whose second scale is infinite."""

    async def payload(self, view: memoryview) -> None:
        view[:4] = bytes((0x80, 0x3F, 0x80, 0x7F))


def test_a_scale_that_is_none_is_an_offence_and_its_slot_comes_back() -> None:
    """The core never hears of such a tensor, and no number of it is used. Where there are no scales, the same bytes
    are numbers, at which the stage looks."""
    heard: list[Received] = []
    arena = Arena(BOUNDARY_BYTES, 20)

    async def main(nursery: trio.Nursery) -> None:
        scaled = BoundaryBytes(BOUNDARY_BYTES, BOUNDARY_BYTES, forward_scales=4)
        with pytest.raises(PeerError, match="too large or no number"):
            reader = Unsound([TENSOR], BOUNDARY_BYTES)
            await intake_of(heard.append, arena, scaled).receive_all(SENDER, TENSOR_LANE, reader)
        assert not heard and arena.free == 20
        for sizes in (SIZES, replace(scaled, forward_scales=2), replace(SIZES, backward_scales=4)):
            intake = intake_of(heard.append, arena, sizes)
            with trio.move_on_after(0.1):
                await intake.receive_all(SENDER, TENSOR_LANE, Unsound([TENSOR], BOUNDARY_BYTES))
            assert heard
            for event in heard:
                assert event.handle is not None
                arena.release(event.handle)
            heard.clear()

    run(main)


def test_a_word_on_the_tensor_lane_is_an_offence() -> None:
    async def main(nursery: trio.Nursery) -> None:
        intake = intake_of(lambda event: None, Arena(BOUNDARY_BYTES, 9))
        with pytest.raises(PeerError, match="tensor lane"):
            await intake.receive_all(SENDER, TENSOR_LANE, Endless([WORD], 0))

    run(main)


def test_a_strangers_words_are_counted_before_they_are_read() -> None:
    async def main(nursery: trio.Nursery) -> None:
        reader = Endless([WORD], 0)
        intake = intake_of(lambda event: intake.backlog.handled(event.sender.id), Arena(64, 1), SMALL, known=False)
        with pytest.raises(Flood):
            await intake.receive_all(SENDER, CONTROL_LANE, reader)
        assert reader.given == STRANGER.messages_at_once

    run(main, trio.testing.MockClock(autojump_threshold=0))  # on a slow machine some would be forgotten


@pytest.mark.parametrize("known", [True, False])
def test_strangers_tensors_are_passed_over_at_a_rate_and_no_offence(known: bool) -> None:
    """What members send is as fast as it comes: here until the stream ends."""

    async def main() -> int:
        reader = Endless([TENSOR], BOUNDARY_BYTES)
        arena = Arena(BOUNDARY_BYTES, COMPUTE_RESERVE)  # so that members' are dropped, too
        intake = intake_of(lambda event: None, arena, known=known)
        with trio.move_on_after(2.0):
            with pytest.raises(EOFError):
                await intake.receive_all(SENDER, TENSOR_LANE, reader)
        return reader.given * BOUNDARY_BYTES

    passed = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert (passed <= 1.1 * (TENSORS.bytes_at_once + 2 * TENSORS.bytes)) != known
    assert passed > TENSORS.bytes


def test_a_backlog_knows_what_it_is_owed() -> None:
    backlog = Backlog()
    backlog.add("a", BACKLOG_MAX)
    assert backlog.full("a") and not backlog.full("b")
    backlog.handled("a")
    assert not backlog.full("a")
    with pytest.raises(LocalError):
        backlog.handled("a")


def test_patience_in_the_kernel_is_a_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(streams.time, "monotonic", lambda: now)

    class Poll:
        def register(self, descriptor: int, events: int) -> None:
            pass

        def poll(self, milliseconds: int) -> list[int]:
            nonlocal now
            now += milliseconds / 1000  # nothing comes
            return []

    monkeypatch.setattr(streams.select, "poll", Poll)
    patience = Patience()
    waited = 0.0
    while now < 1.0:
        before = now
        patience.readable_soon(0)
        waited += now - before
        now += 0.0001  # many streams ask one after the other
    assert 0.1 < waited < 0.3


def test_a_dripping_stream_gets_no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    class Watched(Patience):
        def readable_soon(self, descriptor: int) -> bool:
            nonlocal asked
            asked += 1
            return super().readable_soon(descriptor)

    monkeypatch.setattr(streams, "PATIENCE", Watched())

    async def main(nursery: trio.Nursery) -> None:
        ours, theirs = trio.socket.socketpair()
        view = memoryview(bytearray(40))

        async def drip() -> None:
            for _ in range(40):
                await theirs.send(b"x")
                await trio.testing.wait_all_tasks_blocked()

        nursery.start_soon(drip)
        await streams.read_into(trio.SocketStream(ours), view)
        assert bytes(view) == b"x" * 40
        assert asked == 0
        theirs.close()

    run(main)


def test_an_unwanted_payload_is_passed_over() -> None:
    async def main(nursery: trio.Nursery) -> None:
        ours, theirs = trio.socket.socketpair()
        async with trio.SocketStream(theirs) as sending:
            nursery.start_soon(sending.send_all, TENSOR + bytes(BOUNDARY_BYTES) + WORD)
            reader = FrameReader(trio.SocketStream(ours))
            _, payload_bytes = await reader.header()
            await reader.skip(payload_bytes)
            assert (await reader.header()) == (WORD[8:], 0)

    run(main)


@pytest.mark.parametrize("member", [True, False])
def test_only_members_send_large_headers(member: bool) -> None:
    size = STRANGER_HEADER_MAX + 1

    async def main(nursery: trio.Nursery) -> None:
        ours, theirs = trio.socket.socketpair()
        sender = trio.SocketStream(theirs)
        intake = intake_of(lambda event: None, Arena(64, 1), SMALL, member)
        nursery.start_soon(sender.send_all, size.to_bytes(4, "big") + bytes(4) + b"\xc1" * size)
        with pytest.raises(PeerError) as caught:
            await intake.receive_all(SENDER, CONTROL_LANE, FrameReader(trio.SocketStream(ours)))
        assert (f"a header of {size} bytes" in str(caught.value)) != member

    run(main)


def test_what_is_not_heard_is_no_offence() -> None:
    """And it is said once for each stream."""
    heard: list[Received] = []

    async def main(nursery: trio.Nursery) -> None:
        intake = Intake(
            Arena(BOUNDARY_BYTES, 1), SIZES, heard.append, lambda peer: True, Attention(lambda peer: True),
            lambda sender, message: "a view that names nobody",
        )  # fmt: skip
        with pytest.raises(EOFError):
            await intake.receive_all(SENDER, CONTROL_LANE, Endless([WORD], 0))

    run(main)
    assert heard == []


def test_two_streams_of_a_peer_wait_for_room_together() -> None:
    """A node that was stopped has all at once what came meanwhile."""
    backlog, let_in = Backlog(), list[str]()

    async def wait(name: str) -> None:
        await backlog.room("a")
        let_in.append(name)

    async def main() -> None:
        backlog.add("a", BACKLOG_MAX)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, "control")
            nursery.start_soon(wait, "tensors")
            await trio.testing.wait_all_tasks_blocked()
            assert let_in == []
            backlog.handled("a")

    trio.run(main)
    assert sorted(let_in) == ["control", "tensors"]
