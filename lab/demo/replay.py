"""`ftnode replay TRACE`: the recorded events of one node through the core again, decision by decision.

The core is a pure function of its settings, its seed and its events with their times, so the decisions must be the
same ones. Where they are not, either the trace is not what happened or the core has changed since.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from ftnode.node.driver.trace import read_trace
from ftnode.protocol.participant import Participant
from ftnode.protocol.words.codec import from_tagged
from ftnode.protocol.words.effects import Apply, Committed, Effect, Note
from ftnode.protocol.words.errors import PeerError, UserError
from ftnode.protocol.words.events import EVENTS
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.site import site_of
from ftnode.protocol.words.types import Peer

DIFFERENCES_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Decision:
    """One thing that the core decided, as text that says why."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind:<10} {self.text}"


@dataclass(frozen=True, slots=True)
class Turn:
    """One event, what the core decides on it now, and what the trace says it decided then."""

    line: int
    time: float
    event: str
    now: tuple[Decision, ...]
    then: tuple[Decision, ...]
    late: tuple[Decision, ...] = ()
    """Of `now`, what was decided here and carried out later, or of `then`, what was decided earlier: a commit waits for
    the weights that it applies to, and the trace tells of it when they are here."""

    @property
    def same(self) -> bool:
        return [each for each in self.now if each not in self.late] == [
            each for each in self.then if each not in self.late
        ]


def replay(records: list[dict[str, Any]]) -> Iterator[Turn]:
    """One Turn per recorded event, up to where the trace leaves events out. Raises UserError (65) when it cannot be
    replayed at all."""
    try:
        participant, turns = _beginning(records[0]), _turns(records)
    except (KeyError, TypeError, IndexError) as error:
        raise UserError(f"the trace does not start with what a replay needs: {error}", 65) from error
    recorded = [tuple(filter(None, map(_of_record, followers))) for _, followers in turns]
    to_come, waiting = Counter(each for then in recorded for each in then), Counter[Decision]()
    for (record, _), then in zip(turns, recorded):
        try:
            event = from_tagged(EVENTS, record["e"])
        except PeerError as error:
            raise UserError(f"line {record['n']} holds no event of this version: {error}", 65) from error
        effects = participant.handle(event, record["t"])
        now = tuple(decision for effect in effects if (decision := _of_effect(effect)))
        to_come.subtract(then)
        applies = {each for each in (*now, *then) if each.kind == "apply"}
        begun = {each for each in applies if each in now and each not in then and to_come[each] > waiting[each]}
        ended = {each for each in applies if each in then and each not in now and waiting[each]}
        waiting.update(begun)
        waiting.subtract(ended)
        yield Turn(record["n"], record["t"], record["e"][0], now, then, tuple(sorted(begun | ended, key=str)))


def _beginning(start: dict[str, Any]) -> Participant:
    """As it was before its first event. Raises KeyError or TypeError where the trace does not say how."""
    return Participant(
        Peer(*start["peer"]),
        Settings(**start["settings"]),
        Random(start["chance"]),
        addresses=tuple(start["addresses"]),
        hold=start["hold"],
        site=start.get("site", ""),
    )


def _turns(records: list[dict[str, Any]]) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each event with the records up to the next. The last one's may have died with the node, so it is left out."""
    turns: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    ended = bool(records) and records[-1]["k"] == "end"
    for record in records:
        if record["k"] == "left_out":
            return turns
        if record["k"] == "event":
            turns.append((record, []))
        elif turns:
            turns[-1][1].append(record)
    return turns if ended else turns[:-1]


def _of_effect(effect: Effect) -> Decision | None:
    match effect:
        case Note(kind=kind, text=text):
            return Decision(kind, text)
        case Committed(version=version):
            return Decision("commit", f"step {version.step} as {version.commit}")
        case Apply(stage=stage, version=version):
            return Decision("apply", f"stage {stage} becomes {version.commit} of step {version.step}")
    return None


def _of_record(record: dict[str, Any]) -> Decision | None:
    """The same of what the trace says; None for records that are no decision of the core."""
    match record["k"]:
        case "note":
            return Decision(record["kind"], record["text"])
        case "commit":
            return Decision("commit", f"step {record['step']} as {record['commit']}")
        case "applied":
            return Decision("apply", f"stage {record['stage']} becomes {record['commit']} of step {record['step']}")
    return None


def main(trace: Path, as_json: bool) -> int:
    """Print every decision; 0 when all are those recorded, else 1 with the first differences."""
    records = read_trace(trace)
    if not records:
        raise UserError(f"{trace} is empty: nothing to replay", 65)
    began, turns, different = records[0]["t"], 0, 0
    where = site_of(records[0].get("site", ""), records[0].get("addresses", ()))
    if where and not as_json:
        print(f"{0:9.3f} s  on {'start':<14} {Decision('site', where)}")
    for turn in replay(records):
        turns += 1
        different += not turn.same
        if as_json:
            if turn.now or turn.then:
                print(json.dumps({**asdict(turn), "same": turn.same}))
            continue
        for decision in turn.now:
            print(f"{turn.time - began:9.3f} s  on {turn.event:<14} {decision}")
        if not turn.same and different <= DIFFERENCES_SHOWN:
            for decision in turn.then:
                print(f"{'':>12} recorded instead: {decision}", file=sys.stderr)
            if not turn.then:
                print(f"{'':>12} recorded instead: nothing (line {turn.line})", file=sys.stderr)
    for record in records:
        if record["k"] == "left_out":
            print(f"the replay ends at line {record['n']}: {record['reason']}", file=sys.stderr)
    print(f"{turns} events, {different} with other decisions than recorded", file=sys.stderr)
    return 1 if different else 0
