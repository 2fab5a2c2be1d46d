"""Liars among the members: `python -m tests.sim.lying_members FIRST LAST`, one world for each seed.

    python -m tests.sim.lying_members 1 1000 --processes 2
    python -m tests.sim.lying_members 17 --log               everything that happens in one world

A swarm with checks is drawn and trains, while the usual faults of the virtual world happen (scenario.py). One or two of
its members lie now and then, in ways that are drawn (member_lies.py), and say words about others' work at any moment
(lying_words.py). Then they are honest for good, or gone. What must hold all the time is in lying_world.py. In the end
the others train on, and no more honest members have gone than SECURITY.md says.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Final

from ftnode.protocol.leader.cases import PATIENCE_LEASES
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Peer, Version
from ftnode.protocol.words.view import View
from tests.sim.checks import Violation
from tests.sim.host import Host
from tests.sim.lying_words import Words
from tests.sim.lying_world import AT_ODDS, LyingWorld
from tests.sim.member_lies import KINDS
from tests.sim.scenario import SOFT, Outcome, Scenario
from tests.sim.side_by_side import told_of

WORDS: Final = "words"
"""Of the kinds: words about others' work, at any moment."""
ALL: Final = (*KINDS, WORDS, WORDS, WORDS)
WORD_SECONDS: Final = 0.1
"""Mean time between two words of one liar."""
AT_ODDS_MAX: Final = 2
"""Honest members that one liar costs under one leader: one of two at odds, and a newcomer before it (rule 45)."""
COSTLY: Final = frozenset({"core", "unsigned", WORDS})
"""Lies that cost honest members a place, though nothing else goes wrong (SECURITY.md)."""
UNTRIED: Final = ("with other weights than their lender works with", "which is made of what nobody works with")
FAULTY: Final = ("its link to", "no progress", "owes the next move", "says alone that")
"""Why a leader remembers somebody as having been at odds, though nobody has lied (rules 9, 38)."""


@dataclass(slots=True)
class Told(Outcome):
    lies: Counter[str] = field(default_factory=Counter)
    said: Counter[str] = field(default_factory=Counter)
    convicted: int = 0
    removed: int = 0
    """Honest members that went of two at odds; in a calm world, for whatever reason."""


class LyingMembers(Scenario):
    """The world of one seed. `kinds`: of lies that are drawn from, instead of all."""

    KIND = LyingWorld
    world: LyingWorld

    def __init__(self, seed: int, kinds: Collection[str] = (), faults: Collection[str] = SOFT) -> None:
        self.lot = Random(f"liars {seed}")
        self.lies_of = tuple(kinds) or ALL
        self.calm = self.lot.random() < 0.4
        """Nothing else goes wrong, and there is one liar, with two others in its group that are not new (rule 45)."""
        super().__init__(seed, tuple(faults))
        assert isinstance(self.world, LyingWorld)
        self.told = self.outcome = Told(seed)
        lot = self.lot
        self.words = Words(self.world, Random(f"words {seed}"))
        self.world.calm = self.calm
        self.stopped, self.most = False, 1 if self.calm else lot.choice([1, 1, 2])
        self.stay = lot.random() < 0.5
        """Who lied is honest in the end; or it goes for good."""
        episodes = lot.choice([1, 2, 2, 3, 4])
        if self.calm:
            self.faults.plan([], [])
            self.world.network.stalls = 0.0
        self.episodes = sorted(
            (lot.randint(1, max(2, self.settings.steps // 2)) for _ in range(episodes)), reverse=True
        )
        """Commits at which they begin, last first."""

    def shaped(self, settings: Settings) -> Settings:
        lot = self.lot
        return replace(
            settings, replicas=3 if self.calm else lot.choice([2, 3, 3, 3, 4]), stages=lot.choice([2, 2, 3]),
            swap=False, shadow_every=0, checks=lot.choice([0.1, 0.5, 1.0, 1.0]), steps=lot.randint(24, 40),
            microbatches=lot.choice([3, 4, 6]), window=lot.randint(1, 4), listed=True,
        )  # fmt: skip

    def start(self) -> None:
        lot, s = self.lot, self.settings
        self.spare = max(self.spare, (s.replicas - 1) * s.stage_count - lot.choice([0, 0, 1, 2]))
        self.spare, self.roomy = (s.replicas * s.stage_count, False) if self.calm else (self.spare, self.roomy)
        super().start()

    # -- when they lie

    def _on_commit(self, lineage: str, version: Version, skipped: bool) -> None:
        self.last_commit = self.world.now
        self.faults.on_commit(version.step)
        self.world.check_found(lineage, version, skipped)
        while self.episodes and self.episodes[-1] <= version.step:
            self.episodes.pop()
            self.world.at(self.world.now + self.lot.uniform(0.0, 1.0), self.lie, ())
        if version.step >= self.settings.steps - 4 and not self.stopped:
            self.stopped = True
            self.world.at(self.world.now, self.stop, ())

    def liars(self) -> list[Host]:
        """Members that may lie now. No two hold a stage together: most of a group are not defended against."""
        found, stages = list[Host](), set[int]()
        for host in self.world.live():
            theirs = self._stages(host)
            if host.peer.id in self.world.lying and theirs and not theirs & stages:
                found.append(host)
                stages |= theirs
        return found

    def _stages(self, host: Host) -> set[int]:
        """Those of a member that works. In a calm world it has two others beside it whose word counts."""
        if host.paused or host.view is None:
            return set()
        theirs = {*host.view.stages_of(host.peer)}
        return (
            set() if self.calm and any(len(self._old(host.view, stage, host.peer)) < 2 for stage in theirs) else theirs
        )

    def _old(self, view: View, stage: int, beside: Peer) -> set[Peer]:
        """Who is not new to the leader."""
        group, leader = {*view.holders[stage]} - {beside}, self.world.by_id[view.leader.id]
        return group - leader.participant.situation.new(group)

    def _another(self) -> list[Host]:
        """Who may lie besides those who do."""
        known = [host for host in self.world.live() if host.peer.id in self.world.lying]
        taken = set[int]().union(*map(self._stages, known))
        return [host for host in self.world.live() if (theirs := self._stages(host)) and not theirs & taken]

    def lie(self) -> None:
        """One of them does, in one way or two, for a while."""
        lot = self.lot
        if self.stopped:
            return
        if len(self.world.lying) < self.most and (others := self._another()):
            self.world.corrupt(lot.choice(others))
        liars = self.liars()
        if not liars:
            self.world.at(self.world.now + 2.0, self.lie, ())
            return
        host = lot.choice(liars)
        kinds = {lot.choice(self.lies_of) for _ in range(lot.choice([1, 1, 2]))}
        seconds = lot.choice([1.0, 3.0, 8.0, 20.0])
        ends = list[Callable[[], None]]()
        for kind in sorted(kinds):
            self.told.lies[kind] += 1
            self.world.remark(f"{host.peer} lies for {seconds:.0f} s: {kind}")
            if kind == WORDS:
                self._talk(host, self.world.now + seconds)
            else:
                ends.append(KINDS[kind](self.world, host, Random(lot.random())))

        def over() -> None:
            for end in ends:
                end()
            self.world.remark(f"{host.peer} is honest again")

        self.faults.lasting(seconds, over)

    def _talk(self, host: Host, until: float) -> None:
        if self.world.now < until and host in self.liars():
            self.words.speak(host)
            self.world.at(self.world.now + self.lot.expovariate(1 / WORD_SECONDS), self._talk, (host, until))

    def stop(self) -> None:
        """For good, as soon as all that lasts is over."""
        if self.faults.ongoing:
            self.world.at(self.world.now + 1.0, self.stop, ())
            return
        for host in self.world.live():
            if host.peer.id in self.world.lying and not self.stay:
                self.world.kill(host, "liar", silently=False)
                self.faults.newcomer()

    # -- what must hold

    def bound_seconds(self) -> float:
        """Others are asked about a lie for a while (50). Whoever others say they wait for may be at work that nobody
        has measured, or rebuild a stage (38)."""
        s = self.settings
        asked = PATIENCE_LEASES * s.lease_seconds + s.shown_seconds
        return super().bound_seconds() + asked + s.task_seconds + s.install_seconds

    def rightly_halted(self) -> str:
        """Nor is it defended against most of those who vote, of whom some may only have a disk that lies."""
        liars = self.world.lying | self.world.disks.liars
        for host in self.world.live():
            view = host.view
            if view is None or view.leader != host.peer or host.peer.id not in liars:
                continue
            if 2 * sum(voter.id in liars for voter in view.voters) > len(view.voters):
                return "most of those who vote lie"
        return super().rightly_halted()

    def has_exact(self, stage: int, version: Version) -> bool:
        """By the word of somebody who is not known to lie."""
        honest = [host for host in self.world.live() if host.peer.id not in self.world.lying]
        return any(self._has(host, stage, version) for host in honest)

    @staticmethod
    def _has(host: Host, stage: int, version: Version) -> bool:
        weights, reduced = host.compute.weights.get(stage), host.compute.reduced.get(stage)
        done = reduced is not None and reduced[:2] == (version.attempt, version.step)
        return weights is not None and (weights.version == version or done)

    def run(self) -> Told:
        """As any scenario. While members are lost a lie about lent weights may stay unseen (rule 48)."""
        super().run()
        told = self.told
        if not self.calm and told.violation.endswith(UNTRIED):
            told.halted, told.violation, told.invariant = told.violation, "", ""
        told.said = self.words.said
        return told

    def settle(self) -> None:
        super().settle()
        world = self.world
        for host in world.live():
            world.count_tables(host)
        at_odds = [why for _, why in world.removed if self.calm or why.startswith(AT_ODDS)]
        self.told.removed, self.told.convicted = len(at_odds), len(world.convicted)
        most = self.at_odds_max() if not self.calm or COSTLY & self.told.lies.keys() else 0
        if len(at_odds) > most:
            raise Violation("liars", f"{len(at_odds)} honest members went, of {most} at most: {world.removed}")

    def at_odds_max(self) -> int:
        """A liar costs so many under each leader, whenever it has come (again); and whoever was at odds with somebody
        for a fault may go instead of it."""
        world, stays, before = self.world, 0, dict[str, tuple[Peer, set[Peer]]]()
        for (lineage, _), view in sorted(world.ledger.views.items()):
            leader, there = before.get(lineage, (None, set[Peer]()))
            liars = {peer for peer in view.members() if peer.id in world.lying}
            stays += len(liars if leader != view.leader else liars - there)
            before[lineage] = view.leader, liars
        return AT_ODDS_MAX * stays + sum(why.startswith(FAULTY) for _, why in world.removed)


def run_seed(seed: int, kinds: Collection[str] = (), faults: Collection[str] = SOFT) -> Told:
    return LyingMembers(seed, kinds, faults).run()


def run_seeds(seeds: Iterable[int], processes: int = 1, kinds: Collection[str] = ()) -> Generator[Told, None, None]:
    """Outcomes as they come, in no order."""
    return told_of(seeds, partial(run_seed, kinds=tuple(kinds)), processes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int, nargs="?")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--kinds", default="", help="of lies, separated by commas, instead of all")
    parser.add_argument("--log", action="store_true", help="print every event and effect of the first seed")
    parser.add_argument("--stop-after", type=int, default=20, help="stop after so many violations")
    options = parser.parse_args()
    kinds = [kind for kind in options.kinds.split(",") if kind]
    if options.log:
        scenario = LyingMembers(options.first, kinds)
        scenario.world.log = print
        print(scenario.run().report())
        return 0
    started, bad, total = time.perf_counter(), 0, Counter[str]()
    lies, said = Counter[str](), Counter[str]()
    for told in run_seeds(range(options.first, (options.last or options.first) + 1), options.processes, kinds):
        lies, said = lies + told.lies, said + told.said
        total.update(worlds=1, commits=told.commits, events=told.events, removed=told.removed, convicted=told.convicted)
        total.update(halted=bool(told.halted))
        if told.violation:
            bad += 1
            print(f"seed {told.seed}: {told.violation[:600]}", flush=True)
        if bad >= options.stop_after:
            break
    print(f"{time.perf_counter() - started:.0f} s, {bad} bad:", dict(total))
    print("lies:", dict(sorted(lies.items())))
    print("words:", dict(sorted(said.items())))
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
