"""What this project's planner does when a machine fails or comes back: candidates, and the choice among them.

All that it does not stop training for happens live, as a swarm does it: somebody takes up other layers while others
train with what it gives up. Meanwhile it has no part in those.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import inf
from time import perf_counter
from typing import Final

from ftnode.lab.planner.arrangements import Arrangement, grouped, swarm_of, templates
from ftnode.lab.planner.policies import Answer, from_checkpoint, joined, left_of, rates_of
from ftnode.lab.planner.setting import REBUILT_STEPS, Change, Setting
from ftnode.lab.planner.weighing import Option, chosen, risk
from ftnode.protocol.planning.flow import Flow
from ftnode.protocol.planning.schedule import step_timing
from ftnode.protocol.planning.search import best_layout
from ftnode.protocol.planning.swarm import Holders, Range, Swarm, holders_of, stages_of
from ftnode.protocol.planning.transition import placed, transition

CONSIDERED: Final = 6
"""Of what the search has looked at, so many are weighed, where their schedule was run."""
PARTS: Final = (1, 2, 3, 4, 6, 8, 12)
"""Equal parts."""
WEAKEST: Final = 3
"""Ranges that somebody may move to help."""


@dataclass(slots=True)
class Notes:
    """`seconds`: that each plan took; `transitions`: what was moved, each with what there was before and what was
    wanted, before machines changed places."""

    seconds: list[float] = field(default_factory=list)
    transitions: list[tuple[Swarm, Holders, Holders, Holders]] = field(default_factory=list)


class Planner:
    """After each change what weighing.py chooses among: staying with who is left; newcomers who join; one machine that
    moves to where help is needed most; what the search has found and looked at; Oobleck's pipelines; and these from a
    checkpoint, where a layer is lost. `knows`: an oracle, which knows when the next change comes."""

    def __init__(self, knows: bool = False) -> None:
        self.knows, self.notes = knows, Notes()
        self.missed = self.missing = self.at = 0.0

    def begin(self, setting: Setting, there: Sequence[str]) -> Arrangement | None:
        question = _Question(setting, there, ())
        found = {one.holders: one for one in question.rebuilt()}
        options = [Option(one.seconds, risk=question.risk(one)) for one in found.values()]
        return [*found.values()][chosen(options, setting.hours * 3600).place] if options else None

    def answer(
        self, setting: Setting, before: Arrangement | None, change: Change, there: Sequence[str], until: float
    ) -> Answer:
        self.missed += self.missing * (change.at - self.at)
        self.at, began = change.at, perf_counter()
        if before is None:
            self.missed = self.missing = 0.0
            return from_checkpoint(setting, self.begin(setting, there))
        expected = until if self.knows else setting.seconds_to_change(there)
        question = _Question(setting, there, left_of(before.holders, there))
        answers = question.answers(expected, self.missed)
        if not answers:
            return Answer(None)
        options = [
            Option(now.seconds, one.pause, one.lost / now.seconds, question.risk(now))
            for one in answers
            if (now := one.arrangement) is not None
        ]
        choice = chosen(options, expected, self.missed)
        self.missed, self.missing = choice.missed, choice.missing
        self.notes.seconds.append(perf_counter() - began)
        answer = answers[choice.place]
        if answer.arrangement is not None and answer.arrangement.holders in question.wanted:
            wanted = question.wanted[answer.arrangement.holders]
            self.notes.transitions.append((question.swarm, question.left, wanted, answer.arrangement.holders))
        return answer


class _Question:
    """Who is there, and who holds what of it is `left`."""

    def __init__(self, setting: Setting, there: Sequence[str], left: Holders) -> None:
        self.setting, self.there, self.left = setting, there, left
        self.swarm = swarm_of(setting, there)
        self.states = (0, *[setting.layer_bytes] * setting.layers)
        self.flow, self.causes = Flow(self.swarm), setting.causes(there)
        self.numbers = {name: number for number, name in enumerate(self.flow.names)}
        self.held = {name: (stages[0], stages[-1]) for name, stages in stages_of(left).items()}
        self.wanted: dict[Holders, Holders] = {}

    def risk(self, arrangement: Arrangement) -> float:
        setting = self.setting
        snapshot = (setting.checkpoint_seconds / 2 + setting.restart_seconds) / arrangement.seconds
        groups = [*{frozenset(group) for group in arrangement.holders[1:]}]
        return risk(groups, self.causes, min(REBUILT_STEPS, snapshot), setting.restart_seconds / arrangement.seconds)

    # -- candidates

    def answers(self, seconds: float, missed: float) -> list[Answer]:
        """Without those that could not be chosen even if they cost nothing. `seconds`, `missed`: as of `chosen`."""
        if not all(self.left):
            made = [*self._mended(), *self.rebuilt()]
            found = [self._taken_up(one) for one in made] + [from_checkpoint(self.setting, one) for one in made]
            return [one for one in found if one.arrangement is not None]
        found, best = list[Answer](), -inf
        made = [*self._nearly_as_it_is(), *self.rebuilt()]
        pace = {one.holders: Option(one.seconds, risk=self.risk(one)).pace for one in made}
        for one in sorted(made, key=lambda one: -pace[one.holders]):
            if pace[one.holders] * seconds + missed < best:
                break
            answer = self._taken_up(one)
            found.append(answer)
            if not answer.pause:
                best = max(best, pace[one.holders] * seconds)
        return found

    def rebuilt(self) -> Iterator[Arrangement]:
        """From what the search has looked at, and Oobleck's pipelines."""
        found = best_layout(self.swarm, self.left)
        if found is not None:
            yield Arrangement(found.what, found.holders, found.seconds)
            for one in found.considered[:CONSIDERED]:
                if one.scheduled and one.holders != found.holders:
                    yield Arrangement(one.what, one.holders, one.seconds)
        yield from self._equal_parts()
        pipelines = None if self.setting.sum_bytes else templates(self.setting, self.there)
        if pipelines is not None:
            yield pipelines

    def _equal_parts(self) -> Iterator[Arrangement]:
        """Groups that are equally fast, as rivals have them, one part for all layers among them."""
        order = sorted(self.there, key=lambda name: self.setting.kind(name).slower)
        for parts in PARTS:
            setting, groups = replace(self.setting, pipeline=parts), dict[str, int]()
            if parts <= setting.layers:
                joined(setting, groups, order)
                if all(rates_of(setting, groups)):
                    yield grouped(setting, f"{parts} equal parts", groups, parts)

    def _nearly_as_it_is(self) -> Iterator[Arrangement]:
        yield self._timed("as it is", self.left)
        held = dict(self.held)
        for name in self.there:
            if name not in held:
                self._settled(held, [name])
        joined = self._holders(held)
        if joined != self.left:
            yield self._timed("newcomers join", joined)
        moved = self._moved(held)
        if moved is not None:
            yield self._timed("one moves", self._holders(moved))

    def _mended(self) -> Iterator[Arrangement]:
        """What nobody has is taken by one newcomer or replica, and the other newcomers join."""
        held = dict(self.held)
        lost = [stage for stage, group in enumerate(self.left) if not group]
        for _, run in groupby(lost, key=lambda stage: stage - lost.index(stage)):
            stages = [*run]
            self._settled(held, [name for name in self.there if self._spare(held, name)], [(stages[0], stages[-1])])
        for name in self.there:
            if name not in held:
                self._settled(held, [name])
        holders = self._holders(held)
        if all(holders):
            yield self._timed("mended", holders)

    def _moved(self, held: dict[str, Range]) -> dict[str, Range] | None:
        """One replica, of each kind and range one is tried, to where it helps most."""
        tried, names = set[object](), list[str]()
        for name in self.there:
            like = self.setting.kind(name), held.get(name)
            if like not in tried and name in held and self._spare(held, name):
                tried.add(like)
                names.append(name)
        found, rates = dict(held), dict.fromkeys(held.values(), 0.0)
        for name, one in held.items():
            rates[one] += 1 / self.flow.busy(self.numbers[name], *one)
        weakest = sorted(rates, key=lambda one: (rates[one], one))[:WEAKEST]
        return found if self._settled(found, names, weakest) and found != held else None

    def _spare(self, held: dict[str, Range], name: str) -> bool:
        if name not in held:
            return True
        first, last = held[name]
        others = [one for other, one in held.items() if other != name]
        return all(any(one[0] <= stage <= one[1] for one in others) for stage in range(first, last + 1))

    def _settled(self, held: dict[str, Range], names: Sequence[str], ranges: Sequence[Range] = ()) -> bool:
        """Puts one of `names` into one of `ranges`, all that somebody has unless given, where that gives the best pace
        by the liquid, less the risk. False: none fits."""
        best: tuple[float, str, Range] | None = None
        for name in names:
            for one in ranges or sorted({*held.values()}):
                if held.get(name) == one or not self.flow.fits(self.numbers[name], *one):
                    continue
                holders = self._holders(held | {name: one})
                pace = self._pace(holders) if all(holders) else 0.0
                if best is None or pace > best[0]:
                    best = pace, name, one
        if best is not None:
            held[best[1]] = best[2]
        return best is not None

    def _pace(self, holders: Holders) -> float:
        groups = [tuple(self.numbers[name] for name in group) for group in holders]
        seconds, _ = self.flow.seconds(groups)
        return 1 / seconds - self.risk(Arrangement("", holders, seconds))

    # -- what they take

    def _holders(self, held: dict[str, Range]) -> Holders:
        return holders_of(held, self.setting.layers + 1, self.left)

    def _timed(self, what: str, holders: Holders) -> Arrangement:
        return Arrangement(what, holders, step_timing(self.swarm.layout(holders), self.swarm.batch).seconds)

    def _taken_up(self, wanted: Arrangement) -> Answer:
        """With the least copying. Live where each layer has somebody who trains with it meanwhile; else all stop. A
        layer that nobody has is blended."""
        holders = placed(self.swarm, self.left, wanted.holders, self.states)
        arrangement = Arrangement(wanted.what, holders, wanted.seconds)
        self.wanted[holders] = wanted.holders
        had, has = stages_of(self.left), stages_of(holders)
        if all(self.left) and all(has.get(name) == stages for name, stages in had.items()):
            return Answer(arrangement, why=wanted.what)
        moved = transition(self.swarm.machines, self.left, holders, self.states)
        if moved is None:
            return from_checkpoint(self.setting, arrangement)
        kept = tuple(
            tuple(name for name in after if name in before or name not in had)
            for before, after in zip(self.left, holders)
        )
        if all(self.left) and all(kept):
            meanwhile = step_timing(self.swarm.layout(kept), self.swarm.batch).seconds
            return Answer(arrangement, moved.seconds * max(0.0, 1 - wanted.seconds / meanwhile), why=wanted.what)
        lost = REBUILT_STEPS * wanted.seconds if not all(self.left) else 0.0
        return Answer(arrangement, self.setting.restart_seconds + moved.seconds, lost, wanted.what)
