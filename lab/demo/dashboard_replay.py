"""Recorded traces as the dashboard's page would have seen the run: `ftnode dashboard --replay DIR`.

All traces below a folder are read at first, and then told to a feed at the pace of their times. What a status says of
each node comes from the nodes' own traces, so it is what they knew, and not what one of them had heard of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import trio

from ftnode.lab.demo.report import tokens_per_second
from ftnode.lab.traces.story import Story, Told, first_commits
from ftnode.node.driver.trace import TRACE_NAME, TRACE_PATTERN, parse_record
from ftnode.node.watch.dashboard_feed import Decision, Feed
from ftnode.node.watch.history import CommitRow, ValidationRow
from ftnode.node.watch.status import RecoveryRow, Speaker, StageRow, SwarmStatus
from ftnode.node.watch.time_left import STEPS_SEEN, seconds_left
from ftnode.protocol.words.codec import from_plain
from ftnode.protocol.words.errors import UserError
from ftnode.protocol.words.types import HEAD, Peer, Rung
from ftnode.protocol.words.view import View

TURN_SECONDS: Final = 0.1
RATE_COMMITS: Final = 8
SILENT_SECONDS: Final = 1.0
"""A node that has written nothing for so long, and never will again, was killed."""
NOT_LOST: Final = (Rung.INITIAL.value, Rung.REPLICA.value, Rung.SNAPSHOT.value)
"""Rungs of stages that nobody had lost: they began, or got one holder more."""
SHOWN: Final = frozenset(
    ("start", "view", "commit", "evaluated", "installed", "note", "accumulated", "reduced", "applied", "end")
)


@dataclass(frozen=True)
class Recording:
    """Records of all nodes, oldest first."""

    name: str
    records: Sequence[Told]
    last: dict[str, float]
    """Node → time of its last record."""

    @property
    def began(self) -> float:
        return self.records[0].time

    @property
    def ended(self) -> float:
        return self.records[-1].time


def read_recording(folder: Path) -> Recording:
    """All traces below a folder. Raises UserError (66) when there are none, 65 for what is none."""
    found: list[Told] = []
    for path in sorted(folder.rglob(TRACE_PATTERN)):
        node = path.parent.name if path.name == TRACE_NAME else f"{path.parent.name}/{path.stem}"
        found += [Told(node, record) for record in _shown_records(path)]
    if not any(told.record["k"] == "start" for told in found):
        raise UserError(f"there are no traces below {folder}; give the folder of a demo, or of a node's logs", 66)
    found.sort(key=lambda told: told.time)
    return Recording(folder.resolve().name, found, {told.node: told.time for told in found})


def _shown_records(path: Path) -> list[dict[str, Any]]:
    """Without events, which are nine of ten, and without a torn last line. Raises UserError."""
    try:
        *lines, _ = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UserError(f"cannot read the trace {path}: {error.strerror}", 66) from error
    numbered = [(number, line) for number, line in enumerate(lines, 1) if b'"k":"event"' not in line[:80]]
    records = [parse_record(line, f"{path}:{number}") for number, line in numbered]
    if any(type(record["t"]) not in (int, float) for record in records):
        raise UserError(f"{path}: not a trace: a record whose time is no number", 65)
    return [record for record in records if record["k"] in SHOWN]


class Replay:
    """Tells a recording to a feed. `stage rows`, recoveries and so on as of the last record that was told."""

    def __init__(self, recording: Recording, feed: Feed) -> None:
        self.recording, self._feed = recording, feed
        self._story = Story()
        self._told = 0
        self._recoveries: dict[tuple[int, int], tuple[RecoveryRow, float]] = {}
        """(step, stage) → and when the view that began it came."""
        self._decisions: list[Decision] = []
        self._step = 0
        self._run = ""
        self._wall = 0.0
        """Unix time at time 0 of the traces."""

    async def run(self, speed: float) -> None:
        """At so many recorded seconds per second; at the end it stays as it is. Never returns by itself."""
        began = trio.current_time()
        while not self.over:
            self.tell_until(self.recording.began + speed * (trio.current_time() - began))
            await trio.sleep(TURN_SECONDS)
        await trio.sleep_forever()

    @property
    def over(self) -> bool:
        return self._told == len(self.recording.records)

    @property
    def newest_step(self) -> int:
        """Last committed of those told."""
        return self._step

    def tell_until(self, now: float) -> None:
        """All records of up to `now`, in the traces' time."""
        news: list[Told] = []
        records = self.recording.records
        while self._told < len(records) and records[self._told].time <= now:
            told = records[self._told]
            self._story.take(told)
            self._note(told)
            news.append(told)
            self._told += 1
        if news:
            self._tell(news, min(now, self.recording.ended))

    def _note(self, told: Told) -> None:
        record = told.record
        if record["k"] == "start":
            self._run = self._run or str(record["run"])
            self._wall = self._wall or float(record["wall"]) - told.time
        elif record["k"] == "installed" and record["rung"] not in NOT_LOST:
            self._begin_recovery(told)
        elif record["k"] == "note" and told.node in self._story.peers:
            peer, when = self._story.peers[told.node].id, self._wall + told.time
            self._decisions.append(Decision(when, self._step, peer, record["kind"], record["text"]))
        elif record["k"] == "commit":
            self._step = max(self._step, record["step"])
            for key, (row, since) in self._recoveries.items():
                if row.seconds is None and record["step"] >= row.step:
                    self._recoveries[key] = replace(row, seconds=told.time - since), since

    def _begin_recovery(self, told: Told) -> None:
        record, view = told.record, self._story.view
        newcomer = self._story.peers[told.node]
        if view is None:
            return
        stage, step = record["stage"], record["step"] + 1
        lost = next((old.holders[stage][0] for old in self._older(view) if newcomer not in old.holders[stage]), None)
        since = next((said.time for said, one in reversed(self._story.views) if one.number == view.number), told.time)
        row = RecoveryRow(
            stage, step, record["rung"], view.epochs[stage], "" if lost is None else lost.id, newcomer.id,
            record["reason"], None, record["bytes_fetched"], _newest(self._story.evaluated, step - 1),
        )  # fmt: skip
        self._recoveries[step, stage] = row, since

    def _older(self, view: View) -> Iterable[View]:
        """Views before this one, newest first."""
        numbers = {old.number: old for _, old in self._story.views if old.lineage == view.lineage}
        return (numbers[number] for number in sorted(numbers, reverse=True) if number < view.number)

    # -- to the feed

    def _tell(self, news: Sequence[Told], now: float) -> None:
        status = self.status(now)
        self._feed.tell_status(status)
        commits = [told.record for told in first_commits([told for told in news if told.record["k"] == "commit"])]
        self._feed.tell_commits(
            [CommitRow(r["step"], r["loss"], r["tokens"], r["seconds"], r["skipped"]) for r in commits],
            status.run, status.lineage,
        )  # fmt: skip
        self._feed.tell_validations(
            [
                ValidationRow(told.record["step"], told.record["loss"])
                for told in news
                if told.record["k"] == "evaluated"
            ]
        )
        self._feed.tell_decisions(self._decisions)
        self._decisions = []

    def status(self, now: float) -> SwarmStatus:
        """Of the run, as all traces together have it."""
        story = self._story
        view, newest = story.view, story.commits[-1].record if story.commits else None
        vacant = [stage for stage, group in enumerate(view.holders) if not group] if view is not None else []
        waiting = f"a volunteer for stage {', '.join(map(str, vacant))}" if vacant else ""
        return SwarmStatus(
            Speaker("", "", "", "replay"),
            run=self._run,
            name=self.recording.name,
            step=story.committed,
            steps=story.steps,
            loss=newest["loss"] if newest is not None else None,
            validation=story.evaluated[max(story.evaluated)] if story.evaluated else None,
            tokens_per_second=tokens_per_second(first_commits(story.commits[-2 * RATE_COMMITS :])[-RATE_COMMITS:]),
            eta_seconds=self._seconds_left() if view is not None and not waiting and not story.finished else None,
            leader=view.leader.id if view is not None else "",
            lineage=view.lineage.id if view is not None else "",
            view=view.number if view is not None else -1,
            state="waiting" if view is None or waiting else "finished" if story.finished else "training",
            waiting=waiting if view is not None else "founders",
            stages=self._rows(view, now) if view is not None else (),
            standbys=tuple(sorted(peer.id for peer in self._standing_by(view, now))),
            recoveries=tuple(
                replace(row, validation_after=story.evaluated.get(row.step))
                for _, (row, _) in sorted(self._recoveries.items())[-64:]
            ),
        )

    def _seconds_left(self) -> float | None:
        story = self._story
        took = [told.record["seconds"] for told in first_commits(story.commits[-2 * STEPS_SEEN :])]
        return seconds_left(story.steps - story.committed, took)

    def _rows(self, view: View, now: float) -> tuple[StageRow, ...]:
        rows = []
        for stage, group in enumerate(view.holders):
            if not group:
                rows.append(StageRow(stage, "", "vacant", view.epochs[stage], 0, 0, 0, 0.0))
            for peer in group:
                node = self._story.names.get(peer)
                applied = self._story.applied.get((node, stage), 0) if node is not None else 0
                counted = self._story.progress(node, stage)[1] if node is not None else 0
                age = now - min(now, self.recording.last.get(node or "", 0.0))
                rows.append(
                    StageRow(
                        stage, peer.id, self._state(node, stage, now), view.epochs[stage], applied, counted, 0, age
                    )
                )
        return tuple(rows)

    def _state(self, node: str | None, stage: int, now: float) -> str:
        story = self._story
        if node is None:
            return "unknown"
        if node not in story.ended and now > self.recording.last[node] + SILENT_SECONDS:
            return "silent"
        if (node, stage) not in story.applied:
            return "rebuilding"
        if story.finished or node in story.ended:
            return "finished"
        step, counted = story.progress(node, stage)
        visits = story.microbatches * (2 if stage == HEAD else 1)
        return "ready" if step > story.committed and counted >= visits else "training"

    def _standing_by(self, view: View | None, now: float) -> set[Peer]:
        """Nodes that run and hold nothing."""
        last = self.recording.last
        alive = {
            peer for node, peer in self._story.peers.items()
            if node in self._story.ended or now <= last[node] + SILENT_SECONDS
        }  # fmt: skip
        return alive - set(view.members() if view is not None else ())


def repeated(recording: Recording, seconds: float) -> Recording:
    """The recorded run again and again, one after the other, until it lasts so long: steps, views and times go on."""
    length = recording.ended - recording.began
    steps = max(told.record["step"] for told in recording.records if told.record["k"] == "commit")
    views = 1 + max(told.record["view"][2] for told in recording.records if told.record["k"] == "view")
    rounds = max(1, round(seconds / length))
    found = []
    for turn in range(rounds):
        for told in recording.records:
            kind = told.record["k"]
            if kind == "end" or (kind == "start" and turn):
                continue
            found.append(
                Told(told.node, _later(told.record, turn * length, turn * steps, turn * views, rounds * steps))
            )
    last = {told.node: told.time for told in found}
    return Recording(recording.name, found, last)


def _later(record: dict[str, Any], seconds: float, steps: int, views: int, total: int) -> dict[str, Any]:
    moved = {**record, "t": record["t"] + seconds}
    if record["k"] == "start":
        moved["settings"] = {**record["settings"], "steps": total}
    if "step" in record:
        moved["step"] = record["step"] + steps
    if record["k"] == "view":
        view = list(record["view"])
        view[2] += views
        moved["view"] = view
        from_plain(View, view)
    return moved


def _newest(table: dict[int, float], step: int) -> float | None:
    found = max((one for one in table if one <= step), default=None)
    return None if found is None else table[found]


def open_replay(folder: Path, feed: Feed) -> Replay:
    """Ready to run. Raises UserError when the folder has no traces."""
    if not folder.exists():
        raise UserError(f"there is no folder {folder}", 66)
    return Replay(read_recording(folder), feed)
