"""Heartbeats, suspicions and the voter's part in a poll (rules 8, 9, 14)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftnode.protocol.effects import Dial
from ftnode.protocol.liveness import Errand
from ftnode.protocol.messages import Heartbeat, Poll, PollReply, StageReport, Suspect
from ftnode.protocol.paths import neighbours
from ftnode.protocol.presence import state_of
from ftnode.protocol.types import Peer
from ftnode.protocol.view import View

if TYPE_CHECKING:
    from collections.abc import Collection

    from ftnode.protocol.participant import Participant

ALL_TO_ALL_MAX = 16
"""Up to so many members everybody sends heartbeats to everybody; beyond, to leader, two voters and neighbours."""


def beats_to(view: View, peer: Peer, swap: bool) -> frozenset[Peer]:
    """To whom a member sends its heartbeats, so who may suspect it of silence."""
    members = view.members()
    if len(members) <= ALL_TO_ALL_MAX or peer == view.leader:
        return frozenset(members) - {peer}
    near = {other for stage in view.stages_of(peer) for other in neighbours(view, stage, swap)}
    return frozenset({view.leader, *view.voters[:2], *near}) - {peer}


class Watch:
    """What this peer sends to be known alive, and what it does about those who are not."""

    def __init__(self, core: Participant) -> None:
        self.core = core
        self._view: View | None = None
        self._targets: tuple[Peer, ...] = ()
        self._watched: tuple[Peer, ...] = ()

    def _look_up(self) -> None:
        view, me = self.core.view, self.core.me
        if view is not None and view is not self._view:
            self._view = view
            swap = self.core.settings.swap
            self._targets = tuple(sorted(beats_to(view, me, swap))) if self.core.member else ()
            others = [peer for peer in view.members() if peer != me and self.core.member]
            self._watched = tuple(sorted(peer for peer in others if me in beats_to(view, peer, swap)))

    # -- heartbeats

    def heartbeat(self, wants_reply: bool) -> Heartbeat:
        core = self.core
        view, holder, leading = core.view, core.holder, core.leader is not None
        reports = tuple(
            StageReport(
                stage,
                state_of(core, stage),
                holder.applied(stage),
                len(holder.work.accumulated_of(stage)) if holder.work is not None else 0,
                holder.work.queue_length(stage) if holder.work is not None else 0,
                holder.installs.fetched.get(stage, 0),
                holder.pace.seconds(stage),
            )
            for stage in (*core.mine, *holder.learning)
        )
        newest = max(core.chronicle.validation, default=None)
        return Heartbeat(
            lineage=view.lineage.id if view is not None else "",
            view=view.number if view is not None else -1,
            quorate=core.follow.quorate and core.member,
            step=holder.begin.step if holder.begin is not None else 0,
            stages=reports,
            busy_seconds=holder.busy_seconds(),
            wants_reply=wants_reply,
            commits=core.chronicle.newest_commits() if leading else (),
            validation=((newest, core.chronicle.validation[newest]),) if leading and newest is not None else (),
            waiting=core.waiting(),
            copies=holder.copies.told(),
        )

    def beat(self) -> None:
        core, view = self.core, self.core.view
        self._look_up()
        waiting = core.waiting()
        if waiting:
            core.note("waiting", waiting if waiting.startswith("halted") else f"waits for {waiting}")
        if core.member:
            heartbeat = self.heartbeat(False)
            for peer in self._targets:
                core.send(peer, heartbeat)
            self._suspect_silent()
        elif view is not None:
            if view.leader in core.liveness.alive(core.members, core.now):
                core.send(view.leader, self.heartbeat(True))
            else:
                self.ask(view.members())

    def ask(self, peers: Collection[Peer]) -> None:
        """Is anybody of them there? Those first whose addresses have not refused us yet."""
        core, heartbeat = self.core, self.heartbeat(True)
        others = sorted({*peers} - {core.me}, key=lambda peer: (peer in core.liveness.refused, peer))
        for peer in others[:ALL_TO_ALL_MAX]:
            core.send(peer, heartbeat)

    def paces(self) -> dict[tuple[Peer, int], float]:
        """(peer, stage) → seconds that a microbatch takes there, by the holders' own word, and our own."""
        core = self.core
        told = {(peer, r.stage): r.seconds for peer, report in core.reports.items() for r in report.stages}
        told |= {(core.me, stage): core.holder.pace.seconds(stage) for stage in core.mine}
        return {place: seconds for place, seconds in told.items() if seconds > 0}

    def greet(self, peer: Peer) -> None:
        """A new link: say where we stand at once, so that whoever is behind learns of it."""
        self.core.send(peer, self.heartbeat(False))

    def on_heartbeat(self, sender: Peer, heartbeat: Heartbeat) -> None:
        core = self.core
        if sender in core.members:
            core.reports[sender] = heartbeat
        if core.leader is not None:
            core.leader.on_heartbeat(sender, heartbeat)
        begin, view = core.holder.begin, core.view
        leads = view is not None and sender == view.leader
        if begin is not None and leads and heartbeat.step == begin.step:
            core.holder.named_at = core.now
        core.follow.on_heartbeat(sender, heartbeat)
        here = leads and core.member and core.of_this_view(heartbeat.lineage, heartbeat.view)
        if begin is not None and here and begin.view == heartbeat.view and heartbeat.step < begin.step:
            core.holder.send_status()  # it has come back to a view that it led, and forgotten the Begin
        if heartbeat.wants_reply:
            core.send(sender, self.heartbeat(False))

    # -- suspicion

    def _suspect_silent(self) -> None:
        core, view = self.core, self.core.view
        assert view is not None
        patience = 2 * core.settings.heartbeat_seconds
        for peer in self._watched:
            since = core.liveness.down.get(peer)
            if core.liveness.silent(peer, core.now):
                how = "its address refuses" if peer in core.liveness.refused else "it is silent"
                self.suspect(peer, "silent", f"{how} for {core.liveness.silence(peer, core.now):.1f} s")
            elif since is not None:
                core.emit(Dial(peer))
                if core.now - since > patience:
                    self.suspect(peer, "broken", f"the link is broken for {core.now - since:.1f} s")

    def suspect(self, peer: Peer, kind: str, detail: str) -> None:
        core, view = self.core, self.core.view
        assert view is not None
        if peer != view.leader:
            core.send(view.leader, Suspect(view.lineage.id, view.number, peer, kind, detail))

    def on_link_down(self, peer: Peer, refused: bool, reason: str) -> None:
        """A broken link to a member is dialled at once; one that is refused makes it a suspect at once."""
        core = self.core
        errand = core.errands.get(peer)
        if refused and errand is not None:
            del core.errands[peer]
            self.answer(errand, heard=False)
        if not core.member or peer not in core.members:
            return
        if refused:
            self.suspect(peer, "silent", reason)
        else:
            core.emit(Dial(peer))

    # -- polls

    def on_poll(self, sender: Peer, poll: Poll) -> None:
        """Ping the suspect and listen; the leader hears what we hear."""
        core = self.core
        if not core.of_this_view(poll.lineage, poll.view) or core.view is None or sender != core.view.leader:
            return
        if poll.peer not in core.members:
            return
        deadline = core.now + core.settings.poll_seconds
        errand = Errand(poll.number, sender, poll.peer, core.now, deadline)
        if poll.peer == core.me:
            self.answer(errand, heard=True)
            return
        if poll.peer in core.liveness.refused:
            self.answer(errand, heard=False)
            return
        core.errands[poll.peer] = errand
        core.send(poll.peer, self.heartbeat(True))
        core.timers.set_if_clear("errand", deadline)

    def answer(self, errand: Errand, heard: bool) -> None:
        core, view = self.core, self.core.view
        if view is None:
            return
        refused = errand.peer in core.liveness.refused
        reply = PollReply(view.lineage.id, view.number, errand.number, errand.peer, heard, refused)
        core.send(errand.leader, reply)

    def errands_due(self) -> None:
        core = self.core
        for errand in list(core.errands.values()):
            if core.now >= errand.deadline:
                del core.errands[errand.peer]
                self.answer(errand, heard=False)
        if core.errands:
            core.timers.set("errand", min(errand.deadline for errand in core.errands.values()))
