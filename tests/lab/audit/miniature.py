"""A correct little run, written as traces: three block stages and a head, three microbatches, four steps.

In step 3 the holder of stage 2 is killed after one of its three microbatches; the standby rebuilds the stage from its
neighbours and the step is redone. What the audit accepts starts here, and what it must refuse is made from it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ftnode.node.driver.trace import TraceWriter, read_trace
from ftnode.protocol.words.codec import to_plain
from ftnode.protocol.words.effects import Backward, Note, Reduce
from ftnode.protocol.words.events import Done, Event, Installed, Received
from ftnode.protocol.words.messages import Begin, Certificate
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Attempt, Peer, Version, initial_version, next_version
from ftnode.protocol.words.view import Lineage, View

STAGES, MICROBATCHES, STEPS = 3, 3, 4
LOST_STAGE, LOST_STEP = 2, 3
SETTINGS = Settings(run="r" * 32, stages=STAGES, steps=STEPS, microbatches=MICROBATCHES, window=3)
LINEAGE = Lineage("lineage", 0, 0)
NAMES = ("head", "first", "middle", "last", "standby")
REPLICA = "replica"
PEERS = {name: Peer(f"12D3KooW{name}", 7) for name in (*NAMES, REPLICA)}
HOLDERS = [["head", "first", "middle", "last"], ["head", "first", "standby", "last"]]
Change = Callable[[dict[str, list[dict[str, Any]]]], None]


def view(
    number: int,
    previous: View | None,
    holders: list[str],
    voters: tuple[str, ...],
    reason: str,
    replicas: tuple[Peer, ...],
) -> View:
    return View(
        run=SETTINGS.run,
        lineage=LINEAGE,
        number=number,
        previous=previous.digest() if previous else "",
        leader=PEERS["head"],
        holders=tuple((PEERS[name], *replicas) if name == "last" else (PEERS[name],) for name in holders),
        voters=tuple(PEERS[name] for name in voters),
        epochs=(0, 0, number, 0),
        reason=reason,
    )


def begin(step: int, base: Version) -> Begin:
    """What commits the base."""
    attempt, rest = Attempt(0, step), ((), (), (), (), ())
    return Begin(LINEAGE.id, 0, step, attempt, base, False, False, step <= STEPS, False, MICROBATCHES, *rest)


@dataclass
class Miniature:
    """Writes the traces; `write` runs the whole story."""

    directory: Path
    replica: bool = False
    """Stage 3 has a second holder, which is given no work."""
    now: float = 100.0
    traces: dict[str, TraceWriter] = field(default_factory=dict)
    current: View | None = None

    def write(self) -> Path:
        names = (*NAMES, REPLICA) if self.replica else NAMES
        self.replicas = (PEERS[REPLICA],) if self.replica else ()
        for name in names:
            self.open(name)
        self.install_view(view(0, None, HOLDERS[0], NAMES[:4], "founded", self.replicas))
        base = initial_version(LINEAGE.id)
        if self.replica:
            self.install(REPLICA, STAGES, base, "initial", [], np.full(8, STAGES, dtype="<f4"))
        for stage, name in enumerate(HOLDERS[0]):
            self.install(name, stage, base, "initial", [], np.full(8, stage, dtype="<f4"))
        for step in (1, 2):
            base = self.step(step, base, Attempt(0, step), HOLDERS[0])
        self.lose(base)
        self.install_view(view(1, self.current, HOLDERS[1], ("head", "first", "last"), "stage 2 lost", self.replicas))
        self.rebuild(base)
        base = self.step(3, base, Attempt(1, 0), HOLDERS[1])
        self.install_view(
            view(2, self.current, HOLDERS[1], ("head", "first", "standby", "last"), "settled", self.replicas)
        )
        self.step(4, base, Attempt(2, 0), HOLDERS[1])
        for name in {*names} - {"middle"}:
            self.traces[name].close(self.tick(), "stopped")
        return self.directory

    def open(self, name: str) -> None:
        """Begin the trace of a node."""
        folder = self.directory / name
        folder.mkdir(parents=True)
        header = {"peer": list(PEERS[name]), "run": SETTINGS.run, "settings": asdict(SETTINGS), "chance": 1,
                  "addresses": [], "hold": 1, "site": "", "wall": 0.0, "version": "test",
                  "precision": "float32"}  # fmt: skip
        self.traces[name] = TraceWriter(folder / "trace.jsonl", header)

    def tick(self) -> float:
        self.now += 0.01
        return self.now

    def event(self, name: str, event: Event) -> None:
        self.traces[name].event(self.tick(), event)

    def record(self, name: str, kind: str, **fields: Any) -> None:
        self.traces[name].record(kind, self.tick(), **fields)

    def install_view(self, new: View) -> None:
        for name in self.traces:
            if new.number == 0 or PEERS[name] in new.members():
                if name != "head":
                    self.event(name, Received(PEERS["head"], Certificate(new, True, ()), None))
                note = Note("view", f"view {new.number}: {new.reason}", (("view", str(new.number)),))
                self.traces[name].note(self.tick(), note)
                self.record(name, "view", view=to_plain(new))
        self.current = new

    def install(
        self, name: str, stage: int, base: Version, rung: str, donors: list[list[Any]], weights: np.ndarray[Any, Any],
        copy_step: int | None = None,
    ) -> None:  # fmt: skip
        self.record(
            name, "installing", stage=stage, step=base.step, commit=base.commit, rung=rung,
            donors=[donor[:2] for donor in donors], copies=copy_step is not None,
        )  # fmt: skip
        digest, dump = self.dump(name, f"installed-{stage}.f32", weights)
        self.event(name, Installed(stage, base, 64, 0.05, 0.01, digest))
        self.record(
            name, "installed", stage=stage, step=base.step, commit=base.commit, rung=rung, reason="",
            copy_step=copy_step, donors=donors, digest=digest, dump=dump, bytes_fetched=64,
            fetch_seconds=0.05, blend_seconds=0.01,
        )  # fmt: skip

    def dump(self, name: str, file: str, weights: np.ndarray[Any, Any]) -> tuple[str, str]:
        data = weights.astype("<f4").tobytes()
        (self.directory / name / file).write_bytes(data)
        return hashlib.blake2b(data, digest_size=16).hexdigest(), file

    def accumulate(self, name: str, stage: int, step: int, attempt: Attempt, microbatch: int, visit: int) -> None:
        task = Backward(stage, step, attempt, microbatch, visit, None, None, False)
        self.event(name, Done(task, None, 0.0, 0, "", ""))
        self.record(name, "accumulated", stage=stage, step=step, attempt=attempt, microbatch=microbatch, visit=visit)

    def step(self, step: int, base: Version, attempt: Attempt, holders: list[str]) -> Version:
        for stage, name in enumerate(holders):
            visits = sorted((m, v) for m in range(MICROBATCHES) for v in ((0, STAGES + 1) if stage == 0 else (stage,)))
            for microbatch, visit in visits:
                self.accumulate(name, stage, step, attempt, microbatch, visit)
            for holder in self.holders(name):
                self.reduce(holder, stage, step, attempt, visits if holder == name else [])
        version = next_version(base, LINEAGE.id, attempt, False)
        self.record(
            "head", "commit", lineage=LINEAGE.id, step=step, commit=version.commit, attempt=attempt, skipped=False,
            loss=5.0 / step, tokens=100, seconds=0.5, norms=[1.0] * 4,
        )  # fmt: skip
        for stage, name in enumerate(holders):
            for holder in self.holders(name):
                if holder != "head":
                    self.event(holder, Received(PEERS["head"], begin(step + 1, version), None))
                at = {"stage": stage, "step": step, "commit": version.commit}
                self.record(holder, "applied", **at, attempt=attempt, skipped=False)
                self.record(holder, "hashed", **at, digest=f"weights {stage} {step}")
        return version

    def holders(self, name: str) -> list[str]:
        """Who holds its stage."""
        return [name, REPLICA] if self.replica and name == "last" else [name]

    def reduce(self, name: str, stage: int, step: int, attempt: Attempt, visits: list[tuple[int, int]]) -> None:
        group, number = (), 0
        if self.replicas and stage == STAGES:
            group, number = ((PEERS["last"], MICROBATCHES), (PEERS[REPLICA], 0)), self.current.number
        task = Reduce(stage, step, attempt, number, group)
        self.event(name, Done(task, None, float(stage + step), 0, f"gradient {stage} {step}", ""))
        self.record(
            name, "reduced", stage=stage, step=step, attempt=attempt, covered=visits, norm_squared=float(stage + step)
        )

    def lose(self, base: Version) -> None:
        """Stage 2 has one microbatch of step 3, its neighbours have more, when its holder is killed."""
        attempt = Attempt(0, 3)
        self.accumulate("last", 3, 3, attempt, 0, 3)
        self.accumulate("last", 3, 3, attempt, 1, 3)
        self.accumulate("middle", LOST_STAGE, LOST_STEP, attempt, 0, LOST_STAGE)
        self.traces["head"].note(self.tick(), Note("lost", "silent", (("peer", "middle"), ("stages", "2"))))

    def rebuild(self, base: Version) -> None:
        donors, weights, total = [], np.zeros(8), 0.0
        for stage, name in ((1, "first"), (3, "last")):
            theirs = np.random.default_rng(stage).normal(size=8).astype("<f4")
            omega = float(stage + base.step)
            digest, dump = self.dump(name, f"exported-{stage}.f32", theirs)
            self.record(
                name, "exported", stage=stage, step=base.step, commit=base.commit, purpose="install",
                norm_squared=omega, digest=digest, dump=dump, to=PEERS["standby"].id,
            )  # fmt: skip
            donors.append([stage, list(PEERS[name]), omega, digest])
            weights, total = weights + omega * theirs.astype(float), total + omega
        self.install("standby", LOST_STAGE, base, "blend", donors, weights / total)


def change(directory: Path, alter: Change) -> None:
    """Lets `alter` change the records of all traces, by the name of the node, then numbers them anew."""
    traces = {path.parent.name: read_trace(path) for path in directory.rglob("trace.jsonl")}
    alter(traces)
    for name, records in traces.items():
        lines = [json.dumps({**record, "n": index}) + "\n" for index, record in enumerate(records)]
        (directory / name / "trace.jsonl").write_text("".join(lines))
