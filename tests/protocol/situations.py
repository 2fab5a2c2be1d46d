"""Situations of our making, for tests that build one role and nothing else."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from ftnode.protocol.liveness.liveness import Liveness
from ftnode.protocol.liveness.moves import Moves
from ftnode.protocol.situation import Situation
from ftnode.protocol.step.attempt import StepWork
from ftnode.protocol.step.doubts import Doubts
from ftnode.protocol.step.probation import Probation
from ftnode.protocol.words.crowds import NOBODY_KNOWN
from ftnode.protocol.words.messages import Begin, Commit, Heartbeat, Roll, StageReport, StageStatus, Status
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import NO_ORDER, Copied, Peer, Snapshot, Version
from ftnode.protocol.words.view import Lineage, View

A, B, C, D = (Peer(name, 1) for name in "abcd")
"""A leads, B and C are members, D stands by."""
SETTINGS = Settings("run", stages=2, steps=100, microbatches=4, window=2)
NOW = 1000.0


def view_of(*holders: tuple[Peer, ...], number: int = 3, voters: tuple[Peer, ...] = (), **changes: Any) -> View:
    """A view that A leads; without `voters`, all of its members vote."""
    members = dict.fromkeys((A, *(peer for group in holders for peer in group)))
    lineage = changes.get("lineage", Lineage("lineage", 0, len(holders)))
    return View("run", lineage, number, "before", A, holders, voters or tuple(members), (0,) * len(holders), "why")


VIEW = view_of((A,), (B,), (C,))


def moved(now: float) -> Moves:
    """Nobody has got anything done since a view came then."""
    moves = Moves(100)
    moves.on_view((), A, now)
    return moves


@dataclass
class Held:
    """What we hold: nothing, unless a test says otherwise."""

    compute_ready: bool = True
    capacity: int = 1
    may_head: bool = True
    refuses: set[int] = field(default_factory=set)
    begin: Begin | None = None
    work: StepWork | None = None
    finished: bool = False
    versions: dict[int, Version] = field(default_factory=dict)
    given_up: View | None = None
    learning: tuple[int, ...] = ()
    snapshots: tuple[Snapshot, ...] = ()
    rolls: tuple[Roll, ...] = ()
    false_starts: tuple[Version, ...] = ()
    moves: Moves = field(default_factory=lambda: moved(NOW))
    doubts: Doubts = field(default_factory=Doubts)

    @property
    def ours(self) -> dict[int, Version]:
        return self.versions

    def exact(self, lineage: str) -> tuple[tuple[int, Version], ...]:
        return tuple(sorted(self.versions.items()))

    def copies_told(self) -> tuple[Copied, ...]:
        return ()

    def pace_of(self, stage: int) -> float:
        return 0.0

    def snapshots_told(self) -> tuple[Snapshot, ...]:
        return self.snapshots

    def rolls_kept(self) -> tuple[Roll, ...]:
        return self.rolls

    def disbelieves(
        self, lineage: Lineage, shown: Roll | None, present: Collection[str], tellers: Collection[str]
    ) -> bool:
        return lineage.start in self.false_starts and shown is None


@dataclass
class Past:
    """What is known of the run's past."""

    newest_step: int = 0
    validation: dict[int, float] = field(default_factory=dict)
    probation: Probation = field(default_factory=Probation)

    def rebuilt_at(self) -> list[int]:
        return []

    def newest_commits(self, count: int = 2) -> tuple[Commit, ...]:
        return ()

    def known_up_to(self) -> int:
        return self.newest_step


@dataclass
class Vote:
    """The vote on the next view."""

    proposing: bool = False
    since: float = 0.0


def alive(*peers: Peer, now: float = NOW, settings: Settings = SETTINGS, lineage: str = "lineage") -> Liveness:
    """We have been running for long, and have heard these a moment ago, as followers of the lineage."""
    liveness = Liveness(settings.lease_seconds, 0.0)
    for peer in peers:
        liveness.heard[peer], liveness.lineages[peer] = now - 0.1, lineage
    return liveness


def situation(**changes: Any) -> Situation:
    """A leads VIEW and hears B and C, and whoever is present; nothing else is the case, but what `changes` say."""
    view: View | None = changes.get("view", VIEW)
    now = changes.get("now", NOW)
    members = frozenset(view.members()) if view is not None else frozenset[Peer]()
    heard = alive(*members, *changes.get("presences", ()), now=now)
    said: dict[str, Any] = {
        "me": A, "settings": SETTINGS, "now": now, "chance": Random(1), "view": view, "members": members, "mine": (),
        "hold": 1, "contacts": {}, "presences": {}, "reports": {}, "liveness": heard,
        "own": Held(), "ballots": Vote(), "leaving": "", "pauses": False, "quorate_at": now, "history": Past(),
        "led": None, "here": "", "crowds": NOBODY_KNOWN, "order": NO_ORDER, "convicted": {},
        "leader_doubted": False,
    }  # fmt: skip
    said |= changes
    said["mine"] = view.stages_of(said["me"]) if view is not None else ()
    return Situation(**{name: said[name] for name in Situation._fields})


# -- what others say


def standby(peer: Peer, capacity: int = 1, **changes: Any) -> dict[Peer, Presence]:
    """Its record in the directory."""
    said: dict[str, Any] = {
        "addresses": (f"/at/{peer.id}",), "lineage": "lineage", "view": 0, "head": True, "refuses": (), "exact": (),
        "copies": (), "tokens_per_second": 1.0,
    }  # fmt: skip
    return {peer: Presence(peer=peer, capacity=capacity, **{**said, **changes})}


def report(number: int = 3, busy_seconds: float = 0.0, stages: Iterable[StageReport] = (), step: int = 1) -> Heartbeat:
    """A member's heartbeat in the view of this number."""
    return Heartbeat("lineage", number, True, step, tuple(stages), busy_seconds, False, (), (), "", ())


def status(stages: Mapping[int, Version | None], base: Version | None = None, **changes: Any) -> Status:
    """What a member says to the leader: its stages with their versions, and the base of the last Begin."""
    said: dict[str, Any] = {
        "lineage": "lineage", "view": 3, "attempt": None, "step": base.step + 1 if base is not None else 0,
        "base": base, "skipped": False, "skip": False, "evaluate": False,
        "stages": tuple(StageStatus(stage, version, None, False) for stage, version in stages.items()),
        "ready": None, "evaluated": (), "commits": (), "copies": (), "paths": (), "paths_view": -1,
    }  # fmt: skip
    return Status(**{**said, **changes})
