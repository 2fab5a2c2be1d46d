"""One volunteer's decisions: the only door through which the core's state changes is `Participant.handle`.

Theory of operation
-------------------
A participant is always in one of four situations, told apart by `view` and `member`:

  alone      no view known. It looks into the directory, and founds the run if nobody else does (genesis).
  standby    knows the view, is not in it. It follows the leader and answers offers.
  member     is in the view. It reports to the leader, works on the step that the leader began, watches the others.
  leader     a member with a second role (leader.py).

  alone ──certificate──▶ standby ──offer, view──▶ member ──removed, yields──▶ standby
    └──founds──────────────────────────────────────▲

Messages of another view or attempt are not errors: the lower side is sent the certificate, early tensors are kept
until their Begin arrives, late ones are dropped. Everything is sent again until it is answered, so any message may be
lost, doubled or late. Rules are those of docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any, Final

from ftnode.protocol import effects as fx
from ftnode.protocol import events as ev
from ftnode.protocol import messages as ms
from ftnode.protocol import strangers
from ftnode.protocol.admission import objection
from ftnode.protocol.candidate import Candidate
from ftnode.protocol.chronicle import Chronicle
from ftnode.protocol.departing import Departing
from ftnode.protocol.election import Election
from ftnode.protocol.follow import Follow
from ftnode.protocol.holder import Holder
from ftnode.protocol.leader import Leader
from ftnode.protocol.liveness import Errand, Liveness
from ftnode.protocol.memory import Memory
from ftnode.protocol.presence import move, presence_of, waiting_for
from ftnode.protocol.rank import told_step
from ftnode.protocol.records import Presence
from ftnode.protocol.settings import Settings
from ftnode.protocol.snapshots import Disk
from ftnode.protocol.timers import Timers
from ftnode.protocol.types import Handle, Peer
from ftnode.protocol.view import View
from ftnode.protocol.watchers import Watch

NOTES_KEPT = 256


class Participant:
    """The pure core of one node. `chance` and every `now` come from outside; see handle."""

    def __init__(
        self, me: Peer, settings: Settings, chance: Random, *, addresses: tuple[str, ...] = (), hold: int = 1
    ) -> None:
        self.me, self.settings, self.chance, self.addresses, self.hold = me, settings, chance, addresses, hold
        self.now = 0.0
        self.view: View | None = None
        self.members: frozenset[Peer] = frozenset()
        self.mine: tuple[int, ...] = ()
        self.timers = Timers()
        self.liveness = Liveness(settings.lease_seconds, 0.0)
        self.balloting: Any = None
        self.leader: Leader | None = None
        self.memory = Memory()
        self.contacts: dict[Peer, tuple[str, ...]] = {me: addresses}
        self.presences: dict[Peer, Presence] = {}
        self.reports: dict[Peer, ms.Heartbeat] = {}
        self.chronicle = Chronicle()
        self.errands: dict[Peer, Errand] = {}
        self.holder = Holder(self)
        self.candidate = Candidate(self)
        self.election = Election(self)
        self.follow = Follow(self)
        self.watch = Watch(self)
        self.departing = Departing(self)
        self.leaving, self.disk = "", Disk()
        self._started, self._out = False, list[fx.Effect]()
        self._to_self: list[tuple[ms.Message, Handle | None]] = []
        self._last_notes: dict[str, str] = {}
        self._announced: Presence | None = None
        self.presence_changed = True
        """What we announce may be different; looked at after every event but messages and results, and every beat."""

    # -- the door

    @property
    def deadline(self) -> float:
        """When it next wants a Wake."""
        return self.timers.deadline

    def handle(self, event: ev.Event, now: float) -> list[fx.Effect]:
        """Take one event at time `now` (seconds, never going back) and return what is to be done, in order."""
        self._out = []
        self.now = now
        if not self._started:
            self._start()
        if self.liveness.woke(now, self.deadline):
            self.follow.on_blocked()
        if isinstance(event, ev.Received):
            self._receive(event.sender, event.message, event.handle)
        else:
            self.presence_changed = self.presence_changed or not isinstance(event, ev.Done)
            _EVENTS[type(event)](self, event)
        self._finish()
        if now >= self.timers.deadline:
            for name in self.timers.expired(now):
                _TIMERS[name](self)
                self._finish()
        if self.presence_changed:
            self._announce()
        return self._out

    def _finish(self) -> None:
        """Deliver what we told ourselves, and let every role move on until nothing changes."""
        for _ in range(1000):
            self.holder.advance()
            if self.leader is not None:
                self.leader.advance()
            if not self._to_self:
                return
            pending, self._to_self = self._to_self, []
            for message, handle in pending:
                self._receive(self.me, message, handle)
        raise AssertionError("messages to self do not end")

    def _start(self) -> None:
        self._started = True
        self.liveness = Liveness(self.settings.lease_seconds, self.now)
        self.timers.set("beat", self.now + self.settings.heartbeat_seconds * self.chance.random())
        self.timers.set("search", self.now)
        self.follow.started()

    # -- what roles use

    def emit(self, effect: fx.Effect) -> None:
        self._out.append(effect)

    def send(self, to: Peer, message: ms.Message, handle: Handle | None = None) -> None:
        if to == self.me:
            self._to_self.append((message, handle))
        else:
            self._out.append(fx.Send(to, message, handle))

    def route(self, effects: Iterable[fx.Effect]) -> None:
        """Emit effects made by a pure part; what it sends to us comes back as a message."""
        for effect in effects:
            if isinstance(effect, fx.Send):
                self.send(effect.to, effect.message, effect.handle)
            else:
                self._out.append(effect)

    def note(self, kind: str, text: str, **fields: str) -> None:
        """A decision and its reason; repeated only when it changes."""
        subject = kind + fields.get("peer", "") + fields.get("stages", "")
        if self._last_notes.get(subject) != text or kind in ("lost", "offer", "answer", "stand", "rebuilt"):
            if len(self._last_notes) > NOTES_KEPT:
                self._last_notes.clear()
            self._last_notes[subject] = text
            self._out.append(fx.Note(kind, text, tuple(fields.items())))

    def know(self, peer: Peer, addresses: tuple[str, ...]) -> None:
        strangers.know(self, peer, addresses)

    def highest_step(self) -> int:
        """The highest committed step that we know of."""
        begun = self.holder.begin.base.step if self.holder.begin is not None else 0
        held = max((version.step for version in self.holder.ours.values()), default=0)
        return max(begun, held, self.chronicle.newest_step)

    @property
    def member(self) -> bool:
        return self.me in self.members

    @property
    def room(self) -> int:
        """How many more stages we would hold."""
        if self.leaving or not self.holder.compute_ready:
            return 0
        return max(0, min(self.hold, self.holder.capacity) - len(self.mine))

    # -- views

    def install(self, view: View) -> None:
        """Take up a chosen view: ours or, as a standby, the one to follow."""
        old, self.view, ours = self.view, view, self.follow.outside.shares_past(view)
        self.presence_changed = True
        self.members = frozenset(view.members())
        was, self.mine = self.mine, view.stages_of(self.me)
        self.balloting = self.election.balloting_of(view)
        self.errands.clear()
        for name in ("poll", "offer", "join"):
            self.timers.clear(name)
        self.leader = Leader(self, view, self.memory) if view.leader == self.me else None
        self.reports = {peer: report for peer, report in self.reports.items() if peer in self.members}
        strangers.forget(self)
        same = old is not None and old.lineage == view.lineage
        forked = old is not None and not same and (view.previous == old.digest() or ours)
        self.note("view", f"view {view.number} of {view.lineage.id[:6]}: {view.reason}", view=str(view.number))
        self.follow.on_view(old if same else None, view, forked)
        if self.leaving and (not self.member or self.members == {self.me}):
            self.departing.on_view(old is not None and old.leader == self.me)
        self.holder.on_view(view, was, forked)
        self.chronicle.view(view)
        self.emit(fx.PublishView(view))
        if self.leader is not None:
            self.emit(fx.Search("leads a new view"))

    def certificate(self) -> ms.Certificate:
        assert self.view is not None
        known = tuple(ms.Contact(peer, self.contacts.get(peer, ())) for peer in self.view.members())
        return ms.Certificate(self.view, self.follow.vouches, known, told_step(self))

    # -- events

    def _receive(self, sender: Peer, message: ms.Message, handle: Handle | None) -> None:
        if sender != self.me:
            reason = objection(sender, message, self.view, self.settings)
            if reason:
                self.note("nonsense", f"{sender} sends {reason}", peer=sender.id)
                self.emit(fx.Strike(sender, reason))
                if handle is not None:
                    self._out.append(fx.Release((handle,)))
                return
            self.liveness.on_message(sender, ms.lineage_of(message), self.now)
            if sender in self.errands:
                self.watch.answer(self.errands.pop(sender), heard=True)
        if isinstance(message, ms.Boundary):
            assert handle is not None
            self.holder.on_boundary(sender, message, handle)
            return
        _MESSAGES[type(message)](self, sender, message)

    def _on_link_up(self, event: ev.LinkUp) -> None:
        self.liveness.on_link_up(event.peer, self.now)
        self.holder.on_link_up(event.peer)
        self.candidate.on_link_up(event.peer)
        if self.view is not None and (event.peer in self.members or not self.member):
            self.watch.greet(event.peer)

    def _on_link_down(self, event: ev.LinkDown) -> None:
        self.liveness.on_link_down(event.peer, event.refused, self.now)
        self.candidate.on_link_down(event.peer, event.reason)
        self.watch.on_link_down(event.peer, event.refused, event.reason)
        if self.leader is not None:
            self.leader.recruiting.on_candidate_lost(event.peer)

    def _on_directory(self, event: ev.Directory) -> None:
        event = strangers.sensible_part(self, event)
        self.presences = {presence.peer: presence for presence in event.presences if presence.peer != self.me}
        for presence in event.presences:
            self.know(presence.peer, presence.addresses)
        if self.leader is not None:
            self.leader.recruiting.forget_tries()
        self.follow.on_directory(event)

    # -- messages of views

    def of_this_view(self, lineage: str, number: int) -> bool:
        return self.view is not None and self.view.lineage.id == lineage and self.view.number == number

    def _on_certificate(self, sender: Peer, message: ms.Certificate) -> None:
        self.follow.on_certificate(sender, message)
        for contact in message.contacts:
            trusted = sender in self.members or contact.peer not in self.contacts
            if contact.peer in self.members and trusted:
                self.know(contact.peer, contact.addresses)

    def _on_leader_message(self, sender: Peer, message: Any) -> None:
        """Status, Ready, Suspect, PollReply, Answer, Poisoned, Resign: for the leader of their view."""
        if not self.of_this_view(message.lineage, message.view):
            return
        if self.leader is not None:
            _LEADER[type(message)](self.leader, sender, message)

    def _on_begin(self, sender: Peer, message: ms.Begin) -> None:
        learner = any(peer == self.me for _, peer in message.learners)
        if self.view is None or sender != self.view.leader or not (self.member or learner):
            return
        if self.of_this_view(message.lineage, message.view):
            for commit in message.commits:
                self.chronicle.commit(commit, self.now)
            self.chronicle.begin(message, self.view, self.now)
            self.holder.on_begin(message)

    # -- timers

    def _beat(self) -> None:
        idle = self.view is not None and not self.member and not self.holder.learning
        period = self.settings.lease_seconds / 2 if idle else self.settings.heartbeat_seconds
        self.timers.set("beat", self.now + period)
        strangers.forget_many(self)
        self.watch.beat()
        self.follow.beat()
        self.holder.beat()
        if self.leader is not None:
            self.leader.beat()

    def _poll_due(self) -> None:
        if self.leader is not None:
            self.leader.losses.conclude_inquiries()

    def _offer_due(self) -> None:
        if self.leader is not None:
            self.leader.recruiting.expire_offers()

    # -- presence

    def waiting(self) -> str:
        """What this peer waits for, in words; the leader says it for the run. Empty while it works."""
        return waiting_for(self)

    def _announce(self) -> None:
        """Keep our presence in the directory as it is now; renewals are the directory's business."""
        if self._announced is None and not self.holder.compute_ready:
            return
        self.presence_changed = False
        presence = presence_of(self)
        if presence != self._announced:
            self._announced = presence
            self._out.append(fx.Announce(presence))
        if self.room:
            self.presences[self.me] = presence
        else:
            self.presences.pop(self.me, None)


_EVENTS: Final[dict[type, Callable[[Participant, Any], None]]] = {
    ev.Wake: lambda core, event: None,
    ev.LinkUp: Participant._on_link_up,
    ev.LinkDown: Participant._on_link_down,
    ev.ComputeReady: lambda core, event: core.holder.on_compute_ready(event),
    ev.ComputeLost: lambda core, event: core.holder.on_compute_lost(event.reason, event.out_of_memory_stage),
    ev.Done: lambda core, event: core.holder.on_done(event),
    ev.Installed: lambda core, event: core.holder.on_installed(event),
    ev.InstallFailed: lambda core, event: core.holder.on_install_failed(event),
    ev.Kept: lambda core, event: core.holder.copies.on_kept(event),
    ev.KeepFailed: lambda core, event: core.holder.copies.on_failed(event),
    ev.Snapshots: lambda core, event: core.disk.replace(event.kept),
    ev.History: lambda core, event: core.chronicle.learn(event.commits, core.now),
    ev.Directory: Participant._on_directory,
    ev.DirectoryLost: lambda core, event: core.note("directory", f"the directory does not answer: {event.reason}"),
    ev.Moved: lambda core, event: move(core, event.addresses),
    ev.Leave: lambda core, event: core.departing.leave(event),
    ev.Stay: lambda core, event: core.departing.waited_enough(),
}
_MESSAGES: Final[dict[type, Callable[[Participant, Peer, Any], None]]] = {
    ms.Heartbeat: lambda core, sender, message: core.watch.on_heartbeat(sender, message),
    ms.Certificate: Participant._on_certificate,
    ms.Poll: lambda core, sender, message: core.watch.on_poll(sender, message),
    ms.Offer: lambda core, sender, message: core.candidate.on_offer(sender, message),
    ms.Prepare: lambda core, sender, message: core.election.on_vote(sender, message),
    ms.Promise: lambda core, sender, message: core.election.on_vote(sender, message),
    ms.Propose: lambda core, sender, message: core.election.on_vote(sender, message),
    ms.Accepted: lambda core, sender, message: core.election.on_vote(sender, message),
    ms.Outbid: lambda core, sender, message: core.election.on_vote(sender, message),
    ms.Begin: Participant._on_begin,
    ms.Stored: lambda core, sender, message: core.holder.on_stored(sender, message),
    ms.Share: lambda core, sender, message: core.holder.on_share(sender, message),
    ms.Suspect: Participant._on_leader_message,
    ms.PollReply: Participant._on_leader_message,
    ms.Answer: Participant._on_leader_message,
    ms.Status: Participant._on_leader_message,
    ms.Ready: Participant._on_leader_message,
    ms.Poisoned: Participant._on_leader_message,
    ms.Resign: Participant._on_leader_message,
}
_LEADER: Final[dict[type, Callable[[Leader, Peer, Any], None]]] = {
    ms.Suspect: lambda leader, sender, message: leader.losses.on_suspect(sender, message),
    ms.PollReply: lambda leader, sender, message: leader.losses.on_poll_reply(sender, message),
    ms.Answer: lambda leader, sender, message: leader.recruiting.on_answer(sender, message),
    ms.Status: Leader.on_status,
    ms.Ready: Leader.on_ready,
    ms.Poisoned: Leader.on_poisoned,
    ms.Resign: lambda leader, sender, message: leader.losses.on_resign(sender, message),
}
_TIMERS: Final[dict[str, Callable[[Participant], None]]] = {
    "beat": Participant._beat,
    "search": lambda core: core.follow.search(),
    "poll": Participant._poll_due,
    "offer": Participant._offer_due,
    "errand": lambda core: core.watch.errands_due(),
    "candidacy": lambda core: core.candidate.expire(),
    "found": lambda core: core.follow.found_due(),
    "leave": lambda core: core.departing.due(),
    "join": lambda core: core.leader.join_due() if core.leader is not None else None,
}
