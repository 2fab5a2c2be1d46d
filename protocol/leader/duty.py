"""Who owes the next move of a step, and for how long it may (rule 38).

A member whose work waits tells whom it waits for. Of each microbatch the wait that is furthest on its path shows who
has it. What is not acknowledged is left to rule 9, as long as that may take. Where nobody waits for a microbatch, those
owe who admit the next ones, and in the end those who are not Ready.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import permutations
from typing import NamedTuple

from ftnode.protocol.leader.disputes import Suspects, most_at_odds
from ftnode.protocol.leader.leader_memory import LeaderMemory
from ftnode.protocol.leader.losses import Losses
from ftnode.protocol.leader.outlook import full_lines, measured
from ftnode.protocol.leader.progress import ViewProgress
from ftnode.protocol.liveness.deadlines import Deadline
from ftnode.protocol.situation import Outcome, Situation
from ftnode.protocol.step.patience import excuse_seconds, of_several, with_other_work
from ftnode.protocol.step.routes import furthest, last_visit, place_of, route_of
from ftnode.protocol.words.messages import Begin, Wait, Waits
from ftnode.protocol.words.types import HEAD, Direction, Peer
from ftnode.protocol.words.view import View

PROBATION_STEPS = 4
"""A newcomer without which its stages have holders may owe for so many usual steps."""
STALE_BEATS = 3
"""Who waits says so with each heartbeat, and says when it is over; should that be lost, an old word counts no more."""

MICROBATCH, GRADIENT = "microbatch", "gradient of microbatch"
"""On its way to the loss, and back again after others had it."""
Item = tuple[str, int, int]
"""What is owed: its kind, and two numbers that tell it from others. Whoever gets something done owes another one."""
OF_A_SUM: frozenset[Item] = frozenset({("its part in a sum", 0, 0)})
"""Of all that are at odds about one."""


class Debt(NamedTuple):
    """What a member owes, and since when it has got nothing done."""

    items: frozenset[Item]
    since: float


class Duty:
    """The leader's look at who holds the step up, in one view."""

    def __init__(self, s: Situation, view: View, memory: LeaderMemory, progress: ViewProgress, losses: Losses) -> None:
        self.view, self.memory, self.progress, self.losses = view, memory, progress, losses
        settings = s.settings
        if memory.step is None:
            memory.step = Deadline(settings.lease_seconds, settings.task_seconds)
        self._usual, self._last = memory.step, last_visit(settings.stages, view)
        self._said: dict[Peer, tuple[float, Waits]] = {}
        self._excused: dict[Peer, float] = {}
        """When a member first said something that excuses it: see _excuses."""
        self._debts: dict[Peer, Debt] = {}
        self._done: set[tuple[Peer, Item]] = set()
        """What was owed once and then no more; if it comes back, it was not done."""
        self._places: dict[int, dict[Peer, int]] = {}
        """Microbatch → how far on its path it has been, by the word of each member."""
        self._begun_at = self._looked_at = s.now
        self._measures = False
        self._at_odds = Suspects(frozenset())

    # -- what is said, and how long steps take

    def on_begin(self, s: Situation, begin: Begin) -> None:
        """Another attempt. One that makes up for a loss, or that began in another view, is not a usual one."""
        for told in (self._said, self._excused, self._debts, self._done, self._places):
            told.clear()
        self._begun_at = s.now
        whole = begin.attempt.view == begin.view and not (begin.installs or begin.paths)
        self._measures = whole and begin.training and not begin.skip and bool(begin.shares)

    def on_waits(self, s: Situation, sender: Peer, waits: Waits) -> None:
        begin = self.progress.begin
        if begin is not None and (waits.step, waits.attempt) == (begin.step, begin.attempt) and sender in s.members:
            self._said[sender] = s.now, waits
            if not all(wait.stored for wait in waits.on):
                self._excused.setdefault(sender, s.now)

    def done(self, s: Situation) -> None:
        """All members are Ready."""
        if self._measures and not self.losses:
            self._usual.observe(s.now - self._begun_at)
        self._measures = False
        told = {peer for peer, report in s.reports.items() if any(stage.seconds > 0 for stage in report.stages)}
        self.memory.newcomers -= told
        self.memory.measure(measured(s)[0], full_lines(s, self.memory.usual_step))

    def patience(self, s: Situation, peer: Peer, items: Collection[Item] = ()) -> float:
        """In one usual step every member does all its work. Whoever does not say that it works on the step may not hear
        us, which often is over after a while."""
        begin, settings = self.progress.begin, s.settings
        seconds = self._usual.seconds if self._usual.mean is not None else settings.task_seconds
        seconds = of_several(settings, self.view, peer, seconds)
        if begin is None:
            return max(seconds, 2 * settings.lease_seconds)
        if self._on_probation(peer) and _has_microbatches(items):
            seconds = min(seconds, usual_for_newcomers(s, self.memory))
        seconds = with_other_work(settings, begin, peer, seconds)
        return seconds if self._has_begun(s, begin, peer) else seconds + 2 * settings.lease_seconds

    def _on_probation(self, peer: Peer) -> bool:
        """Nothing of the step is lost without it, and nobody has seen yet how fast it is."""
        stages = self.view.stages_of(peer)
        others = all({*self.losses.staying(stage)} - {peer} - self.memory.newcomers for stage in stages)
        return peer in self.memory.newcomers and self._usual.mean is not None and bool(stages) and others

    # -- who owes

    def owing(self, s: Situation) -> dict[Peer, frozenset[Item]]:
        """Member → what it owes now; it may be ourselves."""
        begin = self.progress.begin
        if begin is None:
            missing = s.members - self.progress.statuses.keys()
            return {peer: frozenset({("its status", 0, 0)}) for peer in missing}
        if (begin.training and not begin.skip and not begin.shares) or self.progress.ready.keys() >= s.members:
            return {}
        waits = list(self._waits(s))
        for peer, wait in (told for told in waits if told[1].microbatch >= 0):
            places = self._places.setdefault(wait.microbatch, {})
            places[peer] = max(places.get(peer, 0), place_of(wait, self._last))
        deepest = self._furthest(s, [(peer, wait) for peer, wait in waits if wait.microbatch >= 0])
        if deepest:
            return self._who_has(deepest)
        summing = {peer for peer, wait in waits if wait.microbatch < 0 and not wait.stored}
        if begin.training and not begin.skip:
            heads = {peer for peer in self.view.holders[HEAD] if not self._has_finished(s, begin, peer)}
            if heads:
                return self._to_do(s, heads)
        if at_odds := self._at_odds_about_a_sum(s, waits):
            return dict.fromkeys(at_odds, OF_A_SUM)
        late = s.members - self.progress.ready.keys() - summing
        return self._to_do(s, late)

    def _waits(self, s: Situation) -> Iterator[tuple[Peer, Wait]]:
        fresh = s.now - STALE_BEATS * s.settings.heartbeat_seconds
        for peer, (said_at, waits) in self._said.items():
            if said_at >= fresh and peer in s.members:
                told = (self._owed(s, peer, wait) for wait in waits.on if self._could_be(s, peer, wait))
                yield from ((peer, wait) for wait in told if wait.stored or self._excuses(s, peer, wait))

    def _owed(self, s: Situation, sender: Peer, wait: Wait) -> Wait:
        """Who has acknowledged the gradient that it says it waits for from us owes the next move itself."""
        if wait.peer != s.me or wait.microbatch < 0 or s.own.work is None:
            return wait
        given = s.own.work.outbox.kept((wait.microbatch, wait.visit - 1, Direction.BACKWARD))
        return replace(wait, peer=sender) if given is not None and given.stored and given.to == sender else wait

    def _excuses(self, s: Situation, sender: Peer, wait: Wait) -> bool:
        """A tensor that is not acknowledged, or a sum that is being made, is no reason to wait for its sender, unless
        the sender has said such things for too long, and nobody else has got anything done meanwhile."""
        since = max(self._excused.get(sender, s.now), s.own.moves.last(sender), s.liveness.grace)
        return s.now - since <= excuse_seconds(s.settings, wait.microbatch < 0)

    def _could_be(self, s: Situation, sender: Peer, wait: Wait) -> bool:
        """It can wait for that: it holds the stage of the visit before the tensor's (behind it, of a gradient's), and
        the other one that of the visit; or both hold a stage of several. Of a gradient only the way to it counts."""
        holders, last = self.view.holders, self._last
        if wait.microbatch < 0:
            group = holders[wait.visit] if 0 <= wait.visit < len(holders) else ()
            return len(group) > 1 and {sender, wait.peer} <= {*group}
        back = wait.direction is Direction.BACKWARD
        maker = wait.visit + 1 if back else wait.visit - 1
        if not (0 <= maker <= last and 0 <= wait.visit <= last) or (back and wait.stored):
            return False
        stages = route_of(s.settings, wait.microbatch, self.view)
        return sender in holders[stages[maker]] and wait.peer in holders[stages[wait.visit]]

    def _furthest(self, s: Situation, waits: list[tuple[Peer, Wait]]) -> dict[int, Wait]:
        """Microbatch → the wait that is furthest on its path. Of a validation only who admits it knows when it is over;
        a microbatch of which all gradients are here is of no one's concern."""
        own, first = s.settings.microbatches, self.view.holders[HEAD][:1]
        scored = {wait.microbatch for peer, wait in waits if peer in first}
        counted = (wait for _, wait in waits if wait.microbatch < own or wait.microbatch in scored)
        return furthest(counted, self._last)

    def _who_has(self, deepest: dict[int, Wait]) -> dict[Peer, frozenset[Item]]:
        """What is not acknowledged is on its way, and rule 9 looks after it."""
        owed: dict[Peer, set[Item]] = {}
        for wait in deepest.values():
            if wait.stored:
                kind = GRADIENT if self._comes_back(wait) else MICROBATCH
                owed.setdefault(wait.peer, set()).add((kind, wait.microbatch, wait.visit))
        return {peer: frozenset(items) for peer, items in owed.items()}

    def _comes_back(self, wait: Wait) -> bool:
        """Others than who owes it have had the microbatch further on its path. They gave the gradient away and wait no
        more, so that the last word is of its way there."""
        places, place = self._places.get(wait.microbatch, {}), place_of(wait, self._last)
        return any(further > place for peer, further in places.items() if peer != wait.peer)

    def _at_odds_about_a_sum(self, s: Situation, waits: Collection[tuple[Peer, Wait]]) -> frozenset[Peer]:
        """Of the first stage with any. Who sums up needs the Shares of all, then their parts, then their sums. Whoever
        lacks the earlier is not asked for the later. Those whose link is broken are at odds as well."""
        named = [(peer, wait) for peer, wait in waits if wait.microbatch < 0 and wait.peer != peer]
        stage = min((wait.visit for _, wait in named), default=None)
        here = [(peer, wait) for peer, wait in named if wait.visit == stage]
        lacking = {who: min(_order(wait) for peer, wait in here if peer == who) for who, _ in here}
        complaints = [
            (peer, wait.peer) for peer, wait in here if _order(wait) <= lacking.get(wait.peer, _order(wait))
        ]  # fmt: skip
        if stage is not None:
            links = [link for link in self.losses.broken_links(s.now) if link <= {*self.view.holders[stage]}]
            complaints += [pair for link in links for pair in permutations(link, 2)]
        self._at_odds = most_at_odds(complaints)
        return self._at_odds.among

    def _may_stay(self) -> set[Peer]:
        """Of those at odds about a sum one goes."""
        owing = {peer for peer, debt in self._debts.items() if debt.items == OF_A_SUM}
        return owing - {self.memory.disputes.choose(self.view, self._at_odds)} if owing else owing

    def _has_finished(self, s: Situation, begin: Begin, head: Peer) -> bool:
        """By its own word: both visits of each microbatch that it admits, and those that it took over."""
        if head in self.progress.ready:
            return True
        taken = {microbatch for microbatch, _ in begin.paths}
        visits = sum((path[0] == head) + (path[-1] == head) for _, path in begin.paths)
        visits += sum(2 * len({*share} - taken) for peer, share in begin.shares if peer == head)
        return self._accumulated(s, begin, head, HEAD) >= visits

    def _accumulated(self, s: Situation, begin: Begin, peer: Peer, stage: int | None = None) -> int:
        """How many visits, by its own word; of one stage, or of all."""
        if peer == s.me:
            work = s.own.work
            held = self.view.stages_of(peer) if stage is None else (stage,)
            return sum(len(work.accumulated_of(each)) for each in held) if work is not None else 0
        if not self._has_begun(s, begin, peer):
            return 0
        return sum(told.accumulated for told in s.reports[peer].stages if stage in (None, told.stage))

    def _has_begun(self, s: Situation, begin: Begin, peer: Peer) -> bool:
        report = s.reports.get(peer)
        return report is not None and (report.view, report.step) == (begin.view, begin.step)

    def _to_do(self, s: Situation, peers: set[Peer] | frozenset[Peer]) -> dict[Peer, frozenset[Item]]:
        begin = self.progress.begin
        assert begin is not None
        return {peer: frozenset({("visits done", self._accumulated(s, begin, peer), 0)}) for peer in peers}

    # -- who is lost for it

    def beat(self, s: Situation) -> Outcome:
        """Every heartbeat, while the view is whole. Whoever is not heard is a matter of rule 8."""
        out = Outcome()
        if self.losses or s.liveness.stale(s.now):
            self._debts.clear()
            return out
        owing = self.owing(s)
        for peer in s.members:
            self._debts[peer] = self._debt(s, peer, owing.get(peer, frozenset()))
        self._looked_at = s.now
        self._lose(s, out)
        return out

    def _debt(self, s: Situation, peer: Peer, items: frozenset[Item]) -> Debt:
        """What is owed no more is done, once: who owes by turns gains no time. While it is not heard, none passes."""
        known = self._debts.get(peer, Debt(frozenset(), s.now))
        done = {(peer, item) for item in known.items - items} - self._done
        self._done |= done
        new = not known.items and not {(peer, item) for item in items} <= self._done
        if done or new:
            return Debt(items, s.now)
        heard = peer == s.me or s.liveness.silence(peer, s.now) <= 2 * s.settings.heartbeat_seconds
        since = known.since if heard else known.since + s.now - self._looked_at
        return Debt(items, max(since, s.liveness.grace))

    def _newcomers_who_owe(self, s: Situation) -> set[Peer]:
        """Those on probation go all at once, as soon as one of them is late: each view costs others time."""
        owing = {peer: debt for peer, debt in self._debts.items() if _has_microbatches(debt.items)}
        known = {peer: debt for peer, debt in owing.items() if self._on_probation(peer)}
        late = any(s.now - debt.since > self.patience(s, peer, debt.items) for peer, debt in known.items())
        return {*known} if late else set()

    def _lose(self, s: Situation, out: Outcome) -> None:
        """Never ourselves, and of a group not everybody at once, since one of two that wait for each other is right."""
        others, staying, settled = self._newcomers_who_owe(s), self._may_stay(), False
        for peer, debt in sorted(self._debts.items(), key=lambda item: (item[1].since, item[0])):
            owes = s.now - debt.since
            shared = (stage for stage in self.view.stages_of(peer) if len(self.view.holders[stage]) > 1)
            last = any(self.losses.staying(stage) == [peer] for stage in shared)
            last = last or peer in staying
            in_time = owes <= self.patience(s, peer, debt.items) and peer not in others
            if peer == s.me or last or not debt.items or in_time:
                continue
            begin, (kind, first, second) = self.progress.begin, min(debt.items)
            step = f"step {begin.step}" if begin is not None else f"change {self.view.number} of who holds what"
            what = f"{kind} {first} at visit {second}" if _has_microbatches([min(debt.items)]) else kind
            self.losses.lose(s, out, peer, f"owes the next move of {step} for {owes:.1f} s: {what}")
            if debt.items == OF_A_SUM:
                self.memory.disputes.settle(self.view, peer, self._at_odds)
            settled = settled or peer not in others
        if settled:  # the run may be slower than it was: the next one has more time, until a step is measured again
            self._usual.passed()
        if others & self.losses.gone.keys():
            self.memory.failed_newcomers(s.now, min(s.now - self._begun_at, s.settings.task_seconds))


def _order(wait: Wait) -> int:
    """Of what a sum needs: a Share, a part of what we add up, a sum that somebody else adds up."""
    return 0 if wait.stored else 1 if wait.direction is Direction.FORWARD else 2


def _has_microbatches(items: Collection[Item]) -> bool:
    """Others say so of all that it owes."""
    return bool(items) and all(kind in (MICROBATCH, GRADIENT) for kind, _, _ in items)


def usual_for_newcomers(s: Situation, memory: LeaderMemory) -> float:
    """How long a newcomer may need for a microbatch where its stage has others; at first, any time."""
    mean = memory.usual_step
    return float("inf") if mean is None else max(2 * s.settings.heartbeat_seconds, PROBATION_STEPS * mean)
