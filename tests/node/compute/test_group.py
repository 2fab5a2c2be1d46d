"""Several compute processes of one node: which has which stage, what goes to all, and what becomes of them together."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import trio
import trio.testing

from ftnode.node.compute import group as group_module
from ftnode.node.compute.config import ComputeConfig
from ftnode.node.compute.group import ComputeGroup, least_loaded
from ftnode.node.compute.state_shape import gradient_numbers, state_numbers
from ftnode.node.machine.gradient_memory import GradientMemory
from ftnode.node.machine.snapshot_memory import SnapshotMemory
from ftnode.node.machine.tensor_slots import Arena
from ftnode.node.ports import ComputeError
from tests.node.compute.computing import ATTEMPT, CONFIG, LAST_VISIT, MICROBATCHES, STAGES, direct, train

Answered = dict[str, Any] | ComputeError


class Member:
    """A compute process that answers when it is told to."""

    def __init__(
        self, config: ComputeConfig, arena: object, on_ready: Any, on_lost: Any, on_stage_lost: Any, *_: object
    ) -> None:
        self.config, self.on_ready, self.on_lost, self.on_stage_lost = config, on_ready, on_lost, on_stage_lost
        self.orders: list[tuple[str, dict[str, Any], Callable[[Answered], None]]] = []
        self.restarts: list[str] = []
        self.refusal, self.working = "", False

    def post(self, op: str, answer: Callable[[Answered], None], **fields: Any) -> None:
        self.orders.append((op, fields, answer))

    def restart(self, reason: str) -> None:
        self.restarts.append(reason)

    def answer(self, found: Answered | None = None) -> None:
        """The first of the orders."""
        self.orders.pop(0)[2]({} if found is None else found)

    @property
    def asked(self) -> list[str]:
        return [f"{op} {fields.get('stage', '')}".strip() for op, fields, _ in self.orders]


class Group:
    """A ComputeGroup of such processes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *speeds: float, room: int = 9) -> None:
        monkeypatch.setattr(group_module, "ComputeProcess", Member)
        self.ready: list[tuple[dict[str, Any], ...]] = []
        self.lost: list[str] = []
        self.stages_lost: list[tuple[int, str, bool]] = []
        configs = [replace(CONFIG, device=f"cuda:{number}") for number in range(len(speeds))]
        self.group = ComputeGroup(
            configs,
            None,  # type: ignore[arg-type]
            self.ready.append,
            self.lost.append,
            lambda *lost: self.stages_lost.append(lost),
        )
        self.members: list[Any] = list(self.group._members)
        self.speeds = speeds
        self.answers: list[Answered] = []
        self.begin()
        self.group.room = (room,) * len(speeds)

    def begin(self) -> None:
        for member, speed in zip(self.members, self.speeds):
            member.on_ready({"tokens_per_second": speed, "memory_free": 100, "device": member.config.device})

    def post(self, op: str, **fields: Any) -> None:
        self.group.post(op, self.answers.append, **fields)


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Group:
    return Group(monkeypatch, 10.0, 10.0)


@pytest.mark.parametrize(
    ("held", "room", "speeds", "number"),
    [
        ([0, 0], [2, 2], [1.0, 1.0], 0),
        ([1, 0], [2, 2], [1.0, 1.0], 1),
        ([0, 0], [2, 2], [1.0, 2.0], 1),
        ([0, 1], [2, 2], [1.0, 2.1], 1),
        ([0, 2], [2, 2], [1.0, 9.0], 0),
        ([2, 2], [2, 2], [1.0, 1.0], 0),
        ([3, 2], [2, 2], [1.0, 1.0], 1),
        ([0, 0], [0, 1], [1.0, 1.0], 1),
        ([0], [0], [0.0], 0),
    ],
)
def test_where_a_stage_goes(held: list[int], room: list[int], speeds: list[float], number: int) -> None:
    assert least_loaded(held, room, speeds) == number


@pytest.mark.parametrize("seed", range(50))
def test_no_device_gets_more_than_it_has_room_for_while_another_has_some(seed: int) -> None:
    chance = Random(seed)
    room = [chance.randint(0, 5) for _ in range(chance.randint(1, 4))]
    speeds = [chance.choice([0.0, 1.0, 3.0]) for _ in room]
    held = [0] * len(room)
    for _ in range(sum(room)):
        held[least_loaded(held, room, speeds)] += 1
    assert held == room


def test_stages_are_spread_and_commands_follow_them(pair: Group) -> None:
    one, other = pair.members
    for stage in (0, 1, 2):
        pair.post("initialise", stage=stage, commit="c")
    pair.post("forward", stage=1, step=1)
    pair.post("snapshot_copy", stage=2, step=1)
    assert one.asked == ["initialise 0", "initialise 2", "snapshot_copy 2"]
    assert other.asked == ["initialise 1", "forward 1"]
    assert [pair.group.device_of(stage) for stage in (0, 1, 2, 3)] == ["cuda:0", "cuda:1", "cuda:0", ""]


def test_two_of_a_kind_are_equally_fast_whatever_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Group(monkeypatch, 10.0, 30.0)
    for member, speed in zip(made.members, (10.0, 30.0)):
        member.on_ready({"tokens_per_second": speed, "memory_free": 1, "device": "RTX 3090"})
    for stage in range(4):
        made.post("initialise", stage=stage, commit="c")
    assert [len(member.orders) for member in made.members] == [2, 2]
    other = Group(monkeypatch, 10.0, 30.0)
    for stage in range(4):
        other.post("initialise", stage=stage, commit="c")
    assert [len(member.orders) for member in other.members] == [1, 3]


def test_a_learner_finds_its_sums_where_its_weights_will_be(pair: Group) -> None:
    pair.post("initialise", stage=0, commit="c")
    for op in ("reduce_open", "install_begin", "install_chunk", "install_end", "apply"):
        pair.post(op, stage=2)
    assert len(pair.members[1].orders) == 5


def test_what_is_for_all_is_answered_once_all_have(pair: Group) -> None:
    pair.post("discard", keep=None)
    pair.members[1].answer()
    assert pair.answers == []
    pair.members[0].answer()
    assert pair.answers == [{}]
    no = ComputeError("invalid", "it stays pinned", 1)
    pair.post("snapshot_release", stage=1)
    pair.members[0].answer(no)
    pair.members[1].answer()
    assert pair.answers[1:] == [no]


def test_an_export_is_read_where_it_began(pair: Group) -> None:
    for stage in (0, 1):
        pair.post("initialise", stage=stage, commit="c")
        pair.post("export_begin", stage=stage)
    for number, member in enumerate(pair.members):
        member.answer()
        member.answer({"export": 70 + number})
    pair.post("export_chunk", export=71, index=0)
    pair.post("export_chunk", export=70, index=0)
    pair.post("export_end", export=71)
    assert pair.members[0].asked == ["export_chunk"] and pair.members[1].asked == ["export_chunk", "export_end"]
    assert pair.group._exports == {70: 0}


def test_a_stage_that_is_forgotten_leaves_its_place_when_that_is_answered(pair: Group) -> None:
    pair.post("initialise", stage=3, commit="c")
    pair.post("initialise", stage=1, commit="c")
    pair.post("forget", stage=3)
    pair.members[0].answer()
    assert pair.group.device_of(3) == "cuda:0"
    pair.members[0].answer()
    assert pair.group.device_of(3) == ""
    pair.post("initialise", stage=2, commit="c")
    assert pair.group.device_of(2) == "cuda:0"


def test_a_stage_that_comes_again_before_the_answer_goes_to_the_same_process(pair: Group) -> None:
    """Which gives back the stage's memory with `forget`: another would lose there what it has just written."""
    pair.post("initialise", stage=1, commit="c")
    pair.post("initialise", stage=2, commit="c")
    pair.members[0].answer()
    pair.post("forget", stage=1)
    pair.post("forget", stage=1)
    pair.post("install_begin", stage=1)
    assert pair.members[0].asked == ["forget 1", "forget 1", "install_begin 1"]
    pair.members[0].answer()
    pair.members[0].answer()
    assert pair.group.device_of(1) == "cuda:0", "the forget was of before"
    pair.post("forget", stage=1)
    pair.members[0].answer()
    pair.members[0].answer()
    assert pair.group.device_of(1) == ""


def test_nobody_is_ready_before_all_are(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Group(monkeypatch, 1.0, 2.0)
    made.group.restart("a command failed")
    made.ready.clear()
    made.post("forward", stage=0)
    assert isinstance(made.answers[0], ComputeError) and made.answers[0].kind == "lost"
    made.members[1].on_ready({"tokens_per_second": 2.0, "memory_free": 1, "device": "b"})
    assert made.ready == []
    made.members[0].on_ready({"tokens_per_second": 1.0, "memory_free": 2, "device": "a"})
    assert [each["tokens_per_second"] for each in made.ready[0]] == [1.0, 2.0]


def is_ready(member: Any) -> None:
    member.on_ready({"tokens_per_second": 10.0, "memory_free": 100, "device": member.config.device})


def test_one_that_starts_at_its_second_try_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one, which was ready before, says so once."""
    monkeypatch.setattr(Group, "begin", lambda made: is_ready(made.members[1]))
    made = Group(monkeypatch, 10.0, 10.0)
    made.members[0].on_lost("it did not start within 120 s")
    assert made.ready == [] and made.lost == ["on cuda:0: it did not start within 120 s"]
    made.post("initialise", stage=1, commit="c")
    assert isinstance(made.answers[0], ComputeError) and made.answers[0].kind == "lost"
    is_ready(made.members[0])
    assert [each["memory_free"] for each in made.ready.pop()] == [100, 100]
    made.post("initialise", stage=1, commit="c")
    assert sum(len(member.orders) for member in made.members) == 1


@pytest.mark.parametrize("all_ended", [False, True])
@pytest.mark.parametrize("first", [0, 1])
def test_the_others_go_on_without_one_that_does_not_start_again(pair: Group, first: int, all_ended: bool) -> None:
    """A card may be gone for good."""
    for member in pair.members:
        if all_ended:
            member.on_lost("the process ended")
    if not all_ended:
        pair.group.restart("a command failed")
    pair.ready.clear()
    for number in (first, 1 - first):
        if number:
            is_ready(pair.members[number])
        else:
            pair.members[number].on_lost("CUDA error: no device")
    assert [[each["memory_free"] for each in ready] for ready in pair.ready] == [[0, 100]]
    pair.post("initialise", stage=1, commit="c")
    assert pair.members[1].asked == ["initialise 1"] and pair.members[0].asked == []
    is_ready(pair.members[0])
    assert [each["memory_free"] for each in pair.ready[-1]] == [100, 100]


def test_nobody_is_ready_when_none_starts_again(pair: Group) -> None:
    pair.group.restart("a command failed")
    pair.ready.clear()
    for member in pair.members:
        member.on_lost("CUDA error: no device")
    assert pair.ready == [] and len(pair.lost) == 2
    pair.post("initialise", stage=1, commit="c")
    for member in pair.members:
        member.on_lost("CUDA error: no device")
    is_ready(pair.members[1])
    pair.members[0].on_lost("CUDA error: no device")
    assert [each["memory_free"] for each in pair.ready[-1]] == [0, 100]


def test_one_that_ends_costs_its_stages_and_no_other(pair: Group) -> None:
    for stage in (0, 1, 2):
        pair.post("initialise", stage=stage, commit="c")
    pair.ready.clear()
    pair.members[1].on_lost("the process ended")
    assert pair.stages_lost == [(1, "on cuda:1: the process ended", False)] and pair.lost == []
    assert not any(member.restarts for member in pair.members), "it starts again by itself"
    assert [each["memory_free"] for each in pair.ready.pop()] == [100, 0]
    pair.post("forward", stage=2, step=1)
    pair.post("forward", stage=1, step=1)
    assert pair.members[0].asked[-1] == "forward 2" and [str(each)[:4] for each in pair.answers] == ["lost"]
    pair.begin()
    assert [each["memory_free"] for each in pair.ready[-1]] == [100, 100]
    pair.group.restart("a command failed")
    assert [len(member.restarts) for member in pair.members] == [1, 1]


def test_the_place_of_a_stage_that_is_lost_is_given_back_before_it_is_written_again(pair: Group) -> None:
    """Its `forget` makes a hole into memory that all share, so the same process does both, in this order."""
    for stage in (0, 1, 2):
        pair.post("initialise", stage=stage, commit="c")
    pair.members[1].on_lost("the process ended")
    pair.begin()
    pair.post("forget", stage=1)
    pair.post("install_begin", stage=1)
    assert pair.members[0].asked[-2:] == ["forget 1", "install_begin 1"]


def test_nothing_goes_to_a_process_that_is_gone(pair: Group) -> None:
    pair.members[0].on_lost("the process ended")
    pair.group.head_place = 0
    for stage in range(4):
        pair.post("initialise", stage=stage, commit="c")
    assert len(pair.members[1].orders) == 4


def test_the_last_one_that_ends_takes_all(pair: Group) -> None:
    pair.post("initialise", stage=0, commit="c")
    for member in pair.members:
        member.on_lost("the process ended")
    assert pair.lost == ["on cuda:1: the process ended"] and pair.group.device_of(0) == ""
    pair.post("forward", stage=0, step=1)
    assert [str(each)[:4] for each in pair.answers] == ["lost"]


def test_a_device_without_memory_for_a_stage_does_not_get_as_many_again(pair: Group) -> None:
    for stage in (0, 1, 2, 3):
        pair.post("initialise", stage=stage, commit="c")
    pair.members[0].on_stage_lost(2, "out of memory: no more")
    assert pair.stages_lost == [(2, "out of memory: no more", True)]
    pair.post("forget", stage=2)
    for _ in range(3):
        pair.members[0].answer()
    for stage in (2, 4):
        pair.post("initialise", stage=stage, commit="c")
    assert [pair.group.device_of(stage) for stage in (2, 4)] == ["cuda:1", "cuda:1"]


def test_processes_of_one_device_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "ComputeProcess", Member)
    ready: list[tuple[dict[str, Any], ...]] = []
    made = ComputeGroup([CONFIG] * 3, None, ready.append, print, print)  # type: ignore[arg-type]
    for member in made._members:
        member.on_ready({"tokens_per_second": 1.0, "memory_free": 10})  # type: ignore[attr-defined]
    assert [each["memory_free"] for each in ready[0]] == [3, 3, 3]


def test_why_one_cannot_start(pair: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pair.group.refusal == ""
    pair.members[1].refusal = "CUDA error: out of memory"
    assert pair.group.refusal == "cuda:1: CUDA error: out of memory"
    alone = Group(monkeypatch, 1.0)
    alone.members[0].refusal = "no such device"
    assert alone.group.refusal == "no such device"


# Real processes.


class Real:
    """A group of `count` processes on the processor, with all the memory that they share."""

    def __init__(self, config: ComputeConfig, count: int = 2) -> None:
        self.arena = Arena(config.slot_bytes, config.slots)
        self.gradients = GradientMemory(gradient_numbers(config), config.number_bytes)
        self.snapshots = SnapshotMemory(state_numbers(config), config.number_bytes)
        self.lost: list[str] = []
        self.stages_lost: list[tuple[int, str, bool]] = []
        send, self.up = trio.open_memory_channel[tuple[dict[str, Any], ...]](9)
        self.group = ComputeGroup(
            [config] * count, self.arena, send.send_nowait, self.lost.append,
            lambda *lost: self.stages_lost.append(lost), None, 60.0, self.gradients, self.snapshots,
        )  # fmt: skip

    async def begun(self) -> None:
        with trio.fail_after(60):
            self.group.room = (STAGES,) * len(await self.up.receive())


async def trained(compute: ComputeGroup, step: int) -> dict[str, Any]:
    """As tests.node.compute.computing.train, on a group."""
    common: dict[str, Any] = {"step": step, "attempt": ATTEMPT}
    losses = []
    for m in range(MICROBATCHES):
        for visit in range(STAGES + 1):
            source = visit - 1 if visit else None
            await compute.call("forward", **common, stage=visit, microbatch=m, visit=visit, input=source, output=visit,
                               save=True, validation=False)  # fmt: skip
        answer = await compute.call("backward", **common, stage=0, microbatch=m, visit=LAST_VISIT, gradient=None,
                                    input=STAGES, output=LAST_VISIT, recompute=False)  # fmt: skip
        losses.append(answer["value"])
        for visit in range(STAGES, -1, -1):
            gradient = LAST_VISIT if visit == STAGES else 6 + visit
            await compute.call("backward", **common, stage=visit, microbatch=m, visit=visit, gradient=gradient,
                               input=None, output=5 + visit if visit else None, recompute=False)  # fmt: skip
    stages = range(STAGES + 1)
    reduced = [await compute.call("reduce", **common, stage=stage) for stage in stages]
    applied = [await compute.call("apply", **common, stage=stage, commit=f"c{step}", skipped=False) for stage in stages]
    await compute.call("discard", keep=None)
    return {"losses": losses, "reduced": reduced, "digests": [answer["digest"] for answer in applied]}


def without_ids(answers: dict[str, Any]) -> dict[str, Any]:
    reduced = [{name: value for name, value in one.items() if name != "id"} for one in answers["reduced"]]
    return {**answers, "reduced": reduced}


def test_two_processes_train_as_one_does_to_the_bit() -> None:
    alone = direct(CONFIG)
    wanted = [without_ids(train(alone, step)) for step in (1, 2)]

    async def scenario() -> None:
        real = Real(CONFIG)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(real.group.run)
            await real.begun()
            for stage in range(STAGES + 1):
                await real.group.call("initialise", stage=stage, commit="lineage")
            assert [real.group._places[stage] for stage in range(STAGES + 1)] == [0, 1, 0, 1]
            with trio.fail_after(60):
                assert [without_ids(await trained(real.group, step)) for step in (1, 2)] == wanted
            nursery.cancel_scope.cancel()

    trio.run(scenario)


def test_a_killed_process_costs_its_own_stages_and_comes_back() -> None:
    config = replace(CONFIG, backend="paced")

    async def scenario() -> None:
        real = Real(config)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(real.group.run)
            await real.begun()
            pids = [member.pid for member in real.group._members]
            for stage in range(STAGES + 1):
                await real.group.call("initialise", stage=stage, commit="lineage")
            os.kill(pids[1], signal.SIGKILL)
            await real.begun()  # with less room
            assert [stage for stage, _, _ in real.stages_lost] == [1, 3] and real.lost == []
            with pytest.raises(ComputeError, match="what was here of stage 1 is lost"):
                await real.group.call("initialise", stage=1, commit="lineage")
            await real.begun()
            assert [member.pid in pids for member in real.group._members] == [True, False]
            for stage in (1, 3):
                await real.group.call("forget", stage=stage)
                await real.group.call("initialise", stage=stage, commit="lineage")
            with trio.fail_after(60):
                assert without_ids(await trained(real.group, 1)) == without_ids(train(direct(config), 1))
            real.group.retire()
            with trio.fail_after(20):
                while real.group.working:
                    await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    trio.run(scenario)
