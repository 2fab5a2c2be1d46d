"""A stage with several holders: who has accumulated what, and when all of it together is the step's (rule 23).

Everybody in a stage's group tells the others what it has accumulated as soon as it knows of nothing more to do. When
what was told is the step's set, each visit once, all of them know the same and reduce. Learners listen (rule 26).

Who gets its microbatches one by one knows of nothing more after each. If it told each time, a step of m microbatches
would take m words of up to m visits, each signed. So a word that says little more than the one before is held back
while much is missing: see `_holds_back`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ftnode.protocol.step.routes import expected_visits
from ftnode.protocol.words.effects import Effect, Reduce, Send
from ftnode.protocol.words.events import SumOwed
from ftnode.protocol.words.messages import Begin, Share, Wait
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Direction, Peer
from ftnode.protocol.words.view import View

CONTRIBUTORS_MAX = 64
"""To one sum. A manifest lets no stage have more holders."""
MISSING_TIMES = 8
"""Visits are held back while more than so many times as many are missing."""
Visits = frozenset[tuple[int, int]]
"""(microbatch, visit) pairs."""


class Groups:
    """The groups that one peer is in, for one attempt in one view."""

    def __init__(self, me: Peer, view: View, begin: Begin, settings: Settings) -> None:
        self.me, self.view, self.begin, self.settings = me, view, begin, settings
        self._told: dict[int, dict[Peer, Visits]] = {}
        """Stage → what each has accumulated, by its own word."""
        self._held: dict[int, Visits] = {}
        """Stage → what we have accumulated, where it is more than we told."""
        self._shares: dict[tuple[int, Peer], Share] = {}
        """The words of others, as they came."""
        self.reducing: dict[int, tuple[Reduce, float]] = {}
        """Stage → the reduction in progress, and since when."""
        self._owed: dict[int, list[Wait]] = {}
        """Stage → what it stands still for."""

    def of(self, stage: int) -> tuple[Peer, ...]:
        """Holders in the view's order, then learners."""
        learners = tuple(peer for learnt, peer in self.begin.learners if learnt == stage)
        return self.view.holders[stage] + learners

    def alone(self, stage: int) -> bool:
        return self.of(stage) == (self.me,)

    def expected(self, stage: int) -> Visits:
        """What a stage's group must accumulate."""
        if not self.begin.training or self.begin.skip:
            return frozenset()
        settings = self.settings
        return expected_visits(settings.stages, settings.microbatches, stage, settings.swap, self.view.omitted)

    def tell(self, stage: int, visits: Collection[tuple[int, int]]) -> list[Effect]:
        """We know of nothing more to accumulate; nobody is told twice of the same."""
        mine = frozenset(visits)
        if not mine or self._told.get(stage, {}).get(self.me) == mine:
            return []
        self._held[stage] = mine
        return self.tell_held(stage)

    def tell_held(self, stage: int) -> list[Effect]:
        """What we held back, if it may be the last word that is missing now."""
        if stage not in self._held or self._holds_back(stage, self._held[stage]):
            return []
        return self._tell_now(stage)

    def tell_again(self) -> list[Effect]:
        """Whatever was lost on the way, and what was held back."""
        for stage, mine in self._held.items():
            self._told[stage][self.me] = mine
        self._held.clear()
        return [
            effect
            for stage, told in self._told.items()
            if self.me in told
            for effect in self._send(stage, told[self.me])
        ]

    def _tell_now(self, stage: int) -> list[Effect]:
        mine = self._held.pop(stage)
        self._told.setdefault(stage, {})[self.me] = mine
        return self._send(stage, mine)

    def _holds_back(self, stage: int, mine: Visits) -> bool:
        """Nobody waits for this word yet: so much is missing besides that others have to say more first.

        Not of the first word, since others wait for somebody who says nothing. When all is done, what one misses is
        what the others of its group hold back. So whoever holds back most misses at most that for each other, and
        tells. Then the next one does, and nobody waits for a heartbeat.
        """
        told = self._told.get(stage, {})
        if self.me not in told:
            return False
        missing = len(self.expected(stage)) - len(mine.union(*told.values()))
        return max(MISSING_TIMES, len(self.of(stage))) * len(mine - told[self.me]) < missing

    def _send(self, stage: int, mine: Visits) -> list[Effect]:
        share = self._ours(stage, mine)
        return [Send(peer, share, None) for peer in self.of(stage) if peer != self.me]

    def _ours(self, stage: int, mine: Visits) -> Share:
        """The core has no keys: the signature is made as it leaves."""
        begin, signature = self.begin, "" if self.settings.checks else None
        place = begin.lineage, self.view.number, begin.step, begin.attempt
        return Share(*place, stage, tuple(sorted(mine)), signature)

    def claims(self, stage: int) -> tuple[tuple[Peer, Share], ...]:
        """What each has accumulated of a stage that is reduced, as it has signed it."""
        if self.alone(stage):
            return ((self.me, self._ours(stage, self.expected(stage))),)
        told = self._told.get(stage, {})
        ours = {self.me: self._ours(stage, told[self.me])} if told.get(self.me) else {}
        others = {peer: share for (at, peer), share in self._shares.items() if at == stage and share.visits}
        return tuple(sorted({**others, **ours}.items()))

    def on_share(self, sender: Peer, share: Share) -> bool:
        """A holder's word; it only grows. False when it is not of this group or this attempt."""
        begin, visits = self.begin, frozenset(share.visits)
        fits = (share.view, share.step, share.attempt) == (self.view.number, begin.step, begin.attempt)
        if not fits or sender not in self.view.holders[share.stage] or not visits <= self.expected(share.stage):
            return False
        if self.settings.checks and share.signature is None:
            return False
        told = self._told.setdefault(share.stage, {})
        if sender not in told or len(visits) > len(told[sender]):
            told[sender], self._shares[share.stage, sender] = visits, share
        return True

    def told(self, stage: int) -> Mapping[Peer, Visits]:
        """What each has accumulated, by its own word."""
        return self._told.get(stage, {})

    def visits_of(self, stage: int, peer: Peer) -> Visits:
        """What it has accumulated, by its own word."""
        return self._told.get(stage, {}).get(peer, frozenset())

    def due(self, stage: int, now: float, checked: Peer | None = None) -> Reduce | None:
        """The reduction to start: all that was told is the step's set, each visit once. `checked`: whom we check. None
        for who has handed the stage over in mid-step."""
        told, expected = self._told.get(stage, {}), self.expected(stage)
        if stage in self.reducing or not expected or sum(map(len, told.values())) != len(expected):
            return None
        if self.me not in self.of(stage):
            return None
        if frozenset().union(*told.values()) != expected or sum(map(bool, told.values())) > CONTRIBUTORS_MAX:
            return None
        group = tuple((peer, len(told.get(peer, ()))) for peer in self.of(stage))
        task = Reduce(stage, self.begin.step, self.begin.attempt, self.view.number, group, checked)
        self.reducing[stage] = task, now
        return task

    def stuck(self, before: float, grace: float) -> int | None:
        """A stage whose reduction has been in progress since before then, while we were not suspended (`grace`). Where
        somebody owes it something the leader has time to replace that one: see Duty.patience."""
        for stage, (_, since) in self.reducing.items():
            more = 2 * self.settings.task_seconds if self._owed.get(stage) else 0.0
            if max(since, grace) + more < before:
                return stage
        return None

    def waits(self, stage: int) -> list[Wait]:
        """Of the group of a stage of which we have accumulated all that we know of: whose word is missing, or has
        visits that we have done, or that the sum is being made."""
        others = [peer for peer in self.view.holders[stage] if peer != self.me]
        told, expected = self._told.get(stage, {}), self.expected(stage)
        if stage in self.reducing:
            return self._owed.get(stage) or [Wait(-1, stage, Direction.FORWARD, self.me, False)]
        mine = self.visits_of(stage, self.me)
        wrong = [peer for peer in others if self.visits_of(stage, peer) & mine]
        if not wrong and frozenset().union(*told.values()) != expected:
            wrong = [peer for peer in others if told and peer not in told]
        return [Wait(-1, stage, Direction.FORWARD, peer, True) for peer in wrong]

    def on_sum_owed(self, owed: SumOwed) -> None:
        """The sum that is being made stands still, or goes on. Whose part is missing has others wait for each other."""
        task, stage = owed.task, owed.task.stage
        if self.reducing.get(stage, (None,))[0] == task:
            way, peers = (Direction.FORWARD, owed.parts) if owed.parts else (Direction.BACKWARD, owed.sums)
            self._owed[stage] = [Wait(-1, stage, way, peer, False) for peer in peers]

    def finished(self, task: Reduce) -> bool:
        """The result of a reduction is here; False when it is not the one in progress."""
        if self.reducing.get(task.stage, (None,))[0] != task:
            return False
        self.reducing[task.stage] = task, float("inf")
        self._owed.pop(task.stage, None)
        return True
