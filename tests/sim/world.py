"""The virtual world: real participants, virtual time, and one seed for everything else.

It holds no copy of the rules. It delivers messages, runs fake compute, keeps a directory, breaks things when told to,
and lets the ledger look at what happens. One heap of (time, serial, function, arguments) is all the machinery.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable
from math import inf
from typing import Any
from zlib import crc32

from ftnode.protocol.participant import Participant
from ftnode.protocol.recovery.standing import BEHIND
from ftnode.protocol.recovery.trials import LENT_OTHERS
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words.events import (
    ComputeLost,
    ComputeReady,
    Done,
    Event,
    Lied,
    Ordered,
    Received,
    StageLost,
    Wake,
)
from ftnode.protocol.words.messages import Begin, Boundary, Message, Ready, Status
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Peer, Version
from ftnode.protocol.words.view import View
from tests.sim.agreements import Agreements
from tests.sim.bereaved import Bereaved
from tests.sim.checks import Ledger, Violation, check_kept, handles_bound
from tests.sim.commits import check_commit
from tests.sim.compute import Compute, Poison, Result, Tensor, Weights, needed
from tests.sim.directory import DirectoryService
from tests.sim.disks import Disks, check_restart
from tests.sim.host import Host
from tests.sim.network import Link, Network
from tests.sim.rebuild import Rebuilding
from tests.sim.reduction import Reductions
from tests.sim.samples import Samples
from tests.sim.seals import WorldSeals

SPINS_MAX = 50
"""So many wakes of one participant at one instant are a busy loop."""


class World:
    """Everything, at one virtual time `now`."""

    def __init__(
        self, settings: Settings, seed: int, *, delay_max: float = 0.05, duplicates: float = 0.0, miss: float = 0.0,
        tensor_seconds: float = 0.005, stalls: float = 0.0,
    ) -> None:  # fmt: skip
        self.settings, self.seed, self.delay_max = settings, seed, delay_max
        self.chance = random.Random(seed)
        self.now = 0.0
        self.events = 0
        self.hosts: list[Host] = []
        self.by_id: dict[str, Host] = {}
        self.ledger = Ledger()
        self.seals = WorldSeals(settings.checks > 0)
        self.network = Network(self, duplicates, tensor_seconds, stalls)
        self.directory = DirectoryService(self, miss)
        self.rebuilding = Rebuilding(self)
        self.reductions = Reductions(self)
        self.samples = Samples(self)
        self.disks = Disks(self)
        self.poisons: list[Poison] = []
        self.forward_seconds = 0.02
        self.sites = 0
        """So many there are."""
        self.sites_told = True
        """Peers say where they are."""
        self.networks: dict[str, str] = {}
        """PeerId → where others see it; of who is missing nothing is known."""
        self.alike = True
        """Nobody's compute adds up other gradients than its group."""
        self.liars = False
        """Some peers give to sums what their visits do not give."""
        self.lying: frozenset[str] = frozenset()
        """PeerIds of members that lie: what they hold is not looked at."""
        self.losses = 0
        """How often a stage lost all of its holders."""
        self.departures = 0
        """How often one lost a holder that did not hand it over."""
        self.handles_max = handles_bound(settings)
        self.notes: deque[str] = deque(maxlen=80)
        self.log: Callable[[str], None] | None = None
        self.met: Counter[tuple[str, str]] = Counter()
        """(fault, rung): how stages that a fault took came back, or went on with their other holders."""
        self.bereaved = Bereaved(self)
        self.agreements = Agreements()
        self.on_send: Callable[[Host, fx.Send], None] | None = None
        self.on_receive: Callable[[Host, Message], None] | None = None
        self.on_commit: Callable[[str, Version, bool], None] | None = None
        self.on_view: Callable[[Host, View], None] | None = None
        self.on_installed: Callable[[Host, fx.Install], None] | None = None
        self.on_remark: Callable[[str], None] | None = None
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._serial = 0
        self._nonce = 0
        self._commits_told: set[tuple[str, int]] = set()

    # -- time

    def at(self, time: float, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (time, self._serial, function, arguments))

    def run(self, until: float, stop: Callable[[], bool] | None = None) -> None:
        """Let time pass until `until`, or until `stop` says so (asked after each event)."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= until:
            self.now, _, function, arguments = pop(heap)
            function(*arguments)
            if stop is not None and stop():
                return
        self.now = max(self.now, until)

    # -- hosts

    def start(self, peer_id: str, hold: int, head: bool = True) -> Host:
        """A node starts: a new life with a new nonce, and a compute process that is up a moment later."""
        self._nonce += 1
        peer = Peer(peer_id, self._nonce)
        participant = Participant(
            peer, self.settings, random.Random(self.chance.random()), addresses=(f"/sim/{peer_id}",), hold=hold,
            site=self.site(peer_id) if self.sites_told else "",
        )  # fmt: skip
        compute = Compute(str(peer), self.settings, self.ledger, self.poisons)
        host = Host(peer, participant, compute, hold, head)
        host.forward_seconds = self.forward_seconds
        host.record_luck = self.chance.uniform(0.67, 1.0)
        self.hosts.append(host)
        self.by_id[peer_id] = host
        self._start_compute(host)
        self.directory.search(host)
        if self.disks.tells(peer_id):
            self.at(self.now, self.disks.tell, (host,))
        self.at(self.now, self.wake, (host,))
        return host

    def ask_order(self, host: Host, peer: Peer) -> None:
        """The manifest that this peer has, with the author's newest order."""
        if (other := self._reached(host, peer)) is not None:
            self.at(self.now + 0.2, self.deliver, (host, Ordered(other.participant.authors_order)))

    def show_order(self, host: Host, peer: Peer) -> None:
        """Show this peer the manifest."""
        if (other := self._reached(host, peer)) is not None:
            self.at(self.now + 0.2, self.deliver, (other, Ordered(host.participant.authors_order)))

    def _reached(self, host: Host, peer: Peer) -> Host | None:
        other, pair = self.by_id.get(peer.id), (host.peer.id, peer.id)
        cut = pair in self.network.blocked or pair[::-1] in self.network.blocked
        there = other is not None and other.peer == peer and other.alive and not other.paused and not cut
        return other if there else None

    def site(self, peer_id: str) -> str:
        """Where this peer always is; empty where the world has no sites."""
        return f"site{crc32(peer_id.encode()) % self.sites}" if self.sites else ""

    def _start_compute(self, host: Host) -> None:
        host.compute_life += 1
        self.at(self.now + self.chance.uniform(0.2, 1.5), self._compute_ready, (host, host.compute_life))

    def _compute_ready(self, host: Host, life: int) -> None:
        if host.alive and life == host.compute_life:
            host.compute_up, host.hung, host.compute_free = True, False, self.now
            self.deliver(host, ComputeReady(host.hold, host.head, 100.0 / host.forward_seconds))

    def live(self) -> list[Host]:
        return [host for host in self.hosts if host.alive]

    # -- events into participants

    def wake(self, host: Host) -> None:
        if not host.alive:
            return
        if self.now < host.wake_at:
            return  # an earlier deadline took this one's place
        host.wake_at = inf
        deadline = host.participant.deadline
        if deadline > self.now:
            self._schedule_wake(host, deadline)
        else:
            self.deliver(host, Wake())

    def _schedule_wake(self, host: Host, deadline: float) -> None:
        if deadline < host.wake_at:
            host.wake_at = max(deadline, self.now)
            self.at(host.wake_at, self.wake, (host,))

    def receive(self, link: Link, message: Message, tensor: Tensor | None) -> None:
        """A frame has arrived, unless its link broke; its tensor gets a handle of the receiver."""
        host = link.target
        if self.now > link.cut or not host.alive:
            return
        self.seals.check(link.source.peer, message)
        if not host.paused and self.on_receive is not None:
            self.on_receive(host, message)
        if host.paused:
            host.inbox.append((self._unpack, (host, link.source.peer, message, tensor)))
        elif host.alive:
            self._unpack(host, link.source.peer, message, tensor)

    def _unpack(self, host: Host, sender: Peer, message: Message, tensor: Tensor | None) -> None:
        if tensor is None:
            self.deliver(host, Received(sender, message, None))
            return
        handle = host.put(tensor)
        if type(message) is Boundary:
            message = self.seals.checked_tensor(message, tensor)
        if len(host.tensors) > self.handles_max:
            raise Violation("I6", f"{host.peer} holds {len(host.tensors)} tensors")
        self.deliver(host, Received(sender, message, handle))

    def deliver(self, host: Host, event: Event) -> None:
        """Hand one event to a participant, carry out the effects, and look at what became of it."""
        if not self.hears(host, event):
            return
        participant = host.participant
        if self.log is not None:
            self.log(f"{self.now:9.3f} {host.peer} <- {event}")
        effects = participant.handle(event, self.now)
        if participant.view is not host.view:
            self._see_view(host, participant.view)
        for effect in effects:
            self.carry_out(host, effect)
            if not host.alive:
                return
        if len(host.tensors) != participant.holder.tensors:
            held = participant.holder.tensors
            raise Violation("I6", f"{host.peer} has {len(host.tensors)} tensors and knows of {held} after {event}")
        deadline = participant.deadline
        if deadline < host.wake_at:
            self._schedule_wake(host, deadline)
        elif not -inf < deadline < inf:
            raise Violation("I8", f"{host.peer} waits without a deadline after {event}")
        if deadline <= self.now and type(event) is Wake:
            host.spins += 1
            if host.spins > SPINS_MAX:
                raise Violation("I8", f"{host.peer} wakes again and again at {self.now}: {participant.waiting()}")
        else:
            host.spins = 0

    def carry_out(self, host: Host, effect: fx.Effect) -> None:
        CARRY_OUT[type(effect)](self, host, effect)

    def hears(self, host: Host, event: Event) -> bool:
        """Whether the event comes to its participant now. One that is suspended gets it when it goes on."""
        if not host.alive:
            return False
        if host.paused:
            host.inbox.append((self.deliver, (host, event)))
            return False
        self.events += 1
        return True

    def _see_view(self, host: Host, view: View | None) -> None:
        """I2 and I3 of views, and which fault took which stage."""
        before, host.view = host.view, view
        if view is None:
            return
        host.compute.lineage = view.lineage.id
        news = self.ledger.view(view)
        highest = host.view_numbers.get(view.lineage.id, -1)
        if view.number < highest:
            raise Violation("I3", f"{host.peer} goes back from view {highest} to {view.number} of {view.lineage.id}")
        host.view_numbers[view.lineage.id] = view.number
        counts = host.participant.holder.versions.keys()
        if falsely := host.compute.lent_falsely & {*view.stages_of(host.peer)} & counts:
            raise Violation("I4", f"{host.peer} holds stages {falsely} with other weights than their lender works with")
        if news:
            check_restart(self, view)
            if (known := self.ledger.views.get((view.lineage.id, view.number - 1))) is not None:
                self.agreements.check(known, view)
        if news and before is not None:
            self.bereaved.on_view(before, view)
        if news and self.on_view is not None:
            self.on_view(host, view)

    # -- effects out of participants

    def _send(self, host: Host, effect: fx.Send) -> None:
        message = effect.message
        self.agreements.on_send(host.peer, effect.to, message)
        if self.on_send is not None:
            self.on_send(host, effect)
            if not host.alive:
                return
        if type(message) is Begin:
            if self.ledger.begin(host.peer, message):
                check_commit(self, message)
            self._commit(message.lineage, message.base, message.skipped)
        elif type(message) is Ready:
            self.ledger.ready.add(host.peer)
        elif type(message) is Status:
            check_kept(str(host.peer), message, host.copies)
        tensor = None if effect.handle is None else host.tensors.get(effect.handle)
        if effect.handle is not None and tensor is None:
            raise Violation("I6", f"{host.peer} sends released handle {effect.handle}: {message}")
        if effect.to == host.peer:
            raise Violation("core", f"{host.peer} sends to itself: {message}")
        if self.log is not None:
            self.log(f"{self.now:9.3f} {host.peer} -> {effect.to} {message}")
        if type(message) is Boundary and tensor is not None:
            if host.shows is not None and effect.to != message.path[message.visit]:
                tensor = host.shows(tensor, message.seal is None, effect.to)
            message = self.seals.sealed_tensor(host.peer, message, tensor)
        self.network.send(host, effect.to, self.seals.sealed(host.peer, message), tensor)

    def _commit(self, lineage: str, version: Version, skipped: bool) -> None:
        self.ledger.commit(lineage, version)
        news = (lineage, version.step) not in self._commits_told
        self._commits_told.add((lineage, version.step))
        if news and self.on_commit is not None:
            self.on_commit(lineage, version, skipped)

    def _dial(self, host: Host, effect: fx.Dial) -> None:
        self.network.dial(host, effect.peer)

    def _know(self, host: Host, effect: fx.Know) -> None:
        host.known.add(effect.peer.id)

    def _tried_on(self, host: Host, task: fx.Recount) -> Weights | None:
        """The copy, or, where visits of a later step are done again on it, what the holder has: an old copy gives about
        the same."""
        assert task.copy is not None
        copy, there = host.copy_of(task.stage, task.copy), self.by_id.get(task.of.id)
        if copy is None or task.step == task.copy.step + 1:
            return copy
        weights = there.compute.weights.get(task.stage) if there is not None else None
        return weights if weights is not None and weights.version.step + 1 == task.step else None

    def _task(self, host: Host, effect: fx.Compute) -> None:
        if not host.compute_up or host.lost.intersection(needed(effect.task)):
            return
        work = host.participant.holder.work
        if work is not None:
            host.compute.begun_in = work.begin.lineage
        if type(effect.task) is fx.Reduce and effect.task.group:
            self.reductions.start(host, effect.task)
            return
        if type(effect.task) is fx.Sample:
            self.samples.start(host, effect.task)
        elif type(effect.task) is fx.Retrace:
            self.samples.retrace(host, effect.task)
        elif type(effect.task) is fx.Course:
            self.samples.course(host, effect.task)
        elif type(effect.task) is fx.Recount and effect.task.copy is not None:
            copy = self._tried_on(host, effect.task)
            self.answer(host, effect.task, host.compute.try_copy(effect.task, host.tensors, copy))
        elif type(effect.task) is fx.Weigh:
            self.reductions.weigh(host, effect.task)
        else:
            self.answer(host, effect.task, host.compute.perform(effect.task, host.tensors))

    def answer(self, host: Host, task: fx.Task, result: Result) -> None:
        """After the time that the task takes."""
        effect = fx.Compute(task)
        if host.hung:
            return
        seconds = host.forward_seconds * host.cost(effect.task) * (0.8 + 0.4 * self.chance.random())
        host.compute_free = max(host.compute_free, self.now) + seconds
        self.at(host.compute_free, self.finish, (host, host.compute_life, effect.task, result))

    def finish(self, host: Host, life: int, task: fx.Task, result: Result) -> None:
        """A task is done, unless its compute process is gone, or what that had of the stage."""
        if not host.alive or life != host.compute_life or host.hung or host.lost.intersection(needed(task)):
            return
        if host.paused:
            host.inbox.append((self.finish, (host, life, task, result)))
            return
        output = None if result.output is None else host.put(result.output)
        value, tokens, gradient, fault, faulty, received, way, hidden = result[1:]
        self.deliver(host, Done(
            task, output, value, tokens, gradient, fault, faulty=faulty, received=received, way=way, hidden=hidden
        ))  # fmt: skip

    def _apply(self, host: Host, effect: fx.Apply) -> None:
        if not host.compute_up or effect.stage in host.lost:
            return
        if effect.stage in host.installing:
            waiting = host.shelved.setdefault(effect.stage, [])
            waiting.append((effect, host.compute.reduced.get(effect.stage)))
        else:
            host.compute.apply(effect)
            self.disks.applied(host, effect.stage)

    def _discard(self, host: Host, effect: fx.Discard) -> None:
        host.working = effect.keep
        host.compute.discard(effect.keep)
        complete = self.reductions.complete
        host.reducing = {
            stage: task for stage, task in host.reducing.items()
            if task.attempt == effect.keep or (host.peer.id, task) in complete
        }  # fmt: skip

    def _release(self, host: Host, effect: fx.Release) -> None:
        for handle in effect.handles:
            if host.tensors.pop(handle, None) is None:
                raise Violation("I6", f"{host.peer} releases {handle} twice")

    def _forget(self, host: Host, effect: fx.Forget) -> None:
        host.lost.discard(effect.stage)
        self._drop_stage(host, effect.stage)

    def _drop_stage(self, host: Host, stage: int) -> None:
        host.installing.pop(stage, None)
        host.shelved.pop(stage, None)
        host.compute.drop(stage)

    def _restart_compute(self, host: Host, effect: fx.RestartCompute) -> None:
        self._lose_compute(host)

    def _lose_compute(self, host: Host) -> None:
        host.compute.clear()
        host.installing.clear()
        host.shelved.clear()
        host.reducing.clear()
        host.lost.clear()
        host.compute_up = False
        self._start_compute(host)

    def lose_compute(self, host: Host, reason: str) -> None:
        """The compute process dies by itself; the node starts another."""
        self._lose_compute(host)
        self.deliver(host, ComputeLost(reason))

    def lose_stage(self, host: Host, stage: int, reason: str, out_of_memory: bool = True) -> None:
        """Compute loses what it has of one stage. The core hears of it a task later, and asks for more meanwhile."""
        self._drop_stage(host, stage)
        host.compute.lose(stage)
        host.reducing.pop(stage, None)
        host.lost.add(stage)
        told = StageLost(stage, reason, out_of_memory)
        self.at(self.now + host.forward_seconds, self._tell_stage_lost, (host, host.compute_life, told))

    def _tell_stage_lost(self, host: Host, life: int, lost: StageLost) -> None:
        if host.alive and host.compute_life == life:
            self.deliver(host, lost)

    def _announce(self, host: Host, effect: fx.Announce) -> None:
        self.directory.announce(host, effect.presence)

    def _publish(self, host: Host, effect: fx.PublishView) -> None:
        if effect.view is not None:
            self.ledger.view(effect.view)
        self.directory.publish(host, effect.view)

    def _search(self, host: Host, effect: fx.Search) -> None:
        self.directory.search(host)

    def _note(self, host: Host, effect: fx.Note) -> None:
        if BEHIND in effect.text:  # honest peers never are: rule 18 (i)
            raise Violation("I3", effect.text)
        if self.alike and "different gradients" in effect.text:
            raise Violation("I4", f"{host.peer} hears of two sums of honest peers: {effect.text}")
        if effect.kind == "nonsense" and self.directory.lies is None:
            raise Violation("core", f"{host.peer} hears nonsense from an honest peer: {effect.text}")
        if (effect.kind == "liar" or LENT_OTHERS in effect.text) and not self.liars:
            raise Violation("I10", f"{host.peer} hears of a lie of an honest peer: {effect.text}")
        if effect.kind == "stand":
            self.bereaved.on_stand(effect.text)
        line = f"{self.now:9.3f} {host.peer} {effect.kind}: {effect.text}"
        self.notes.append(line)
        if self.log is not None:
            self.log(line)

    def _stop(self, host: Host, effect: fx.Stop) -> None:
        self.kill(host, "leave", silently=False)

    def _committed(self, host: Host, effect: fx.Committed) -> None:
        self._commit(effect.lineage, effect.version, effect.skipped)

    # -- faults

    def kill(self, host: Host, cause: str, *, silently: bool, in_flight: bool = False) -> None:
        """SIGKILL of everything of a node; `silently`: its machine vanished and resets nothing; `in_flight`: what it
        had sent still arrives."""
        host.alive, host.vanished = False, silently
        host.stopped, host.cause = self.now, cause
        self.network.host_ended(host, silently, in_flight)
        self.remark(f"{cause}: {host.peer} is gone")

    def pause(self, host: Host) -> None:
        """SIGSTOP of everything of a node."""
        host.paused, host.cause, host.stopped = True, "pause", self.now
        self.remark(f"pause: {host.peer}")

    def resume(self, host: Host) -> None:
        """SIGCONT: all that came meanwhile is there at once."""
        if not host.alive or not host.paused:
            return
        host.paused = False
        self.remark(f"resume: {host.peer} with {len(host.inbox)} events waiting")
        inbox, host.inbox = host.inbox, []
        for index, (function, arguments) in enumerate(inbox):
            if host.paused:  # stopped again by what it just did
                host.inbox = [*inbox[index:], *host.inbox]
                return
            function(*arguments)

    def exposed(self, leader: Host, liar: str) -> None:
        """A leader's node tells of a liar: each member is told (node/manifests/spread.py)."""
        for host in self.live():
            if host is leader or host.peer in leader.participant.members:
                self.at(self.now + self.delay_max, self.deliver, (host, Lied(liar)))

    def remark(self, text: str) -> None:
        """Something that the world did, among the notes of the participants."""
        self.notes.append(f"{self.now:9.3f} *** {text}")
        if self.on_remark is not None:
            self.on_remark(text)
        if self.log is not None:
            self.log(self.notes[-1])


CARRY_OUT: dict[type[fx.Effect], Callable[[World, Host, Any], None]] = {
    fx.Send: World._send, fx.Dial: World._dial, fx.Know: World._know, fx.Compute: World._task, fx.Apply: World._apply,
    fx.Discard: World._discard, fx.Release: World._release, fx.Forget: World._forget, fx.Stop: World._stop,
    fx.KeepRoll: lambda world, host, effect: world.disks.keep_roll(host, effect.roll),
    fx.KeepConvicted: lambda world, host, effect: world.disks.keep_convicted(host, effect),
    fx.KeepOrder: lambda world, host, effect: world.disks.keep_order(host, effect.order),
    fx.ShowOrder: lambda world, host, effect: world.show_order(host, effect.peer),
    fx.AskOrder: lambda world, host, effect: world.ask_order(host, effect.peer),
    fx.Save: lambda world, host, effect: world.disks.save(host, effect.stages),
    fx.Install: lambda world, host, effect: world.rebuilding.install(host, effect),
    fx.Keep: lambda world, host, effect: world.rebuilding.keep(host, effect),
    fx.TakeCopy: lambda world, host, effect: world.rebuilding.take_copy(host, effect),
    fx.DropCopy: lambda world, host, effect: world.rebuilding.drop_copy(host, effect),
    fx.RestartCompute: World._restart_compute, fx.Announce: World._announce, fx.PublishView: World._publish,
    fx.Committed: World._committed, fx.Search: World._search, fx.Strike: lambda *_: None, fx.Note: World._note,
    fx.Expose: lambda world, host, effect: world.exposed(host, effect.peer.id),
}  # fmt: skip
