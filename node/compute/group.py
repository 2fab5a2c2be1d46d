"""The compute processes of a node: one for each of its devices, behind the same face as one alone.

A stage lies on one device. It gets its place with the first command that brings it here, where there is room and the
least work for the device's speed, and keeps it until `forget` is answered. Until then its places in shared memory are
that process's, which `forget` gives back. A stage that comes again before the answer goes to the same process, so that
no process gives back what another one uses.

Commands of one stage are carried out in the order of the calls; so are those for all stages, in each process. The core
orders nothing else: it gives a task on what another task made only when that one is done.

A process that ends costs the stages that it had. The others go on, and it is started anew. Only the last one that ends
takes all with it: then compute is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from ftnode.node.compute.client import Answer, ComputeProcess, call_and_wait
from ftnode.node.compute.config import ComputeConfig
from ftnode.node.machine.gradient_memory import GradientMemory
from ftnode.node.machine.snapshot_memory import SnapshotMemory
from ftnode.node.machine.tensor_slots import Arena
from ftnode.node.ports import ComputeError
from ftnode.protocol.words.types import HEAD

log = logging.getLogger(__name__)

BRINGS: Final = ("initialise", "install_begin", "snapshot_load", "reduce_open")
"""Commands after which something of a stage is in a process. A learner's sums may come before its weights."""
FOR_ALL: Final = ("discard", "snapshot_release")
"""Commands for whoever has something of it."""
EXPORTS: Final = ("export_chunk", "export_end")
"""Commands that name an export, and no stage."""
STAGES_MAX: Final = 1 << 30
"""More than any device holds."""
Ready = dict[str, Any]


class ComputeGroup:
    """Run `run` in a nursery. `on_ready` gets the reports of all processes, in the order of the devices, once all are
    there and whenever that changes: one that is gone has no memory. `on_lost` is told why all are gone (not after
    `restart`). `on_stage_lost`: which stage is, why, and whether for want of memory."""

    def __init__(
        self,
        configs: Sequence[ComputeConfig],
        arena: Arena,
        on_ready: Callable[[tuple[Ready, ...]], None],
        on_lost: Callable[[str], None],
        on_stage_lost: Callable[[int, str, bool], None],
        log_folder: Path | None = None,
        hang_seconds: float = 60.0,
        gradients: GradientMemory | None = None,
        snapshots: SnapshotMemory | None = None,
    ) -> None:
        """`configs`: one for each device; they differ in nothing else. All else is as of ComputeProcess."""
        self.config = configs[0]
        self._on_ready, self._on_lost, self._on_stage_lost = on_ready, on_lost, on_stage_lost
        self._members = [
            ComputeProcess(
                config, arena, partial(self._member_ready, number), partial(self._member_lost, number),
                partial(self._no_memory, number), log_folder and log_folder / log_name(number), hang_seconds,
                gradients, snapshots,
            )
            for number, config in enumerate(configs)
        ]  # fmt: skip
        self._ready: dict[int, Ready] = {}
        """The last report of each; all are here once the group has begun."""
        self._reports: dict[int, Ready] = {}
        """The same, whatever has ended since."""
        self._up: set[int] = set()
        self._lost: set[int] = set()
        """Stages of processes that ended, for which nothing is done before a `forget`."""
        self._fits: dict[int, int] = {}
        """Of devices that had no memory for more stages than this."""
        self.room: tuple[int, ...] = (0,) * len(configs)
        """Stages that fit on each device, as whoever heard `on_ready` counts them."""
        self.head_place: int | None = None
        """The device with room for the head, by the same count."""
        self._places: dict[int, int] = {}
        """By stage, the number of its process."""
        self._brought: dict[int, int] = {}
        """By stage, which command brought something of it last: a `forget` before that one is out of date."""
        self._brings = 0
        self._exports: dict[int, int] = {}

    # -- commands

    def post(self, op: str, answer: Answer, **fields: Any) -> None:
        """Queue a command where its stage lies; `answer` is called once, with its fields or a ComputeError."""
        if not self._begun:
            answer(ComputeError("lost", "the compute process is not there"))
        elif op in FOR_ALL:
            self._post_to_all(op, answer, fields)
        elif op in EXPORTS:
            export = fields["export"]
            number = self._exports.pop(export, 0) if op == "export_end" else self._exports.get(export, 0)
            self._members[number].post(op, answer, **fields)
        else:
            stage = fields["stage"]
            if op == "forget":
                self._lost.discard(stage)
            elif lost := self._lost.intersection((stage, *fields.get("onward", ()))):
                answer(ComputeError("lost", f"what was here of stage {min(lost)} is lost", min(lost)))
                return
            number = self._place(stage) if op in BRINGS else self._places.get(stage, 0)
            if op == "export_begin":
                answer = self._noting_export(number, answer)
            elif op == "forget":
                answer = self._leaving(stage, answer)
            self._members[number].post(op, answer, **fields)

    async def call(self, op: str, **fields: Any) -> dict[str, Any]:
        """Queue a command and wait for its answer. Raises ComputeError."""
        return await call_and_wait(self.post, op, **fields)

    @property
    def working(self) -> bool:
        """Any has something to do."""
        return any(member.working for member in self._members)

    @property
    def refusal(self) -> str:
        """Why one of them cannot start, in its own words, when it never has."""
        refused = [(member.config.device, member.refusal) for member in self._members if member.refusal]
        if not refused:
            return ""
        return refused[0][1] if len(self._members) == 1 else ": ".join(refused[0])

    def device_of(self, stage: int) -> str:
        """Where the stage lies; empty when it is not here."""
        return self._members[self._places[stage]].config.device if stage in self._places else ""

    def place_of(self, stage: int) -> int:
        """The number of the device on which the stage lies; 0 when it is not here."""
        return self._places.get(stage, 0)

    def restart(self, reason: str) -> None:
        """Kill the processes; others are started. Pending commands fail; `on_lost` is not called."""
        self._forget_all()
        for member in self._members:
            member.restart(reason)

    def freeze(self) -> None:
        """The processes keep their memory and compute nothing until `thaw`; commands wait."""
        for member in self._members:
            member.freeze()

    def thaw(self) -> None:
        for member in self._members:
            member.thaw()

    def retire(self) -> None:
        """The processes end, with all their memory, and no others are started. Pending commands fail; nobody is
        told."""
        self._forget_all()
        for member in self._members:
            member.retire()

    async def run(self) -> None:
        """Until cancelled: keep the processes alive."""
        async with trio.open_nursery() as nursery:
            for member in self._members:
                nursery.start_soon(member.run)

    # -- the processes

    def _member_ready(self, number: int, ready: Ready) -> None:
        devices = [member.config.device for member in self._members]
        sharing = devices.count(devices[number])  # processes that share the memory of one device
        self._ready[number] = self._reports[number] = {**ready, "memory_free": int(ready["memory_free"]) // sharing}
        self._up.add(number)
        self._tell_ready()

    def _tell_ready(self) -> None:
        if self._begun and self._up:
            reports = [self._ready[number] for number in range(len(self._members))]
            self._on_ready(
                tuple(each if n in self._up else {**each, "memory_free": 0} for n, each in enumerate(reports))
            )

    @property
    def _begun(self) -> bool:
        return len(self._ready) == len(self._members)

    def _member_lost(self, number: int, reason: str) -> None:
        """Its stages are gone. Their places are another's at once: what the node still says of them, its `forget`
        first, must be carried out before what it says of them next."""
        device = f"on {self._members[number].config.device}: " if len(self._members) > 1 else ""
        self._up.discard(number)
        if not self._begun:  # those that are ready already say so once
            self._ready.pop(number, None)
            self._on_lost(f"{device}{reason}")
            if number in self._reports:  # the others need not wait for a card that may be gone for good
                self._ready[number] = self._reports[number]
                self._tell_ready()
            return
        if not self._up:
            self._forget_all()
            self._on_lost(f"{device}{reason}")
            return
        stages = [stage for stage, place in self._places.items() if place == number]
        self._places.update(dict.fromkeys(stages, min(self._up)))
        self._lost.update(stages)
        log.warning("compute process %d ended with %d stages: %s", number, len(stages), reason)
        for stage in stages:
            self._on_stage_lost(stage, f"{device}{reason}", False)
        self._tell_ready()

    def _no_memory(self, number: int, stage: int, reason: str) -> None:
        held = sum(place == number for place in self._places.values())
        self._fits[number] = min(max(0, held - 1), self._fits.get(number, held))
        self._on_stage_lost(stage, reason, True)

    def _forget_all(self) -> None:
        self._ready.clear()
        self._up.clear()
        self._lost.clear()
        self._places.clear()
        self._brought.clear()
        self._exports.clear()

    # -- where stages lie

    def _place(self, stage: int) -> int:
        """The process that has the stage, or the one that gets it."""
        self._brings += 1
        self._brought[stage] = self._brings
        if stage not in self._places:
            held = [list(self._places.values()).count(number) for number in range(len(self._members))]
            least = least_loaded(held, [self._room_on(number) for number in range(len(held))], self._speeds())
            head = self.head_place if stage == HEAD and self.head_place in self._up else None
            self._places[stage] = least if head is None else head
            if len(self._members) > 1:
                number = self._places[stage]
                log.info("stage %d lies on %s, in compute process %d", stage, self.device_of(stage), number)
        return self._places[stage]

    def _room_on(self, number: int) -> int:
        """Below zero where nothing may go."""
        room = self.room[number]
        return min(room, self._fits.get(number, room)) if number in self._up else -STAGES_MAX

    def _speeds(self) -> list[float]:
        """Devices of one kind count as equally fast: one dry microbatch is a rough measure."""
        by_kind: dict[str, list[float]] = {}
        for ready in self._ready.values():
            by_kind.setdefault(str(ready["device"]), []).append(float(ready["tokens_per_second"]))
        kinds = [by_kind[str(self._ready[number]["device"])] for number in range(len(self._members))]
        return [sum(speeds) / len(speeds) for speeds in kinds]

    def _leaving(self, stage: int, answer: Answer) -> Answer:
        """Its place is free once the process has let go of it, unless it was brought again meanwhile."""
        brought = self._brought.get(stage)

        def left(found: dict[str, Any] | ComputeError) -> None:
            if self._brought.get(stage) == brought and not isinstance(found, ComputeError):
                for table in (self._places, self._brought):
                    table.pop(stage, None)
            answer(found)

        return left

    def _noting_export(self, number: int, answer: Answer) -> Answer:
        def begun(found: dict[str, Any] | ComputeError) -> None:
            if not isinstance(found, ComputeError):
                self._exports[found["export"]] = number
            answer(found)

        return begun

    def _post_to_all(self, op: str, answer: Answer, fields: dict[str, Any]) -> None:
        """One answer when all have answered: that of the first that says no, else the last."""
        found: list[dict[str, Any] | ComputeError] = []

        def answered(one: dict[str, Any] | ComputeError) -> None:
            found.append(one)
            if len(found) == len(self._members):
                answer(next((each for each in found if isinstance(each, ComputeError)), one))

        for member in self._members:
            member.post(op, answered, **fields)


def least_loaded(held: Sequence[int], room: Sequence[int], speeds: Sequence[float]) -> int:
    """Which device a stage goes to: of those with room, the one that would be the least busy with one stage more; of
    equals, the first. Without room anywhere, the one that lacks least.

    A step waits for the slowest device, so that a device's stages over its speed decide (list scheduling: R. L. Graham,
    Bounds on Multiprocessing Timing Anomalies, 1969).
    """
    numbers = range(len(held))
    free = [number for number in numbers if held[number] < room[number]]
    if not free:
        return max(numbers, key=lambda number: (room[number] - held[number], -number))
    return min(free, key=lambda number: ((held[number] + 1) / max(speeds[number], 1e-9), number))


def log_name(number: int) -> str:
    """Of the log of a compute process."""
    return f"compute-{number}.log" if number else "compute.log"
