"""A reader takes a whole model from holders that go on, have ended, are missing, differ or lie."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from ftnode.node.export import client
from ftnode.node.export.checkpoint import Checkpoint, creating
from ftnode.node.export.client import ModelReader, WantedModel
from ftnode.node.export.folder import ExportFolder
from ftnode.node.export.tokenizer_files import find_tokenizer
from ftnode.node.export.wire import ExportOffer, ExportRequest, Holders, Place, SendIt, WhoHolds, hear_asked
from ftnode.node.links.addresses import PeerAddress
from ftnode.node.links.side_messages import say
from ftnode.node.manifests.presets import preset
from ftnode.node.watch.stage_summary import LEFT_OUT
from ftnode.node.watch.status import Member, Speaker, StageRow, SwarmStatus
from ftnode.protocol.words.errors import UserError
from tests.node.export.exporting import (
    ADDRESS,
    NOW,
    RUN,
    STEPS,
    WANTED,
    Disk,
    Holder,
    Swarm,
    peer_id,
    refused,
    run,
    silent,
    take,
    three,
    version,
)
from tests.node.virtual_time import passed
from tests.node.weights.lending import NUMBERS


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


def folder(checkpoint: Checkpoint, out: Path) -> ExportFolder:
    return ExportFolder(checkpoint, out, find_tokenizer(preset("tiny"), None, out), "")


def test_nobody_is_told_of_a_model_that_did_not_get_its_name(tmp_path: Path) -> None:
    """A holder may leave when it is told, with the last copy."""

    async def main(nursery: trio.Nursery) -> None:
        swarm, holders = three(nursery, STEPS)
        out = tmp_path / "out"
        with creating(out, preset("tiny")) as checkpoint:
            out.mkdir()
            (out / "thesis.txt").write_text("mine")
            keep = folder(checkpoint, out).keep
            with pytest.raises(UserError, match="choose another folder") as caught:
                await ModelReader(swarm, WANTED, Disk().open).take(swarm.peers, NOW, keep)
        assert caught.value.exit_code == 73
        await trio.testing.wait_all_tasks_blocked()
        assert [holder.written for holder in holders] == [[], [], []]

    run(main)


def test_holders_are_told_when_the_folder_is_there(tmp_path: Path) -> None:
    async def main(nursery: trio.Nursery) -> None:
        swarm, holders = three(nursery, STEPS)
        out = tmp_path / "out"
        there: list[bool] = []
        for holder in holders:
            holder.on_written = lambda: there.append((out / "README.md").exists())
        with creating(out, preset("tiny")) as checkpoint:
            keep = folder(checkpoint, out).keep
            await ModelReader(swarm, WANTED, Disk().open).take(swarm.peers, NOW, keep)
        assert there == [True] * 3

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
    monkeypatch.setattr(client, "PAUSE_SECONDS", 0.02)

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


DATA = bytes(4 * NUMBERS)
OFFER = ExportOffer(5, "c5", len(DATA), hashlib.blake2b(DATA, digest_size=16).hexdigest())


def one_holder(nursery: trio.Nursery, stages: int, send: Callable[[trio.SocketStream], Awaitable[bool]]) -> Swarm:
    """Of all stages, at step 5, that offers each and then does what `send` does: False hangs up."""
    holder = Holder(1, None)
    told = Holders(RUN, 5, 0.0, tuple(Place(stage, 0, holder.id, ADDRESS) for stage in range(stages)))

    async def answer(stream: trio.SocketStream) -> None:
        with suppress(EOFError):
            while True:
                match await hear_asked(stream):
                    case WhoHolds():
                        await say(stream, told)
                    case ExportRequest():
                        await say(stream, OFFER)
                    case SendIt() if await send(stream):
                        pass
                    case _:
                        return

    holder.answer = answer
    return Swarm(nursery, holder)


def test_stages_of_one_holder_may_come_one_after_the_other_for_hours() -> None:
    async def main() -> None:
        turn = trio.CapacityLimiter(1)

        async def send(stream: trio.SocketStream) -> bool:
            async with turn:
                await passed(0.8 * client.FIRST_SECONDS)
                await stream.send_all(DATA)
            return True

        async with trio.open_nursery() as nursery:
            model = await take(one_holder(nursery, 3, send), Disk())
            assert [taken.stage for taken in model.stages] == [0, 1, 2]
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize(("breaks", "comes"), [(client.BROKEN_MAX, True), (client.BROKEN_MAX + 1, False)])
def test_a_holder_that_goes_while_a_large_model_comes_is_not_the_end(breaks: int, comes: bool) -> None:
    """Though the weights have come for longer than anybody looks for peers."""

    async def main() -> None:
        left = breaks

        async def send(stream: trio.SocketStream) -> bool:
            nonlocal left
            await passed(0.8 * client.FIRST_SECONDS)
            left -= 1
            if left < 0:
                await stream.send_all(DATA)
            return left < 0

        async with trio.open_nursery() as nursery:
            swarm = one_holder(nursery, 1, send)
            if comes:
                assert (await take(swarm, Disk(), 120, WantedModel(RUN, STEPS, (len(DATA),), 4))).step == 5
            else:
                with pytest.raises(UserError, match="did not come from"):
                    await take(swarm, Disk(), 120, WantedModel(RUN, STEPS, (len(DATA),), 4))
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_stage_without_a_holder_is_named() -> None:
    async def main(nursery: trio.Nursery) -> None:
        swarm, _ = three(nursery)
        swarm.tell(5, 0.0, 2)
        await refused(swarm, 69, "stage 2 has no holder now")

    run(main)


def test_several_stages_without_a_holder_are_named() -> None:
    async def main(nursery: trio.Nursery) -> None:
        swarm, _ = three(nursery)
        swarm.tell(5, 0.0, 0, 2)
        await refused(swarm, 69, "the head (stage 0) and stage 2 have no holder now")

    run(main)


def test_why_it_takes_so_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PAUSE_SECONDS", 0.02)

    async def main(nursery: trio.Nursery) -> None:
        swarm, _ = three(nursery)
        swarm.tell(5, 0.0, 2)
        told: list[str] = []
        reader = ModelReader(swarm, WANTED, Disk().open, tell=told.append)
        with pytest.raises(UserError):
            await reader.take(swarm.peers, 0.1, lambda model: None)
        assert told and "stage 2 has no holder now" in told[0]

    run(main)


def test_an_old_address_of_a_member_does_not_hide_it() -> None:
    """A volunteer takes a new port at each start; the meeting point names the present one."""

    async def main(nursery: trio.Nursery) -> None:
        swarm, holders = three(nursery, STEPS)
        point = Holder(9, None)
        swarm.holders = {point.id: point} | swarm.holders
        swarm.words[point.id] = SwarmStatus(
            Speaker(point.id, "0", "cpu", "bootstrap"), members=(Member(RUN, "trial", holders[0].id, ADDRESS),)
        )
        old = PeerAddress(holders[0].id, ())
        model = await ModelReader(swarm, WANTED, Disk().open).take((old, *swarm.peers), NOW, lambda model: None)
        assert model.told_by == holders[0].id

    run(main)


def test_a_stage_whose_holder_does_not_answer_is_named() -> None:
    async def main(nursery: trio.Nursery) -> None:
        swarm, holders = three(nursery)
        swarm.unreachable.add(holders[1].id)
        await refused(swarm, 69, "stage 1 has no holder that answers", holders[1].id[-6:], "all dials failed")

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
        members = tuple(Member(RUN, "trial", holder.id, ADDRESS) for holder in holders)
        strangers = (Member("other", "other", peer_id(8), ADDRESS), Member(RUN, "trial", "x", ADDRESS))
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


def leaves_out(swarm: Swarm, *stages: int) -> None:
    """Every member says so of them, and names nobody."""
    rows = tuple(StageRow(stage, "", LEFT_OUT, 3, 5, 0, 0, 0.0) for stage in stages)
    swarm.status = replace(swarm.status, stages=rows)
    swarm.tell(5, 0.0, *stages)


OMITS = replace(WANTED, omits=True)


def test_the_model_is_without_a_stage_that_the_run_trains_without() -> None:
    async def main(nursery: trio.Nursery) -> None:
        swarm, holders = three(nursery)
        leaves_out(swarm, 1)
        disk, without = Disk(), list[tuple[int, ...]]()
        reader = ModelReader(swarm, OMITS, disk.open, leave_out=without.append)
        model = await reader.take(swarm.peers, NOW, disk.kept.append)
        assert model.left_out == (1,) and without == [(1,)]
        assert [taken.stage for taken in model.stages] == [0, 2] and {*disk.stages} == {0, 2}
        assert disk.numbers(2) == [200.0 + n for n in range(NUMBERS)]
        await trio.testing.wait_all_tasks_blocked()
        assert [holder.written for holder in holders] == [[5], [], [5]]

    run(main)


@pytest.mark.parametrize(("stage", "wanted"), [(1, WANTED), (0, OMITS)])
def test_a_member_cannot_leave_out_what_the_run_never_does(stage: int, wanted: WantedModel) -> None:
    async def main(nursery: trio.Nursery) -> None:
        swarm, _ = three(nursery)
        leaves_out(swarm, stage)
        await refused(swarm, 69, "has no holder now", wanted=wanted)

    run(main)


def test_a_stage_that_somebody_holds_is_never_left_out() -> None:
    async def main(nursery: trio.Nursery) -> None:
        swarm, _ = three(nursery)
        leaves_out(swarm, 1)
        swarm.tell(5, 0.0)
        model = await take(swarm, Disk(), wanted=OMITS)
        assert not model.left_out and len(model.stages) == 3

    run(main)


def test_a_stage_that_is_left_out_only_meanwhile_makes_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(nursery: trio.Nursery) -> None:
        swarm, _ = three(nursery)
        before = swarm.status
        leaves_out(swarm, 1)

        async def later(dialer: object, peer: object) -> SwarmStatus:
            await trio.lowlevel.checkpoint()
            return before

        monkeypatch.setattr(client, "ask_status", later)
        await refused(swarm, 75, "leaves out other stages", wanted=OMITS)

    run(main)
