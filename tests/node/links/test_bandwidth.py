"""Limits of what goes over the wire: the bucket by its clock, the gate by a virtual one, streams by real sockets."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable
from random import Random
from typing import cast

import pytest
import trio
import trio.testing

from ftnode.node.links.bandwidth import BURST_SECONDS, DEBT_SECONDS, OVERHEAD, Bandwidth, Bucket, Gate, LimitedStream
from ftnode.node.links.streams import carry_bulk, read_exactly, read_some, write_all, write_now

RATE = 1e6
SECONDS = 30.0


def drain(bucket: Bucket, until: float, urgent: bool, wanted: int = 1 << 20) -> int:
    """What passes until then, when somebody always wants more."""
    now = passed = 0
    while now <= until:
        while count := bucket.grant(wanted, now, urgent):
            passed += count
        now += max(1e-4, bucket.wait(wanted, now, urgent))
    return passed


@pytest.mark.parametrize("rate", [8_000.0, 125_000.0, 2.5e6, 1e9])
@pytest.mark.parametrize("urgent", [False, True])
def test_a_limit_holds_within_a_tenth_over_half_a_minute(rate: float, urgent: bool) -> None:
    passed = drain(Bucket(rate, 0.0), SECONDS, urgent)
    assert 0.9 * rate * SECONDS <= passed * OVERHEAD <= 1.1 * rate * SECONDS


def test_urgent_bytes_pass_when_bulk_has_taken_everything_and_bulk_waits_for_them() -> None:
    bucket = Bucket(RATE, 0.0)
    while bucket.grant(1 << 20, 0.0, urgent=False):
        pass
    assert bucket.grant(500, 0.0, urgent=True) == 500
    before = bucket.wait(1 << 20, 0.0, urgent=False)
    bucket.grant(1000, 0.0, urgent=True)
    assert bucket.wait(1 << 20, 0.0, urgent=False) == pytest.approx(before + 1000 / bucket.rate)


def test_urgent_bytes_are_not_without_limit() -> None:
    bucket, passed = Bucket(RATE, 0.0), 0
    while count := bucket.grant(1 << 20, 0.0, urgent=True):
        passed += count
    assert passed <= (BURST_SECONDS + DEBT_SECONDS) * RATE
    assert bucket.wait(1 << 20, 0.0, urgent=True) > 0


def test_what_was_granted_and_did_not_pass_is_given_back() -> None:
    bucket = Bucket(RATE, 0.0)
    granted = bucket.grant(1 << 20, 0.0, urgent=False)
    bucket.refund(granted)
    assert bucket.passed == 0 and bucket.wait(1 << 20, 0.0, urgent=False) == 0


def test_a_clock_that_goes_back_gives_nothing() -> None:
    bucket = Bucket(RATE, 100.0)
    while bucket.grant(1 << 20, 100.0, urgent=False):
        pass
    assert bucket.grant(1 << 20, 50.0, urgent=False) == 0 and bucket.wait(1 << 20, 100.0, urgent=False) > 0


def virtual(main: Callable[[], Awaitable[None]]) -> None:
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_bulk_streams_share_equally_and_urgent_ones_do_not_wait() -> None:
    async def main() -> None:
        gate = Gate(RATE)
        shares, waits = [0] * 8, list[float]()

        async def bulk(number: int) -> None:
            while True:
                shares[number] += await gate.grant(1 << 20, urgent=False)

        async def heartbeat() -> None:
            while True:
                began = trio.current_time()
                await gate.grant(300, urgent=True)
                waits.append(trio.current_time() - began)
                with trio.move_on_after(0.5):
                    await trio.sleep_forever()

        with trio.move_on_after(SECONDS):
            async with trio.open_nursery() as nursery:
                for number in range(len(shares)):
                    nursery.start_soon(bulk, number)
                nursery.start_soon(heartbeat)
        assert max(shares) - min(shares) <= 2 * gate.bucket.piece
        assert len(waits) >= 59 and max(waits) == 0
        assert 0.9 * RATE * SECONDS <= gate.bucket.passed * OVERHEAD <= 1.1 * RATE * SECONDS

    virtual(main)


def test_who_waits_is_not_overtaken_by_who_wants_less() -> None:
    async def main() -> None:
        gate = Gate(RATE)
        while gate.grant_now(1 << 20, urgent=False):
            pass
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gate.grant, 1 << 20, False)
            await trio.testing.wait_all_tasks_blocked()
            assert gate.grant_now(1, urgent=False) == 0 and gate.grant_now(1, urgent=True) == 1
            nursery.cancel_scope.cancel()

    virtual(main)


def test_the_peers_deadline_does_not_pay_for_our_limit() -> None:
    async def main() -> None:
        gate = Gate(RATE)
        with trio.fail_after(0.1) as patience:
            for _ in range(100):  # 2 MB at 1 MB/s
                await gate.grant(20_000, False, patience)
        assert trio.current_time() > 1

    virtual(main)


def pair(limits: Bandwidth, urgent: bool = False) -> tuple[LimitedStream, trio.SocketStream]:
    ours, theirs = (trio.SocketStream(trio.socket.from_stdlib_socket(one)) for one in socket.socketpair())
    limits = Bandwidth(limits.up, limits.down, urgent=("/x",) if urgent else ())
    return cast(LimitedStream, limits.limited(ours, "/x")), theirs


def test_what_is_sent_through_a_limited_stream_arrives_unchanged_and_in_its_time() -> None:
    async def main() -> None:
        content = Random(1).randbytes(400_000)
        ours, theirs = pair(Bandwidth(up=Gate(RATE)))
        got = bytearray()

        async def collect() -> None:
            while len(got) < len(content):
                got.extend(await theirs.receive_some(100_000))

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collect)
            rest = [memoryview(content)[:7], memoryview(content)[7:300_000]]
            assert not write_now(ours, rest)
            await write_all(ours, rest)
            await ours.send_all(content[300_000:])
        assert bytes(got) == content
        assert trio.current_time() - began > (len(content) * OVERHEAD - BURST_SECONDS * RATE) / RATE * 0.9

    virtual(main)


def test_what_comes_through_a_limited_stream_arrives_unchanged_and_in_its_time() -> None:
    async def main() -> None:
        content = Random(2).randbytes(400_000)
        ours, theirs = pair(Bandwidth(down=Gate(RATE)))
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(theirs.send_all, content)
            got = await read_exactly(ours, 300_000)
            while len(got) < len(content):
                got += await ours.receive_some(50_000)
        assert bytes(got) == content
        assert trio.current_time() - began > (len(content) * OVERHEAD - BURST_SECONDS * RATE) / RATE * 0.9
        await theirs.aclose()
        assert await read_some(ours, memoryview(bytearray(10))) == 0

    virtual(main)


def test_a_stream_that_waits_for_bytes_holds_up_nobody() -> None:
    async def main() -> None:
        limits = Bandwidth(down=Gate(RATE))
        (idle, _), (busy, theirs) = pair(limits), pair(limits)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_exactly, idle, 1000)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(theirs.send_all, bytes(100_000))
            assert len(await read_exactly(busy, 100_000)) == 100_000
            nursery.cancel_scope.cancel()

    virtual(main)


def test_a_control_lane_goes_on_while_tensors_wait() -> None:
    async def main() -> None:
        limits = Bandwidth(up=Gate(RATE))
        (control, listener), (tensors, _) = pair(limits, urgent=True), pair(limits, urgent=True)
        carry_bulk(tensors, up=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tensors.send_all, bytes(10_000_000))
            await trio.testing.wait_all_tasks_blocked()
            assert write_now(control, [memoryview(b"heartbeat")])
            assert await listener.receive_some(100) == b"heartbeat"
            assert not write_now(tensors, [memoryview(b"more")])
            carry_bulk(control, up=False)
            assert write_now(control, [memoryview(b"receipt")])
            nursery.cancel_scope.cancel()

    virtual(main)


def test_a_peer_that_is_gone_breaks_a_limited_stream_as_any_other() -> None:
    async def main() -> None:
        ours, theirs = pair(Bandwidth(up=Gate(1e9), down=Gate(1e9)))
        await theirs.aclose()
        with pytest.raises(trio.BrokenResourceError):
            for _ in range(10):
                await ours.send_all(bytes(1 << 20))
        assert await ours.receive_some(10) == b""
        await ours.aclose()

    virtual(main)


def test_a_stream_that_is_closed_while_it_waits_reads_from_nobody_else() -> None:
    """The kernel gives its number to the next file that is opened."""

    async def main() -> None:
        near, far = socket.socketpair()
        other, writer = socket.socketpair()
        number = near.fileno()

        class Closing(Gate):
            async def grant(self, wanted: int, urgent: bool, patience: trio.CancelScope | None = None) -> int:
                stream.socket.close()
                os.dup2(other.fileno(), number)
                return await super().grant(wanted, urgent, patience)

        gate = Closing(RATE)
        inner = trio.SocketStream(trio.socket.from_stdlib_socket(near))
        stream = LimitedStream(inner, Bandwidth(down=gate), urgent=False)
        far.send(b"ours")
        writer.send(b"somebody else's")
        try:
            with pytest.raises(OSError, match="Bad file descriptor"):
                await stream.read_some(memoryview(bytearray(64)))
            assert other.recv(64) == b"somebody else's" and gate.bucket.passed == 0
        finally:
            os.close(number)
            for each in (far, other, writer):
                each.close()

    trio.run(main)
