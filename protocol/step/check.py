"""What another holder of our stages gave to a step, done again (rule 42).

Whoever checks a peer chooses it by its own lot and tells nobody. The peer has said by then which visits it did. Who
made the tensors that went into these visits has them until the step is over, and so has who got what came out of them.
They show them. The visits are done again on the same weights, one after the other, apart from our own gradient. What
comes out is compared with what the peer passed on, and what the visits add to the gradient with what the peer gave to
the sum. Where it differs the peer is asked whether it was given what others show (sealed_tensors.py).

    lot → shares of the group → tensors of others → Recount of each → the sum is made → Weigh of each stage
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from random import Random
from typing import NamedTuple

from ftnode.protocol.step.doubts import Doubts
from ftnode.protocol.step.outbox import fits, key_of
from ftnode.protocol.step.probation import CHECKED
from ftnode.protocol.step.routes import last_visit, maker_of, route_of, stages_beside
from ftnode.protocol.step.sealed_tensors import Finding, SealedTensors
from ftnode.protocol.step.tensor_holds import CHECK, RESEND, SEEN, Holds, TensorKey, Use
from ftnode.protocol.words.effects import Effect, Recount, Send, Task, Weigh
from ftnode.protocol.words.messages import Begin, Boundary, Judge, SealedTensor, Show, WasGiven
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Direction, Handle, Peer, Version
from ftnode.protocol.words.view import View

AT_ONCE = 2
"""Blocks of which tensors are here or on their way, each with four tensors at most."""


TRIAL_BLOCKS = 2
"""On so many blocks lent weights are tried."""


class Block(NamedTuple):
    """Visits in a row of one microbatch that one peer did: from `first` to `last`."""

    microbatch: int
    first: int
    last: int


class Lot(NamedTuple):
    """Whom we check in a step. `share`: of its visits; 1.0: all, and what they gave to the sum. `key`: which. `learnt`:
    stages whose weights it lent us, which are tried on a few of its visits in a row (rule 48); else none. `outputs`:
    what it passed on is compared. `rebuilt`: they were lent to make this stage of them; -1: to be learnt. `copy`: they
    are those of the copy of this version that we keep (rule 53). `judge`: what our leader wants to know (rule 50); else
    nobody is told of it."""

    of: Peer
    share: float
    key: int
    learnt: tuple[int, ...] = ()
    outputs: bool = True
    rebuilt: int = -1
    judge: Judge | None = None
    copy: Version | None = None

    @property
    def whole(self) -> bool:
        return self.share >= 1.0


def lot_of(judge: Judge) -> Lot:
    """All that the accused gave to a sum, or what it passed on of a microbatch."""
    sums = judge.microbatch < 0
    return Lot(judge.accused, 1.0 if sums else 0.0, 0, outputs=not sums, judge=judge)


def draw(
    chance: Random, view: View, me: Peer, settings: Settings, begin: Begin, doubts: Doubts | None = None,
    new: Collection[Peer] = (),
) -> Lot | None:  # fmt: skip
    """One that we doubt; else, in some steps, one that is `new`; else somebody by lot.

    Of n holders each does about an n-th of the stage's visits. Half of the `checks` each spends on all that another
    one did, and half on visits here and there: who passes on something else is found sooner by these, and what it gives
    to the sum is only seen in all of them together. So the share `checks` of all visits is done twice. What was passed
    on is only shown for the latter, as it would be half of what a check of all takes over the lines.

    We do not check an attempt that another view began: who is gone since then may have made what others made more of.
    """
    begun_here = begin.training and not begin.skip and begin.attempt.view == view.number
    if not settings.checks or not begun_here:
        return None
    able = [peer for peer in view.members() if peer != me and checkable(view, me, peer, settings)]
    if not able:
        return None
    lot, half, key = chance.random(), settings.checks / 2, chance.getrandbits(32)
    doubted = doubts.choose(begin.step, able, chance) if doubts is not None else None
    if doubted is not None:
        return Lot(doubted, 1.0, key)
    newcomers = [peer for peer in able if peer in new]
    if newcomers and lot < CHECKED:
        return Lot(chance.choice(newcomers), 1.0, key)
    whole = lot < half
    return Lot(chance.choice(able), 1.0 if whole else half, key, outputs=not whole)


def checkable(view: View, me: Peer, of: Peer, settings: Settings) -> tuple[int, ...]:
    """The stages of one peer that another one can check: those that both hold. Nobody but a peer can show what passed
    between neighbouring stages of its own; so without those that have a neighbour of which only `of` knows."""
    return shown_of(view, view.stages_of(me), of, settings)


def shown_of(view: View, ours: Collection[int], of: Peer, settings: Settings) -> tuple[int, ...]:
    """Those of `ours` of which others can show what the peer's visits were given, and gave."""
    theirs = {*view.stages_of(of)}
    both = theirs & {*ours}
    while inner := {stage for stage in both if stages_beside(view, stage, settings.swap) & theirs - both}:
        both -= inner
    return tuple(sorted(both))


class Check:
    """Of one peer in one attempt, in one view. `holds`: of the attempt."""

    def __init__(self, me: Peer, lot: Lot, view: View, begin: Begin, settings: Settings, holds: Holds) -> None:
        self.me, self.of, self.view, self.begin, self.settings = me, lot.of, view, begin, settings
        self.trial, self.rebuilt, self._copy = bool(lot.learnt), lot.rebuilt, lot.copy
        self.stages = shown_of(view, lot.learnt or view.stages_of(me), lot.of, settings)
        self.refuted, self.distance = "", 0.0
        """Of a trial: how what the peer passed on differs from what its visits give, and how far."""
        self.judged = False
        """Of a trial: what follows from it has been done."""
        self.finding: Finding | None = None
        """What differs, while the peer is asked what it was given; of a judge's check also that nothing does, while the
        accuser is asked what it was shown."""
        self.deceived = False
        """Somebody showed another tensor than it gave: nothing is known of whom we check."""
        self._question: Send | None = None
        self.shown = SealedTensors()
        """What it was given, as others show it."""
        self._compared = 0
        """Blocks that were done again."""
        self._lot = lot
        self._holds = holds
        self._visits: dict[int, frozenset[tuple[int, int]]] = {}
        """By stage, the (microbatch, visit) pairs that it gave to the sum."""
        self._blocks: deque[Block] = deque()
        """Those whose turn has not come."""
        self._open: dict[Block, dict[TensorKey, Handle | None]] = {}
        """Those that are done again next, with the tensors that are here."""
        self._unweighed: set[int] = set(self.stages) if lot.whole else set()
        if lot.judge is not None:
            self._unweighed &= {lot.judge.stage}
        self._weighed = set[int]()
        """Those of which the sum is weighed, or has been."""
        self._moved = 0.0
        """When it got on last."""
        self._longer = 0.0
        """So much more patience it has, while others see what we are not shown: together less than a lease."""
        self._named = set[tuple[int, int]]()
        """(microbatch, visit) of whose tensors we have said that nobody shows them."""
        self.given_up = False
        """Not all could be compared."""

    @property
    def over(self) -> bool:
        if self.given_up or self.finding is not None:
            return self.given_up
        return len(self._visits) == len(self.stages) and not (self._blocks or self._open or self._unweighed)

    @property
    def agreed(self) -> bool:
        """Of a trial: it is over, and something was compared."""
        return self.over and not self.given_up and self._compared > 0

    @property
    def weighs(self) -> Peer | None:
        """Of what this one gives to sums a note has to be taken. A judge is shown it."""
        return self.of if self._lot.whole and self.judge is None else None

    @property
    def judge(self) -> Judge | None:
        """What our leader wants to know."""
        return self._lot.judge

    def asked_for(self, task: Recount | Weigh) -> bool:
        """It is not of a check that this one took the place of."""
        return task.of == self.of and task.judged == (self.judge is not None)

    def told(self, stage: int, visits: Iterable[tuple[int, int]], now: float) -> None:
        """The sum of a stage is made with these visits of the peer."""
        self._visits[stage], self._moved = frozenset(visits), now
        if not self._visits[stage]:
            self._unweighed.discard(stage)
        if self._visits.keys() >= {*self.stages}:
            draws, blocks = Random(self._lot.key), _blocks(self._visits.values())
            if self.judge is not None and not self._lot.whole:
                self._blocks.extend(block for block in blocks if block.microbatch == self.judge.microbatch)
            elif self.trial:
                self._blocks.extend(draws.sample(blocks, min(TRIAL_BLOCKS, len(blocks))))
            else:
                self._blocks.extend(block for block in blocks if draws.random() < self._lot.share)

    def late(self, now: float) -> bool:
        """It does not get on."""
        patience = self.settings.check_seconds + self._longer
        if self._asks_about_hiding and self._weighed:
            patience += self.settings.shown_seconds
        return len(self._visits) == len(self.stages) and now - self._moved > patience

    def not_shown(self, now: float) -> list[tuple[int, int, int]]:
        """Half of our patience is over. Of whose tensors nothing is here: the stage of ours, the microbatch, and the
        visit beside. Each is named once, so that others may yet show us what they see."""
        if self.finding is not None or now - self._moved <= self.settings.check_seconds / 2:
            return []
        found = list[tuple[int, int, int]]()
        for block, tensors in self._open.items():
            inputs = self._inputs(block)
            for key in (key for key, handle in tensors.items() if handle is None):
                at = maker_of(key[1], key[2]) if key in inputs else key[1]
                ours = block.first if at < block.first else block.last
                found.append((self._route(block.microbatch)[ours], block.microbatch, at))
        news = [each for each in dict.fromkeys(found) if each[1:] not in self._named]
        self._named.update(each[1:] for each in news)
        if news:
            self._longer = self.settings.check_seconds / 2
        return news

    @property
    def unshown(self) -> int | None:
        """The stage of whose sum we wait to see what the peer made its piece of, where others can ask it, too."""
        weighing = sorted(self._weighed & self._unweighed)
        shared = [stage for stage in weighing if len(self.view.holders[stage]) > 2]
        return shared[0] if shared and self.judge is None else None

    @property
    def _asks_about_hiding(self) -> bool:
        return self.judge is not None and self.judge.hides

    def wants(self, sender: Peer, boundary: Boundary) -> bool:
        """We wait for this tensor, and it was made for whom we check, or by that one. Whoever shows it, its maker has
        signed it."""
        key = key_of(boundary)
        block = next((block for block, tensors in self._open.items() if key in tensors), None)
        if block is None or self._open[block][key] is not None or boundary.seal is None:
            return False
        if sender == self.of:
            return boundary.path[boundary.visit : boundary.visit + 1] == (self.me,)  # from there to us
        at = maker_of(boundary.visit, boundary.direction) if key in self._inputs(block) else boundary.visit
        beside = boundary.path[at] if 0 <= at < len(boundary.path) else sender
        to, by = (self.of, beside) if key in self._inputs(block) else (beside, self.of)
        return fits(to, by, boundary, self.view, self.begin, self.settings)

    def show(self, boundary: Boundary, handle: Handle) -> list[Task]:
        """A tensor that we want is here."""
        key = key_of(boundary)
        block = next(block for block, tensors in self._open.items() if key in tensors)
        if key in self._inputs(block) and boundary.path[maker_of(boundary.visit, boundary.direction)] != self.me:
            self.shown.add(boundary)
        self._holds.hold(CHECK, key, handle)
        self._open[block][key] = handle
        return self._recounts(block)

    def ask(self) -> tuple[list[Effect], list[Task]] | None:
        """For the tensors of the next visits; what can be done without. None: somebody is not there who has them."""
        effects, tasks = list[Effect](), list[Task]()
        while self._blocks and len(self._open) < AT_ONCE:
            block = self._blocks.popleft()
            wanted = dict.fromkeys(self._inputs(block), RESEND) | dict.fromkeys(self._outputs(block), SEEN)
            self._open[block] = {key: self._holds.handle(use, key) for key, use in wanted.items()}
            for key in (key for key, handle in self._open[block].items() if handle is None):
                group = self._beside(key, wanted[key])
                others = [peer for peer in group if peer not in (self.me, self.of)]
                if not others and not (self.me in group and (wanted[key] is SEEN or self._copy is not None)):
                    return None  # else we have it soon
                effects += [Send(peer, self._asking(key, wanted[key]), None) for peer in others]
            tasks += self._recounts(block)
        return effects, tasks

    def lacking(self) -> list[TensorKey]:
        """What the next visits wait for."""
        return [key for tensors in self._open.values() for key, handle in tensors.items() if handle is None]

    def ask_again(self) -> list[Effect]:
        """Of donors, which may be far away: for what had not been made when we asked. Of whom `question` asks, whether
        it knows what others show."""
        if self.finding is not None:
            return [self._question] if self._question is not None else []
        if self.rebuilt < 0 and self._copy is None:
            return []
        return [
            Send(peer, self._asking(key, RESEND), None)
            for block, tensors in self._open.items()
            for key in self._inputs(block)
            if tensors[key] is None
            for peer in self._beside(key, RESEND)
            if peer not in (self.me, self.of)
        ]

    def done(self, task: Recount, now: float) -> tuple[Handle, ...]:
        """A block is done again; the handles to release."""
        block = Block(task.microbatch, task.visit, task.visits[-1])
        self._moved, self._longer, self._compared = now, 0.0, self._compared + 1
        return self._holds.let_go(CHECK, self._open.pop(block, {}))

    def question(self, finding: Finding, now: float) -> Send | None:
        """Before one is told to lie it is asked whether it knows what others show: whom we check, whether it was given
        that; where we agree with it, who accused it, whether it was shown that. None: nobody showed anything."""
        task = finding.task
        block = Block(task.microbatch, task.visit, task.visits[-1]) if isinstance(task, Recount) else None
        to = self.of
        if finding.agrees:
            assert self.judge is not None
            to = self.judge.accuser
        question = self._asking_whether_given(to, None if block is None or finding.agrees else block)
        if question is not None:
            self.finding, self._moved, self._question = finding, now, question
        return question

    def asking_whether_given(self, task: Recount) -> Send | None:
        """Whom we check, whether it was given what others show of a visit. It may have forgotten that by the time the
        visit is done again."""
        return self._asking_whether_given(self.of, Block(task.microbatch, task.visit, task.visits[-1]))

    def _asking_whether_given(self, to: Peer, block: Block | None) -> Send | None:
        """None, of a block: of all. None, if nobody showed anything."""
        named, begin = self.shown.named(None if block is None else self._inputs(block)), self.begin
        if not named:
            return None
        return Send(to, Show(begin.lineage, self.view.number, begin.step, begin.attempt, (), (), named), None)

    def answered(self, sender: Peer, given: WasGiven) -> tuple[SealedTensor, ...] | None:
        """Who was asked says what it knows: two tensors that somebody signed for one place, or none. None: it was not
        asked."""
        begin, asked = self.begin, self._question is not None and sender == self._question.to
        if not asked or (given.view, given.step, given.attempt) != (self.view.number, begin.step, begin.attempt):
            return None
        return self.shown.contradiction(given.other)

    def to_weigh(self, reduced: Iterable[int]) -> list[Task]:
        """Of the stages whose sums are made, once all is done again."""
        if self._blocks or self._open or len(self._visits) < len(self.stages):
            return []
        begin, due = self.begin, sorted((self._unweighed & {*reduced}) - self._weighed)
        self._weighed.update(due)
        shown_by = self.judge.accuser if self.judge is not None else None
        seconds = self.settings.shown_seconds if self._asks_about_hiding else 0.0
        return [Weigh(stage, begin.step, begin.attempt, self.of, shown_by, seconds) for stage in due]

    def agrees(self, stage: int, distance: float, now: float) -> bool:
        """The sum of a stage is weighed: the peer gave what its visits give."""
        self._unweighed.discard(stage)
        self._moved = now
        return distance <= self.settings.limit(self.settings.check_tolerance, len(self.stages))

    def forget_unshown(self) -> tuple[Handle, ...]:
        """Blocks of which not all is here, and will not be any more. The handles to release."""
        self._blocks.clear()
        lacking = [block for block, tensors in self._open.items() if None in tensors.values()]
        return self._holds.let_go(CHECK, [key for block in lacking for key in self._open.pop(block)])

    def give_up(self) -> tuple[Handle, ...]:
        """The handles to release."""
        self.given_up = True
        keys = [key for tensors in self._open.values() for key in tensors]
        self._open.clear()
        self._blocks.clear()
        self._unweighed.clear()
        return self._holds.let_go(CHECK, keys)

    def _inputs(self, block: Block) -> list[TensorKey]:
        """The tensors that it is made of."""
        found: list[TensorKey] = []
        if block.first > 0:
            found.append((block.microbatch, block.first, Direction.FORWARD))
        if block.last < last_visit(self.settings.stages, self.view):
            found.append((block.microbatch, block.last, Direction.BACKWARD))
        return found

    def _outputs(self, block: Block) -> list[TensorKey]:
        """The tensors that are made of it, as far as they are compared."""
        found: list[TensorKey] = []
        if not self._lot.outputs:
            return found
        if block.last < last_visit(self.settings.stages, self.view):
            found.append((block.microbatch, block.last + 1, Direction.FORWARD))
        if block.first > 0:
            found.append((block.microbatch, block.first - 1, Direction.BACKWARD))
        return found

    def _beside(self, key: TensorKey, use: Use) -> tuple[Peer, ...]:
        """One of these made it, or got it."""
        microbatch, visit, direction = key
        at = maker_of(visit, direction) if use is RESEND else visit
        return self.view.holders[self._route(microbatch)[at]]

    def _asking(self, key: TensorKey, use: Use) -> Show:
        """Those who made it, or those who got it."""
        begin, words = self.begin, {"tensors": (key,)} if use is RESEND else {"tensors": (), "taken": (key,)}
        return Show(begin.lineage, self.view.number, begin.step, begin.attempt, **words)

    def _recounts(self, block: Block) -> list[Task]:
        """The task, if all tensors are here."""
        tensors, begin = self._open[block], self.begin
        if None in tensors.values():
            return []
        stages = self._route(block.microbatch)[block.first : block.last + 1]
        ends = [tensors.get((block.microbatch, visit, way)) for visit, way in (
            (block.first, Direction.FORWARD), (block.last, Direction.BACKWARD),
            (block.last + 1, Direction.FORWARD), (block.first - 1, Direction.BACKWARD),
        )]  # fmt: skip
        passed_on, handed_back = ends[2:]
        return [Recount(
            stages[0], begin.step, begin.attempt, block.microbatch, block.first, self.of, ends[0], ends[1], stages[1:],
            passed_on, handed_back, self.rebuilt, self.judge is not None, self._copy,
        )]  # fmt: skip

    def _route(self, microbatch: int) -> tuple[int, ...]:
        return route_of(self.settings, microbatch, self.view)


def _blocks(told: Iterable[frozenset[tuple[int, int]]]) -> list[Block]:
    """All visits, those in a row together."""
    found: list[Block] = []
    for microbatch, visit in sorted(frozenset().union(*told)):
        last = found[-1] if found else None
        if last is not None and (last.microbatch, last.last + 1) == (microbatch, visit):
            found[-1] = last._replace(last=visit)
        else:
            found.append(Block(microbatch, visit, visit))
    return found
