"""What a leader remembers from view to view; lost with it, and only speed or patience with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import TypeVar

from ftnode.protocol.leader.disputes import Disputes
from ftnode.protocol.leader.spoilt_steps import SpoiltSteps
from ftnode.protocol.lines.step_estimate import Line
from ftnode.protocol.liveness.deadlines import Deadline
from ftnode.protocol.planning.goal import Goal
from ftnode.protocol.recovery.disk_versions import PEERS_MAX
from ftnode.protocol.recovery.lent_copies import LentCopies
from ftnode.protocol.recovery.rebuilt_score import Scores
from ftnode.protocol.recovery.rolls import ROLLS_TOLD, complete
from ftnode.protocol.recovery.rungs import REBUILT
from ftnode.protocol.recovery.short_notice import Notice
from ftnode.protocol.step.doubts import Budget
from ftnode.protocol.words.messages import Convicted, Plan, Ready, Roll
from ftnode.protocol.words.types import Peer, Version

T = TypeVar("T")
DOUBLINGS_MAX = 6
QUIET_TIMES = 15
"""For so many times as long as newcomers that failed were waited for, nobody new is asked to learn. They cost a
sixteenth of the time then."""
YOUNG_LEASES = 64
"""Who goes sooner after it came has cost more than it gave: a join and a loss take about a lease of the others' time,
and those of one network are not asked again for up to so long."""
CONVICTED_MAX = 64
FAILED_MAX = 4096
"""Of whom failures are remembered: ids in the directory cost nothing."""
USUAL_LOSSES, USUAL_SECONDS = 1.0, 36_000.0
"""Before anything is seen, a peer is taken to be lost once in ten hours."""
FAILURES_MAX = 2
"""After so many failures to get it a snapshot or a copy is not counted on; after so many versions of a peer, nor is the
peer, or after the square of it that somebody failed to get at all: it may tell of another one each time."""


@dataclass(slots=True)
class Learner:
    """Somebody outside a stage who learns it. `giver`: whose place it takes, if anybody's. `accepted`: it has said yes.
    It has until `until`, first to answer and then to learn."""

    giver: Peer | None
    until: float
    accepted: bool = False
    applied: int = -1
    """The step of the weights that it says it has."""
    in_vain: int = 0
    """How many finished steps waited for its Ready and did not get it."""
    waited_seconds: float = 0.0
    """How long they did, all together."""


@dataclass(frozen=True, slots=True)
class Searched:
    """A goal was looked for `at` some time, for the `count`-th time with the same peers. `names`: who was there;
    `members`: who of them worked."""

    names: frozenset[str]
    members: frozenset[str]
    count: int
    at: float

    def same(self, names: frozenset[str]) -> bool:
        """Nobody else is there, and nobody is lost who worked. Who only stood by may come and go: where it changed
        nothing to have it, to lose it changes nothing either."""
        return self.members <= names <= self.names


@dataclass(slots=True)
class LeaderMemory:
    """Of all the views that this peer led."""

    failures: Counter[tuple[str, int]] = field(default_factory=Counter)
    """(PeerId, stage) → how often the peer failed on the stage."""
    failed_at: dict[str, tuple[float, int]] = field(default_factory=dict)
    """PeerId → when it failed last, on any stage, and how often it did; the one longest ago comes first."""
    troubles: dict[tuple[int, int], int] = field(default_factory=dict)
    """(step, stage) → losses, and (step, -1) → poisonings, of the step in progress (rule 25)."""
    spoilt: SpoiltSteps = field(default_factory=SpoiltSteps)
    disputes: Disputes = field(default_factory=Disputes)
    hidings: dict[Peer, Budget] = field(default_factory=dict)
    """How often members may yet say that another one shows nothing."""
    convicted: dict[str, Convicted] = field(default_factory=dict)
    """PeerId → the signed words for that it lied. Everybody keeps them."""
    shown: dict[str, set[Peer]] = field(default_factory=dict)
    """PeerId → voters who show such words, of a view that we do not know."""
    counted: set[tuple[int, int, Peer]] = field(default_factory=set)
    """(step, stage, newcomer) of the losses counted there."""
    committed_at: float | None = None
    vacant_since: dict[int, float] = field(default_factory=dict)
    """Stage that the run stands still for → since when."""
    stuck_since: float | None = None
    """Since when memory does not suffice to go on, and disks are looked at."""
    possible_since: float = 0.0
    """Since when they make a version possible; who tells of it may be silent for a while in between."""
    possible_at: float = float("-inf")
    """When they did last."""
    disks_heard: float | None = None
    """When somebody last told of snapshots, reachable or not."""
    disks_told_since: float = 0.0
    """Since when somebody has, with pauses for which disks are waited."""
    broken: Counter[tuple[str, int, Version]] = field(default_factory=Counter)
    """(PeerId of a donor, stage, version) → how often somebody did not get the snapshot or copy that it tells of."""
    broken_at: float = 0.0
    """When the last of those failures was."""
    forgave: int = 0
    """How often they were forgotten since the last commit, because nothing was possible without."""
    refuted: dict[tuple[int, Peer], set[str]] = field(default_factory=dict)
    """(stage, donor) → PeerIds of those who say that it lent them other weights than it works with (rule 48)."""
    lenders_named: dict[tuple[Peer, int, Peer], None] = field(default_factory=dict)
    """(peer, stage, donor): of whose weights of this stage our Begins had the peer make another one."""
    scores: Scores = field(default_factory=Scores)
    """Validations of steps in which stages were rebuilt."""
    lent: LentCopies = field(default_factory=LentCopies)
    """What holders told that they lent to keepers, or an earlier leader did. Whoever may lead listens."""
    rolls: dict[str, tuple[Roll, ...]] = field(default_factory=dict)
    """PeerId → the rolls that its disk keeps, by its own word, the newest last."""
    rolls_heard: int = 0
    """How often one was told of that was new."""
    known_step: int = 0
    """The newest committed step that was known when we founded a lineage from disks."""
    unheard: dict[Peer, float] = field(default_factory=dict)
    """Peers outside the view that did not lend what they tell of, and since when."""
    learners: dict[tuple[int, Peer], Learner] = field(default_factory=dict)
    """(stage, who learns it)."""
    leavers: dict[Peer, float] = field(default_factory=dict)
    """Who wants to leave when others have its stages, and since when."""
    notices: dict[Peer, Notice] = field(default_factory=dict)
    """Those of them who end at a certain time."""
    spared: dict[Peer, int] = field(default_factory=dict)
    """Replicas that were taken out of their group to learn a stage that is left."""
    settled: dict[Peer, Ready] = field(default_factory=dict)
    """The Readies of the last step that a new view committed: who left with it says nothing any more."""
    members: frozenset[Peer] = frozenset()
    """Of the view that this peer led last."""
    weighed: tuple[frozenset[Peer], tuple[dict[Peer, str], ...]] | None = None
    """The members, and who of them belongs together, of whom it was last looked at who may vote."""
    crowds_failed: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Network → when a newcomer from there was lost last, and how often that happened in a row; the one longest ago
    comes first."""
    joined: dict[Peer, float] = field(default_factory=dict)
    """Members that came in views that this peer led, and when."""
    newcomers: set[Peer] = field(default_factory=set)
    """Members that came in views that this peer led, and have not shown yet how fast they are."""
    measured: dict[Peer, float] = field(default_factory=dict)
    """Seconds of members for a microbatch at a block stage, also of those who are none any more."""
    goal: Goal | None = None
    """Where the swarm goes, change by change."""
    searched: Searched | None = None
    """When a goal was last looked for."""
    lines: dict[Peer, Line] = field(default_factory=dict)
    """Those of members that were full, also of those who are none any more."""
    plan: str = ""
    """What was last chosen of who should hold what, over what, and with which numbers."""
    plan_said: str = ""
    """That of a loss which was last written to the log."""
    ordered: tuple[int, float] = (0, 0.0)
    """The author's newest order to undo steps, by its number, and since when this peer leads with it."""
    losses_seen: int = 0
    """Of members that did not say that they leave."""
    watched_seconds: float = 0.0
    """Of all members together, for which they were watched."""
    watched_at: float | None = None
    asks_after: float = float("-inf")
    """Nobody new is asked to learn before."""
    step: Deadline | None = None
    """How long a step usually takes, and so how long a member may owe the next move."""
    join: Deadline | None = None
    """How long a step waits for a learner."""
    led: tuple[str, int] | None = None
    """(lineage, number) of the view that this peer led last."""
    attempts: int = 0
    """Never starts again, so that an attempt's name is not used twice when a view comes back (rule 3)."""

    @property
    def usual_step(self) -> float | None:
        """Seconds; None: nothing was measured."""
        return None if self.step is None else self.step.mean

    @property
    def loss_rate(self) -> float:
        """Of one peer, a second: what was seen, and what is usual for as long as little was."""
        return (USUAL_LOSSES + self.losses_seen) / (USUAL_SECONDS + self.watched_seconds)

    def watch(self, now: float, members: int, most_seconds: float) -> None:
        """They are all there. Of a longer pause nobody knows anything."""
        if self.watched_at is not None and 0 < now - self.watched_at <= most_seconds:
            self.watched_seconds += members * (now - self.watched_at)
        self.watched_at = now

    def measure(self, paces: Mapping[Peer, float], lines: Mapping[Peer, Line]) -> None:
        """Those who are measured now."""
        _newest(self.measured, paces)
        _newest(self.lines, lines)

    def pupils(self) -> set[Peer]:
        """All that learn something."""
        return {peer for _, peer in self.learners}

    def failed_newcomers(self, now: float, seconds: float) -> None:
        """Others have waited so long for newcomers that failed. All of them together cost little."""
        self.asks_after = max(self.asks_after, now) + QUIET_TIMES * seconds

    def not_lent(self, donors: Iterable[Peer], stage: int, version: Version, now: float) -> None:
        """Somebody did not get it from any of them."""
        self.broken.update((donor.id, stage, version) for donor in donors)
        self.broken_at = now

    def name_lenders(self, plans: Iterable[Plan]) -> None:
        """These stand in a Begin of ours."""
        for plan in plans:
            if plan.rung in REBUILT:
                named = ((plan.peer, donor.stage, donor.peer) for donor in plan.donors)
                self.lenders_named.update(dict.fromkeys(named))
        while len(self.lenders_named) > FAILED_MAX:
            del self.lenders_named[next(iter(self.lenders_named))]

    def refute(self, stage: int, donor: Peer, by: Peer) -> bool:
        """One who rebuilt a stage says so. Whether it is news."""
        said = self.refuted.setdefault((stage, donor), set())
        news = by.id not in said
        said.add(by.id)
        while len(self.refuted) > FAILED_MAX:
            del self.refuted[next(iter(self.refuted))]
        return news

    def not_believed(self, least: int = 1) -> frozenset[tuple[int, Peer]]:
        """(stage, donor) of whom so many say it."""
        return frozenset(key for key, said in self.refuted.items() if len(said) >= least)

    def not_heard(self, donors: Iterable[Peer], present: Collection[Peer], now: float) -> None:
        """These did not lend, for whatever reason. Who is not present any more tells of nothing, and is forgotten."""
        self.unheard = {peer: since for peer, since in self.unheard.items() if peer in present}
        self.unheard.update(dict.fromkeys(donors, now))

    def is_broken(self, peer: Peer, stage: int, version: Version) -> bool:
        """It was asked for this in vain too often to be counted on."""
        return self.broken[peer.id, stage, version] >= FAILURES_MAX

    def doubted(self) -> frozenset[str]:
        """PeerIds that are not counted on, whatever they tell of."""
        asked = {(name, version) for name, _, version in self.broken}
        failed = {(name, version) for (name, _, version), count in self.broken.items() if count >= FAILURES_MAX}
        tried, lost = Counter(name for name, _ in asked), Counter(name for name, _ in failed)
        return frozenset(name for name in tried if lost[name] >= FAILURES_MAX or tried[name] >= FAILURES_MAX**2)

    def forgive(self, now: float, wait_seconds: float) -> bool:
        """Nothing is possible without those who did not lend, and a line may be to blame: they are asked again, this
        long after the last failure, and each time after twice as long."""
        if not self.broken or now - self.broken_at < wait_seconds * (1 << min(self.forgave, DOUBLINGS_MAX)):
            return False
        self.broken.clear()
        self.forgave += 1
        return True

    def convict(self, peer_id: str, case: Convicted) -> bool:
        """It lied. Whether that is news."""
        news = peer_id not in self.convicted
        self.shown.pop(peer_id, None)
        self.convicted.setdefault(peer_id, case)
        while len(self.convicted) > CONVICTED_MAX:
            del self.convicted[next(iter(self.convicted))]
        return news

    def convicts(self, members: Iterable[Peer]) -> list[Peer]:
        """Those of them who were convicted, in this life or an earlier one."""
        return sorted(peer for peer in members if peer.id in self.convicted)

    def barred_until(self, peer: Peer) -> float:
        """When it may be asked to hold something again, which lied or was said to."""
        return inf if peer.id in self.convicted else self.disputes.barred_until(peer)

    def showing(self, peer_id: str, by: Peer) -> set[Peer]:
        """Who shows that this one lied, with one more."""
        told = self.shown.setdefault(peer_id, set())
        told.add(by)
        while len(self.shown) > CONVICTED_MAX:
            del self.shown[next(iter(self.shown))]
        return told

    def hear_roll(self, peer: Peer, roll: Roll) -> None:
        """A peer's disk keeps it."""
        before = self.rolls.pop(peer.id, ())
        if roll not in before:
            before = (*before, roll)[-ROLLS_TOLD:]
            self.rolls_heard += 1
        self.rolls[peer.id] = before
        while len(self.rolls) > PEERS_MAX:
            del self.rolls[next(iter(self.rolls))]

    def rolls_told(self) -> list[Roll]:
        """All that were told of, each once."""
        return [*dict.fromkeys(roll for rolls in self.rolls.values() for roll in rolls)]

    def roll_of(self, version: Version | None) -> Roll | None:
        return next((roll for roll in self.rolls_told() if roll.version == version and complete(roll)), None)

    def unstick(self) -> None:
        """Disks are not looked at any more."""
        self.stuck_since, self.possible_at = None, float("-inf")

    def heard_of_disks(self, now: float, patience: float) -> None:
        """Somebody tells of snapshots."""
        if self.disks_heard is None or now - self.disks_heard >= patience:
            self.disks_told_since = now
        self.disks_heard = now

    def possible(self, now: float, patience: float) -> None:
        """Disks make a version possible."""
        if now - self.possible_at > patience:
            self.possible_since = now
        self.possible_at = now

    def count_losses(self, step: int, lost: Iterable[tuple[int, Peer]]) -> int:
        """How often the stage was lost in `step` that was lost most often, with these, (stage, newcomer)."""
        self.troubles = {key: count for key, count in self.troubles.items() if key[0] == step}
        losses = {(step, stage, peer) for stage, peer in lost}
        for _, stage, _ in sorted(losses - self.counted):
            self.troubles[(step, stage)] = self.troubles.get((step, stage), 0) + 1
        self.counted = {loss for loss in self.counted if loss[0] == step} | losses
        return max((self.troubles.get((step, stage), 0) for _, stage, _ in losses), default=0)

    def poisonings(self, step: int) -> int:
        """How often this step was poisoned, in whatever view."""
        return self.troubles.get((step, -1), 0)

    def poisoned(self, step: int) -> int:
        """It was once more; how often by now."""
        self.troubles = {key: count for key, count in self.troubles.items() if key[0] == step}
        self.troubles[step, -1] = self.poisonings(step) + 1
        return self.troubles[step, -1]

    def failed(self, peer: Peer, stage: int, now: float) -> None:
        """Whoever comes back under the same name is asked later than others."""
        self.failures[peer.id, stage] += 1
        _, count = self.failed_at.pop(peer.id, (now, 0))
        self.failed_at[peer.id] = now, count + 1
        if len(self.failed_at) > FAILED_MAX:
            self.failed_at = dict(list(self.failed_at.items())[FAILED_MAX // 2 :])
            self.failures = Counter({key: often for key, often in self.failures.items() if key[0] in self.failed_at})

    def crowd_failed(self, network: str, now: float, lease_seconds: float) -> None:
        """Who came from there a while ago is gone. Those who go within a lease count once, and after a long time
        without any it begins anew. Where nothing is known of who belongs together, each is asked for itself."""
        if not network:
            return
        at, count = self.crowds_failed.pop(network, (float("-inf"), 0))
        if now - at > 2 * YOUNG_LEASES * lease_seconds:
            count = 0
        self.crowds_failed[network] = now, count + (now - at > lease_seconds)
        while len(self.crowds_failed) > FAILED_MAX:
            del self.crowds_failed[next(iter(self.crowds_failed))]

    def came_and_went(
        self,
        members: Collection[Peer],
        before: Collection[Peer],
        networks: Mapping[Peer, str],
        now: float,
        lease_seconds: float,
    ) -> None:
        """Of one view after another."""
        for peer in {*before} - {*members}:
            if now - self.joined.pop(peer, float("-inf")) < YOUNG_LEASES * lease_seconds:
                self.crowd_failed(networks.get(peer, ""), now, lease_seconds)
        self.joined = {peer: at for peer, at in self.joined.items() if peer in members}
        self.joined |= dict.fromkeys({*members} - {*before}, now)

    def crowd_asked_at(self, network: str, lease_seconds: float) -> float:
        """When somebody from there may be asked again to learn something: as `asks_again_at`, for all of them."""
        at, count = self.crowds_failed.get(network, (float("-inf"), 0))
        return at + lease_seconds * float(1 << min(count, DOUBLINGS_MAX))

    def asks_again_at(self, peer: Peer, lease_seconds: float) -> float:
        """When to ask the peer again to learn something: two leases after a failure, then four, 64 at most. Later or
        never, who was told to lie."""
        barred = self.barred_until(peer)
        if peer.id not in self.failed_at:
            return max(0.0, barred)
        at, count = self.failed_at[peer.id]
        return max(barred, at + lease_seconds * float(1 << min(count, DOUBLINGS_MAX)))


def _newest(kept: dict[Peer, T], told: Mapping[Peer, T]) -> None:
    """Keep what was told, the newest last, and not without bound."""
    for peer, one in told.items():
        kept.pop(peer, None)
        kept[peer] = one
    for peer in [*kept][: max(0, len(kept) - FAILED_MAX)]:
        del kept[peer]
