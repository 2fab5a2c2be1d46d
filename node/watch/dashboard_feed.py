"""What the dashboard's page is told: the newest status, and logs of commits, validations and decisions that only grow.

Whoever looks at a swarm (dashboard_live) or at recorded traces (`--replay`) tells the feed; the server reads it from
its own threads. Pages remember how far they have read, so that a look costs what is new. Everything is bounded: of a
run that is longer than the logs, a page that comes late sees the newest part, which is more than the nodes remember.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any, Final, NamedTuple

from ftnode.node.owner.announcements import PLAIN_KINDS
from ftnode.node.watch.credit_table import first
from ftnode.node.watch.history import CommitRow, History, ValidationRow
from ftnode.node.watch.status import SwarmStatus
from ftnode.node.watch.status_table import doubt_lines, rollback_lines

FORMAT: Final = 1
COMMITS_KEPT: Final = 20_000
"""Twice what nodes remember."""
NOTES_KEPT: Final = 2_000
ROWS_MAX: Final = 4_000
"""Of each log in one answer; a page asks again when there is more."""
SAME_SECONDS: Final = 15.0
"""The same words from several nodes within this time are one decision that all of them follow."""
HEARD_MAX: Final = 512
SILENT_SECONDS: Final = 10.0
"""Without a word of the run, after which what the page shows is of before."""
CREDITS_SHOWN: Final = 24


class Decision(NamedTuple):
    """A decision with its reason. Pages get it with the kind's plain word behind it."""

    time: float
    """Unix time by our clock."""
    step: int
    """Last committed then."""
    peer: str
    kind: str
    text: str


class GrowingLog:
    """Rows by number; the oldest fall off beyond `kept`."""

    def __init__(self, kept: int) -> None:
        self._rows: deque[tuple[Any, ...]] = deque()
        self._kept = kept
        self._first = 0

    def append(self, row: tuple[Any, ...]) -> None:
        self._rows.append(row)
        if len(self._rows) > self._kept:
            self._rows.popleft()
            self._first += 1

    def since(self, number: int) -> dict[str, Any]:
        """`rows` from `number` on, ROWS_MAX at most, `next` to ask for, and whether there is `more`."""
        start = min(max(number - self._first, 0), len(self._rows))
        rows = [self._rows[index] for index in range(start, min(start + ROWS_MAX, len(self._rows)))]
        end = start + len(rows)
        return {"rows": rows, "next": self._first + end, "more": end < len(self._rows)}


class Feed:
    """Thread-safe. A status of another run or lineage begins a new `generation`, and pages start over with it."""

    def __init__(self, source: str) -> None:
        """`source` says where it comes from: live or replay."""
        self._lock = threading.Lock()
        self._source = source
        self._run = self._lineage = ""
        self._begin()

    def _begin(self) -> None:
        self._generation = secrets.token_hex(6)
        self._status: dict[str, Any] | None = None
        self._heard_at = 0.0
        self._trouble = ""
        self._steps: OrderedDict[int, None] = OrderedDict()
        self._coarse: OrderedDict[int, None] = OrderedDict()
        """Steps of a status's curve, which pages replace by what a history tells of them."""
        self._validated: OrderedDict[int, None] = OrderedDict()
        self._said: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._commits, self._validations, self._notes = (
            GrowingLog(COMMITS_KEPT), GrowingLog(COMMITS_KEPT), GrowingLog(NOTES_KEPT),
        )  # fmt: skip

    # -- what is told

    def tell_status(self, status: SwarmStatus) -> None:
        """A look at the swarm. Its curve counts where nobody tells of the history, as nodes of before do not. Who takes
        part in no run says nothing of the one that is looked at."""
        with self._lock:
            if self._run and not status.run:
                return
            self._enter(status.run, status.lineage)
            self._status = {name: value for name, value in asdict(status).items() if name not in ("commits", "members")}
            credits = first(status.credits, CREDITS_SHOWN)
            self._status["credits"] = [asdict(replace(row, name_card="")) for row in credits]
            self._status["rollback_lines"], self._status["doubt_lines"] = rollback_lines(status), doubt_lines(status)
            self._heard_at = time.time()
            self._trouble = ""
            for point in status.commits if not self._steps else ():
                if point.step not in self._coarse:
                    _keep(self._coarse, point.step, None, COMMITS_KEPT)
                    self._commits.append((point.step, point.loss, 0, point.seconds, False))

    def tell_history(self, told: History, peer: str, now: float) -> bool:
        """A piece of the past, as `peer` knows it; its decisions count whatever it follows. `now`: Unix time. False
        when its commits are of another lineage than the run that is looked at: it may be behind, or we are."""
        self.tell_decisions(Decision(now - note.age, note.step, peer, note.kind, note.text) for note in told.notes)
        return self.tell_commits(told.commits, told.run, told.lineage) and self.tell_validations(told.validations)

    def tell_commits(self, commits: Iterable[CommitRow], run: str, lineage: str) -> bool:
        """False, and nothing is taken, for those of another lineage than the status told of."""
        with self._lock:
            if not self._run:
                self._run, self._lineage = run, lineage
            if run != self._run or lineage != self._lineage:
                return False
            for commit in commits:
                if commit.step not in self._steps:
                    _keep(self._steps, commit.step, None, COMMITS_KEPT)
                    self._commits.append(tuple(commit))
            return True

    def tell_validations(self, validations: Iterable[ValidationRow]) -> bool:
        with self._lock:
            for row in validations:
                if row.step not in self._validated:
                    _keep(self._validated, row.step, None, COMMITS_KEPT)
                    self._validations.append(tuple(row))
            return True

    def tell_decisions(self, decisions: Iterable[Decision]) -> None:
        """Each once, though many nodes say what they follow."""
        with self._lock:
            for decision in decisions:
                key = (decision.kind, decision.text)
                before = self._said.get(key)
                if before is None or abs(before - decision.time) > SAME_SECONDS:
                    _keep(self._said, key, decision.time, HEARD_MAX)
                    self._notes.append((*decision, PLAIN_KINDS.get(decision.kind, decision.kind)))

    def tell_trouble(self, why: str) -> None:
        """Nothing new comes, for this reason; the page goes on showing what is known."""
        with self._lock:
            self._trouble = why

    def _enter(self, run: str, lineage: str) -> None:
        """The run that is looked at. Both are empty where who answers takes part in none, `lineage` where it does not
        know yet."""
        known = (run or self._run, lineage or self._lineage)
        if known == (self._run, self._lineage):
            return
        if self._lineage or known[0] != self._run:
            self._begin()
        self._run, self._lineage = known

    # -- what pages ask

    def look(self, generation: str, commits: int, validations: int, notes: int) -> dict[str, Any]:
        """What is new for a page that has read so far of this generation; everything, for one of another."""
        with self._lock:
            if generation != self._generation:
                commits = validations = notes = 0
            age = max(0.0, time.time() - self._heard_at) if self._heard_at else None
            return {
                "format": FORMAT,
                "generation": self._generation,
                "source": self._source,
                "age": age,
                "silent": self._source == "live" and age is not None and age > SILENT_SECONDS,
                "trouble": self._trouble,
                "status": self._status,
                "commits": self._commits.since(commits),
                "validations": self._validations.since(validations),
                "notes": self._notes.since(notes),
            }


def _keep(table: OrderedDict[Any, Any], key: Any, value: Any, count: int) -> None:
    table[key] = value
    table.move_to_end(key)
    while len(table) > count:
        table.popitem(last=False)
