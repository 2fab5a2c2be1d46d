"""Copies beside what a card computes, on a card of our making: it copies as late as events allow.

Its memory begins as numbers that are none, and its streams do nothing before somebody waits for them. So whoever reads
too early finds what was there before.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ftnode.models import llama
from ftnode.node.compute import process
from ftnode.node.compute.config import ComputeConfig
from ftnode.node.compute.copy_streams import CopyStreams
from tests.node.compute.computing import ATTEMPT, CONFIG, STAGES, Direct, direct, train

COMPUTING = 0
"""The stream that tasks are computed on. The processor has done all of it when it is asked."""


class Card:
    """A Runtime. A stream is a list of what it was asked for; an event is a place in it."""

    def __init__(self) -> None:
        self.asked: list[list[Callable[[], None]]] = [[]]
        self.done = [0]
        self.waits = 0

    def stream(self) -> int:
        self.asked.append([])
        self.done.append(0)
        return len(self.asked) - 1

    def computing(self) -> int:
        return COMPUTING

    def like(self, tensor: Tensor, stream: int) -> Tensor:
        return torch.full_like(tensor, 255 if tensor.dtype == torch.uint8 else -1)

    def host(self, tensor: Tensor) -> Tensor:
        return torch.full_like(tensor, -1)

    def copy(self, into: Tensor, source: Tensor, stream: int) -> None:
        self.asked[stream].append(lambda: _copied(into, source))

    def used(self, tensor: Tensor, stream: int) -> None:
        """Nothing of it is given to others."""

    def event(self, stream: int) -> tuple[int, int]:
        return stream, len(self.asked[stream])

    def after(self, stream: int, event: tuple[int, int]) -> None:
        if stream == COMPUTING:
            self._come_to(event)
        else:
            self.asked[stream].append(lambda: self._come_to(event))

    def wait(self, event: tuple[int, int]) -> None:
        self.waits += 1
        self._come_to(event)

    def _come_to(self, event: tuple[int, int]) -> None:
        stream, place = event
        while self.done[stream] < place:
            self.done[stream] += 1
            self.asked[stream][self.done[stream] - 1]()


def _copied(into: Tensor, source: Tensor) -> None:
    into.copy_(source)


def beside(config: ComputeConfig, kind: type[CopyStreams] = CopyStreams) -> tuple[Direct, Card]:
    """Stages whose copies go by such a card."""
    made, card = direct(config), Card()
    made.backend.tensors.copies = kind(card)  # type: ignore[attr-defined]
    return made, card


def forward(microbatch: int, stage: int = 1, **changes: Any) -> dict[str, Any]:
    return {
        "op": "forward", "id": 10 + microbatch, "stage": stage, "step": 1, "attempt": ATTEMPT, "microbatch": microbatch,
        "visit": stage, "input": microbatch, "output": 4 + microbatch, "save": True, "validation": False, **changes,
    }  # fmt: skip


@pytest.fixture(params=["float32", "int8", "int4"])
def config(request: pytest.FixtureRequest) -> ComputeConfig:
    return replace(CONFIG, boundary=request.param, boundary_gradients=request.param)


def test_a_step_is_the_same_to_the_bit(config: ComputeConfig) -> None:
    swarm, card = beside(config)
    plain = direct(config)
    assert [train(swarm, step) for step in (1, 2)] == [train(plain, step) for step in (1, 2)]
    assert card.waits
    for slot in range(10):
        assert bytes(swarm.arena._map.view(slot)) == bytes(plain.arena._map.view(slot)), "and so is all that travels"


class ReadsTooEarly(CopyStreams):
    """A task does not wait for its input."""

    def fetch(self, content: Tensor) -> Tensor:
        here = self._runtime.like(content, self._in)
        self._runtime.copy(here, content, self._in)
        return here


class AnswersTooEarly(CopyStreams):
    """The sums do not wait for the output, and the slot has what it had before."""

    def bring(self, numbers: Tensor) -> Callable[[], Tensor]:
        return lambda: numbers


class OneStream(CopyStreams):
    """What comes in waits behind what goes out."""

    def __init__(self, runtime: Any) -> None:
        super().__init__(runtime)
        self._in = self._out


@pytest.mark.parametrize("kind", [ReadsTooEarly, AnswersTooEarly])
def test_a_planted_bug_is_found(kind: type[CopyStreams]) -> None:
    """By the answer, or by what travels."""
    swarm, _ = beside(CONFIG, kind)
    plain = direct(CONFIG)
    found = []
    for each in (swarm, plain):
        each.numbers(1)[:] = 1.0
        (answer,) = [*each.worker.take(forward(1)), *each.worker.finish()]
        found.append((answer, bytes(each.arena._map.view(5))))
    assert found[0] != found[1]


@pytest.mark.parametrize(("kind", "waits"), [(CopyStreams, False), (OneStream, True)])
def test_the_next_input_does_not_wait_for_the_last_output(
    monkeypatch: pytest.MonkeyPatch, kind: type[CopyStreams], waits: bool
) -> None:
    """With the planted bug it does."""
    swarm, _ = beside(CONFIG, kind)
    output, gone = swarm.numbers(4), []
    output[:] = 7.0
    block = llama.block
    monkeypatch.setattr(llama, "block", lambda *rest: gone.append(not (output == 7.0).all()) or block(*rest))
    swarm.worker.take(forward(0))
    swarm.worker.take(forward(1))
    assert gone == [False, waits]
    swarm.worker.finish()
    assert not (output == 7.0).all()


def test_the_next_task_is_begun_before_the_last_one_is_read_and_answers_keep_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    swarm, card = beside(CONFIG)
    seen: list[str] = []
    block, wait = llama.block, card.wait
    monkeypatch.setattr(llama, "block", lambda *rest: seen.append("computes") or block(*rest))
    monkeypatch.setattr(card, "wait", lambda event: seen.append("reads") or wait(event))
    take = swarm.worker.take
    assert take(forward(0)) == []
    assert [answer["id"] for answer in take(forward(1))] == [10]
    assert [answer["id"] for answer in take({"op": "discard", "id": 99, "keep": None})] == [11, 99]
    assert seen == ["computes", "computes", "reads", "reads"]
    assert not swarm.worker.unread and swarm.worker.finish() == []


def test_what_is_copied_is_part_of_the_plan() -> None:
    swarm, _ = beside(CONFIG)
    plain = direct(CONFIG).backend.ready()
    assert swarm.backend.ready()["working_bytes"] >= plain["working_bytes"] + 3 * CONFIG.slot_bytes


def test_a_fault_is_that_of_its_task() -> None:
    swarm, _ = beside(CONFIG)
    swarm.numbers(0)[:] = float("nan")
    swarm.numbers(1)[:] = 1.0
    take = swarm.worker.take
    assert take(forward(0)) == []
    (first,), (second,) = take(forward(1)), swarm.worker.finish()
    assert "not finite" in first["fault"] and (first["id"], second["id"], second["fault"]) == (10, 11, "")


def test_a_task_without_memory_is_answered_behind_the_one_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    swarm, _ = beside(CONFIG)
    assert swarm.worker.take(forward(0)) == []

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(llama, "block", full)
        answers = swarm.worker.take(forward(1, 2))
    assert [answer["id"] for answer in answers] == [10, 11]
    assert answers[0]["fault"] == "" and answers[1]["error"]["kind"] == "oom"
    (lost,) = swarm.worker.take(forward(2, 2))
    assert lost["error"]["kind"] == "lost"
    assert swarm.worker.take(forward(3, 1, save=False)) == [] and swarm.worker.finish()[0]["fault"] == ""


@contextmanager
def served(monkeypatch: pytest.MonkeyPatch, made: Direct) -> Iterator[socket.socket]:
    """The loop of a process, in a thread."""
    ours, theirs = socket.socketpair()
    ours.settimeout(10)
    monkeypatch.setattr(process, "make_backend", lambda *_: made.backend)
    monkeypatch.setattr(process, "step_back", lambda nice: None)
    descriptor = os.dup(made.arena.descriptor)
    loop = threading.Thread(target=process.serve, args=(theirs, descriptor))
    loop.start()
    with ours:
        process.send(ours, {"config": CONFIG.to_dict()})
        process.receive(ours)
        yield ours
    loop.join(10)
    theirs.close()
    assert not loop.is_alive()


def test_a_task_that_nothing_follows_is_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    swarm, _ = beside(CONFIG)
    with served(monkeypatch, swarm) as link:
        for microbatch in range(STAGES):
            process.send(link, forward(microbatch, save=False))
            answer = process.receive(link)
            assert answer is not None and answer["id"] == 10 + microbatch
        for microbatch in range(4):
            process.send(link, forward(microbatch, save=False))
        answers = [process.receive(link) for _ in range(4)]
        assert [answer and answer["id"] for answer in answers] == [10, 11, 12, 13]
