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
from exporting import ADDRESS, RUN, STAGE_BYTES, STEPS, WANTED, Holder, Swarm, peer_id, run, three, version
from lending import NUMBERS

from ftnode.node import export_client
from ftnode.node.addresses import PeerAddress
from ftnode.node.export_client import Model, ModelReader, Wanted
from ftnode.node.export_wire import PLACES_MAX, ExportOffer, ExportRequest, Holders, Place, SendIt, hear_asked, say
from ftnode.node.status import Member as Named
from ftnode.node.status import Speaker, SwarmStatus
from ftnode.protocol.errors import UserError

NOW = 0.01
"""No second attempt."""
GOOD = ExportOffer(5, "c5", STAGE_BYTES, "0" * 32)


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


def test_a_meeting_point_names_members() -> None:
    async def main(nursery: trio.Nursery) -> None:
        swarm, holders = three(nursery, STEPS)
        point = Holder(9, None)
        swarm.holders = {point.id: point} | swarm.holders
        members = tuple(Named(RUN, "trial", holder.id, ADDRESS) for holder in holders)
        strangers = (Named("other", "other", peer_id(8), ADDRESS), Named(RUN, "trial", "x", ADDRESS))
        swarm.words[point.id] = SwarmStatus(
            Speaker(point.id, "0", "cpu", "bootstrap"), members=(*strangers, *members[:1])
        )
        assert (await take(swarm, Disk())).told_by == holders[0].id
        assert swarm.dialled.count(peer_id(8)) == 0, "a member of another run"

    run(main)


def test_dead_peers_do_not_hold_it_up() -> None:
    async def main(nursery: trio.Nursery) -> None:
        swarm, holders = three(nursery, STEPS)
        swarm.never.add(peer_id(7))
        peers = (PeerAddress(peer_id(7), ADDRESS), *swarm.peers)
        model = await ModelReader(swarm, WANTED, Disk().open).take(peers, 1e6, lambda model: None)
        assert model.told_by == holders[0].id

    run(main)


def test_the_others_are_not_waited_for_when_one_stage_is_refused() -> None:
    async def main(nursery: trio.Nursery) -> None:
        swarm, holders = three(nursery)
        holders[2].advance(version(9))
        holders[1].answer = silent  # for OFFER_SECONDS
        await refused(swarm, 75, "stage 2 is at step 9")

    run(main)


def test_what_a_stranger_calls_an_address_is_not_always_dialled() -> None:
    async def main(nursery: trio.Nursery) -> None:
        swarm, holders = three(nursery)
        assert holders[0].told is not None
        first, _, third = holders[0].told.places
        for bad in (("/unix/tmp/control",), (), ("/ip4/127.0.0.1/tcp/x",), ("/ip4/" + "1" * 500,)):
            holders[0].told = replace(holders[0].told, places=(first, Place(1, 0, holders[1].id, bad), third))
            await refused(swarm, 69, "stage 1 has no holder that answers", "no address that can be dialled")
        holders[0].told = replace(holders[0].told, places=(first, Place(1, 0, "not\x1ba peer", ADDRESS), third))
        await refused(swarm, 69, "stage 1 has no holder that answers", "that is no PeerId")

    run(main)


# -- holders that lie or break


async def silent(stream: trio.SocketStream) -> None:
    await trio.sleep_forever()


@pytest.mark.parametrize("garbage", [b"\xff" * 64, b"\0\0\0\x04\xc1\xc1\xc1\xc1", b""])
def test_a_status_that_is_garbage_is_no_member(garbage: bytes) -> None:
    async def main(nursery: trio.Nursery) -> None:
        swarm, holders = three(nursery)
        swarm.words[holders[0].id] = garbage
        await refused(swarm, 69, "nobody who was asked takes part in the run", holders[0].id[-8:])

    run(main)


def test_who_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_client, "OFFER_SECONDS", 0.05)

    async def main(nursery: trio.Nursery) -> None:
        swarm, holders = three(nursery)
        holders[2].answer = silent
        await refused(swarm, 75, "stage 2", "it does not answer")
        monkeypatch.setattr(export_client, "ANSWER_SECONDS", 0.05)
        holders[0].answer = silent
        await refused(swarm, 69, "who holds the stages: it does not answer")

    run(main)


@pytest.mark.parametrize(
    "told",
    [
        Holders("other", 5, 0.0, ()),
        Holders(RUN, -1, 0.0, ()),
        Holders(RUN, 5, -1.0, ()),
        Holders(RUN, 5, 0.0, (Place(0, 0, "", ()),) * (PLACES_MAX + 1)),
        GOOD,
    ],
)
def test_a_member_that_lies_about_the_holders_is_not_believed(told: Holders | ExportOffer) -> None:
    async def main(nursery: trio.Nursery) -> None:
        swarm, holders = three(nursery)

        async def answer(stream: trio.SocketStream) -> None:
            await hear_asked(stream)
            await say(stream, told)

        holders[0].answer = answer
        disk = Disk()
        with pytest.raises(UserError, match=r"something else|that cannot be") as caught:
            await take(swarm, disk)
        assert caught.value.exit_code in (69, 76) and not disk.stages

    run(main)


@pytest.mark.parametrize(
    ("step", "seconds", "asked"),
    [
        (5, 0.5, 8),  # a second and a step ahead
        (5, 0.01, 106),
        (5, 2.0, 7),
        (5, 60.0, 5),  # nobody commits before all are asked
        (STEPS - 1, 0.5, STEPS),
        (STEPS, 0.5, STEPS),
        (5, 0.0, 5),  # it stands still
    ],
)
def test_which_step_is_asked_for(step: int, seconds: float, asked: int) -> None:
    wanted = replace(WANTED, steps=max(STEPS, asked))
    if step + 1 >= STEPS:
        wanted = WANTED
    chosen, patience = export_client.choose(Holders(RUN, step, seconds, ()), wanted.steps)
    assert chosen == asked
    assert patience >= export_client.OFFER_SECONDS + (chosen - step) * seconds


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
