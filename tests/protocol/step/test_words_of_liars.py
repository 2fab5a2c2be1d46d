"""Whatever others of a view say of a step in which we check one of them: the work on it goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from ftnode.protocol.liveness.deadlines import Deadlines
from ftnode.protocol.step.attempt import StepWork
from ftnode.protocol.step.check import Check, Lot
from ftnode.protocol.step.line_pace import LinePace
from ftnode.protocol.step.task_order import Pace
from ftnode.protocol.wire.admission import objection
from ftnode.protocol.words import messages as ms
from ftnode.protocol.words.effects import Backward, Compute, Effect, Forward, Send, Task
from ftnode.protocol.words.events import Done
from ftnode.protocol.words.types import Attempt, Direction, Handle, Peer
from tests.protocol.beginnings import begun
from tests.protocol.situations import NOW, SETTINGS, A, B, C, D, view_of

VIEWS = [view_of((A,), (A, B), (C,)), view_of((A, B), (A, B), (C, D)), view_of((A,), (B, C), (B, C), (D,))]
PLACE = "lineage", 3, 8, Attempt(3, 8)
WORDS = 80
SEEDS = 400


class Step:
    """One member's work, the visits of whose groups are told, and what others say to it by chance."""

    def __init__(self, chance: Random) -> None:
        self.chance, self.view = chance, chance.choice(VIEWS)
        self.settings = replace(SETTINGS, stages=len(self.view.holders) - 1, checks=1.0, replicas=3)
        self.me = chance.choice(self.view.members())
        self.others = [peer for peer in self.view.members() if peer != self.me]
        self.lot = Lot(chance.choice(self.others), chance.choice((0.5, 1.0)), chance.randrange(9))
        deadlines = Deadlines(1.0, 30.0)
        self.work = StepWork(
            self.me, self.view, begun(evaluate=chance.random() < 0.3), self.settings, Pace(), LinePace(), {}, deadlines,
            None, self.lot,
        )  # fmt: skip
        self.work.installed(dict.fromkeys(self.work.stages, 0))
        self.tasks, self.handles = list[Task](), 0
        self.said = Counter[type]()
        """What it sent, by kind."""

    def carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Compute):
                self.tasks.append(effect.task)
            elif isinstance(effect, Send):
                self.said[type(effect.message)] += 1

    def handle(self) -> Handle:
        self.handles += 1
        return self.handles

    def tells(self, now: float) -> None:
        """Each stage's group, its visits by lot, of which we have done ours."""
        for stage in self.work.stages:
            group, given = self.view.holders[stage], dict[Peer, list[tuple[int, int]]]()
            for visit in sorted(self.work.groups.expected(stage)):
                given.setdefault(self.chance.choice(group), []).append(visit)
            self.work.accumulated.update(given.get(self.me, ()))
            self.work.groups.tell(stage, given.get(self.me, ()))
            for peer in set(group) - {self.me}:
                share = ms.Share(*PLACE, stage, tuple(given.get(peer, ())), "s")
                self.carry_out(self.work.on_share(peer, share, now))

    def key(self) -> tuple[int, int, Direction]:
        """Sometimes one that the check waits for."""
        check = self.work._check
        wanted = [key for tensors in check._open.values() for key in tensors] if check is not None else []
        if wanted and self.chance.random() < 0.5:
            return self.chance.choice(wanted)
        visits = self.settings.stages + 3
        microbatch = self.chance.randrange(-1, self.settings.microbatches + 2)
        return microbatch, self.chance.randrange(-2, visits), self.chance.choice([*Direction])

    def path(self) -> tuple[Peer, ...]:
        if self.chance.random() < 0.5:
            return tuple(self.chance.choice(group) for group in (*self.view.holders, self.view.holders[0]))
        return tuple(self.chance.choice((*self.others, self.me)) for _ in range(self.chance.randrange(7)))

    def word(self) -> Any:
        digest, keys = f"d{self.chance.randrange(3)}", [self.key() for _ in range(3)]
        seal, path = ms.Seal(digest, "s"), self.path()
        admitted, visits = ms.Seal(ms.path_digest(path), "s"), [key[:2] for key in keys]
        word = ms.SealedTensor(keys[0][0], 0, Direction.FORWARD, self.chance.choice((*path[:1], A)), admitted)
        return self.chance.choice((
            ms.Boundary(
                *PLACE, *self.key(), path, self.chance.choice((None, seal, seal)),
                self.chance.choice((None, admitted, admitted)),
            ),
            ms.WasGiven(*PLACE, (word,)),
            ms.Share(*PLACE, self.chance.choice(self.work.stages), tuple(visits), self.chance.choice((None, "s"))),
            ms.Show(*PLACE, tuple(keys[:2]), tuple(keys[2:]), ((*self.key(), digest),)),
            ms.WasGiven(*PLACE, (ms.SealedTensor(*self.key(), self.chance.choice(self.others), seal),)),
            ms.Stored("lineage", 8, Attempt(3, 8), *self.key()),
            ms.Judge(*PLACE, self.chance.choice(self.work.stages), -1, B, self.chance.choice(self.others)),
            self.judge(),
        ))  # fmt: skip

    def judge(self) -> ms.Judge:
        """Of tensors that somebody is not shown."""
        stage, beside = (self.chance.randrange(self.settings.stage_count) for _ in range(2))
        visits = tuple((m, beside) for m in range(self.chance.randrange(self.settings.microbatches + 1)))
        claim = self.chance.choice((None, ms.Share(*PLACE, self.chance.choice((stage, beside)), visits, "s")))
        accused = self.chance.choice(self.others)
        return ms.Judge(*PLACE, stage, self.chance.randrange(3), B, accused, beside, claim)

    def hears(self, sender: Peer, word: Any, now: float) -> None:
        if objection(sender, word, self.view, self.settings):
            return
        match word:
            case ms.Boundary():
                self.carry_out(self.work.on_boundary(sender, word, self.handle()))
            case ms.Show():
                self.carry_out(self.work.showing.on_show(sender, word))
            case ms.WasGiven():
                self.carry_out(self.work.on_given(sender, word))
            case ms.Share():
                self.carry_out(self.work.on_share(sender, word, now))
            case ms.Stored():
                self.carry_out(self.work.on_stored(sender, word, now))
            case _:
                self.carry_out(self.work.judge(word, now))

    def computes(self, now: float) -> None:
        self.carry_out([*self.work.advance(now, True), *self.work.beat(now, self.others)])
        self.work.waits(now, True)
        self.work.ready()
        if self.tasks:
            task = self.tasks.pop(0)
            passes = isinstance(task, Forward) and task.visit < self.work.last
            output = self.handle() if passes or (isinstance(task, Backward) and task.visit) else None
            done = Done(task, output, self.chance.choice((0.0, 1.0, 1e30)), 1, "g", self.chance.choice(("", "", "no")))
            self.carry_out(self.work.on_done(done, now, self.view.leader))


def lies(seed: int) -> Counter[type]:
    """What was answered."""
    step, now = Step(Random(seed)), NOW
    step.tells(now)
    for _ in range(WORDS):
        now += step.chance.choice((0.0, 0.1, 5.0))
        step.hears(step.chance.choice((*step.others, step.lot.of)), step.word(), now)
        step.computes(now)
    return step.said


def test_whatever_others_say_the_work_on_a_step_goes_on() -> None:
    """And what they say comes far: to tensors that are taken, and to words for two paths."""
    said = Counter[type]()
    for seed in range(SEEDS):
        said += lies(seed)
    assert min(said[kind] for kind in (ms.Stored, ms.WasGiven, ms.Convicted)) > 5, said


def test_a_check_that_believes_in_the_length_of_a_path_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Check.wants

    def believes(check: Check, sender: Peer, boundary: ms.Boundary) -> bool:
        return honest(check, sender, boundary) or check.me == boundary.path[boundary.visit]

    monkeypatch.setattr(Check, "wants", believes)
    with pytest.raises(IndexError):
        for seed in range(SEEDS):
            lies(seed)
