"""A tiny model's compute, driven command by command, as the node does it over the socket."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ftnode.node.compute.config import ComputeConfig
from ftnode.node.compute.process import Worker, make_backend, receive, send
from ftnode.node.machine.child_processes import start_child
from ftnode.node.machine.gradient_memory import GradientMap, GradientMemory
from ftnode.node.machine.tensor_slots import Arena
from ftnode.node.ports import ComputeError

STAGES, MICROBATCHES, LAST_VISIT = 3, 2, 4
SLOTS = 12
CONFIG = ComputeConfig(
    dim=16, heads=2, layers=3, context=8, hidden=24, stages=STAGES, microbatches=MICROBATCHES, sequences=2, steps=10,
    learning_rate=1e-2, slot_bytes=2 * 8 * 16 * 4, slots=SLOTS, seed=3, digest_every=1, live_activations=2,
    data=str(Path(__file__).parents[3] / "LICENSE"),
)  # fmt: skip
"""Its text is small and stays as it is; the standard library's sources take a seventh of a second to read."""
ATTEMPT = [0, 1]


class Refused(Exception):
    """An error answer."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["reason"])
        self.kind, self.stage = error["kind"], error["stage"]


class Direct:
    """Commands without a process between."""

    def __init__(
        self, config: ComputeConfig, gradients: GradientMap | None = None, snapshots: GradientMap | None = None
    ) -> None:
        self.arena = Arena(config.slot_bytes, config.slots)
        self.backend = make_backend(config, self.arena._map, gradients, snapshots)
        self.worker = Worker(self.backend)

    def call(self, op: str, **fields: Any) -> dict[str, Any]:
        (answer,) = [*self.worker.take({"op": op, "id": 1, **fields}), *self.worker.finish()]
        del answer["id"]
        if "error" in answer:
            raise Refused(answer["error"])
        return answer

    def numbers(self, slot: int, count: int | None = None) -> np.ndarray[Any, np.dtype[np.float32]]:
        return np.frombuffer(self.arena._map.view(slot), dtype=np.float32)[:count]


class Process(Direct):
    """The real thing."""

    def __init__(self, config: dict[str, Any], gradients: GradientMemory | None = None) -> None:
        self.arena = Arena(config.get("slot_bytes", 64), config.get("slots", 1))
        self.link, theirs = socket.socketpair()
        self.link.settimeout(60)
        argv = [sys.executable, "-m", "ftnode.node.compute.process", "--socket-fd", str(theirs.fileno()), "--arena-fd"]
        argv += [str(self.arena.descriptor)]
        descriptors = [theirs.fileno(), self.arena.descriptor]
        if gradients is not None:
            argv += ["--gradients-fd", str(gradients.descriptor)]
            descriptors.append(gradients.descriptor)
        self.child = start_child(argv, pass_fds=descriptors)
        theirs.close()
        send(self.link, {"config": config})
        self.first = receive(self.link)
        self.sent = 0

    def call(self, op: str, **fields: Any) -> dict[str, Any]:
        self.sent += 1
        send(self.link, {"op": op, "id": self.sent, **fields})
        answer = receive(self.link)
        assert answer is not None and answer.pop("id") == self.sent
        if "error" in answer:
            raise Refused(answer["error"])
        return answer

    def close(self) -> int:
        self.link.close()
        return self.child.wait(timeout=30)


class Port:
    """The same as a ComputePort: answers at once."""

    def __init__(self, direct: Direct) -> None:
        self.direct = direct

    async def call(self, op: str, **fields: Any) -> dict[str, Any]:
        try:
            return self.direct.call(op, **fields)
        except Refused as refused:
            raise ComputeError(refused.kind, str(refused), refused.stage) from None


@contextlib.contextmanager
def process(config: dict[str, Any], gradients: GradientMemory | None = None) -> Iterator[Process]:
    made = Process(config, gradients)
    try:
        yield made
    finally:
        made.link.close()
        made.child.kill()
        made.child.wait()


def direct(
    config: ComputeConfig, stages: range = range(STAGES + 1), gradients: GradientMap | None = None,
    snapshots: GradientMap | None = None,
) -> Direct:  # fmt: skip
    made = Direct(config, gradients, snapshots)
    made.backend.ready()
    for stage in stages:
        made.call("initialise", stage=stage, commit="lineage")
    return made


def train(compute: Direct, step: int, recompute: bool = False) -> dict[str, Any]:
    """One committed step on a process that holds everything; returns answers worth comparing."""
    common: dict[str, Any] = {"step": step, "attempt": ATTEMPT}
    losses = []
    for m in range(MICROBATCHES):
        for visit in range(STAGES + 1):
            source = visit - 1 if visit else None
            compute.call("forward", **common, stage=visit, microbatch=m, visit=visit, input=source, output=visit,
                         save=not recompute, validation=False)  # fmt: skip
        answer = compute.call("backward", **common, stage=0, microbatch=m, visit=LAST_VISIT, gradient=None,
                              input=STAGES, output=LAST_VISIT, recompute=False)  # fmt: skip
        losses.append(answer["value"])
        for visit in range(STAGES, -1, -1):
            kept = visit - 1 if recompute and visit else None
            output = 5 + visit if visit else None
            gradient = LAST_VISIT if visit == STAGES else 6 + visit
            compute.call("backward", **common, stage=visit, microbatch=m, visit=visit, gradient=gradient, input=kept,
                         output=output, recompute=recompute)  # fmt: skip
    reduced = [compute.call("reduce", **common, stage=stage) for stage in range(STAGES + 1)]
    applied = [
        compute.call("apply", **common, stage=stage, commit=f"c{step}", skipped=False) for stage in range(STAGES + 1)
    ]
    compute.call("discard", keep=None)
    return {"losses": losses, "reduced": reduced, "digests": [answer["digest"] for answer in applied]}


def exported(
    compute: Direct, stage: int, step: int, parts: str, encoding: str = "raw", freeze: bool = False
) -> tuple[dict[str, Any], list[bytes]]:
    begun = compute.call("export_begin", stage=stage, step=step, parts=parts, encoding=encoding, freeze=freeze)
    chunks = read_out(compute, begun)
    assert encoding != "raw" or sum(map(len, chunks)) == begun["bytes"]
    compute.call("export_end", export=begun.pop("export"))
    return begun, chunks


def read_out(compute: Direct, begun: dict[str, Any]) -> list[bytes]:
    chunks = []
    for index in range(begun["chunks"]):
        answer = compute.call("export_chunk", export=begun["export"], index=index, slot=0)
        chunks.append(compute.numbers(0).tobytes()[: answer["length"]])
        assert hashlib.blake2b(chunks[-1], digest_size=16).hexdigest() == answer["hash"]
    return chunks


def install(
    compute: Direct, stage: int, step: int, parts: str, donors: list[tuple[float, list[bytes]]], count: int = 0,
    encoding: str = "raw", lenders: tuple[int, ...] = (),
) -> dict[str, Any]:  # fmt: skip
    """`lenders`: the stages that the donors' chunks are of, which are to be tried."""
    kept: dict[str, Any] = {"tried": lenders} if lenders else {}
    compute.call(
        "install_begin", stage=stage, step=step, commit=f"c{step}", attempt=ATTEMPT, parts=parts, rate_factor=1.0,
        **kept,
    )  # fmt: skip
    for index in range(len(donors[0][1])):
        for number, (weight, chunks) in enumerate(donors):
            lender: dict[str, Any] = {"lender": lenders[number]} if lenders else {}
            compute.arena._map.view(1)[: len(chunks[index])] = chunks[index]
            compute.call("install_chunk", stage=stage, index=index, weight=weight, slot=1, length=len(chunks[index]),
                         encoding=encoding, **lender)  # fmt: skip
    return compute.call("install_end", stage=stage, step_count=count)
