"""What traces tell of a newcomer, of a killed replica and of two loss curves: the arithmetic of `ftnode lab elastic`.

Nothing here measures; all times are CLOCK_MONOTONIC seconds as the traces have them, which one machine's share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from ftnode.lab.demo.report import Kill, Recovery
from ftnode.lab.traces.story import Told, first_commits
from ftnode.protocol.words.codec import from_plain
from ftnode.protocol.words.errors import UserError
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import View

Curve = Sequence[tuple[int, float]]
"""(step, training loss in nats per byte), in order."""
STEPS_BEFORE = 10
"""As many steps say how long one takes before something happens."""
WINDOW_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Join:
    """A newcomer's way into a stage. The moments are in this order."""

    node: str
    stage: int
    asked: float
    """`ftnode join` was started."""
    started: float
    """Its trace begins: Python and p2pd are up, torch is not."""
    offered: float
    """The leader found it and chose a stage for it."""
    fetching: float
    """A Begin named it, and it asks a holder for the stage."""
    installed: float
    joined: float
    """It adopted a view in which it holds the stage."""
    worked: float
    """Its first microbatch is in its gradient."""
    bytes_fetched: int
    fetch_seconds: float

    def parts(self) -> dict[str, float]:
        """Seconds; they add up to the whole."""
        moments = (self.asked, self.started, self.offered, self.fetching, self.installed, self.joined, self.worked)
        return dict(zip(PARTS, (later - earlier for earlier, later in pairwise(moments))))

    @property
    def megabytes_per_second(self) -> float:
        return self.bytes_fetched / max(1e-9, self.fetch_seconds) / 1e6


PARTS = ("start", "found", "offer", "fetch", "catch_up", "first_microbatch")


def find_join(told: Iterable[Told], node: str, asked: float) -> Join:
    """How `node`, started at `asked`, came in, by everybody's records. Raises UserError (75) for what is not there."""
    everything = sorted(told, key=lambda one: one.time)
    own = [one for one in everything if one.node == node]
    started = _first(own, "its trace", lambda record: record["k"] == "start")
    peer = Peer(*started.record["peer"])
    joined = _first(own, "a view with it", lambda record: record["k"] == "view" and peer in _view(record).members())
    worked = _first(own, "a microbatch", lambda record: record["k"] == "accumulated")
    offered = _first(everything, "an offer", lambda record: _notes(record, "learner") and _about(record, peer))
    before = [one for one in reversed(own) if one.time <= joined.time]
    installed = _first(before, "its weights", lambda record: record["k"] == "installed")
    before = [one for one in before if one.time <= installed.time]
    fetching = _first(before, "a fetch", lambda record: _notes(record, "rebuild") and "rung" in record["fields"])
    return Join(
        node=node,
        stage=installed.record["stage"],
        asked=asked,
        started=started.time,
        offered=offered.time,
        fetching=fetching.time,
        installed=installed.time,
        joined=joined.time,
        worked=worked.time,
        bytes_fetched=installed.record["bytes_fetched"],
        fetch_seconds=installed.record["fetch_seconds"],
    )


def _first(told: Iterable[Told], what: str, wanted: Callable[[dict[str, Any]], bool]) -> Told:
    found = next((one for one in told if wanted(one.record)), None)
    if found is None:
        raise UserError(f"the traces of the newcomer do not have {what}", 75)
    return found


def _view(record: Mapping[str, Any]) -> View:
    view: View = from_plain(View, record["view"])
    return view


def _notes(record: Mapping[str, Any], kind: str) -> bool:
    return (record["k"], record.get("kind")) == ("note", kind)


def _about(record: Mapping[str, Any], peer: Peer) -> bool:
    return bool(record["fields"].get("peer") == peer.id)


# -- steps


def median_step(commits: Sequence[Told], until: float, count: int = STEPS_BEFORE) -> float:
    """Of the last `count` steps that were committed before `until`. Raises ValueError when there is none."""
    return median(_steps_before(commits, until, count))


def _steps_before(commits: Sequence[Told], until: float, count: int = STEPS_BEFORE) -> list[float]:
    times = [told.time for told in first_commits(list(commits)) if told.time <= until]
    steps = [later - earlier for earlier, later in pairwise(times)][-count:]
    if not steps:
        raise ValueError("no step was committed before")
    return steps


def longest_step(commits: Sequence[Told], since: float, until: float) -> float:
    """Of the steps that were in work at some time between `since` and `until`; 0.0 when none was committed."""
    times = [told.time for told in first_commits(list(commits))]
    return max((end - begin for begin, end in pairwise(times) if end > since and begin < until), default=0.0)


def tokens_per_second(commits: Sequence[Told], since: float, until: float) -> float:
    """Within the window, of whose first and last step the part counts that lies in it. Raises ValueError when the
    commits do not reach from one end to the other."""
    found = first_commits(list(commits))
    times = [told.time for told in found]
    if not times or times[0] > since or times[-1] < until:
        raise ValueError(f"the commits do not cover the {until - since:.0f} seconds")
    done = np.cumsum([told.record["tokens"] for told in found])
    first, last = np.interp([since, until], times, done)
    return float((last - first) / (until - since))


def tell_join(join: Join, commits: Sequence[Told]) -> dict[str, Any]:
    """The figures of a join. The stall is what the longest step while it learnt and joined had more than the median
    step before, whose longest is told as well, since a machine is never still; while the newcomer started it took
    cores, which one on another machine does not."""
    step = median_step(commits, join.asked)
    joining = longest_step(commits, join.offered, join.worked)
    return {
        "stage": join.stage,
        "seconds": join.worked - join.asked,
        **{f"{name}_seconds": seconds for name, seconds in join.parts().items()},
        "step_seconds": step,
        "longest_before_seconds": max(_steps_before(commits, join.asked)),
        "longest_starting_seconds": longest_step(commits, join.asked, join.offered),
        "longest_joining_seconds": joining,
        "stall": joining / step - 1,
        "bytes_fetched": join.bytes_fetched,
        "megabytes_per_second": join.megabytes_per_second,
    }


def tell_kill(kill: Kill, recovery: Recovery, commits: Sequence[Told]) -> dict[str, Any]:
    """The figures of a replica's death. `visits`: what it had accumulated, and others did again."""
    before = tokens_per_second(commits, kill.time - WINDOW_SECONDS, kill.time)
    after = tokens_per_second(commits, kill.time, kill.time + WINDOW_SECONDS)
    return {
        "stage": kill.stage,
        "holders": kill.holders,
        "outage_seconds": recovery.outage_seconds,
        "detect_seconds": recovery.detect_seconds,
        "elect_seconds": recovery.elect_seconds,
        "step_seconds": median_step(commits, kill.time),
        "tokens_per_second_before": before,
        "tokens_per_second_after": after,
        "kept": after / before,
        "visits": kill.accumulated,
    }


# -- curves


def loss_curve(commits: Sequence[Told]) -> list[tuple[int, float]]:
    return [(told.record["step"], told.record["loss"]) for told in first_commits(list(commits))]


def differences(curve: Curve, other: Curve) -> list[tuple[int, float]]:
    """`curve` less `other` at the steps that both have."""
    theirs = dict(other)
    return [(step, loss - theirs[step]) for step, loss in curve if step in theirs]


def compare_curves(curve: Curve, other: Curve) -> dict[str, float]:
    """`largest` and `at`: size and step of the largest difference; `final`: that of the last step, in nats per byte."""
    found = differences(curve, other)
    step, largest = max(found, key=lambda one: abs(one[1]))
    return {"largest": abs(largest), "at": step, "final": abs(found[-1][1])}
