"""What a holder lets strangers have of its stage, and what it does not let them do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from ftnode.node.compute.exports import EXPORTS_MAX
from ftnode.node.export import server
from ftnode.node.export.wire import (
    EXPORT_PROTOCOL,
    Answer,
    ExportOffer,
    ExportRequest,
    Holders,
    SendIt,
    WhoHolds,
    Written,
    hear_answer,
)
from ftnode.node.links.p2pd import PEER_STREAMS_MAX
from ftnode.node.links.side_messages import say
from ftnode.node.links.streams import read_exactly
from ftnode.protocol.wire.frames import Refusal
from tests.node.compute.computing import CONFIG, Refused, direct, read_out, train
from tests.node.export.exporting import RUN, Holder, Swarm, run, three, version
from tests.node.virtual_time import passed


async def dial(swarm: Swarm, holder: Holder) -> trio.SocketStream:
    return await swarm.open(holder.id, EXPORT_PROTOCOL, 1.0)


async def ask(stream: trio.SocketStream, stage: int, step: int, run: str = RUN) -> Answer:
    await say(stream, ExportRequest(run, stage, step))
    return await hear_answer(stream)


def test_one_snapshot_of_a_stage_at_a_time_and_many_readers_of_it() -> None:
    async def main(nursery: trio.Nursery) -> None:
        swarm, (_, holder, _) = three(nursery)
        first, second, third = [await dial(swarm, holder) for _ in range(3)]
        assert isinstance(await ask(first, 1, 5), ExportOffer)
        assert isinstance(await ask(second, 1, 5), ExportOffer)
        holder.advance(version(6))
        refusal = await ask(third, 1, 6)
        assert isinstance(refusal, Refusal) and "of step 5, and somebody reads it" in refusal.reason and refusal.retry
        for stream in (first, second):
            await stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert not holder.host.compute.exports
        assert isinstance(await ask(await dial(swarm, holder), 1, 6), ExportOffer)

    run(main)


def test_a_snapshot_that_nobody_reads_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SEND_IT_SECONDS", 0.05)

    async def main(nursery: trio.Nursery) -> None:
        swarm, (_, holder, _) = three(nursery)
        stream = await dial(swarm, holder)
        assert isinstance(await ask(stream, 1, 5), ExportOffer)
        assert await stream.receive_some(1) == b"", "it hangs up"
        assert not holder.host.compute.exports

    run(main)


def test_after_an_offer_nothing_else_is_asked_for() -> None:
    async def main(nursery: trio.Nursery) -> None:
        swarm, (_, holder, _) = three(nursery)
        stream = await dial(swarm, holder)
        assert isinstance(await ask(stream, 1, 5), ExportOffer)
        await say(stream, ExportRequest(RUN, 1, 5))
        assert await stream.receive_some(1) == b"", "it hangs up"
        assert not holder.host.compute.exports and not holder.written

    run(main)


def test_few_are_sent_something_at_a_time() -> None:
    async def main(nursery: trio.Nursery) -> None:
        holder = Holder(1, 0, version(5), numbers=1 << 18)
        swarm = Swarm(nursery, holder)
        streams = [await dial(swarm, holder) for _ in range(server.READERS_MAX + 1)]
        for stream in streams:
            assert isinstance(await ask(stream, 0, 5), ExportOffer)
            await say(stream, SendIt())
            await trio.testing.wait_all_tasks_blocked(0.02)
        reading = {fields["export"] for op, fields in holder.host.compute.calls if op == "export_chunk"}
        assert len(reading) == server.READERS_MAX
        await streams[0].aclose()
        assert await streams[-1].receive_some(1), "now it is its turn"

    run(main)


def test_who_waits_for_its_turn_waits_as_long_as_those_before_take() -> None:
    """Of a holder of many stages on a thin line that is hours."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            holder = Holder(1, 0, version(5))
            swarm = Swarm(nursery, holder)
            holder.server._readers = trio.CapacityLimiter(1)
            await holder.server._readers.acquire()
            stream, gone = await dial(swarm, holder), await dial(swarm, holder)
            for each in (stream, gone):
                offer = await ask(each, 0, 5)
                assert isinstance(offer, ExportOffer)
                await say(each, SendIt())
            await passed(2 * server.IDLE_SECONDS + offer.size / server.SLOWEST)
            await gone.aclose()
            await passed(2 * server.POLL_SECONDS)
            assert len(holder.host.compute.exports) == 1, "whoever hangs up is noticed"
            holder.server._readers.release()
            assert len(await read_exactly(stream, offer.size)) == offer.size
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_reader_who_took_two_stages_is_told_of_once() -> None:
    async def main(nursery: trio.Nursery) -> None:
        swarm, (_, holder, _) = three(nursery)
        for _ in range(2):
            stream = await dial(swarm, holder)
            offer = await ask(stream, 1, 5)
            assert isinstance(offer, ExportOffer)
            await say(stream, SendIt())
            await read_exactly(stream, offer.size)
            await say(stream, Written())
            assert await stream.receive_some(1) == b""
        assert holder.written == [5]

    run(main)


def test_only_who_was_sent_everything_may_say_that_it_is_written() -> None:
    async def main(nursery: trio.Nursery) -> None:
        swarm, (_, holder, _) = three(nursery)
        stream = await dial(swarm, holder)
        await say(stream, Written())
        assert await stream.receive_some(1) == b"" and not holder.written
        await trio.testing.wait_all_tasks_blocked()  # an error of its own would end the test

    run(main)


def test_snapshots_are_rationed() -> None:
    async def main(nursery: trio.Nursery) -> None:
        swarm, (_, holder, _) = three(nursery)
        for _ in range(server.SNAPSHOTS_MAX):
            stream = await dial(swarm, holder)
            assert isinstance(await ask(stream, 1, 5), ExportOffer)
            await stream.aclose()
            await trio.testing.wait_all_tasks_blocked()
        refusal = await ask(await dial(swarm, holder), 1, 5)
        assert isinstance(refusal, Refusal) and "too often" in refusal.reason

    run(main)


def test_rations_grow_again() -> None:
    allowance = server.Allowance()
    assert [allowance.take(1, 0.0) for _ in range(4)] == [True, True, True, False]
    assert allowance.take(2, 0.0), "another stage has its own"
    assert not allowance.take(1, server.SNAPSHOT_SECONDS - 1)
    assert allowance.take(1, server.SNAPSHOT_SECONDS + 1)
    assert [allowance.take(1, 1e6) for _ in range(4)] == [True, True, True, False], "but not beyond the brim"


def test_a_reader_who_does_not_read_holds_no_slots() -> None:
    async def main(nursery: trio.Nursery) -> None:
        holder = Holder(1, 0, version(5), numbers=1 << 20)
        swarm = Swarm(nursery, holder)
        stream = await dial(swarm, holder)
        assert isinstance(await ask(stream, 0, 5), ExportOffer)
        await say(stream, SendIt())
        await trio.testing.wait_all_tasks_blocked(0.05)
        calls = [op for op, _ in holder.host.compute.calls]
        assert "export_chunk" in calls and len(calls) < (4 << 20) // 64, "the pipe is full before the end"
        assert holder.host.arena.free == holder.host.arena.slots

    run(main)


def test_a_reader_who_goes_while_it_waits_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "POLL_SECONDS", 0.01)

    async def main(nursery: trio.Nursery) -> None:
        _, (_, holder, _) = three(nursery)
        served = trio.Event()
        ours, theirs = trio.socket.socketpair()

        async def serve() -> None:
            await holder.server.serve("reader", trio.SocketStream(theirs))
            served.set()

        nursery.start_soon(serve)
        stream = trio.SocketStream(ours)
        await say(stream, ExportRequest(RUN, 1, 12))
        await trio.testing.wait_all_tasks_blocked(0.005)
        await stream.aclose()
        with trio.fail_after(5):
            await served.wait()

    run(main)


@pytest.mark.parametrize(
    ("run_id", "stage", "says", "retry"),
    [("other", 1, "takes part in the run", False), (RUN, 2, "stage 2 is not here", True)],
)
def test_what_is_not_here_is_not_exported(run_id: str, stage: int, says: str, retry: bool) -> None:
    async def main(nursery: trio.Nursery) -> None:
        swarm, (_, holder, _) = three(nursery)
        refusal = await ask(await dial(swarm, holder), stage, 5, run_id)
        assert isinstance(refusal, Refusal) and says in refusal.reason and refusal.retry is retry

    run(main)


@pytest.mark.parametrize("first", [SendIt(), ExportRequest(RUN, -1, 0), ExportRequest(RUN, 0, 1 << 60)])
def test_nonsense_is_hung_up_on(first: SendIt | ExportRequest) -> None:
    async def main(nursery: trio.Nursery) -> None:
        swarm, (_, holder, _) = three(nursery)
        stream = await dial(swarm, holder)
        await say(stream, first)
        assert await stream.receive_some(1) == b""
        stream = await dial(swarm, holder)
        await stream.send_all(b"\xff\xff\xff\xff")
        assert await stream.receive_some(1) == b""
        await say(stream := await dial(swarm, holder), WhoHolds(RUN))
        assert isinstance(await hear_answer(stream), Holders)

    run(main)


@pytest.mark.parametrize("backend", ["torch", "paced"])
def test_who_asks_late_reads_along_what_is_frozen(backend: str, text_file: Path) -> None:
    """Of one export there is one snapshot, whoever reads it."""
    swarm = direct(replace(CONFIG, backend=backend, data=str(text_file)))
    train(swarm, 1)
    fields = {"stage": 0, "step": 1, "parts": "weights", "freeze": True}
    first = swarm.call("export_begin", **fields)
    train(swarm, 2)
    late = swarm.call("export_begin", **fields)
    assert (late["version"], late["digest"]) == (first["version"], first["digest"])
    assert read_out(swarm, late) == read_out(swarm, first)
    for begun in (first, late):
        swarm.call("export_end", export=begun["export"])
    with pytest.raises(Refused, match="of step 2, not 1"):
        swarm.call("export_begin", **fields)


def test_who_has_a_hundred_stages_can_give_them_all_at_once() -> None:
    """A reader of the model has a stream, and a frozen stage, for each."""
    assert PEER_STREAMS_MAX > server.STREAMS_MAX > 100 and EXPORTS_MAX > server.STREAMS_MAX
