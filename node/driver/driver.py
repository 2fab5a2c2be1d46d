"""Turns what happens into events for the core, and what the core wants into calls of the adapters.

One task, `Driver.run`, owns the participant: it takes events one at a time, writes each to the trace, and carries out
the effects in order. Adapters deliver events from other tasks and never touch the core.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, Final

import trio

from ftnode.node.compute.group import ComputeGroup
from ftnode.node.compute.orders import apply_fields
from ftnode.node.driver.copy_trials import CopyTrials
from ftnode.node.driver.core_clock import CoreClock
from ftnode.node.driver.tasks import TaskRunner
from ftnode.node.driver.trace import TraceWriter
from ftnode.node.driver.under_way import Errand, Installing, UnderWay
from ftnode.node.machine.tensor_slots import Arena
from ftnode.node.ports import REASON_TEXT_MAX, ComputeError, DirectoryPort, TransportPort
from ftnode.node.snapshots.liar_book import LiarBook
from ftnode.node.snapshots.order_book import OrderBook
from ftnode.node.snapshots.roll_book import RollBook
from ftnode.node.snapshots.saver import NoSaver, SnapshotSaver
from ftnode.node.watch.own_work import OwnWork
from ftnode.node.watch.status import perplexity_of
from ftnode.node.weights.copies import CopyStore
from ftnode.node.weights.copy_fetching import CopyFetcher
from ftnode.node.weights.donor import Exported, StateDonor
from ftnode.node.weights.installer import Installer, wants_copies
from ftnode.protocol.participant import Participant
from ftnode.protocol.wire.frames import Oversized
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words import events as ev
from ftnode.protocol.words.codec import to_plain
from ftnode.protocol.words.types import LentCopy, Peer, Rung, Version
from ftnode.protocol.words.view import View

log = logging.getLogger(__name__)

EVENTS_MAX: Final = 8192
"""Waiting events; beyond, messages are dropped (they come again), never our own results."""
SLEEP_SECONDS_MAX: Final = 5.0


class Driver:
    """The participant's hands. `run` ends when the core says Stop, and returns its reason."""

    def __init__(
        self,
        participant: Participant,
        transport: TransportPort,
        compute: ComputeGroup,
        directory: DirectoryPort,
        arena: Arena,
        trace: TraceWriter,
        say: Callable[[fx.Note], None],
    ) -> None:
        self.participant = participant
        picture = participant.picture
        self._history, self._last_step = picture.history, picture.settings.steps
        self._leads = False
        self.tensor_senders: frozenset[Peer] | None = None
        """Members of our view, who may send us tensors; None while we are in none, and cannot tell who may."""
        self.members: frozenset[Peer] = frozenset()
        """Of the view that we go by, whether we are in it or not."""
        self.transport, self.compute, self.directory = transport, compute, directory
        self.arena, self.trace, self.say = arena, trace, say
        self.tasks = TaskRunner(arena, compute, self.deliver, self._fail_compute)
        self.installer: Installer | None = None
        self.donor: StateDonor | None = None
        self.copy_fetcher: CopyFetcher | None = None
        self.saver: SnapshotSaver | NoSaver = NoSaver()
        self.rolls: RollBook | None = None
        self.liars: LiarBook | None = None
        self.orders: OrderBook | None = None
        self.show_manifest: Callable[[str], None] = lambda peer_id: None
        self.ask_manifest: Callable[[str], None] = lambda peer_id: None
        """What is done about manifests, by PeerId; set by whoever has them."""
        self.work = OwnWork()
        """What this node does, counted."""
        self.on_last: Callable[[int, Version], None] | None = None
        """Called when a stage has the weights of the run's last step."""
        self.on_liar: Callable[[str], None] = lambda peer_id: None
        """Called when we lead and a peer that others vouched for goes as a liar."""
        self.copies, self.clock = CopyStore(), CoreClock()
        self.copy_trials = CopyTrials(arena, compute, self.copies, self.deliver)
        self._events: deque[ev.Event] = deque()
        self._arrived = trio.Event()
        self._installs: UnderWay[Installing] = UnderWay()
        self._keeps: UnderWay[Errand] = UnderWay()
        """Copies that are fetched."""
        self._evaluated: dict[int, float] = {}
        """What the trace has, of what the core knows: its validations when it had counted `_evaluations`."""
        self._evaluations = 0
        self.saves: tuple[int, ...] = ()
        """What the core wants on the disk before this node ends."""
        self._unsaid = set[str]()
        """Kinds of messages that were too large once."""
        self._stopped = ""
        self._nursery: trio.Nursery | None = None

    def fetch_copies_by(self, fetcher: CopyFetcher) -> None:
        """Copies of others' stages, and samples of these."""
        self.copy_fetcher, self.copy_trials.fetch = fetcher, fetcher.fetch

    # -- events

    def deliver(self, event: ev.Event) -> None:
        """Queue an event for the core."""
        if len(self._events) >= EVENTS_MAX and isinstance(event, ev.Received):
            if event.handle is not None:
                self.arena.release(event.handle)
            self.transport.handled(event)
            return
        self._events.append(event)
        self._arrived.set()

    async def run(self, nursery: trio.Nursery) -> str:
        """Handle events until the core stops."""
        self._nursery = nursery
        while not self._stopped:
            if not self._events:
                pause = self.participant.deadline - self.clock()
                self._arrived = trio.Event()
                with trio.move_on_after(max(0.0, min(pause, SLEEP_SECONDS_MAX))):
                    await self._arrived.wait()
                if not self._events and self.clock() < self.participant.deadline:
                    continue
            await self.clock.going()  # and others get their turn
            self._turn(self._events.popleft() if self._events else ev.Wake())
        return self._stopped

    def _turn(self, event: ev.Event) -> None:
        if self._is_stale(event):
            return
        now = self.clock()
        self.trace.event(now, event, self._is_foreign(event))
        self._record_result(event, now)
        for effect in self.participant.handle(event, now):
            self._perform(effect, now)
        if isinstance(event, ev.History | ev.Installed) and (known := self._history.commits):
            self.trace.record("history", now, count=len(known), last=max(known))
        if self._leads:
            self._record_evaluations(now)
        if isinstance(event, ev.Received):
            self.transport.handled(event)
        self.tasks.resume()

    def _is_foreign(self, event: ev.Event) -> bool:
        """Whether somebody outside of the view can make as many of it, and as large, as it likes."""
        match event:
            case ev.Received(sender=peer) | ev.LinkUp(peer=peer) | ev.LinkDown(peer=peer) | ev.Seen(peer=peer):
                return peer not in self.members
            case _:
                return isinstance(event, ev.Directory)

    def _is_stale(self, event: ev.Event) -> bool:
        """The end of something that was cancelled: of weights that are no more, or a copy that is dropped."""
        if isinstance(event, ev.Installed | ev.InstallFailed):
            return not self._installs.ended_with(event.stage, event)
        return isinstance(event, ev.Kept | ev.KeepFailed) and not self._keeps.ended_with(event.stage, event)

    def _record_result(self, event: ev.Event, now: float) -> None:
        """What the audit needs to know about a result, from the adapter that made it."""
        if isinstance(event, ev.Done) and not event.fault:
            task = event.task
            if isinstance(task, fx.Backward):
                for stage, visit in zip(task.stages, task.visits):
                    self.trace.record(
                        "accumulated", now, stage=stage, step=task.step, attempt=list(task.attempt),
                        microbatch=task.microbatch, visit=visit,
                    )  # fmt: skip
            elif isinstance(task, fx.Reduce):
                covered = self.tasks.covered.pop(task, [])
                self.work.reduced(task.stage, task.step, task.attempt, len(covered))
                self.trace.record(
                    "reduced", now, stage=task.stage, step=task.step, attempt=list(task.attempt),
                    covered=covered, norm_squared=event.value,
                )  # fmt: skip
        elif isinstance(event, ev.Installed):
            self._record_installed(event, now)
        elif isinstance(event, ev.InstallFailed):
            self._installs.heard(event.stage)
        elif isinstance(event, ev.KeepFailed):
            self._keeps.heard(event.stage)
        elif isinstance(event, ev.Kept):
            self._keeps.heard(event.stage)
            self.trace.record(
                "kept", now, stage=event.stage, step=event.version.step, bytes_fetched=event.bytes_fetched,
                seconds=event.seconds,
            )  # fmt: skip

    def _record_installed(self, event: ev.Installed, now: float) -> None:
        install = self._installs.heard(event.stage)
        self.work.installed(install.effect.plan.rung)
        outcome, effect = install.outcome, install.effect
        assert outcome is not None
        self.trace.record(
            "installed", now, stage=event.stage, step=event.base.step, commit=event.base.commit,
            rung=effect.plan.rung.value, reason=effect.plan.reason, copy_step=outcome.copy_step,
            donors=[[donor.stage, list(donor.peer), donor.omega, donor.digest] for donor in outcome.donors],
            digest=event.digest, dump=outcome.dump, bytes_fetched=event.bytes_fetched,
            fetch_seconds=event.fetch_seconds, blend_seconds=event.blend_seconds,
        )  # fmt: skip
        for late in install.applied:
            self._record_applied(late, now)

    def _record_evaluations(self, now: float) -> None:
        """Asked at every event. A step that was done again has another loss, and is written down again."""
        if self._evaluations == self._history.evaluations:
            return
        known = self._history.validation
        for step, loss in known.items():
            if self._evaluated.get(step) != loss:
                self.trace.record("evaluated", now, step=step, loss=loss, perplexity=perplexity_of(loss))
        self._evaluated, self._evaluations = {**known}, self._history.evaluations

    def record_export(self, exported: Exported) -> None:
        self.trace.record("exported", self.clock(), **asdict(exported))

    def lent(self, copy: LentCopy) -> None:
        """A peer gets the last of what it will keep of ours."""
        self.deliver(ev.Lent(copy))

    # -- effects

    def _perform(self, effect: fx.Effect, now: float) -> None:
        match effect:
            case fx.Send():
                self._send(effect)
            case fx.Compute(task):
                self._compute(task)
            case fx.Release(handles):
                for handle in handles:
                    self.arena.release(handle)
            case fx.Dial(peer):
                self.transport.dial(peer)
            case fx.Know(peer, addresses):
                self.transport.know(peer.id, addresses)
            case fx.Apply():
                self._apply(effect, now)
            case fx.Discard(keep):
                self.tasks.discard(keep)
            case fx.Install():
                self._start_install(effect)
            case fx.Keep():
                self._start_keep(effect)
            case fx.TakeCopy(stage):
                self.copies.take(stage)
            case fx.DropCopy(stage):
                self._drop_copy(stage)
            case fx.Forget(stage):
                self._cancel_install(stage)
                if self.tasks.reductions is not None:
                    self.tasks.reductions.give_up(stage)
                self.compute.post("forget", self.tasks.check, stage=stage)
                self.saver.forgotten(stage)
            case fx.RestartCompute(reason):
                self._drop_compute_state()
                self.compute.restart(reason)
            case fx.Announce(presence):
                self.directory.announce(presence)
            case fx.PublishView(view):
                self._publish(view, now)
            case fx.Committed():
                self._record_commit(effect, now)
            case fx.Search():
                self.directory.search()
            case fx.Strike():
                self.transport.strike(effect.peer.id, effect.reason)
            case fx.Expose(peer):
                self.on_liar(peer.id)
            case fx.Note():
                self.trace.note(now, effect)
                self.say(effect)
            case fx.Save(stages):
                self.saves = stages
            case fx.KeepRoll(roll):
                if self.rolls is not None and self._nursery is not None:
                    self._nursery.start_soon(self.rolls.keep, roll)
            case fx.KeepConvicted():
                if self.liars is not None and self._nursery is not None:
                    self._nursery.start_soon(self.liars.keep, effect)
            case fx.KeepOrder(order):
                if self.orders is not None and self._nursery is not None:
                    self._nursery.start_soon(self.orders.keep, order)
            case fx.ShowOrder(peer):
                self.show_manifest(peer.id)
            case fx.AskOrder(peer):
                self.ask_manifest(peer.id)
            case fx.Stop(reason):
                self._stopped = reason

    def _compute(self, task: fx.Task) -> None:
        if isinstance(task, fx.TrialTask) or (isinstance(task, fx.Recount) and task.copy is not None):
            assert self._nursery is not None
            self.copy_trials.start(task, self._nursery)
        else:
            self.tasks.start(task)

    def _send(self, effect: fx.Send) -> None:
        """A message may be lost on its way, and one that does not fit a frame is: others' words are in it, and must not
        end us."""
        try:
            self.transport.send(effect.to, effect.message, effect.handle)
        except Oversized as error:
            kind = type(effect.message).__name__
            if kind not in self._unsaid:
                self._unsaid.add(kind)
                log.error("%s cannot be told a message, and nobody one of this kind and size: %s", effect.to, error)

    def _apply(self, effect: fx.Apply, now: float) -> None:
        install = self._installs.get(effect.stage)
        if install is not None and install.end is None:
            self._shelve(install, effect)
            return
        if install is None:
            self._record_applied(effect, now)
        elif isinstance(install.end, ev.InstallFailed):
            return  # there is nothing to update, as the core is about to hear
        else:
            install.applied.append(effect)

        def applied(answer: dict[str, Any] | ComputeError) -> None:
            self.tasks.check(answer)
            if not isinstance(answer, ComputeError) and answer["digest"]:
                self._record_hash(effect, str(answer["digest"]))
            if self.donor is not None:
                self.donor.advanced()
            if self.on_last is not None and effect.version.step == self._last_step:
                self.on_last(effect.stage, effect.version)

        self.compute.post("apply", applied, **apply_fields(effect))
        self.saver.applied(effect.stage, effect.version)

    def _record_applied(self, effect: fx.Apply, now: float) -> None:
        if not effect.skipped:
            self.work.applied(effect.stage, effect.version)
        self.trace.record("applied", now, **apply_fields(effect))

    def _record_hash(self, effect: fx.Apply, digest: str) -> None:
        version = effect.version
        self.trace.record(
            "hashed", self.clock(), stage=effect.stage, step=version.step, commit=version.commit, digest=digest
        )  # fmt: skip

    def _shelve(self, install: Installing, effect: fx.Apply) -> None:
        """The stage is not here yet. Compute keeps the gradient, whatever becomes of its attempt."""

        def shelved(answer: dict[str, Any] | ComputeError) -> None:
            if isinstance(answer, ComputeError) and answer.kind != "lost":
                self._fail_install(install, f"step {effect.version.step} cannot wait for it: {answer.reason}")

        install.wait(effect)
        if not effect.skipped:
            self.compute.post("shelve", shelved, stage=effect.stage, attempt=list(effect.attempt))

    def _publish(self, view: View | None, now: float) -> None:
        if view is not None:
            self.trace.record("view", now, view=to_plain(view))
        self.directory.publish_view(view)
        picture = self.participant.picture  # whoever takes a view up, or gives it up, says so by this effect
        self._leads = picture.leads
        self.members = picture.members
        self.tensor_senders = picture.members if picture.member else None

    def _record_commit(self, effect: fx.Committed, now: float) -> None:
        version, commit = effect.version, effect.commit
        self.trace.record(
            "commit", now, lineage=effect.lineage, step=version.step, commit=version.commit,
            attempt=list(version.attempt), skipped=effect.skipped, loss=commit.loss, tokens=commit.tokens,
            seconds=commit.seconds, norms=list(commit.norms),
        )  # fmt: skip

    # -- compute and installs

    def _fail_compute(self, reason: str) -> None:
        """A command failed in a way that leaves compute's state unknown: start it anew and tell the core."""
        self.compute.restart(reason)
        self.compute_lost(reason)

    def stage_lost(self, stage: int, reason: str, out_of_memory: bool) -> None:
        """What compute had of one stage is gone. The core's Forget drops what the node still has of it."""
        self.deliver(ev.StageLost(stage, reason[:REASON_TEXT_MAX], out_of_memory))

    def compute_lost(self, reason: str) -> None:
        """The process ended by itself."""
        self._drop_compute_state()
        self.deliver(ev.ComputeLost(reason[:REASON_TEXT_MAX]))

    def _drop_compute_state(self) -> None:
        self.tasks.drop_waiting(None)
        if self.tasks.reductions is not None:
            self.tasks.reductions.lost()
        for stage in self._installs.stages():
            self._cancel_install(stage)

    def _start_install(self, effect: fx.Install) -> None:
        assert self._nursery is not None
        stage = effect.plan.stage
        self._cancel_install(stage)
        plan, base = effect.plan, effect.base
        self.trace.record(
            "installing", self.clock(), stage=stage, step=base.step, commit=base.commit, rung=plan.rung.value,
            donors=[[donor.stage, list(donor.peer)] for donor in plan.donors],
            copies=wants_copies(plan),
        )  # fmt: skip
        for donor in plan.donors:
            self.transport.know(donor.peer.id, donor.contact)
        install = Installing(stage, effect=effect)
        self._installs.begin(install)
        self._nursery.start_soon(self._install, install)

    def _cancel_install(self, stage: int) -> None:
        """Also when it has just ended: a result that the core has not seen is of weights that are no more."""
        install = self._installs.cancel(stage)
        if install is not None:
            self._unshelve(install)

    def _unshelve(self, install: Installing) -> None:
        """Nothing will be applied on top of it."""
        if install.waiting:
            install.waiting.clear()
            self.compute.post("unshelve", self.tasks.check, stage=install.stage)

    def _fail_install(self, install: Installing, reason: str) -> None:
        """It cannot come to a good end, whatever its donors do."""
        if not self._installs.goes_on(install):
            return
        install.scope.cancel()
        self._unshelve(install)
        self.compute.post("forget", self.tasks.check, stage=install.stage)
        install.end = ev.InstallFailed(install.stage, install.effect.base, None, reason[:REASON_TEXT_MAX])
        self.deliver(install.end)

    async def _install(self, install: Installing) -> None:
        assert self.installer is not None
        with install.scope:
            outcome = await self.installer.install(install.effect)
            if isinstance(outcome.event, ev.Installed):
                try:
                    await self._catch_up(install)
                except ComputeError as error:
                    self._fail_install(install, str(error))
            if self._installs.goes_on(install):
                self._unshelve(install)
                end = outcome.event
                if isinstance(end, ev.Installed):
                    end = replace(end, place=self.compute.place_of(end.stage))
                install.outcome, install.end = outcome, end
                if self.donor is not None and install.effect.plan.rung is not Rung.INITIAL:
                    self.donor.advanced()
                for event in (*outcome.history, end):
                    self.deliver(event)

    async def _catch_up(self, install: Installing) -> None:
        """Apply the commits that waited for the weights."""
        while self._installs.goes_on(install) and install.waiting:
            late = install.waiting.popleft()
            await self.compute.call("apply", **apply_fields(late))
            self.saver.applied(install.stage, late.version)
            install.applied.append(late)

    # -- copies

    def _start_keep(self, effect: fx.Keep) -> None:
        assert self._nursery is not None
        stage = effect.donor.stage
        self._keeps.cancel(stage)
        self.copies.fetched.pop(stage, None)
        self.transport.know(effect.donor.peer.id, effect.donor.contact)
        keep = Errand(stage)
        self._keeps.begin(keep)
        self._nursery.start_soon(self._keep, effect, keep)

    def _drop_copy(self, stage: int) -> None:
        """With the word of it that the core has not heard."""
        self._keeps.cancel(stage)
        self.copies.drop(stage)

    async def _keep(self, effect: fx.Keep, keep: Errand) -> None:
        assert self.copy_fetcher is not None
        with keep.scope:
            fetched = await self.copy_fetcher.fetch(effect)
            if self._keeps.goes_on(keep):
                keep.end = fetched.event
                if fetched.copy is not None:
                    self.copies.fetched[keep.stage] = fetched.copy
                for event in (*fetched.history, fetched.event):
                    self.deliver(event)
