"""A compute process that `ftnode lab gpu` gives commands to, as a node does, and its answers."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from ftnode.lab.parts.gpu_plain import drawn
from ftnode.lab.parts.gpu_sizes import LIVE_ACTIVATIONS, MICROBATCHES, Size
from ftnode.node.compute.config import ComputeConfig
from ftnode.node.compute.process import receive, send
from ftnode.node.machine.child_processes import start_child, stop_child, thread_environment
from ftnode.node.machine.tensor_slots import Arena, SlotMap
from ftnode.protocol.words.errors import LocalError

ANSWER_SECONDS: Final = 120.0
READY: Final = 16
"""Commands that wait in the process, so that it never has to wait for one."""
INPUT, OUTPUT, GRADIENT, BACK = range(4)
"""Slots."""


class ComputeUnderTest:
    """Commands are answered in their order. Raises LocalError for an error, TimeoutError for silence."""

    def __init__(self, link: socket.socket, arena: Arena, pid: int) -> None:
        self._link, self.pid = link, pid
        self._slots = SlotMap(arena.descriptor, arena.slot_bytes, arena.slots)
        first = receive(link)
        if first is None or "ready" not in first:
            raise LocalError(f"the compute process cannot start: {(first or {}).get('error')}")
        self.ready: dict[str, Any] = first["ready"]

    def fill(self, slot: int, numbers: torch.Tensor) -> None:
        torch.frombuffer(self._slots.view(slot), dtype=numbers.dtype, count=numbers.numel()).copy_(numbers.flatten())

    def carry_out(self, commands: Iterable[dict[str, Any]]) -> int:
        """READY of them at a time, to the end; how many there were."""
        waiting = count = 0
        for command in commands:
            if waiting == READY:
                self._answer()
                waiting -= 1
            send(self._link, {"id": count, **command})
            waiting, count = waiting + 1, count + 1
        for _ in range(waiting):
            self._answer()
        return count

    def _answer(self) -> None:
        answer = receive(self._link)
        if answer is None or answer.get("error") or answer.get("fault"):
            raise LocalError(f"the compute process answers {answer}")


@contextmanager
def compute_process(config: ComputeConfig, start_seconds: float = ANSWER_SECONDS) -> Iterator[ComputeUnderTest]:
    """Started within so long, and ended afterwards."""
    arena = Arena(config.slot_bytes, config.slots)
    ours, theirs = socket.socketpair()
    argv = [
        sys.executable, "-m", "ftnode.node.compute.process", "--socket-fd", str(theirs.fileno()),
        "--arena-fd", str(arena.descriptor),
    ]  # fmt: skip
    with ours:
        with theirs:
            descriptors = [theirs.fileno(), arena.descriptor]
            child = start_child(argv, pass_fds=descriptors, environment=thread_environment(config.threads))
        try:
            ours.settimeout(start_seconds)
            send(ours, {"config": config.to_dict()})
            started = ComputeUnderTest(ours, arena, child.pid)
            ours.settimeout(ANSWER_SECONDS)
            yield started
        finally:
            child.kill()
            stop_child(child)


def prepare(compute: ComputeUnderTest, size: Size) -> None:
    """What goes in, weights, and a first step."""
    compute.fill(INPUT, drawn(size, 1))
    compute.fill(GRADIENT, drawn(size, 2) / MICROBATCHES)
    compute.carry_out([{"op": "initialise", "stage": 1, "commit": "lab"}])
    compute.carry_out(step_of(1))


def step_of(step: int) -> Iterator[dict[str, Any]]:
    """All commands of a step on block stage 1, all of whose microbatches have the same numbers: as in a pipeline, where
    LIVE_ACTIVATIONS of them are on their way."""
    common = {"stage": 1, "step": step, "attempt": [0, step]}
    forward = {"op": "forward", "input": INPUT, "output": OUTPUT, "save": True, "validation": False}
    backward = {"op": "backward", "gradient": GRADIENT, "input": None, "output": BACK, "recompute": False}
    for number in range(MICROBATCHES + LIVE_ACTIVATIONS - 1):
        if number < MICROBATCHES:
            yield {**forward, **common, "microbatch": number, "visit": 1}
        if number >= LIVE_ACTIVATIONS - 1:
            yield {**backward, **common, "microbatch": number - LIVE_ACTIVATIONS + 1, "visit": 1}
    yield {"op": "reduce", **common}
    yield {"op": "apply", **common, "commit": f"lab-{step}", "skipped": False}


def seconds_of(compute: ComputeUnderTest, commands: Iterable[dict[str, Any]]) -> tuple[float, int]:
    """Of all of them, and how many."""
    started = time.perf_counter()
    count = compute.carry_out(commands)
    return time.perf_counter() - started, count
