"""Visits on a copy that this node keeps: the weights go to compute, the answer comes back, and nothing stays pinned."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from ftnode.node.compute.group import ComputeGroup
from ftnode.node.driver import copy_trials
from ftnode.node.driver.copy_trials import CopyTrials
from ftnode.node.machine.tensor_slots import Arena
from ftnode.node.ports import ComputeError
from ftnode.node.weights.copies import Copy, CopyStore
from ftnode.node.weights.copy_fetching import Fetched
from ftnode.protocol.wire.frames import StateHeader
from ftnode.protocol.words.effects import NOT_DONE, Keep, Recount, Retrace, Sample
from ftnode.protocol.words.events import Done, Event, KeepFailed, Kept
from ftnode.protocol.words.messages import Donor
from ftnode.protocol.words.types import Attempt, Peer, Version

STAGE = 3
BASE = Version(4, "c4", Attempt(1, 2))


class FakeCompute:
    """Answers a recount with `value` and `fault`, and keeps what it was told."""

    def __init__(self, value: float = 0.25, fault: str = "", broken: str = "") -> None:
        self.value, self.fault, self.broken = value, fault, broken
        self.told: list[tuple[str, dict[str, Any]]] = []

    async def call(self, op: str, **fields: Any) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        self.told.append((op, fields))
        if op == self.broken:
            raise ComputeError("oom", "no memory", STAGE)
        return {"value": self.value, "fault": self.fault, "tokens": 0}


def copy_of(version: Version) -> Copy:
    header = StateHeader(
        version=version, norm_squared=1.0, chunks=2, size=12, digest="d", step_count=4, rate_factor=1.0,
        encoding="int8",
    )  # fmt: skip
    return Copy(header, "weights", (bytearray(b"12345678"), bytearray(b"abcd")), (b"h1", b"h2"))


class Node:
    def __init__(self, compute: FakeCompute, copies: CopyStore) -> None:
        self.arena, self.compute, self.heard = Arena(64, 12), compute, list[Event]()
        self.trials = CopyTrials(self.arena, cast(ComputeGroup, compute), copies, self.heard.append)
        self.handles = [self.arena.take() for _ in range(4)]
        gives, takes, passed, handed = self.handles
        self.task = Recount(
            STAGE, 5, Attempt(1, 3), 1, 3, Peer("him", 1), gives, takes, (), passed, handed, copy=BASE
        )  # fmt: skip

    def tried(self) -> Done:
        async def run() -> None:
            async with trio.open_nursery() as nursery:
                self.trials.start(self.task, nursery)

        trio.run(run)
        (done,) = self.heard
        assert isinstance(done, Done) and done.task == self.task
        for handle in self.handles:  # nothing is pinned: what is released is free at once
            self.arena.release(handle)
        assert self.arena.free == self.arena.slots
        return done


def kept(version: Version = BASE, fetched: bool = False) -> CopyStore:
    copies = CopyStore()
    (copies.fetched if fetched else copies.held)[STAGE] = copy_of(version)
    return copies


@pytest.mark.parametrize("fetched", [False, True])
def test_the_copy_goes_to_compute_and_then_the_visit(fetched: bool) -> None:
    node = Node(FakeCompute(0.25), kept(fetched=fetched))
    done = node.tried()
    assert (done.value, done.fault) == (0.25, "")
    ops = [(op, fields.get("index"), fields.get("length")) for op, fields in node.compute.told]
    assert ops == [("copy_chunk", 0, 8), ("copy_chunk", 1, 4), ("recount", None, None)]
    told = node.compute.told[-1][1]
    assert (told["stage"], told["step"], told["copy"]) == (STAGE, 5, [4, "c4", [1, 2]])
    assert None not in (told["input"], told["gradient"], told["passed_on"], told["handed_back"])


def test_of_the_heads_copy_the_weights_alone_go_to_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its moments come behind them: the second chunk has both."""
    copies, compute = kept(), FakeCompute()
    copies.held[STAGE] = replace(copies.held[STAGE], parts="all")
    lengths = {(STAGE, "weights", "int8"): (8, 1)}
    monkeypatch.setattr(compute, "config", "ours", raising=False)
    monkeypatch.setattr(copy_trials, "shape_of", lambda config: SimpleNamespace(lengths=lambda *of: lengths[of]))
    assert Node(compute, copies).tried().value == 0.25
    assert [fields.get("length") for op, fields in compute.told if op == "copy_chunk"] == [8, 1]


@pytest.mark.parametrize("copies", [CopyStore(), kept(Version(5, "c5", Attempt(1, 3)))], ids=["none", "another"])
def test_without_that_copy_there_is_nothing_to_compare_with(copies: CopyStore) -> None:
    node = Node(FakeCompute(), copies)
    done = node.tried()
    assert (done.value, done.fault, node.compute.told) == (NOT_DONE, "", [])


def test_a_trial_may_end_while_its_copy_goes_to_compute() -> None:
    """The holder is lost, and the core is done with the tensors. While their slots were looked up only afterwards the
    node ended."""

    class Ends(FakeCompute):
        async def call(self, op: str, **fields: Any) -> dict[str, Any]:
            answer = await super().call(op, **fields)
            if op == "copy_chunk" and not fields["index"]:
                for handle in node.handles:
                    node.arena.release(handle)
            return answer

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            node.trials.start(node.task, nursery)

    node = Node(Ends(0.25), kept())
    trio.run(run)
    (done,) = node.heard
    assert isinstance(done, Done) and (done.value, done.fault) == (0.25, "")
    assert node.arena.free == node.arena.slots


def test_copies_of_a_part_of_a_model_are_not_tried() -> None:
    node = Node(FakeCompute(), kept())
    node.trials.whole_models = False
    assert (node.tried()).value == NOT_DONE and not node.compute.told


@pytest.mark.parametrize("op", ["copy_chunk", "recount"])
def test_what_compute_cannot_do_accuses_nobody(op: str) -> None:
    node = Node(FakeCompute(2.0, broken=op), kept())
    done = node.tried()
    assert (done.value, done.fault) == (NOT_DONE, "")
    assert node.compute.told[-1] == ("copy_drop", {"stage": STAGE}), "what has come of the copy"


def test_numbers_that_are_none_are_a_fault_of_the_holder() -> None:
    assert Node(FakeCompute(fault="the activation is not finite"), kept()).tried().fault
    assert "nan" in Node(FakeCompute(float("nan")), kept()).tried().fault


# -- how it is trained

AFTER = Version(5, "c5", Attempt(1, 3))
KEY = 9


class Sampled(Node):
    """Asked for samples, and then what they tell."""

    def __init__(self, compute: FakeCompute, fails: str = "") -> None:
        super().__init__(compute, CopyStore())
        self.fails, self.asked = fails, list[Keep]()
        self.trials.fetch = self.fetch

    async def fetch(self, effect: Keep) -> Fetched:
        await trio.lowlevel.checkpoint()
        self.asked.append(effect)
        if self.fails:
            return Fetched(KeepFailed(STAGE, effect.version, self.fails), None, ())
        return Fetched(Kept(STAGE, effect.version, 12, 0.1), copy_of(effect.version), ())

    def does(self, *tasks: Sample | Retrace) -> list[Done]:
        async def run() -> None:
            for task in tasks:
                async with trio.open_nursery() as nursery:
                    self.trials.start(task, nursery)

        trio.run(run)
        assert self.arena.free == self.arena.slots - len(self.handles)
        return [done for done in self.heard if isinstance(done, Done)]


def sample(version: Version, key: int = KEY) -> Sample:
    return Sample(Donor(STAGE, Peer("him", 1), ()), version, key)


RETRACE = Retrace(STAGE, BASE, AFTER, KEY)


def test_samples_come_from_the_holder_and_go_to_compute_when_both_are_here() -> None:
    node = Sampled(FakeCompute(0.25))
    *_, done = node.does(sample(BASE), sample(AFTER), RETRACE)
    assert (done.task, done.value, done.fault) == (RETRACE, 0.25, "")
    assert [(each.parts, each.encoding, each.version) for each in node.asked] == [
        ("sample-9", "raw", BASE), ("sample-9", "raw", AFTER)
    ]  # fmt: skip
    ops = [(op, fields.get("after"), fields.get("index")) for op, fields in node.compute.told]
    expected = [("sample_chunk", after, index) for after in (False, True) for index in (0, 1)]
    assert ops == [*expected, ("retrace", None, None)]
    assert node.compute.told[-1][1]["version"] == [4, "c4", [1, 2]]


@pytest.mark.parametrize("tasks", [(), (sample(BASE),), (sample(BASE), sample(AFTER, KEY + 1))])
def test_without_both_samples_nothing_is_compared(tasks: tuple[Sample, ...]) -> None:
    node = Sampled(FakeCompute(2.0))
    assert node.does(*tasks, RETRACE)[-1].value == 0.0 and not node.compute.told


def test_a_late_sample_of_the_trial_before_takes_nothing_away() -> None:
    node = Sampled(FakeCompute(1.7))
    late = trio.Event()
    fetch = node.fetch

    async def slow(effect: Keep) -> Fetched:
        if effect.parts != "sample-9":
            await late.wait()
        return await fetch(effect)

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            node.trials.start(sample(Version(3, "c3", Attempt(1, 1)), KEY - 1), nursery)
            for task in (sample(BASE), sample(AFTER)):
                node.trials.start(task, nursery)
            await trio.testing.wait_all_tasks_blocked()
            late.set()
        async with trio.open_nursery() as nursery:
            node.trials.start(RETRACE, nursery)

    node.trials.fetch = slow
    trio.run(run)
    (*_, done) = node.heard
    assert isinstance(done, Done) and done.task == RETRACE and done.value == 1.7


def test_why_a_sample_did_not_come() -> None:
    (done,) = Sampled(FakeCompute(), fails="it is gone").does(sample(BASE))
    assert done.fault == "it is gone"


@pytest.mark.parametrize("op", ["sample_chunk", "retrace"])
def test_what_compute_cannot_compare_accuses_nobody(op: str) -> None:
    done = Sampled(FakeCompute(2.0, broken=op)).does(sample(BASE), sample(AFTER), RETRACE)[-1]
    assert (done.value, done.fault) == (0.0, "")
