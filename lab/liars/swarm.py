"""One kind of lie in a swarm of real processes on this machine.

Honest volunteers train a small model with torch; the liars come last and are honest, too, until they get the order. So
one run has its rate before and during the lie. What a step's loss would be without the lie is known from a run of one
volunteer alone, which computes the same but for roundings.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ftnode.lab.liars.ground import Ground
from ftnode.lab.liars.kinds import BESIDE, OTHERS, Kind
from ftnode.lab.swarms.swarm import NODE
from ftnode.lab.swarms.trial import Trial, open_trial
from ftnode.lab.traces.story import Story, Told, first_commits
from ftnode.protocol.words.types import HEAD, Peer

LIAR: Final = "ftnode.lab.hostile.liar"
TRAITOR: Final = "ftnode.lab.hostile.traitor"
SETTLED_STEPS: Final = 10
"""After the last has joined; then the rate before the lie is measured for so many steps, too."""
AFTER_STEPS: Final = 20
"""After the liar has gone, and of which the final loss is the mean."""
START_SECONDS: Final = 180.0
STEP_SECONDS_MAX: Final = 2.0
NOTED: Final = ("lost", "liar", "check", "doubt", "poisoned")
"""Of what is said, what is kept with the figures."""
STILL_SECONDS: Final = 90.0
"""A run without a step for so long counts as stopped."""


def baseline(alone: Ground, steps: int) -> dict[str, Any]:
    """`losses`: of each step, without a lie, by one volunteer that holds everything."""
    with open_trial(alone.manifest()) as trial:
        trial.volunteer("v1", hold=alone.layout.hold)
        trial.wait_for_step(steps, START_SECONDS + STEP_SECONDS_MAX * steps)
        return {"losses": _losses(trial.story.commits)}


def measure(kind: Kind, ground: Ground, folder: Path | None = None) -> dict[str, Any]:
    """`lied_from`: the step in which the lie began; `found_after`: steps until a leader had let all liars go, or None,
    also when one came back; `removed`: how many honest members leaders have let go, or ended by themselves; `losses`:
    by step; `before` and `during`: tokens a second; `stopped`: no step was made any more; `silenced`: who was let go
    for its silence, which no kind of lie is, but a machine that is too busy is; `accused`: who was said to lie."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    with open_trial(ground.manifest(), folder) as trial:
        return _Run(kind, ground, trial).measured()


class _Run:
    def __init__(self, kind: Kind, ground: Ground, trial: Trial) -> None:
        self.kind, self.layout, self.trial = kind, ground.layout, trial
        self.order = trial.swarm.directory / "order"
        self.liars = [f"liar{number}" for number in range(1, kind.liars + 1)]
        self.honest = [f"v{number}" for number in range(1, self.layout.volunteers - kind.liars + 1)]
        self.killed = set[str]()

    def measured(self) -> dict[str, Any]:
        trial, story = self.trial, self.trial.story
        self._gather()
        trial.wait_for_step(story.committed + SETTLED_STEPS)
        trial.wait_for_step(max(story.committed + SETTLED_STEPS, self.kind.begins), START_SECONDS + self._seconds())
        trial.expected_dead |= {*self.honest, *self.liars}
        if self.kind.loses == OTHERS:
            self._bereave()
        moment, lied_from = time.monotonic(), story.committed
        self.order.touch()
        if self.kind.loses_one:
            self._lose(self._beside() if self.kind.loses == BESIDE else HEAD)
        if self.kind.loses == OTHERS:
            self._renew()
        stopped = self._go_on(moment, lied_from)
        found = self._found(moment)
        last = first_commits(self._commits())[-1]
        begun = [told for told in first_commits(self._commits()) if told.time <= moment][-SETTLED_STEPS - 1 :]
        return {
            "kind": self.kind.name, "lied_from": lied_from, "last": last.record["step"], "stopped": stopped,
            "found_after": None if found is None else found - lied_from,
            "removed": len(self._gone(moment, self.honest).keys() | self._ended()),
            "silenced": sorted(self._silenced(moment)), "accused": len(self._accused(moment)),
            "before": _rate(begun, begun[0].time, begun[-1].time),
            "during": _rate(self._commits(), moment, max(last.time, time.monotonic() if stopped else last.time)),
            "losses": _losses(self._commits()), "stages": [*story.view.stages_of(self._peer(self.liars[0]))]
            if story.view is not None else [],
            "rungs": [told.record["rung"] for told in story.installed if told.time > moment],
            "notes": [f"{told.node}: {told.record['kind']}: {told.record['text']}" for told in story.notes
                      if told.time > moment and told.record["kind"] in NOTED][:40],
        }  # fmt: skip

    def _gather(self) -> None:
        """Everybody holds something."""
        trial = self.trial
        if self.layout.leads:
            self._start_liars()
            trial.wait("the liar to hold the head", lambda story: self.liars[0] in story.holders(HEAD), START_SECONDS)
        for name in self.honest:
            trial.volunteer(name, hold=self.layout.hold)
            if name == "v2" and 2 * self.layout.hold > self.layout.blocks:
                trial.wait_for_step(2)
        if not self.layout.leads:
            self._wait_for(self.honest)
            self._start_liars()
        self._wait_for([*self.honest, *self.liars])
        for number in range(1, self.layout.spare + 1):
            self.honest.append(f"spare{number}")
            trial.volunteer(self.honest[-1], hold=self.layout.hold)

    def _start_liars(self) -> None:
        for name in self.liars:
            self.trial.volunteer(name, hold=self.layout.hold, program=self._program())

    def _program(self) -> Sequence[str]:
        """Of a liar; where there is no lie to tell, what everybody runs."""
        if self.kind.told:
            return LIAR, f"{self.kind.told},order={self.order}"
        return (TRAITOR, self.kind.way, str(self.order)) if self.kind.way else NODE

    def _wait_for(self, names: list[str]) -> None:
        def all_hold(story: Story) -> bool:
            groups = [{*story.holders(stage)} for stage in self.layout.stages]
            beside = all(len(group) > 1 for group in groups if group & {*self.liars}) or self.layout.holders == 1
            return beside and set().union(*groups) >= {*names}

        self.trial.wait(f"{', '.join(names)} to hold something", all_hold, START_SECONDS)

    def _bereave(self) -> None:
        """Only liars are left of the stages that the first of them holds. The rate before the lie is that of these."""
        story = self.trial.story
        stages = [stage for stage in (0, 1) if self.liars[0] in story.holders(stage)]
        for name in {name for stage in stages for name in story.holders(stage)} - {*self.liars}:
            self.killed.add(name)
            self.trial.kill(name)
        self.trial.wait_for_step(story.committed + 1, START_SECONDS)
        self.trial.wait_for_step(story.committed + SETTLED_STEPS + 1, START_SECONDS)

    def _beside(self) -> int:
        """A block stage beside the liar's: the middle one, if that is beside it."""
        story, liar, middle = self.trial.story, self.liars[0], (1 + self.layout.blocks) // 2
        mine = next(stage for stage in self.layout.stages if liar in story.holders(stage))
        near = [stage for stage in (mine - 1, mine + 1) if 1 <= stage <= self.layout.blocks]
        return min(near, key=lambda stage: abs(stage - middle))

    def _lose(self, stage: int) -> None:
        """Its only holder is killed."""
        lost = self.trial.story.holder(stage)
        assert lost is not None and lost not in self.liars
        self.killed.add(lost)
        self.trial.kill(lost)

    def _renew(self) -> None:
        """Somebody new comes."""
        self.honest += ["new1", "new2"]
        for name in ("new1", "new2"):
            self.trial.expected_dead.add(name)
            self.trial.volunteer(name, hold=self.layout.hold)

    def _go_on(self, moment: float, lied_from: int) -> bool:
        """Until the lie had its steps, or some after the liars were found. True: the run has stopped."""
        seen, since = lied_from, time.monotonic()
        while self.trial.story.committed < self._until(moment, lied_from):
            self.trial.story.read()
            time.sleep(0.05)
            lacks = self.layout.lacks_a_holder and "new1" not in self.honest
            if lacks and self._found(moment) is not None:
                self._renew()
            if self.trial.story.committed > seen:
                seen, since = self.trial.story.committed, time.monotonic()
            if time.monotonic() > since + STILL_SECONDS:
                return True
        return False

    def _until(self, moment: float, lied_from: int) -> int:
        found = self._found(moment)
        return lied_from + self.kind.steps if found is None else min(lied_from + self.kind.steps, found + AFTER_STEPS)

    def _found(self, moment: float) -> int | None:
        """The step after which all liars had gone. None: one has not, or is back."""
        gone, view = self._gone(moment, self.liars), self.trial.story.view
        back = view is not None and any(view.stages_of(self._peer(name)) for name in self.liars)
        return None if back or len(gone) < len(self.liars) else max(gone.values())

    def _gone(self, moment: float, names: list[str]) -> dict[str, int]:
        """Of these, whom an honest leader let go, and after which step. Who gives a stage up stays."""
        ids = {self._peer(name).id: name for name in names if name not in self.killed}
        found: dict[str, int] = {}
        for told in self.trial.story.notes:
            peer = ids.get(str(told.record["fields"].get("peer")))
            lost = told.record["kind"] == "lost" and " gives up " not in told.record["text"]
            if told.time > moment and lost and peer and told.node not in self.liars:
                steps = [each.record["step"] for each in self._commits() if each.time <= told.time]
                found.setdefault(peer, max(steps, default=0))
        return found

    def _silenced(self, moment: float) -> set[str]:
        """Everybody who was not killed."""
        ids = {self._peer(name).id: name for name in [*self.honest, *self.liars] if name not in self.killed}
        lost = [told.record for told in self.trial.story.notes if told.time > moment and told.record["kind"] == "lost"]
        peers = [str(each["fields"].get("peer")) for each in lost if "silent" in each["text"]]
        return {ids[peer] for peer in peers if peer in ids}

    def _accused(self, moment: float) -> set[str]:
        told = [each.record for each in self.trial.story.notes if each.time > moment]
        return {str(record["fields"].get("peer")) for record in told if record["kind"] in ("liar", "convicted")}

    def _ended(self) -> set[str]:
        processes = self.trial.swarm.processes
        return {name for name in self.honest if name not in self.killed and not processes[name].alive}

    def _peer(self, name: str) -> Peer:
        return self.trial.story.peers.get(name, Peer(name, 0))

    def _commits(self) -> list[Told]:
        """Those that honest volunteers tell of: whoever is cut off may go on alone. Where a liar leads, or may since
        the leader was killed, what it tells counts as well: its core is honest."""
        leads = self.kind.loses_one or self.layout.leads
        return [told for told in self.trial.story.commits if leads or told.node not in self.liars]

    def _seconds(self) -> float:
        return STEP_SECONDS_MAX * self.kind.begins


def _rate(commits: list[Told], begun: float, ended: float) -> float:
    """Tokens a second of (begun, ended]; steps that are skipped have none."""
    tokens = sum(told.record["tokens"] for told in first_commits(commits) if begun < told.time <= ended)
    return tokens / (ended - begun) if ended > begun else 0.0


def _losses(commits: list[Told]) -> dict[str, float]:
    """By step, as text: JSON has no other keys."""
    first = first_commits(commits)
    return {str(told.record["step"]): told.record["loss"] for told in first if told.record["loss"] is not None}


def final(losses: Mapping[str, float], last: int) -> float | None:
    """The mean over the last steps up to `last`; None where none has a loss: a step that is skipped has 0."""
    found = [loss for step in range(last - AFTER_STEPS + 1, last + 1) if (loss := losses.get(str(step), 0.0))]
    return sum(found) / len(found) if found else None
