"""What happened in a swarm so far, told by all of its nodes' traces; read while they are written, or afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftnode.node.driver.trace import TraceTail
from ftnode.protocol.words.codec import from_plain, from_tagged
from ftnode.protocol.words.events import EVENTS
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import View

Record = dict[str, Any]


@dataclass(frozen=True)
class Told:
    """One record with the name of the node that wrote it."""

    node: str
    record: Record

    @property
    def time(self) -> float:
        return float(self.record["t"])


@dataclass
class Story:
    """Follows the traces of nodes as they appear. What is read together is in the order of its times, and no more."""

    tails: dict[str, TraceTail] = field(default_factory=dict)
    peers: dict[str, Peer] = field(default_factory=dict)
    """Node name → peer."""
    names: dict[Peer, str] = field(default_factory=dict)
    microbatches: int = 0
    steps: int = 0
    views: list[tuple[Told, View]] = field(default_factory=list)
    commits: list[Told] = field(default_factory=list)
    evaluated: dict[int, float] = field(default_factory=dict)
    installed: list[Told] = field(default_factory=list)
    notes: list[Told] = field(default_factory=list)
    copied: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Stage → (copies of it that others have fetched to keep, their bytes over the wire)."""
    applied: dict[tuple[str, int], int] = field(default_factory=dict)
    """(node, stage) → last applied step."""
    accumulated: dict[tuple[str, int], Counter[tuple[int, tuple[int, int]]]] = field(default_factory=dict)
    """(node, stage) → how many visits it has counted of each (step, attempt); those of the step in work only."""
    reduced: set[tuple[str, int, int]] = field(default_factory=set)
    """(node, stage, step)"""
    paces: dict[tuple[str, int], float] = field(default_factory=dict)
    """(node, stage) → seconds that its device takes for a microbatch there, as it last told others."""
    ended: set[str] = field(default_factory=set)

    def follow(self, node: str, trace: Path) -> None:
        self.tails.setdefault(node, TraceTail(trace))

    def read(self, only: str | None = None) -> list[Told]:
        """Take in what was written since the last call, by all nodes or by one; returns it."""
        news: list[Told] = []
        for node, tail in self.tails.items():
            if only is None or node == only:
                news += [Told(node, record) for record in tail.read()]
        news.sort(key=lambda told: told.time)
        for told in news:
            self.take(told)
        return news

    def take(self, told: Told) -> None:
        """One record more. Those of one node must come in their order."""
        node, record = told.node, told.record
        match record["k"]:
            case "start":
                peer = Peer(*record["peer"])
                self.peers[node], self.names[peer] = peer, node
                self.microbatches = record["settings"]["microbatches"]
                self.steps = record["settings"]["steps"]
            case "view":
                self.views.append((told, from_plain(View, record["view"])))
            case "event" if record["e"][0] == "Received" and record["e"][2][0] == "Heartbeat":
                self._hear(from_tagged(EVENTS, record["e"]))
            case "commit":
                self.commits.append(told)
            case "evaluated":
                self.evaluated[record["step"]] = record["loss"]
            case "installed":
                self.applied[(node, record["stage"])] = record["step"]
                self.installed.append(told)
            case "note":
                self.notes.append(told)
            case "accumulated":
                counts = self.accumulated.setdefault((node, record["stage"]), Counter())
                counts[(record["step"], (record["attempt"][0], record["attempt"][1]))] += 1
            case "reduced":
                self.reduced.add((node, record["stage"], record["step"]))
            case "applied":
                self.applied[(node, record["stage"])] = record["step"]
                self.accumulated.pop((node, record["stage"]), None)
            case "kept":
                count, sent = self.copied.get(record["stage"], (0, 0))
                self.copied[record["stage"]] = count + 1, sent + record["bytes_fetched"]
            case "end":
                self.ended.add(node)

    def _hear(self, event: Any) -> None:
        for report in event.message.stages:
            if report.seconds and event.sender in self.names:
                self.paces[self.names[event.sender], report.stage] = report.seconds

    @property
    def view(self) -> View | None:
        """As everybody's."""
        return self.view_of(self.peers)

    def view_of(self, names: Collection[str]) -> View | None:
        """The newest view of the lineage that one of these adopted last: who yields or forks adopts after the others.
        None: none of them has adopted any."""
        views = [(told, view) for told, view in self.views if told.node in names]
        if not views:
            return None
        lineage = max(views, key=lambda told: told[0].time)[1].lineage
        return max((view for _, view in views if view.lineage == lineage), key=lambda view: view.number)

    @property
    def committed(self) -> int:
        return max((told.record["step"] for told in self.commits), default=0)

    @property
    def finished(self) -> bool:
        """All steps are committed and the last weights evaluated."""
        return 0 < self.steps <= self.committed and self.steps in self.evaluated

    def name(self, peer: Peer) -> str:
        return self.names.get(peer, str(peer))

    def holders(self, stage: int) -> tuple[str, ...]:
        """The nodes that hold a stage, the first of the group first; empty when nobody does."""
        view = self.view
        return () if view is None else tuple(self.names[peer] for peer in view.holders[stage] if peer in self.names)

    def holder(self, stage: int) -> str | None:
        """The node that holds a stage alone or leads its group, None when nobody does."""
        return next(iter(self.holders(stage)), None)

    def progress(self, node: str, stage: int) -> tuple[int, int]:
        """(step, visits counted) of the newest attempt that a node has gradients of; (0, 0) before the first."""
        counts = self.accumulated.get((node, stage))
        if not counts:
            return 0, 0
        step, attempt = max(counts)
        return step, counts[(step, attempt)]


def first_commits(commits: list[Told]) -> list[Told]:
    """One commit per step, in order: a leader's successor may write the same one again."""
    first: dict[int, Told] = {}
    for told in sorted(commits, key=lambda told: told.time):
        first.setdefault(told.record["step"], told)
    return [first[step] for step in sorted(first)]
