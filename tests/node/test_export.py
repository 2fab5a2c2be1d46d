"""A reader takes a whole model from holders that go on, have ended, are missing, differ or lie."""

from __future__ import annotations

import io
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

import pytest
import trio
import trio.testing
from exporting import RUN, STAGE_BYTES, STEPS, WANTED, Holder, Swarm, version
from lending import NUMBERS

from ftnode.node import export_client, export_server
from ftnode.node.export_client import Model, ModelReader, Wanted
from ftnode.node.export_wire import ExportOffer, ExportRequest, Holders, SendIt, WhoHolds, hear_answer, hear_asked, say
from ftnode.protocol.errors import UserError
from ftnode.protocol.wire import Refusal

NOW = 0.01
"""No second attempt."""


class Disk:
    """Where stages go."""

    def __init__(self) -> None:
        self.stages: dict[int, io.BytesIO] = {}
        self.kept: list[Model] = []

    def open(self, stage: int) -> io.BytesIO:
        self.stages[stage] = io.BytesIO()
        return self.stages[stage]

    def numbers(self, stage: int) -> list[float]:
        data = self.stages[stage].getvalue()
        return list(struct.unpack(f"<{len(data) // 4}f", data))


def run(main: Callable[[trio.Nursery], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                await main(nursery)
                nursery.cancel_scope.cancel()

    trio.run(bounded)


async def take(swarm: Swarm, disk: Disk, seconds: float = NOW, wanted: Wanted = WANTED) -> Model:
    return await ModelReader(swarm, wanted, disk.open).take(swarm.peers, seconds, disk.kept.append)


async def refused(swarm: Swarm, code: int, *says: str, wanted: Wanted = WANTED) -> None:
    disk = Disk()
    with pytest.raises(UserError) as caught:
        await take(swarm, disk, wanted=wanted)
    assert caught.value.exit_code == code, caught.value
    assert all(part in str(caught.value) for part in says), caught.value
    assert not disk.kept
    await trio.testing.wait_all_tasks_blocked()
    for holder in swarm.holders.values():
        assert not holder.host.compute.exports and holder.host.arena.free == holder.host.arena.slots


def three(nursery: trio.Nursery, step: int = 5) -> tuple[Swarm, list[Holder]]:
    holders = [Holder(stage + 1, stage, version(step)) for stage in range(3)]
    swarm = Swarm(nursery, *holders)
    swarm.tell(step, 0.0)
    return swarm, holders


def test_all_stages_of_a_run_that_has_ended() -> None:
    async def main(nursery: trio.Nursery) -> None:
        swarm, holders = three(nursery, STEPS)
        disk = Disk()
        model = await take(swarm, disk)
        assert (model.step, model.commit) == (STEPS, f"c{STEPS}")
        assert disk.kept == [model]
        assert [taken.peer for taken in model.stages] == [holder.id for holder in holders]
        for stage in range(3):
            assert disk.numbers(stage) == [100.0 * stage + n for n in range(NUMBERS)]
        begun = [f for holder in holders for op, f in holder.host.compute.calls if op == "export_begin"]
        assert not any(fields["freeze"] for fields in begun), "nothing changes them any more"
        await trio.testing.wait_all_tasks_blocked()
        assert [holder.written for holder in holders] == [[STEPS]] * 3, "they hear that it is written down"

    run(main)


def test_all_stages_of_one_step_while_the_run_goes_on() -> None:
    """The holders commit one after the other, and train on before the last has got there."""

    async def main(nursery: trio.Nursery) -> None:
        swarm, holders = three(nursery)
        swarm.tell(5, 0.5)
        wanted = 5 + 1 + 2  # a second and a step ahead
        disk = Disk()

        async def train() -> None:
            for step in range(6, wanted + 4):
                for holder in holders:
                    await trio.testing.wait_all_tasks_blocked(0.01)
                    holder.advance(version(step))

        nursery.start_soon(train)
        model = await take(swarm, disk)
        assert (model.step, model.commit) == (wanted, f"c{wanted}")
        for stage in range(3):
            assert disk.numbers(stage) == [100.0 * stage + n + wanted - 5 for n in range(NUMBERS)]
        begun = [f for holder in holders for op, f in holder.host.compute.calls if op == "export_begin"]
        assert all(fields["freeze"] for fields in begun)

    run(main)


def test_a_run_that_waits_gives_the_step_that_it_is_at() -> None:
    async def main(nursery: trio.Nursery) -> None:
        swarm, _ = three(nursery, 7)
        assert (await take(swarm, Disk())).step == 7

    run(main)


def test_stages_at_different_steps_are_refused() -> None:
    async def main(nursery: trio.Nursery) -> None:
        swarm, holders = three(nursery)
        holders[2].advance(version(9))
        await refused(swarm, 75, "not all stages are to be had of step 5", "stage 2 is at step 9")

    run(main)


def test_stages_of_different_histories_are_refused() -> None:
    async def main(nursery: trio.Nursery) -> None:
        swarm, holders = three(nursery)
        holders[1].advance(version(5, "another"))
        await refused(swarm, 75, "stage 1 is of another history")

    run(main)


def test_when_they_do_not_fit_all_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_client, "PAUSE_SECONDS", 0.02)

    async def main(nursery: trio.Nursery) -> None:
        swarm, holders = three(nursery)
        holders[2].advance(version(6))

        async def catch_up() -> None:
            await trio.testing.wait_all_tasks_blocked(0.01)
            for holder in holders[:2]:
                holder.advance(version(6))
            swarm.tell(6, 0.0)

        nursery.start_soon(catch_up)
        assert (await take(swarm, Disk(), seconds=10)).step == 6

    run(main)


def test_a_stage_without_a_holder_is_named() -> None:
    async def main(nursery: trio.Nursery) -> None:
        swarm, _ = three(nursery)
        swarm.tell(5, 0.0, 2)
        await refused(swarm, 69, "stage 2 has no holder now")

    run(main)


def test_a_stage_whose_holder_does_not_answer_is_named() -> None:
    async def main(nursery: trio.Nursery) -> None:
        swarm, holders = three(nursery)
        swarm.unreachable.add(holders[1].id)
        await refused(swarm, 69, "stage 1 has no holder that answers", holders[1].id[-8:], "all dials failed")

    run(main)


def test_a_replica_takes_the_place_of_a_holder_that_does_not_answer() -> None:
    async def main(nursery: trio.Nursery) -> None:
        holders = [Holder(number, stage, version(5)) for number, stage in ((1, 0), (2, 1), (3, 1), (4, 2))]
        swarm = Swarm(nursery, *holders)
        swarm.tell(5, 0.0)
        swarm.unreachable.add(holders[1].id)
        model = await take(swarm, Disk())
        assert model.stages[1].peer == holders[2].id

    run(main)


def test_nobody_who_knows_the_run() -> None:
    async def main(nursery: trio.Nursery) -> None:
        swarm, _ = three(nursery)
        swarm.status = replace(swarm.status, run="other")
        await refused(swarm, 69, "nobody who was asked takes part in the run", "it takes part in the run other")
        swarm.unreachable |= swarm.holders.keys()
        await refused(swarm, 69, "all dials failed")

    run(main)


# -- holders that lie or break


Lie = Callable[[trio.SocketStream], Awaitable[None]]


def offering(offer: ExportOffer, data: bytes) -> Lie:
    """A holder that says and sends just this."""

    async def answer(stream: trio.SocketStream) -> None:
        assert isinstance(await hear_asked(stream), ExportRequest)
        await say(stream, offer)
        with suppress(EOFError):  # who does not want it hangs up
            assert isinstance(await hear_asked(stream), SendIt)
            await stream.send_all(data)

    return answer


GOOD = ExportOffer(5, "c5", STAGE_BYTES, "0" * 32)


@pytest.mark.parametrize(
    ("offer", "data", "code", "says"),
    [
        (replace(GOOD, size=STAGE_BYTES + 4), b"", 76, f"{STAGE_BYTES + 4} bytes there, and {STAGE_BYTES} by the mani"),
        (replace(GOOD, step=6), b"", 75, "something else"),
        (replace(GOOD, commit="x" * 129), b"", 75, "an ExportOffer of what cannot be"),
        (replace(GOOD, commit="`x`"), b"", 75, "an ExportOffer of what cannot be"),
        (replace(GOOD, digest=""), b"", 75, "without a hash"),
        (GOOD, bytes(STAGE_BYTES), 75, "do not have the hash"),
        (GOOD, struct.pack("<40f", *[float("nan")] * 40), 75, "not finite"),
        (GOOD, bytes(STAGE_BYTES - 1), 75, "it hung up"),
    ],
)
def test_a_holder_that_lies_is_not_believed(offer: ExportOffer, data: bytes, code: int, says: str) -> None:
    async def main(nursery: trio.Nursery) -> None:
        swarm, holders = three(nursery)
        holders[2].answer = offering(offer, data)
        await refused(swarm, code, "stage 2", says)

    run(main)


@pytest.mark.parametrize("garbage", [b"\xff" * 64, b"\0\0\0\x04\xc1\xc1\xc1\xc1", b"\0\0\0\x05\x91\xa4What", b""])
def test_garbage_costs_the_attempt_and_no_more(garbage: bytes) -> None:
    async def main(nursery: trio.Nursery) -> None:
        swarm, holders = three(nursery)

        async def answer(stream: trio.SocketStream) -> None:
            await stream.send_all(garbage)

        holders[1].answer = answer
        await refused(swarm, 75, "stage 1")

    run(main)


def test_a_full_disk_is_our_own_fault() -> None:
    async def main(nursery: trio.Nursery) -> None:
        swarm, _ = three(nursery)

        class Full(io.BytesIO):
            def write(self, data: object) -> int:
                raise OSError(28, "No space left on device")

        with pytest.raises(UserError) as caught:
            await ModelReader(swarm, WANTED, lambda stage: Full()).take(swarm.peers, NOW, lambda model: None)
        assert caught.value.exit_code == 74 and "No space left" in str(caught.value)

    run(main)


# -- what a holder lets strangers do


async def dial(swarm: Swarm, holder: Holder) -> trio.SocketStream:
    return await swarm.open(holder.id, "/ftnode/export/1", 1.0)


async def ask(stream: trio.SocketStream, stage: int, step: int, run: str = RUN) -> ExportOffer | Refusal | Holders:
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
    monkeypatch.setattr(export_server, "SEND_IT_SECONDS", 0.05)

    async def main(nursery: trio.Nursery) -> None:
        swarm, (_, holder, _) = three(nursery)
        stream = await dial(swarm, holder)
        assert isinstance(await ask(stream, 1, 5), ExportOffer)
        assert await stream.receive_some(1) == b"", "it hangs up"
        assert not holder.host.compute.exports

    run(main)


def test_snapshots_are_rationed() -> None:
    async def main(nursery: trio.Nursery) -> None:
        swarm, (_, holder, _) = three(nursery)
        for _ in range(export_server.SNAPSHOTS_MAX):
            stream = await dial(swarm, holder)
            assert isinstance(await ask(stream, 1, 5), ExportOffer)
            await stream.aclose()
            await trio.testing.wait_all_tasks_blocked()
        refusal = await ask(await dial(swarm, holder), 1, 5)
        assert isinstance(refusal, Refusal) and "too often" in refusal.reason

    run(main)


def test_rations_grow_again() -> None:
    allowance = export_server.Allowance()
    assert [allowance.take(1, 0.0) for _ in range(4)] == [True, True, True, False]
    assert allowance.take(2, 0.0), "another stage has its own"
    assert not allowance.take(1, export_server.SNAPSHOT_SECONDS - 1)
    assert allowance.take(1, export_server.SNAPSHOT_SECONDS + 1)
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
    monkeypatch.setattr(export_server, "POLL_SECONDS", 0.01)

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
