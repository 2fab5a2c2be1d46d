"""One seed: a swarm is drawn, trains while things go wrong, and must come through."""

from __future__ import annotations

import random
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Version
from tests.sim.blackouts import Blackouts
from tests.sim.checks import Violation
from tests.sim.directory import LIFETIME_SECONDS_MAX
from tests.sim.disks import startable
from tests.sim.host import Host
from tests.sim.targets import hopeless
from tests.sim.world import World

HARD = ("kill", "vanish", "restart", "pause", "compute", "leave")
"""One of these takes a sole holder away in every seed."""
SOFT = (
    "kill", "kill-leader", "vanish", "restart", "pause", "nap", "partition", "isolate", "link", "one-way", "directory",
    "compute", "memory", "poison", "spoiled", "slow", "leave", "standby", "message", "message", "election", "election",
    "election", "double", "double", "flap", "split", "newcomers", "head", "adjacent", "adjacent",
)  # fmt: skip
LISTED = 0.75
"""Share of the runs in which lineages of different origin believe each other (rule 16)."""
CONTINUED = 0.1
"""Share of the runs that go on from a model: a lost stage begins again with its weights."""
POWER = 0.03
"""Share of the seeds in which all disks keep snapshots, and the power goes once or twice."""
EVENTS_PER_HOST_SECOND = 400
"""I6: nobody causes more traffic than this; a resend storm does."""


@dataclass(slots=True)
class Outcome:
    """What became of a seed. `violation` is empty when all went well."""

    seed: int
    violation: str = ""
    invariant: str = ""
    halted: str = ""
    """The run halted by design, with this reason."""
    commits: int = 0
    peers: int = 0
    losses: int = 0
    """Losses of all holders of a stage."""
    departures: int = 0
    """Losses of a holder, whether a stage has others or not."""
    left_out: int = 0
    """Views in which routes left out more than before."""
    came_back: int = 0
    """Views in which somebody held again what they had left out."""
    virtual_seconds: float = 0.0
    events: int = 0
    met: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def report(self) -> str:
        return "\n".join([f"seed {self.seed}: {self.violation or 'well'}", *self.notes])


def draw_settings(chance: random.Random, replicas: int = 1) -> Settings:
    """A small run: short steps, so that many fit into little time."""
    microbatches = chance.choice([2, 2, 3, 4])
    lease = chance.choice([3.0, 4.0, 6.0])
    stages = chance.choice([3, 3, 4, 4, 5])
    return Settings(
        run="sim",
        stages=stages,
        swap=stages > 3 and chance.random() < 0.4,
        swapped=chance.choice(["copy", "blend"]),
        head_every=chance.choice([1, 1, 2, 4]),
        shadow_every=chance.choice([0, 1, 3]) if stages > 3 else 0,
        steps=chance.randint(20, 24),
        microbatches=microbatches,
        window=chance.randint(1, microbatches),
        replicas=replicas,
        live_activations=chance.choice([1, 2, 8]),
        evaluate_every=chance.choice([0, 0, 5]),
        evaluation_microbatches=chance.choice([0, 1]),
        lease_seconds=lease,
        minority_wait_seconds=chance.choice([1.5, 3.0]) * lease,
    )


class Scenario:
    """The world of one seed, its faults and its watchdog."""

    KIND: type[World] = World

    def __init__(self, seed: int, faults: Sequence[str] = SOFT) -> None:
        chance = self.chance = random.Random(f"scenario {seed}")
        groups = random.Random(f"groups {seed}")
        self.settings = draw_settings(chance, groups.choice([1, 1, 2, 3]))
        if random.Random(f"listed {seed}").random() < LISTED:
            self.settings = replace(self.settings, listed=True)
        if random.Random(f"continued {seed}").random() < CONTINUED:
            self.settings = replace(self.settings, continued=True)
        night, cuts = random.Random(f"night {seed}"), list[int]()
        if night.random() < POWER or "power" in faults:
            every, most = night.choice([1, 2, 3, 5]), night.choice([0, 0, 5, 100])
            self.settings = replace(self.settings, snapshot_every=every, rollback_max=most)
            cuts = [night.randint(1, self.settings.steps - 2) for _ in range(night.choice([1, 1, 2]))]
        if "notice" in faults:
            self.settings = replace(self.settings, block_state_bytes=1000, head_state_bytes=night.choice([300, 3000]))
        self.settings = self.shaped(self.settings)
        self.spare = groups.randint(0, (self.settings.replicas - 1) * (self.settings.stages + 1))
        """Peers that are there for second and third holders."""
        self.roomy = groups.random() < 0.25
        """Everybody has room for the whole model, so that whoever is first holds all of it."""
        self.bereft = "bereft" in faults
        """Nobody has room for more than its own stage, and a middle one may be left out."""
        if self.bereft:
            self.settings = replace(self.settings, omit=True, replicas=1)
            self.spare, self.roomy = 0, False
        self.world = self.KIND(
            self.settings, seed, delay_max=chance.choice([0.01, 0.03, 0.08]),
            duplicates=chance.choice([0.0, 0.0, 0.01, 0.05]), miss=chance.choice([0.0, 0.0, 0.1]),
            tensor_seconds=chance.choice([0.001, 0.01]), stalls=chance.choice([0.0, 0.0, 0.002, 0.01]),
        )  # fmt: skip
        self.world.sites = 3 if "site" in faults else 0
        self.world.forward_seconds = chance.choice([0.005, 0.01, 0.03])
        self.world.on_commit = self._on_commit
        self.faults = Blackouts(self.world, chance)
        faults = [kind for kind in faults if kind != "power"] or SOFT
        kinds = [chance.choice(HARD), *(chance.choice(faults) for _ in range(chance.randint(1, 4)))]
        if chance.random() < 0.03:
            kinds.append("hang")
        commits = [chance.randint(1, self.settings.steps - 4) for _ in kinds]
        self.faults.plan([*kinds, *("power" for _ in cuts)], [*commits, *cuts])
        self.last_commit = 0.0
        self.outcome = Outcome(seed)

    def shaped(self, settings: Settings) -> Settings:
        """The settings as this kind of scenario has them."""
        return settings

    def start(self) -> None:
        """Either everybody at once, who then must agree on one run, or one after the other."""
        chance, needed = self.chance, self.settings.stages + 1
        together = chance.random() < 0.5
        count = max(6, needed + chance.randint(0, 3)) + self.spare
        count = needed if self.bereft else count
        without_corpus = set(range(chance.choice([0, 1, 1, 2, 3])))
        for index in range(count):
            at = chance.uniform(0, 0.4) if together else index * chance.uniform(0, 2)
            hold = chance.choice([1, 1, 1, 2, 3][: self.settings.stages])  # of three stages, two are adjacent
            hold = needed if self.roomy else 1 if self.bereft else hold
            self.world.at(at, self.world.start, (f"peer{index}", hold, index not in without_corpus))
        self.outcome.peers = count

    def run(self) -> Outcome:
        """Raises nothing: a violation is in the outcome."""
        world, outcome = self.world, self.outcome
        try:
            self.start()
            while not self.finished() and not outcome.halted:
                world.run(world.now + 2.0, self.finished)
                self.watch()
            self.settle()
        except Violation as violation:
            outcome.violation, outcome.invariant = str(violation), violation.invariant
        except Exception as error:  # noqa: BLE001  what the core raises is a finding, whatever it is
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{where.filename.rsplit('/', 1)[-1]}:{where.lineno}"
            outcome.violation = f"core: {type(error).__name__} in {place}: {error}"
            outcome.invariant = "core"
        outcome.notes = list(world.notes)
        outcome.commits = world.ledger.top_commit()
        outcome.virtual_seconds, outcome.events = world.now, world.events
        outcome.met, outcome.faults = world.met, self.faults.counts
        outcome.losses, outcome.departures = world.losses, world.departures
        for (lineage, number), view in world.ledger.views.items():
            before = world.ledger.views.get((lineage, number - 1))
            was, now = set(before.omitted) if before is not None else set(view.omitted), set(view.omitted)
            outcome.left_out += bool(now - was)
            outcome.came_back += any(view.holders[stage] for stage in was - now)
        return outcome

    def finished(self) -> bool:
        return self.world.ledger.top_commit() >= self.settings.steps and not self.faults.ongoing

    def _on_commit(self, lineage: str, version: Version, skipped: bool) -> None:
        self.last_commit = self.world.now
        self.faults.on_commit(version.step)
        if version.step >= self.settings.steps - 8 and not self.world.departures and not self.faults.ongoing:
            self.faults.ongoing += 1
            self.world.at(self.world.now, self.faults.strike, ("kill", 40))

    # -- watchdog

    def bound_seconds(self) -> float:
        """I5's bound, from the settings: detection, poll, take-over, ballots, offers, rebuild, one step."""
        s = self.settings
        live = len(self.world.live())
        detection = 2 * s.lease_seconds + s.poll_seconds + s.broken_link_seconds
        election = s.takeover_seconds * (1 + live) + 3 * s.ballot_seconds
        offers = s.offer_seconds * live + s.search_seconds * 3
        # A hung compute is told by a task that does not end, or by a rebuild that waits for what it should lend.
        hang = s.task_seconds + s.install_seconds if self.faults.counts["hang"] else 0.0
        if self.settings.snapshot_every:  # records of those who are gone are followed until they expire
            hang += LIFETIME_SECONDS_MAX + s.minority_wait_seconds + 3 * s.lease_seconds + s.restart_wait_seconds
        return detection + election + offers + hang + 2 * s.minority_wait_seconds + 30.0

    def watch(self) -> None:
        """I5, I6 and I8 every now and then."""
        world = self.world
        live = world.live()
        for host in live:
            participant = host.participant
            if not self.is_member(host) and not participant.waiting():
                raise Violation("I8", f"{host.peer} waits for something that has no name")
        if world.events > EVENTS_PER_HOST_SECOND * max(30.0, world.now) * len(world.hosts):
            raise Violation("I6", f"{world.events} events in {world.now:.0f} s of {len(world.hosts)} peers")
        quiet = world.now - max(self.last_commit, self.faults.last)
        if self.faults.ongoing or quiet < self.bound_seconds():
            return
        reason = self.rightly_halted()
        if reason:
            self.outcome.halted = reason
            return
        states = "; ".join(
            f"{host.peer} {'paused ' if host.paused else ''}{host.participant.waiting()}" for host in live
        )
        raise Violation("I5", f"no commit for {quiet:.0f} s: {states}")

    def settle(self) -> None:
        """When all is healed, lineages that met have become one (rule 16)."""
        world, bound = self.world, self.world.now + 2 * self.bound_seconds()
        while self.is_split():
            if world.now > bound:
                if self.is_over():
                    return
                raise Violation("I5", f"lineages {sorted(self.lineages())} do not become one")
            world.run(world.now + 2.0)
            self.last_commit = world.now

    def is_over(self) -> bool:
        """All steps are committed in one lineage, whose last members keep the weights, and in each other one, too, or
        it is halted."""
        finished, halted = set[str](), set[str]()
        for host in self.world.live():
            view = host.view
            if view is not None and host.participant.holder.finished:
                finished.add(view.lineage.id)
            elif view is not None and view.leader == host.peer and host.participant.waiting().startswith("halted: "):
                halted.add(view.lineage.id)
        return bool(finished) and self.lineages() <= finished | halted

    def is_split(self) -> bool:
        """In an open run what was founded apart stays apart; each run's person decides."""
        if not any(self.is_member(host) for host in self.world.live()):
            return False  # all lineages are dead
        views = [host.view for host in self.world.live() if host.view is not None]
        origins = {view.lineage.origin for view in views}
        return len(self.lineages()) > (1 if self.settings.listed else len(origins))

    def lineages(self) -> set[str]:
        return {host.view.lineage.id for host in self.world.live() if host.view is not None}

    def rightly_halted(self) -> str:
        """Why a leader halts, if nobody has, or was Ready for, what it misses (docs/explanation/recovery.md)."""
        if self.settings.snapshot_every:
            said = [host.participant.waiting() for host in self.world.live()]
            halted = [text for text in said if text.startswith("halted: ")]
            if (
                startable(self.world, max(host.participant.situation.highest_step for host in self.world.live()))
                is not None
            ):
                return ""
            if self.world.disks.liars and self.is_hopeless_without_disks():
                return "nobody but a liar tells of what is missing, and is asked again and again"
            if not any(self.has_weights(host) for host in self.world.live()):
                return halted[0] if halted else ""
        if not any(self.has_weights(host) for host in self.world.live()):
            return "everybody who had weights is gone"
        if not any(self.is_member(host) for host in self.world.live()) and self.newest_weights() + 1 < max(
            host.participant.situation.highest_step for host in self.world.live()
        ):
            return "everybody who had newer weights than long ago is gone"
        for host in self.world.live():
            view, waiting = host.view, host.participant.waiting()
            if view is None or view.leader != host.peer or not waiting.startswith("halted: "):
                continue
            assert host.participant.leader is not None
            base = host.participant.leader.base
            if (
                waiting.startswith("halted: steps up to")
                and self.newest_weights() + 1 < host.participant.situation.highest_step
            ):
                return waiting
            exact = {stage for stage in range(self.settings.stage_count) if base and self.has_exact(stage, base)}
            copied = {
                stage
                for member in self.world.live()
                if member.peer in view.members()
                for stage, copy in member.copies.items()
                if (base is None or copy.version.step <= base.step)
                and host.participant.memory.lent.counts(member.peer, stage, copy.version)
            }
            if hopeless(set(range(self.settings.stage_count)) - exact - copied, self.settings.stages):
                return waiting
        return ""

    def is_hopeless_without_disks(self) -> bool:
        """Of no version are there enough weights and copies to rebuild the rest from."""
        live, stages = self.world.live(), set(range(self.settings.stage_count))
        versions = {weights.version for host in live for weights in host.compute.weights.values()}
        copied = {stage for host in live for stage in host.copies}
        missing = (
            stages - copied - {stage for stage in stages if self.has_exact(stage, version)}
            for version in versions if version.step
        )  # fmt: skip
        return all(hopeless(lost, self.settings.stages) for lost in missing)

    def newest_weights(self) -> int:
        """The highest step of which a live peer has weights."""
        return max((w.version.step for host in self.world.live() for w in host.compute.weights.values()), default=0)

    def is_member(self, host: Host) -> bool:
        return host.view is not None and host.peer in host.view.members()

    def has_weights(self, host: Host) -> bool:
        """Of any stage, after some commit."""
        return any(weights.version.step for weights in host.compute.weights.values())

    def has_exact(self, stage: int, version: Version) -> bool:
        """Some live peer has the stage at this version, or holds the reduced gradient that makes it so."""
        for host in self.world.live():
            weights, reduced = host.compute.weights.get(stage), host.compute.reduced.get(stage)
            if weights is not None and (
                weights.version == version or (reduced is not None and reduced[:2] == (version.attempt, version.step))
            ):
                return True
        return False


def run_seed(seed: int, faults: Sequence[str] = SOFT) -> Outcome:
    """One seed from beginning to end; `faults` are the kinds that it draws from besides the loss that all have."""
    return Scenario(seed, faults).run()
