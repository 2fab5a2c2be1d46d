"""The memory that a volunteer takes is never more than what it is taken to need before it holds anything.

Real compute processes with torch hold one, two or four stages, the head or not, and run two whole steps, with as many
microbatches in flight as may be. What they took at most, by the kernel's account, is held against what their dry
microbatch said (node/owner/announcements.py): state and gradient of each stage, its live activations, and what a device
needs to compute with. That is Odyssey's equation 14, with the head.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from ftnode.node.compute.config import ComputeConfig
from ftnode.node.compute.process import receive, send
from ftnode.node.machine.child_processes import start_child, stop_child
from ftnode.node.machine.tensor_slots import Arena
from ftnode.node.owner.announcements import head_bytes, stage_bytes
from ftnode.protocol.words.errors import UserError

STAGES: Final = 4
SEQUENCES, CONTEXT, DIM = 4, 128, 512
STEPS: Final = 2
"""The moments of an optimiser are there from the first one on."""
ANSWER_SECONDS: Final = 300.0
ATTEMPT: Final = [0, 1]
SHAPE: Final = ComputeConfig(
    dim=DIM, heads=8, layers=2 * STAGES, context=CONTEXT, hidden=1408, stages=STAGES, microbatches=4,
    sequences=SEQUENCES, steps=10, learning_rate=1e-3, slot_bytes=SEQUENCES * CONTEXT * DIM * 4, slots=4,
    vocabulary=4096, live_activations=4,
)  # fmt: skip
"""A stage has 6.3 million parameters, so that what a process keeps for itself is not all that is seen."""


@dataclass(frozen=True, slots=True)
class Holder:
    """`stages`: block stages that it holds; `changes`: to SHAPE."""

    name: str
    stages: int
    head: bool = False
    changes: tuple[tuple[str, Any], ...] = ()

    @property
    def config(self) -> ComputeConfig:
        changed = replace(SHAPE, **dict(self.changes))
        return replace(changed, slot_bytes=changed.boundary_bytes.largest)

    @property
    def held(self) -> tuple[int, ...]:
        return (*([0] if self.head else []), *range(1, self.stages + 1))


MUON: Final = (("optimiser", "muon"), ("matrix_learning_rate", 0.01))
HOLDERS: Final = (
    Holder("one stage", 1),
    Holder("two stages", 2),
    Holder("four stages", 4),
    Holder("one stage, eight in flight", 1, changes=(("live_activations", 8), ("microbatches", 8))),
    Holder("one stage, all computed again but one", 1, changes=(("live_activations", 1),)),
    Holder("head and one stage", 1, True),
    Holder("head and four stages", 4, True),
    Holder("head of 32,768 words and one stage", 1, True, (("vocabulary", 32_768),)),
    Holder("one stage, Muon", 1, changes=MUON),
    Holder("head and two stages, Muon", 2, True, MUON),
    Holder("two stages, products in bfloat16", 2, changes=(("products", "bfloat16"),)),
    Holder("head and one stage, int8 in a subspace", 1, True, (("boundary", "int8"), ("subspace", 128))),
)


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`least_margin`: by how much the estimate is above what was used, as a share of that, where it is least so."""
    return {"least_margin": min(one["margin"] for one in rows), "rows": list(rows)}


def text(found: Mapping[str, Any]) -> list[str]:
    """The table of docs/explanation/planner.md, as Markdown."""
    mebibytes = [(one, *(round(one[what] / (1 << 20)) for what in ("used_bytes", "estimated_bytes")))
                 for one in found["rows"]]  # fmt: skip
    return [
        "| one peer holds | used | estimated | more |",
        "|---|---|---|---|",
        *(f"| {one['name']} | {used} MiB | {said} MiB | {one['margin']:+.1%} |" for one, used, said in mebibytes),
        "",
        f"The least margin is {found['least_margin']:.1%}.",
    ]


def measure(holder: Holder) -> dict[str, Any]:
    """One compute process, from its dry microbatch to the end of its last step. Raises UserError (75) when it cannot
    compute, and (69) where the kernel tells nothing."""
    if not Path("/proc/self/clear_refs").exists():
        raise UserError("the kernel does not say how much memory a process takes at most; run this on Linux", 69)
    config = holder.config
    with _process(config) as compute:
        ready, pid = compute.ready, compute.pid
        before, files = _memory(pid, "RssAnon") + _memory(pid, "RssShmem"), _memory(pid, "RssFile")
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # the largest size so far begins anew
        for stage in holder.held:
            compute.call("initialise", stage=stage, commit="lineage")
        for step in range(1, STEPS + 1):
            _step(compute, holder, step)
        used = _memory(pid, "VmHWM") - max(files, _memory(pid, "RssFile")) - before
    planned = estimated(ready, holder)
    return {
        "name": holder.name,
        "stages": holder.stages,
        "head": holder.head,
        "used_bytes": used,
        "estimated_bytes": planned,
        "margin": planned / used - 1,
    }


def estimated(ready: Mapping[str, Any], holder: Holder) -> int:
    """Bytes, by what a process said of itself: as its owner's node counts before it holds anything (capacity_of)."""
    whole = int(ready["working_bytes"]) + holder.stages * stage_bytes(ready, holder.config.live_activations)
    return whole + (head_bytes(ready) if holder.head else 0)


class _Compute:
    """One compute process, and the commands that its node would give."""

    def __init__(self, link: socket.socket, pid: int, config: ComputeConfig) -> None:
        self.pid, self._link, self._sent = pid, link, 0
        send(link, {"config": config.to_dict()})
        self.ready: Mapping[str, Any] = self._answer()["ready"]

    def _answer(self) -> dict[str, Any]:
        answer = receive(self._link)
        if answer is None or "error" in answer:
            raise UserError(f"a compute process gave up: {answer and answer['error']}", 75)
        return answer

    def call(self, command: str, **fields: Any) -> None:
        self._sent += 1
        send(self._link, {"op": command, "id": self._sent, **fields})
        self._answer()


@contextmanager
def _process(config: ComputeConfig) -> Iterator[_Compute]:
    arena = Arena(config.slot_bytes, config.slots)
    ours, theirs = socket.socketpair()
    ours.settimeout(ANSWER_SECONDS)
    argv = [sys.executable, "-m", "ftnode.node.compute.process", "--socket-fd", str(theirs.fileno())]
    argv += ["--arena-fd", str(arena.descriptor)]
    child = start_child(argv, log=Path(os.devnull), pass_fds=[theirs.fileno(), arena.descriptor])
    theirs.close()
    try:
        yield _Compute(ours, child.pid, config)
    finally:
        ours.close()
        stop_child(child)
        arena.close()


def _step(compute: _Compute, holder: Holder, step: int) -> None:
    """All microbatches forward, and then all of them back, so that as many as may be are kept at once. What other
    peers would send is what lies in the slots."""
    config, held = holder.config, holder.held
    for microbatch in range(config.microbatches):
        common: dict[str, Any] = {"step": step, "attempt": ATTEMPT, "microbatch": microbatch}
        for stage in held:
            source, target = (0, 1) if stage else (None, 0)
            compute.call("forward", **common, stage=stage, visit=stage, input=source, output=target,
                         save=microbatch < config.live_activations, validation=False)  # fmt: skip
    for microbatch in range(config.microbatches):
        common = {"step": step, "attempt": ATTEMPT, "microbatch": microbatch}
        if holder.head:
            compute.call("backward", **common, stage=0, visit=STAGES + 1, gradient=None, input=1, output=2,
                         recompute=False)  # fmt: skip
        for stage in held[::-1]:
            kept = microbatch < config.live_activations
            compute.call("backward", **common, stage=stage, visit=stage, gradient=2,
                         input=None if kept or not stage else 0, output=3 if stage else None,
                         recompute=bool(stage) and not kept)  # fmt: skip
    for stage in held:
        compute.call("reduce", stage=stage, step=step, attempt=ATTEMPT)
        compute.call("apply", stage=stage, step=step, commit=f"c{step}", attempt=ATTEMPT, skipped=False)


def _memory(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
