"""How far apart what honest machines make is, and how far a check lets it be.

Compute processes with different settings hold the same weights. Each does the visits of some microbatches, and all
others do them again, by the very command that a check does them again with. The settings are those in which volunteers'
machines differ: what instructions the processor has, how many threads there are, and in what products are computed.
Those of a graphics card are computed on the processor, with the same roundings of what goes into a product.
"""

from __future__ import annotations

import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from ftnode.node.compute.config import ComputeConfig
from ftnode.node.compute.process import receive, send
from ftnode.node.compute.state_shape import gradient_numbers
from ftnode.node.machine.child_processes import start_child, thread_environment
from ftnode.node.machine.gradient_memory import GradientMemory
from ftnode.node.machine.tensor_slots import Arena
from ftnode.node.reduction.encoding import CHUNK_BYTES, encoding_of
from ftnode.node.reduction.sketch import Sketch, distance
from ftnode.protocol.manifest.boundary import BoundaryBytes
from ftnode.protocol.manifest.parse import CHECK_TOLERANCE, TENSOR_TOLERANCE
from ftnode.protocol.words.errors import UserError

OLD: Final = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}
AVX2: Final = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
"""What torch's own code, oneDNN and MKL take of the processor at most; without these, all that there is."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Of one machine."""

    name: str
    environment: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1
    products: str = "float32"


SETTINGS: Final = (
    Setting("all instructions"),
    Setting("AVX2, two threads", AVX2, threads=2),
    Setting("SSE4", OLD),
    Setting("bfloat16", products="bfloat16"),
    Setting("bfloat16, SSE4", OLD, products="bfloat16"),
    Setting("float16", products="float16"),
)
BETWEEN: Final = ("processors", "bfloat16", "float16")
"""What two machines differ in: instructions and threads alone, or one of the two computes products in few bits."""
MODELS: Final[dict[str, dict[str, Any]]] = {
    "tiny": {"dim": 64, "heads": 2, "layers": 2, "context": 64, "hidden": 128},
    "larger": {"dim": 128, "heads": 4, "layers": 6, "context": 128, "hidden": 256},
}
BOUNDARIES: Final = ("float32", "bfloat16", "int8", "int4")
STAGES: Final = 2
MICROBATCHES: Final = 4
SEQUENCES: Final = 2
MEASURED_STEPS: Final = {"tiny": (1, 10, 100), "larger": (1, 10)}
"""Of each model. What is near a minimum has gradients that nearly cancel each other, so that what is rounded weighs
more."""
QUICK_STEPS: Final = {"tiny": (1, 2)}
LAST: Final = STAGES + 1
"""The last visit."""
SLOTS: Final = 2 * LAST
"""Of the arena, for each microbatch."""
KEY: Final = 1
COMPARED: Final = ("passed_on", "handed_back", "several", *CHECK_TOLERANCE)
"""Activations and gradients that travel, of one visit; either, of all block stages in a row; and the gradient of a
stage's weights, by the encoding in which it is given to a sum."""
Numbers = np.ndarray[Any, np.dtype[np.float32]]


def measure(steps: Mapping[str, Sequence[int]] = MEASURED_STEPS) -> list[dict[str, Any]]:
    """Of each model, encoding of boundary tensors and difference of two machines the largest distances: those of
    COMPARED. `alike`: from the same sum all made the same weights, to the bit. `steps`: which to measure, by model."""
    return [row for model in steps for boundary in BOUNDARIES for row in _compared(model, boundary, steps[model])]


def _compared(model: str, boundary: str, steps: Sequence[int]) -> list[dict[str, Any]]:
    with _started(config_of(model, boundary)) as started:
        machines = _Machines(started)
        for step in range(1, max(steps) + 1):
            machines.go(step in steps)
    return [
        {"model": model, "boundary": boundary, "between": between, **most, "alike": machines.alike}
        for between, most in machines.most.items()
    ]


@contextmanager
def _started(config: ComputeConfig) -> Iterator[list[_Machine]]:
    with tempfile.TemporaryDirectory(prefix="ftnode-lab-") as folder, ExitStack() as stack:
        arena, machines = Arena(config.slot_bytes, config.slots), list[_Machine]()
        for number, setting in enumerate(SETTINGS):
            machines.append(_Machine(setting, config, arena, Path(folder) / f"{number}.log"))
            stack.callback(machines[-1].end)
        for machine in machines:
            machine.ready()
        yield machines


def config_of(model: str, boundary: str) -> ComputeConfig:
    shape = MODELS[model]
    tensor = BoundaryBytes.encoded((boundary, boundary), SEQUENCES * shape["context"], shape["dim"])
    return ComputeConfig(
        **shape, stages=STAGES, microbatches=MICROBATCHES, sequences=SEQUENCES, steps=1000, learning_rate=3e-3,
        warmup_steps=10, weight_decay=0.1, boundary=boundary, boundary_gradients=boundary, slot_bytes=tensor.largest,
        slots=SLOTS * MICROBATCHES, seed=1, digest_every=1, checks=True,
    )  # fmt: skip


class _Machine:
    """A compute process. All have the same arena, so that what one passes on the others can look at."""

    def __init__(self, setting: Setting, config: ComputeConfig, arena: Arena, log: Path) -> None:
        self.setting = setting
        self.memory = GradientMemory(gradient_numbers(config), config.number_bytes)
        self._link, theirs = socket.socketpair()
        argv = [
            sys.executable, "-m", "ftnode.node.compute.process", "--socket-fd", str(theirs.fileno()), "--arena-fd",
            str(arena.descriptor), "--gradients-fd", str(self.memory.descriptor),
        ]  # fmt: skip
        with theirs:
            self._child = start_child(
                argv, log=log, pass_fds=[theirs.fileno(), arena.descriptor, self.memory.descriptor],
                environment={**thread_environment(setting.threads), **setting.environment},
            )  # fmt: skip
        own = replace(config, threads=setting.threads, products=setting.products)
        send(self._link, {"config": own.to_dict()})

    def ready(self) -> None:
        self._answer()
        for stage in range(STAGES + 1):
            self.call("initialise", stage=stage, commit="measured")

    def call(self, op: str, **fields: Any) -> dict[str, Any]:
        send(self._link, {"op": op, "id": 1, **fields})
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        """Raises UserError (70)."""
        answer = receive(self._link)
        if answer is None or "error" in answer or answer.get("fault"):
            raise UserError(f"a compute process with {self.setting.name} failed: {answer}", 70)
        return answer

    def end(self) -> None:
        self._link.close()
        self._child.kill()
        self._child.wait()
        self.memory.close()


class _Machines:
    """Of one model and encoding, from step to step."""

    def __init__(self, machines: Sequence[_Machine]) -> None:
        self.alike = True
        self.most: dict[str, dict[str, float]] = {between: dict.fromkeys(COMPARED, 0.0) for between in BETWEEN}
        self._machines, self._step = machines, 0

    def go(self, measured: bool) -> None:
        """One step, in which all are compared, or only the first one computes. The sum of the first is everybody's."""
        self._step += 1
        self._visits(self._machines[0])
        sums = self._gradients(self._machines[0])
        if measured:
            self._compare(sums)
        self._apply(sums)

    def _compare(self, first: Sequence[Numbers]) -> None:
        """Of any two the later one checks the earlier one. `first`: gradients of the first, whose visits are done."""
        for number, maker in enumerate(self._machines[:-1]):
            if number:
                self._visits(maker)
            gradients = self._gradients(maker) if number else first
            for checker in self._machines[number + 1 :]:
                self._check(maker, checker, gradients)

    def _visits(self, maker: _Machine) -> None:
        """Of all microbatches. What it passes on lies in the arena until another one does them."""
        for m in range(MICROBATCHES):
            for visit in range(STAGES + 1):
                maker.call(
                    "forward", **self._task(m, visit), input=_ahead(m, visit - 1) if visit else None,
                    output=_ahead(m, visit), save=True, validation=False,
                )  # fmt: skip
            for visit in range(LAST, -1, -1):
                maker.call(
                    "backward", **self._task(m, visit), gradient=_back(m, visit + 1) if visit < LAST else None,
                    input=_ahead(m, STAGES) if visit == LAST else None, output=_back(m, visit) if visit else None,
                    recompute=visit == 0,
                )  # fmt: skip

    def _check(self, maker: _Machine, checker: _Machine, gradients: Sequence[Numbers]) -> None:
        found = self.most[_between(maker.setting, checker.setting)]

        def note(what: str, away: float) -> None:
            found[what] = max(found[what], round(away, 8))

        def away(m: int, first: int, last: int, of: str, **outputs: int) -> float:
            answer = checker.call(
                "recount", **self._task(m, first), of=[of, 1], onward=[*range(first + 1, last + 1)],
                input=_ahead(m, first - 1) if first else None, gradient=_back(m, last + 1) if last < LAST else None,
                **outputs,
            )  # fmt: skip
            return float(answer["value"])

        for m in range(MICROBATCHES):
            note("several", away(m, 1, STAGES, "several", passed_on=_ahead(m, STAGES), handed_back=_back(m, 1)))
            for visit in range(1, LAST + 1):
                note("handed_back", away(m, visit, visit, "back", handed_back=_back(m, visit)))
        for m in range(MICROBATCHES):
            for visit in range(LAST + 1):
                outputs = {"passed_on": _ahead(m, visit)} if visit < LAST else {}
                note("passed_on", away(m, visit, visit, "all", **outputs))
        for stage, gradient in enumerate(gradients):
            parts = [[[0, len(gradient)]]]
            (right,) = checker.call("weigh", **self._of(stage), of=["all", 1], key=KEY, parts=parts)["sums"]
            for encoding in CHECK_TOLERANCE:
                said = Sketch(KEY)
                said.add(0, _as_it_travels(gradient, encoding))
                note(encoding, distance(said.sums, right))

    def _gradients(self, maker: _Machine) -> list[Numbers]:
        """Of each stage, what it has accumulated."""
        found = []
        for stage in range(STAGES + 1):
            maker.call("reduce_open", **self._of(stage), count=MICROBATCHES * (1 if stage else 2))
            found.append(np.frombuffer(maker.memory.view(stage), np.float32).copy())
        return found

    def _apply(self, sums: Sequence[Numbers]) -> None:
        for stage, total in enumerate(sums):
            digests = set[str]()
            for machine in self._machines:
                machine.call("reduce_open", **self._of(stage), count=0)
                np.frombuffer(machine.memory.view(stage), np.float32)[:] = total
                machine.call("reduce_close", **self._of(stage))
                answer = machine.call("apply", **self._of(stage), commit=f"c{self._step}", skipped=False)
                digests.add(answer["digest"])
            self.alike &= len(digests) == 1
        for machine in self._machines:
            machine.call("discard", keep=None)

    def _task(self, microbatch: int, visit: int) -> dict[str, Any]:
        return self._of(visit % LAST) | {"microbatch": microbatch, "visit": visit}

    def _of(self, stage: int) -> dict[str, Any]:
        return {"stage": stage, "step": self._step, "attempt": [0, self._step]}


def _ahead(microbatch: int, visit: int) -> int:
    """The slot of what the visit passes on."""
    return SLOTS * microbatch + visit


def _back(microbatch: int, visit: int) -> int:
    """The slot of what the visit hands back."""
    return SLOTS * microbatch + STAGES + visit


def _between(one: Setting, other: Setting) -> str:
    few = {one.products, other.products} - {"float32"}
    return max(few) if few else BETWEEN[0]


def _as_it_travels(gradient: Numbers, encoding: str) -> Numbers:
    codec = encoding_of(encoding, gradient.itemsize)
    numbers = CHUNK_BYTES // gradient.itemsize
    chunks = [gradient[start : start + numbers] for start in range(0, len(gradient), numbers)]
    key = b"a sum of theirs."
    sent = [codec.decode(codec.encode(x, key, index), len(x)) for index, x in enumerate(chunks)]
    return np.concatenate(sent)


def limit(what: str, boundary: str) -> float:
    """How far a check lets it be, of one stage; of several in a row it is more."""
    return CHECK_TOLERANCE[what] if what in CHECK_TOLERANCE else TENSOR_TOLERANCE[boundary]


SPOKEN: Final = {
    "passed_on": "activations", "handed_back": "gradients that travel", "several": "either, of two stages in a row",
}  # fmt: skip


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The largest distances of all models, as docs/reference/liars.md has them."""
    lines = [
        "| what is compared | limit | instructions, threads | bfloat16 | float16 |",
        "|---|---|---|---|---|",
    ]
    tensors = [(f"{SPOKEN[what]}, {boundary}", what, boundary) for boundary in BOUNDARIES for what in SPOKEN]
    sums = [(f"part of a sum, {encoding}", encoding, "") for encoding in CHECK_TOLERANCE]
    for name, what, boundary in (*tensors, *sums):
        of = [each for each in rows if boundary in ("", each["boundary"])]
        most = [max((each[what] for each in of if each["between"] == between), default=0.0) for between in BETWEEN]
        cells = " | ".join(f"{away:.2g}" for away in most)
        lines.append(f"| {name} | {limit(what, boundary):g} | {cells} |")
    return "\n".join(lines)


def text(rows: Sequence[Mapping[str, Any]]) -> str:
    """For people: how much of what is allowed honest machines take."""
    used = max(each[what] / limit(what, each["boundary"]) for each in rows for what in COMPARED)
    alike = "" if all(each["alike"] for each in rows) else "; some made other weights from the same sum"
    return f"honest machines differ by {used:.0%} of what a check allows at most{alike}"
