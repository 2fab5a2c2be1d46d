"""Turns what happens into events for the core, and what the core wants into calls of the adapters.

One task, `Driver.run`, owns the participant: it takes events one at a time, writes each to the trace, and carries out
the effects in order. Adapters deliver events from other tasks and never touch the core.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

import trio

from ftnode.node.arena import Arena
from ftnode.node.compute import ComputeProcess
from ftnode.node.compute_orders import apply_fields
from ftnode.node.copies import Copies
from ftnode.node.core_clock import CoreClock
from ftnode.node.keeper import Keeper
from ftnode.node.ports import REASON_TEXT_MAX, ComputeError, DirectoryPort, TransportPort
from ftnode.node.shelf import SHELVED_MAX, Shelf
from ftnode.node.snapshots_save import NoSaver, SnapshotSaver
from ftnode.node.state_donor import Exported, StateDonor
from ftnode.node.state_transfer import Installer, Outcome, wants_copies
from ftnode.node.status import perplexity_of
from ftnode.node.task_runner import TaskRunner
from ftnode.node.trace import TraceWriter
from ftnode.protocol import effects as fx
from ftnode.protocol import events as ev
from ftnode.protocol.codec import to_plain
from ftnode.protocol.messages import Boundary
from ftnode.protocol.participant import Participant
from ftnode.protocol.types import Rung, Version
from ftnode.protocol.view import View

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
        compute: ComputeProcess,
        directory: DirectoryPort,
        arena: Arena,
        trace: TraceWriter,
        say: Callable[[fx.Note], None],
    ) -> None:
        self.participant = participant
        self.transport, self.compute, self.directory = transport, compute, directory
        self.arena, self.trace, self.say = arena, trace, say
        self.tasks = TaskRunner(arena, compute, self.deliver, self._fail_compute)
        self.installer: Installer | None = None
        self.donor: StateDonor | None = None
        self.keeper: Keeper | None = None
        self.saver: SnapshotSaver | NoSaver = NoSaver()
        self.on_last: Callable[[int, Version], None] | None = None
        """Called when a stage has the weights of the run's last step."""
        self.copies, self.clock = Copies(), CoreClock()
        self._events: deque[ev.Event] = deque()
        self._arrived = trio.Event()
        self._installs: dict[int, trio.CancelScope] = {}
        self._shelf = Shelf()
        self._outcomes: dict[int, tuple[Outcome, fx.Install, list[fx.Apply]]] = {}
        """Of installations whose event waits in the queue, with the commits that were carried out behind them."""
        self._keeps: dict[int, trio.CancelScope] = {}
        """Copies under way, by stage."""
        self._evaluated: set[int] = set()
        self._stopped = ""
        self._nursery: trio.Nursery | None = None

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
        now = self.clock()
        self.trace.event(now, event)
        self._record_result(event, now)
        if isinstance(event, ev.Received) and isinstance(event.message, Boundary) and event.handle is not None:
            self.tasks.own(event.handle, event.message.attempt)
        for effect in self.participant.handle(event, now):
            self._perform(effect, now)
        if isinstance(event, ev.History | ev.Installed) and (known := self.participant.chronicle.commits):
            self.trace.record("history", now, count=len(known), last=max(known))
        if self.participant.leader is not None:
            self._record_evaluations(now)
        if isinstance(event, ev.Received):
            self.transport.handled(event)
        self.tasks.resume()

    def _record_result(self, event: ev.Event, now: float) -> None:
        """What the audit needs to know about a result, from the adapter that made it."""
        if isinstance(event, ev.Done) and not event.fault:
            task = event.task
            if isinstance(task, fx.Backward):
                self.trace.record(
                    "accumulated", now, stage=task.stage, step=task.step, attempt=list(task.attempt),
                    microbatch=task.microbatch, visit=task.visit,
                )  # fmt: skip
            elif isinstance(task, fx.Reduce):
                self.trace.record(
                    "reduced", now, stage=task.stage, step=task.step, attempt=list(task.attempt),
                    covered=self.tasks.covered.pop(task, []), norm_squared=event.value,
                )  # fmt: skip
        elif isinstance(event, ev.Installed):
            self._record_installed(event, now)
        elif isinstance(event, ev.InstallFailed):
            self._outcomes.pop(event.stage, None)
        elif isinstance(event, ev.Kept):
            self.trace.record(
                "kept", now, stage=event.stage, step=event.version.step, bytes_fetched=event.bytes_fetched,
                seconds=event.seconds,
            )  # fmt: skip

    def _record_installed(self, event: ev.Installed, now: float) -> None:
        outcome, effect, applied = self._outcomes.pop(event.stage)
        self.trace.record(
            "installed", now, stage=event.stage, step=event.base.step, commit=event.base.commit,
            rung=effect.plan.rung.value, reason=effect.plan.reason, copy_step=outcome.copy_step,
            donors=[[donor.stage, list(donor.peer), donor.omega, donor.digest] for donor in outcome.donors],
            digest=event.digest, dump=outcome.dump, bytes_fetched=event.bytes_fetched,
            fetch_seconds=event.fetch_seconds, blend_seconds=event.blend_seconds,
        )  # fmt: skip
        for late in applied:
            self._record_applied(late, now)

    def _record_evaluations(self, now: float) -> None:
        for step in self.participant.chronicle.validation.keys() - self._evaluated:
            self._evaluated.add(step)
            loss = self.participant.chronicle.validation[step]
            self.trace.record("evaluated", now, step=step, loss=loss, perplexity=perplexity_of(loss))

    def record_export(self, exported: Exported) -> None:
        self.trace.record("exported", self.clock(), **asdict(exported))

    # -- effects

    def _perform(self, effect: fx.Effect, now: float) -> None:
        match effect:
            case fx.Send(to, message, handle):
                self.transport.send(to, message, handle)
            case fx.Compute(task):
                self.tasks.start(task)
            case fx.Release(handles):
                self.tasks.release(handles)
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
            case fx.Note():
                self.trace.note(now, effect)
                self.say(effect)
            case fx.Stop(reason):
                self._stopped = reason

    def _apply(self, effect: fx.Apply, now: float) -> None:
        if effect.stage in self._installs:
            self._shelve(effect)
            return
        outcome, _, late = self._outcomes.get(effect.stage, (None, None, []))
        if outcome is not None and isinstance(outcome.event, ev.InstallFailed):
            return  # there is nothing to update, as the core is about to hear
        if outcome is not None:
            late.append(effect)
        else:
            self._record_applied(effect, now)

        def applied(answer: dict[str, Any] | ComputeError) -> None:
            self.tasks.check(answer)
            if not isinstance(answer, ComputeError) and answer["digest"]:
                self._record_hash(effect, str(answer["digest"]))
            if self.donor is not None:
                self.donor.advanced()
            if self.on_last is not None and effect.version.step == self.participant.settings.steps:
                self.on_last(effect.stage, effect.version)

        self.compute.post("apply", applied, **apply_fields(effect))
        self.saver.applied(effect.stage, effect.version)

    def _record_applied(self, effect: fx.Apply, now: float) -> None:
        self.trace.record("applied", now, **apply_fields(effect))

    def _record_hash(self, effect: fx.Apply, digest: str) -> None:
        version = effect.version
        self.trace.record(
            "hashed", self.clock(), stage=effect.stage, step=version.step, commit=version.commit, digest=digest
        )  # fmt: skip

    def _shelve(self, effect: fx.Apply) -> None:
        """The stage is not here yet. Compute keeps the gradient, whatever becomes of its attempt."""

        def shelved(answer: dict[str, Any] | ComputeError) -> None:
            if isinstance(answer, ComputeError) and answer.kind != "lost":
                self._fail_install(effect.stage, f"step {effect.version.step} cannot wait for it: {answer.reason}")

        if not self._shelf.put(effect):
            self._fail_install(effect.stage, f"{SHELVED_MAX} steps were committed before it was here")
        elif not effect.skipped:
            self.compute.post("shelve", shelved, stage=effect.stage, attempt=list(effect.attempt))

    def _publish(self, view: View | None, now: float) -> None:
        if view is not None:
            self.trace.record("view", now, view=to_plain(view))
        self.directory.publish_view(view)

    def _record_commit(self, effect: fx.Committed, now: float) -> None:
        version, commit = effect.version, effect.commit
        self.trace.record(
            "commit", now, lineage=effect.lineage, step=version.step, commit=version.commit,
            attempt=list(version.attempt), skipped=effect.skipped, loss=commit.loss, tokens=commit.tokens,
            seconds=commit.seconds, norms=list(commit.norms),
        )  # fmt: skip

    # -- compute and installs

    def _fail_compute(self, reason: str, out_of_memory_stage: int) -> None:
        """A command failed in a way that leaves compute's state unknown: start it anew and tell the core."""
        self.compute.restart(reason)
        self.compute_lost(reason, out_of_memory_stage)

    def compute_lost(self, reason: str, out_of_memory_stage: int) -> None:
        """The process ended by itself."""
        self._drop_compute_state()
        self.deliver(ev.ComputeLost(reason[:REASON_TEXT_MAX], out_of_memory_stage))

    def _drop_compute_state(self) -> None:
        self.tasks.drop_waiting(None)
        if self.tasks.reductions is not None:
            self.tasks.reductions.lost()
        for stage in self._installs.keys() | self._outcomes.keys():
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
        scope = trio.CancelScope()
        self._installs[stage] = scope
        self._shelf.begin(effect)
        self._nursery.start_soon(self._install, effect, scope)

    def _cancel_install(self, stage: int) -> None:
        """Also when it has just ended: a result that the core has not seen is of weights that are no more."""
        scope = self._installs.pop(stage, None)
        self._clear_shelf(stage)
        if scope is not None:
            scope.cancel()
        finished = self._outcomes.pop(stage, None)
        if finished is not None:
            stale = finished[0].event
            self._events = deque(event for event in self._events if event is not stale)

    def _clear_shelf(self, stage: int) -> None:
        if self._shelf.end(stage):
            self.compute.post("unshelve", self.tasks.check, stage=stage)

    def _fail_install(self, stage: int, reason: str) -> None:
        """It cannot come to a good end, whatever its donors do."""
        if stage not in self._installs:
            return
        effect = self._shelf.install(stage)
        self._cancel_install(stage)
        self.compute.post("forget", self.tasks.check, stage=stage)
        failed = ev.InstallFailed(stage, effect.base, None, reason[:REASON_TEXT_MAX])
        self._outcomes[stage] = Outcome(failed), effect, []
        self.deliver(failed)

    async def _install(self, effect: fx.Install, scope: trio.CancelScope) -> None:
        assert self.installer is not None
        stage = effect.plan.stage
        with scope:
            outcome = await self.installer.install(effect)
            applied: list[fx.Apply] = []
            if isinstance(outcome.event, ev.Installed):
                try:  # a cancellation may reach us later than what took our place
                    while self._installs.get(stage) is scope and (late := self._shelf.next(stage)) is not None:
                        await self.compute.call("apply", **apply_fields(late))
                        self.saver.applied(stage, late.version)
                        applied.append(late)
                except ComputeError as error:
                    if self._installs.get(stage) is scope:
                        self._fail_install(stage, str(error))
                    return
            if self._installs.get(stage) is scope:
                del self._installs[stage]
                self._clear_shelf(stage)
                self._outcomes[stage] = outcome, effect, applied
                if self.donor is not None and effect.plan.rung is not Rung.INITIAL:
                    self.donor.advanced()
                for event in (*outcome.history, outcome.event):
                    self.deliver(event)

    # -- copies

    def _start_keep(self, effect: fx.Keep) -> None:
        assert self._nursery is not None
        stage = effect.donor.stage
        self._cancel_keep(stage)
        self.transport.know(effect.donor.peer.id, effect.donor.contact)
        self._keeps[stage] = scope = trio.CancelScope()
        self._nursery.start_soon(self._keep, effect, scope)

    def _cancel_keep(self, stage: int) -> None:
        scope = self._keeps.pop(stage, None)
        if scope is not None:
            scope.cancel()

    def _drop_copy(self, stage: int) -> None:
        """With the word of it that the core has not heard."""
        self._cancel_keep(stage)
        self.copies.held.pop(stage, None)
        self._events = deque(
            event for event in self._events if not (isinstance(event, ev.Kept | ev.KeepFailed) and event.stage == stage)
        )

    async def _keep(self, effect: fx.Keep, scope: trio.CancelScope) -> None:
        assert self.keeper is not None
        stage = effect.donor.stage
        with scope:
            fetched = await self.keeper.fetch(effect)
            if self._keeps.get(stage) is scope:
                del self._keeps[stage]
                if fetched.copy is not None:
                    self.copies.held[stage] = fetched.copy
                for event in (*fetched.history, fetched.event):
                    self.deliver(event)
