"""Hostile peers against the core: `python -m tests.sim.fuzz FIRST LAST [--events N]`, one world for each seed.

    python -m tests.sim.fuzz 1 1000000 --events 1000000     a night: until a million hostile messages have arrived
    python -m tests.sim.fuzz 17 --log                       everything that happens in one world

In each world a swarm trains, loses peers and takes newcomers in. One or two of those who may become members, and one
stranger, are hostile: their cores run as all others do, so that elections make them leaders, holders and learners, but
some of what they say is changed, and they say more. Everything passes the codec as it does on the wire. Then they are
silenced for good, and the others go on for a while. See hostile_world.py for what must hold.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Collection, Generator, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from ftnode.lab.hostile.vocabulary import Vocabulary
from ftnode.protocol.manifest.boundary import BoundaryBytes
from ftnode.protocol.step.routes import route
from ftnode.protocol.wire.frames import PREFIX_BYTES, Oversized, encode_frame, read_message
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words import messages as ms
from ftnode.protocol.words.errors import PeerError
from ftnode.protocol.words.events import Leave
from ftnode.protocol.words.types import Attempt, Direction, Peer
from ftnode.protocol.words.view import View
from tests.sim.host import Host
from tests.sim.hostile_world import Crash, HostileWorld, Reach
from tests.sim.scenario import draw_settings
from tests.sim.seals import signed_by
from tests.sim.side_by_side import told_of

EVENTS_A_WORLD = 500
"""Hostile messages that arrive in one world; then a run has mostly been spoiled, and another one teaches more."""
SECONDS_MAX = 100.0
"""Virtual, of one world, until the hostile peers are silenced."""
BURSTS_SECONDS = 180.0
AFTER_SECONDS = 40.0
BOUNDARY_BYTES = 64
SIZES = BoundaryBytes(BOUNDARY_BYTES, BOUNDARY_BYTES)
KINDS = tuple(ms.MESSAGES.values())
OF_LEADERS = (ms.Begin, ms.Begin, ms.Begin, ms.Heartbeat, ms.Poll, ms.Offer, ms.Certificate, ms.Propose, ms.Accepted)
"""What a leader's word counts in."""
TO_LEADERS = (
    ms.Status, ms.Status, ms.Ready, ms.Ready, ms.Suspect, ms.PollReply, ms.Answer, ms.Resign, ms.Poisoned, ms.Heartbeat,
    ms.Promise, ms.Accepted, ms.Outbid, ms.Introduction, ms.Waits,
)  # fmt: skip
AMONG_MEMBERS = (
    ms.Boundary, ms.Stored, ms.Share, ms.Heartbeat, ms.Prepare, ms.Propose, ms.Promise, ms.Accepted, ms.Certificate,
)  # fmt: skip

OFTEN = (ms.Heartbeat, ms.Boundary, ms.Stored, ms.Share)
"""Of the others a core says little, and more of it is changed."""


@dataclass(slots=True)
class Fuzzed:
    """What became of one world. `crash` is empty when all went well."""

    seed: int
    crash: str = ""
    received: Counter[str] = field(default_factory=Counter)
    admitted: Counter[str] = field(default_factory=Counter)
    reached: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(kind, function of the core) that hostile messages came to, and situations by name as ("", name)."""
    refused: int = 0
    """Messages that the codec did not let through."""
    events: int = 0
    accidents: Counter[str] = field(default_factory=Counter)
    largest: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    commits: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def hostile(self) -> int:
        return self.received.total()


class Fuzz:
    """The world of one seed, and its hostile peers."""

    def __init__(
        self, seed: int, events: int = EVENTS_A_WORLD, reach: bool = False, kinds: Collection[type] = (),
        insists: bool = False,
    ) -> None:  # fmt: skip
        chance = self.chance = Random(f"fuzz {seed}")
        settings = draw_settings(chance, chance.choice([1, 2, 2, 3]))
        disks = {"snapshot_every": chance.choice([0, 0, 2]), "rollback_max": chance.choice([0, 5])}
        self.settings = replace(settings, steps=chance.choice([30, 400, 400]), **disks)
        self.events = events
        self.reach = Reach() if reach else None
        self.world = HostileWorld(
            self.settings, seed, self.reach, delay_max=chance.choice([0.01, 0.05]),
            duplicates=chance.choice([0.0, 0.02]), tensor_seconds=0.002,
        )  # fmt: skip
        self.world.forward_seconds = chance.choice([0.005, 0.02])
        self.world.on_send = lambda host, sent: self.words.hear(sent.message)
        self.world.on_view = lambda host, view: self.words.see(view)
        self.world.tampers = self.tampers
        self.words = Vocabulary(chance, self.settings.stages)
        self.words.extremes = chance.choice([0.02, 0.05, 0.2])
        few = chance.sample(KINDS, chance.randint(2, 8))
        self.kinds = frozenset(kinds or (KINDS if chance.random() < 0.4 else few))
        """What is lied about in this world: with fewer kinds the run lives longer, and lies get further."""
        self.spoils = chance.choice([0.0, 0.05, 0.3])
        """Share of what a hostile core says that is changed."""
        self.pause = chance.choice([0.02, 0.05, 0.1, 0.1, 1.0])
        """Mean seconds between two messages of one hostile peer."""
        self.outcome = Fuzzed(seed)
        self.speaking = True
        self.over = False
        """The hostile peers are gone for good."""
        self.bursts = not insists and chance.random() < 0.3
        """The hostile peers behave, lie for a moment, and are gone for long; the others go on with what they did."""
        self.insists = insists or (not self.bursts and chance.random() < 0.3)
        """A hostile peer says one thing to one peer, again and again, for longer than anybody waits."""
        self.again: dict[Peer, tuple[Peer, float, ms.Message]] = {}
        """Who insists → (to whom, until when, on what)."""
        if self.insists:
            self.pause = chance.choice([0.3, 0.6])

    # -- the swarm

    def start(self) -> None:
        chance, needed = self.chance, self.settings.stages + 1
        few = chance.random() < 0.25
        honest = [f"m{index}" for index in range(chance.choice([1, 2, 3]) if few else needed + chance.randint(0, 2))]
        low = chance.choice(["a", "a", "m2x", "z"])  # who has the lowest id founds the run
        liars = [f"{low}{index}" for index in range(chance.choice([1, 2]))]
        self.world.hostile = {*liars, "stranger"}
        for name in (*honest, *liars):
            hold = needed if few else chance.choice([1, 1, 2, 3, needed])
            self.world.at(chance.uniform(0, 1.0), self.join, (name, hold))
        self.world.at(chance.uniform(0, 3.0), self.join, ("stranger", 0))
        self.world.at(chance.uniform(4, 12), self.misfortune, (0,))
        if self.bursts:
            self.speaking, self.pause, self.spoils = False, 0.05, 0.3
            self.world.at(chance.uniform(8, 15), self.burst, ())
        else:
            self.world.at(chance.uniform(8, 30), self.retreat, ())

    def burst(self) -> None:
        """Lies for up to two seconds; then all who told them are gone for longer than survivors wait for a quorum."""
        if self.over:
            return
        world, chance = self.world, self.chance
        self.speaking = True
        for host in self.liars():
            world.at(world.now, self.speak, (host,))
        world.at(world.now + chance.uniform(0.2, 2.0), self.vanish, ())

    def vanish(self) -> None:
        world, chance = self.world, self.chance
        self.speaking = False
        for host in self.liars():
            world.kill(host, "retreat", silently=False)
            world.at(world.now + chance.uniform(20, 40), self.join, (host.peer.id, host.hold))
        world.at(world.now + chance.uniform(45, 55), self.burst, ())

    def liars(self) -> list[Host]:
        return [host for host in self.world.live() if host.peer.id in self.world.hostile and not host.paused]

    def join(self, name: str, hold: int) -> None:
        if name in self.world.hostile and self.over:
            return
        host = self.world.start(name, hold, True)
        self.words.named = sorted({*self.words.named, host.peer})[-40:]
        if name in self.world.hostile and not self.bursts:
            self.world.at(self.world.now + 2.0, self.speak, (host,))

    def misfortune(self, count: int) -> None:
        """Somebody dies and comes back, or loses its compute process; now and then the leader."""
        world, chance = self.world, self.chance
        world.at(world.now + chance.uniform(6, 25), self.misfortune, (count + 1,))
        honest = [host for host in world.live() if host.peer.id not in world.hostile and not host.paused]
        if not honest:
            return
        leaders = [host for host in honest if host.view is not None and host.view.leader == host.peer]
        host = chance.choice(leaders if leaders and chance.random() < 0.5 else honest)
        kind = chance.choice(["kill", "kill", "kill", "compute", "pause", "leave"])
        if kind == "compute":
            if (stage := chance.choice([-1, -1, 1])) < 0:
                world.lose_compute(host, "it is gone")
            else:
                world.lose_stage(host, stage, "it is gone", chance.random() < 0.5)
        elif kind == "pause":
            world.pause(host)
            world.at(world.now + chance.uniform(0.5, 8.0), world.resume, (host,))
        elif kind == "leave":
            world.deliver(host, Leave("its owner wants it back", chance.random() < 0.3))
        else:
            world.kill(host, "kill", silently=chance.random() < 0.3)
            world.at(world.now + chance.uniform(0.2, 8.0), self.join, (host.peer.id, host.hold))
        if chance.random() < 0.3:
            world.at(world.now, self.join, (f"new{count}", chance.choice([1, 2])))

    def retreat(self) -> None:
        """A hostile peer goes, and comes back as another life; the others go on with what it has left behind."""
        world, chance = self.world, self.chance
        liars = [host for host in self.liars() if host.hold]
        if liars and not self.over:
            host = chance.choice(liars)
            world.kill(host, "retreat", silently=chance.random() < 0.3)
            world.at(world.now + chance.uniform(1, 10), self.join, (host.peer.id, host.hold))
        world.at(world.now + chance.uniform(5, 20), self.retreat, ())

    # -- lies

    def speak(self, host: Host) -> None:
        """A hostile peer says something to somebody, and again after a while."""
        if not host.alive or not self.speaking:
            return
        targets = [other for other in self.world.live() if other is not host]
        if targets:
            leads = [other for other in targets if other.view is not None and other.view.leader == other.peer]
            target = self.chance.choice(leads if leads and self.insists and self.chance.random() < 0.5 else targets)
            self.say(host, *self.repeated(host, target) if self.insists else (target, self.invented(host, target)))
        self.world.at(self.world.now + self.chance.expovariate(1 / self.pause), self.speak, (host,))

    def repeated(self, host: Host, target: Host) -> tuple[Host, ms.Message]:
        """What it said last, to whom it was said, for up to three leases; it is made to fit what happened meanwhile."""
        chance, now, lease = self.chance, self.world.now, self.settings.lease_seconds
        to, until, message = self.again.get(host.peer, (target.peer, 0.0, None))
        last = self.world.by_id[to.id]
        if message is None or now > until or not last.alive or last.peer != to or last is host:
            message = self.invented(host, target)
            self.again[host.peer] = target.peer, now + chance.uniform(0.0, 3.0) * lease, message
            return target, message
        begin = last.participant.holder.begin
        if last.view is not None and begin is not None:
            message = self.words.aimed(message, last.view, begin.step, begin.attempt)
        return last, message

    def invented(self, host: Host, target: Host) -> ms.Message:
        """A message of a kind that its receiver may listen to."""
        chance, view = self.chance, target.view
        usual: tuple[type, ...] = KINDS
        if view is not None and chance.random() < 0.75:
            usual = AMONG_MEMBERS
            if view.leader in (host.peer, target.peer):
                usual = chance.choice([OF_LEADERS if view.leader == host.peer else TO_LEADERS, AMONG_MEMBERS])
        liked = [kind for kind in usual if kind in self.kinds] or list(self.kinds)
        message = self.words.message(chance.choice(sorted(liked, key=lambda kind: kind.__name__)))
        return self.fitting(message, host, target) if chance.random() < 0.85 else message

    def fitting(self, message: ms.Message, host: Host, target: Host) -> ms.Message:
        """The message, as its sender could say it to this receiver now."""
        chance, view, begin = self.chance, target.view, target.participant.holder.begin
        if isinstance(message, ms.Certificate):
            return self.certificate(message, host)
        if isinstance(message, ms.Introduction):
            return replace(message, presence=replace(message.presence, peer=host.peer))
        if view is not None:
            step, attempt = (begin.step, begin.attempt) if begin is not None else (1, None)
            message = self.words.aimed(message, view, step, attempt)
            if isinstance(message, ms.Begin) and begin is not None:
                message = self.begin_after(message, begin, view)
        if isinstance(message, ms.Suspect | ms.Poll | ms.PollReply) and chance.random() < 0.3:
            message = replace(message, peer=chance.choice([host.peer, target.peer]))
        if isinstance(message, ms.Prepare | ms.Propose) and chance.random() < 0.9:
            message = replace(message, ballot=replace(message.ballot, proposer=host.peer))
        balloting, leader = target.participant.balloting, target.participant.leader
        if isinstance(message, ms.Promise | ms.Accepted) and balloting is not None and balloting.ballot is not None:
            message = replace(message, ballot=balloting.ballot) if chance.random() < 0.8 else message
        if isinstance(message, ms.Accepted):
            if balloting is not None and balloting.proposal is not None and chance.random() < 0.8:
                message = replace(message, digest=balloting.proposal.digest())
            message = self.world.seals.sealed(host.peer, message)
        if isinstance(message, ms.PollReply) and leader is not None:
            asked = sorted((peer, asked.number) for peer, asked in leader.losses._inquiries.items())
            peer, number = chance.choice(asked or [(message.peer, message.number)])
            message = replace(message, peer=peer, number=number)
        if isinstance(message, ms.Boundary) and view is not None and chance.random() < 0.7:
            message = self.along(message, host.peer, target.peer, view)
        return message

    def certificate(self, message: ms.Certificate, host: Host) -> ms.Certificate:
        """Of a view that could be, mostly; or of a lineage that is better than all others, led by the sender."""
        chance, view = self.chance, self.words.other_view(message.view, [host.peer])
        if chance.random() < 0.3:
            root = chance.choice(["", view.lineage.origin])
            lineage = replace(view.lineage, id=f"0line{chance.randrange(50)}", exact_stages=99, forks=0, root=root)
            view = self.words.mended(replace(view, lineage=lineage, leader=host.peer))
            proof, step = self.proof(view, host), chance.randrange(self.settings.steps)
            return ms.Certificate(view, True, (), step, proof)
        contacts = message.contacts if chance.random() < 0.3 else ()
        if chance.random() < 0.3 and message.view == view:
            return replace(message, contacts=contacts)
        return replace(message, view=view, contacts=contacts, proof=self.proof(view, host))

    def proof(self, view: View, host: Host) -> ms.Proof | None:
        """What hostile peers can sign: the sender alone, or all of them together; or nothing."""
        signers = [host.peer] if self.chance.random() < 0.5 else [liar.peer for liar in self.liars()]
        return signed_by(signers, view) if self.chance.random() < 0.9 else None

    def begin_after(self, message: ms.Begin, begin: ms.Begin, view: View) -> ms.Begin:
        """A Begin on the receiver's base: of its attempt, or of another one of this view."""
        chance = self.chance
        counts = [begin.attempt.n, begin.attempt.n + 1, chance.randrange(100)]
        attempt = begin.attempt if chance.random() < 0.4 else Attempt(view.number, chance.choice(counts))
        base = chance.choice([begin.base, begin.base, message.base])
        training = base.step < self.settings.steps
        return replace(message, attempt=attempt, base=base, step=base.step + 1, training=training)

    def along(self, message: ms.Boundary, sender: Peer, to: Peer, view: View) -> ms.Boundary:
        """A tensor whose path leads along holders, from the sender to the receiver where it can."""
        chance, before = self.chance, {Direction.FORWARD: -1, Direction.BACKWARD: 1}[message.direction]
        stages = route(self.settings.stages, message.microbatch, self.settings.swap)
        places = [visit for visit, stage in enumerate(stages) if to in view.holders[stage]]
        visit = chance.choice(places or [message.visit])
        path = [chance.choice(view.holders[stage] or (sender,)) for stage in stages]
        for at, peer in ((visit + before, sender), (visit, to)):
            if 0 <= at < len(path):
                path[at] = peer
        return replace(message, path=tuple(path), visit=visit)

    def tampers(self, host: Host, sent: fx.Send) -> bool:
        """Some of what a hostile core says arrives otherwise, twice, or not at all."""
        chance = self.chance
        kind = type(sent.message)
        spoils = self.spoils if kind in OFTEN else 3 * self.spoils
        if not self.speaking or kind not in self.kinds or chance.random() >= spoils:
            return False
        target = self.world.by_id.get(sent.to.id)
        if target is None or not target.alive or target.peer != sent.to:
            return False
        if chance.random() < 0.9:
            message = sent.message
            for _ in range(chance.choice([1, 1, 2])):
                message = self.words.changed(message)
            self.say(host, target, message)
        return chance.random() < 0.6

    def say(self, host: Host, target: Host, message: ms.Message) -> None:
        """Through the codec, as on the wire, and then a little later."""
        tensor_bytes = BOUNDARY_BYTES if isinstance(message, ms.Boundary) else 0
        try:
            read = read_message(encode_frame(message, tensor_bytes)[PREFIX_BYTES:], tensor_bytes, SIZES)
        except (PeerError, Oversized, OverflowError):
            self.outcome.refused += 1
            return
        if self.world.seals.objection(host.peer, read):
            self.outcome.refused += 1
            return
        self.world.at(self.world.now + self.chance.uniform(0.001, 0.05), self.world.lie, (host, target, read))

    # -- the run

    def run(self) -> Fuzzed:
        """Raises nothing: a crash is in the outcome."""
        world, outcome = self.world, self.outcome
        try:
            self.start()
            world.run(BURSTS_SECONDS if self.bursts else SECONDS_MAX, lambda: world.received.total() >= self.events)
            self.silence()
            world.run(world.now + AFTER_SECONDS)
            for host in world.live():
                world.count_tables(host)
        except Crash as crash:
            outcome.crash = str(crash)
            outcome.notes = [*world.notes, *world.recent]
        outcome.received, outcome.admitted = world.received, world.admitted
        outcome.reached = self.reach.calls if self.reach is not None else Counter()
        outcome.events, outcome.accidents, outcome.largest = world.events, world.accidents, world.largest
        outcome.slowest, outcome.commits = world.slowest, world.ledger.top_commit()
        return outcome

    def silence(self) -> None:
        """The hostile peers are gone for good."""
        self.speaking, self.over = False, True
        for host in self.liars():
            self.world.kill(host, "silenced", silently=False)


def run_fuzz(
    seed: int, events: int = EVENTS_A_WORLD, reach: bool = False, kinds: Collection[type] = (), insists: bool = False
) -> Fuzzed:
    """One world from beginning to end. `kinds`: of messages that are lied in, instead of those that the seed draws;
    `insists`: hostile peers do, whatever the seed says."""
    return Fuzz(seed, events, reach, kinds, insists).run()


def run_many(
    seeds: Iterable[int], processes: int = 1, reach: bool = False, kinds: Collection[type] = ()
) -> Generator[Fuzzed, None, None]:
    """Outcomes in the order of their seeds."""
    return told_of(seeds, partial(run_fuzz, reach=reach, kinds=kinds), processes, in_order=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int, nargs="?")
    parser.add_argument("--events", type=int, default=0, help="stop after so many hostile messages")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--log", action="store_true", help="print every event and effect of the first seed")
    parser.add_argument("--reach", action="store_true", help="say which functions of the core were reached")
    parser.add_argument("--stop-after", type=int, default=20, help="stop after so many crashes")
    options = parser.parse_args()
    if options.log:
        fuzz = Fuzz(options.first)
        fuzz.world.log = print
        print(fuzz.run().crash or "well")
        return 0
    started = time.perf_counter()
    total, crashes = Fuzzed(0), list[Fuzzed]()
    for outcome in run_many(
        range(options.first, (options.last or options.first) + 1), options.processes, options.reach
    ):
        add(total, outcome)
        if outcome.crash:
            crashes.append(outcome)
            print(f"seed {outcome.seed}: {outcome.crash[:900]}", flush=True)
        if len(crashes) >= options.stop_after or (options.events and total.hostile >= options.events):
            break
    report(total, len(crashes), time.perf_counter() - started)
    return bool(crashes)


def add(total: Fuzzed, outcome: Fuzzed) -> None:
    """`seed` of the total counts the worlds."""
    total.seed += 1
    total.received += outcome.received
    total.admitted += outcome.admitted
    total.reached += outcome.reached
    total.accidents += outcome.accidents
    total.largest |= outcome.largest
    total.refused, total.events = total.refused + outcome.refused, total.events + outcome.events
    total.commits, total.slowest = total.commits + outcome.commits, max(total.slowest, outcome.slowest)


def report(total: Fuzzed, crashes: int, seconds: float) -> None:
    said = {kind: f"{total.admitted[kind]}/{count}" for kind, count in sorted(total.received.items())}
    print(f"{total.seed} worlds, {total.events} events, {total.commits} commits, {seconds:.0f} s, {crashes} crashes")
    print(f"{total.hostile} hostile messages came to a core, {total.refused} more did not pass the codec")
    print("admitted of those that came:", said)
    print("in vain asked of compute:", dict(total.accidents), f"slowest event: {total.slowest * 1000:.0f} ms")
    print("longest tables:", dict(total.largest.most_common(12)))
    for (kind, function), count in sorted(total.reached.items()):
        print(f"  {kind} {function} {count}")


if __name__ == "__main__":
    sys.exit(main())
