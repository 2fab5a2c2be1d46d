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
lost, doubled or late. Rules are those of docs/explanation/protocol.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import Final, assert_never

from ftnode.protocol.chronicle import Chronicle
from ftnode.protocol.holder.candidacy import Candidacy
from ftnode.protocol.holder.heartbeats import Heartbeats, asked, beats_to, heartbeat_of, hosts
from ftnode.protocol.holder.holder import Holder
from ftnode.protocol.holder.presence import presence_of, waiting_for
from ftnode.protocol.leader.convictions import Convictions
from ftnode.protocol.leader.leader import Leader
from ftnode.protocol.leader.leader_memory import LeaderMemory
from ftnode.protocol.liveness.liveness import Liveness
from ftnode.protocol.picture import Picture, picture_of
from ftnode.protocol.situation import (
    AskAround,
    Beat,
    BeatNow,
    ClearTimer,
    Decision,
    ForgetWeights,
    GiveViewUp,
    GoBack,
    GoOnFromDisks,
    Introduce,
    LetUsGo,
    MakeOffer,
    OrderChanged,
    Remember,
    SetTimer,
    ShowView,
    Situation,
    TakeUp,
    YieldTo,
)
from ftnode.protocol.views.ballot import Balloting
from ftnode.protocol.views.election import Election
from ftnode.protocol.views.following import Following
from ftnode.protocol.views.founding import why_founded
from ftnode.protocol.views.peer_table import PeerTable
from ftnode.protocol.views.undoing_votes import UndoingVotes
from ftnode.protocol.wire.admission import objection, told_addresses, usable_addresses
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words import events as ev
from ftnode.protocol.words import messages as ms
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.site import site_of
from ftnode.protocol.words.timers import Timers
from ftnode.protocol.words.types import NO_ORDER, Handle, LentCopy, Peer
from ftnode.protocol.words.view import View

NOTES_KEPT = 256


class Participant:
    """The pure core of one node. `chance` and every `now` come from outside; see handle."""

    def __init__(
        self, me: Peer, settings: Settings, chance: Random, *, addresses: tuple[str, ...] = (), hold: int = 1,
        site: str = "",
    ) -> None:  # fmt: skip
        self.me, self.settings, self.chance, self.addresses, self.hold = me, settings, chance, addresses, hold
        self.site, self.here = site, site_of(site, addresses)
        self.now = 0.0
        self.view: View | None = None
        self.members: frozenset[Peer] = frozenset()
        self.mine: tuple[int, ...] = ()
        self.timers = Timers()
        self.liveness = Liveness(settings.lease_seconds, 0.0)
        self.balloting: Balloting | None = None
        self.leader: Leader | None = None
        self.memory = LeaderMemory()
        self.convictions = Convictions(self.memory)
        self.peers = PeerTable(me, addresses)
        self.reports: dict[Peer, ms.Heartbeat] = {}
        self.chronicle = Chronicle()
        self.order = self.authors_order = NO_ORDER
        """The newest order to roll back, by the author or by members; and by the author."""
        self.undoing_votes = UndoingVotes()
        self.holder = Holder(settings)
        self.candidacy = Candidacy()
        self.election = Election(me)
        self.following = Following(self.chronicle)
        self.heartbeats = Heartbeats()
        self.departure = self.holder.departure
        self._started, self._out = False, list[fx.Effect]()
        self._to_self: list[fx.Send] = []
        self._last_notes: dict[str, str] = {}
        self._announced: Presence | None = None
        self._introduced: tuple[Presence, tuple[Peer, ...]] | None = None
        """What we said last of ourselves, and to whom."""
        self._situation: Situation | None = None
        self._picture: Picture | None = None
        self.presence_changed = True
        """What we announce may be different; looked at after every event but messages and results, and every beat."""

    # -- the door

    @property
    def deadline(self) -> float:
        """When it next wants a Wake."""
        return self.timers.deadline

    @property
    def picture(self) -> Picture:
        """What we show between two events. Made when somebody asks, once for each event."""
        if self._picture is None:
            self.changed()
            s = self.situation
            ours = self.heartbeat(wants_reply=False)
            leaves = self.departure.stayed, self.departure.fate(s)
            memory, convicted, votes = self.memory, self.memory.convicted.values(), self.undoing_votes
            self._picture = picture_of(
                s, ours, memory.leavers, *leaves, self.chronicle, memory.plan, convicted, votes.standing(s),
                votes.wants(),
            )  # fmt: skip
        return self._picture

    def handle(self, event: ev.Event, now: float) -> list[fx.Effect]:
        """Take one event at time `now` (seconds, never going back) and return what is to be done, in order."""
        self._out = []
        self.now, self._situation, self._picture = now, None, None
        if not self._started:
            self._start()
        if self.liveness.woke(now, self.timers.deadline):
            self.carry_out(self.following.on_blocked(self.situation))
            if self.leader is not None:
                self.leader.on_blocked()
        self.presence_changed = self.presence_changed or not isinstance(event, (ev.Received, ev.Done))
        self._hear(event)
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
            if self.holder.unsettled:
                self.carry_out(self.holder.advance(self.situation))
            if self.leader is not None and self.leader.unsettled:
                self.carry_out(self.leader.advance(self.situation))
            if not self._to_self:
                return
            pending, self._to_self = self._to_self, []
            for sent in pending:
                self._receive(self.me, sent.message, sent.handle)
        raise AssertionError("messages to self do not end")

    def _start(self) -> None:
        self._started = True
        self.liveness = Liveness(self.settings.lease_seconds, self.now)
        self.timers.set("beat", self.now + self.settings.heartbeat_seconds * self.chance.random())
        self.timers.set("search", self.now)
        self.following.started(self.now)

    # -- roles: a situation goes in, an outcome comes out

    @property
    def situation(self) -> Situation:
        """What is the case now. Made once for each event, and anew when what it says has changed."""
        if self._situation is None:
            self._situation = Situation(
                self.me, self.settings, self.now, self.chance, self.view, self.members, self.mine, self.hold,
                self.peers.contacts, self.peers.presences, self.reports, self.liveness, self.holder, self.balloting,
                self.departure.leaving, self.departure.pauses, self.following.quorate_at, self.chronicle, self.leader,
                self.here, self.peers.crowds, self.order, self.memory.convicted,
                self.following.leader_doubted,
            )  # fmt: skip
        return self._situation

    def changed(self) -> None:
        """The situation is another one from now on."""
        self._situation = None

    def _heard_of_quorum(self) -> None:
        """The situation is another one if we have just learnt that a quorum stands behind our view."""
        if self._situation is not None and self._situation.quorate_at != self.following.quorate_at:
            self.changed()

    def carry_out(self, outcome: Iterable[fx.Effect | Decision]) -> None:
        """What a role has answered, in order; what it sends to us comes back as a message. Who hears which decision."""
        for each in outcome:
            match each:
                case fx.Send():
                    self._send(each)
                case fx.Note():
                    self.note(each.kind, each.text, **dict(each.fields))
                case fx.Compute() | fx.Release():  # the most common of the others
                    self._out.append(each)
                case SetTimer():
                    (self.timers.set_earlier if each.keep else self.timers.set)(each.name, each.at)
                case ClearTimer():
                    self.timers.clear(each.name)
                case ShowView():
                    self.send(each.to, self.certificate(each.since))
                case Remember():
                    self._remember(each.peer, each.addresses)
                case MakeOffer():
                    self.send(each.to, replace(each.offer, neighbours=self.contacts_of(each.near)))
                case Introduce():
                    self._introduce(each.to)
                case TakeUp():
                    self._take_up(each)
                case YieldTo():
                    self._yield_to(each)
                case GoBack():
                    self._go_back(each)
                case GiveViewUp():
                    self._give_view_up()
                case ForgetWeights():
                    self.carry_out(self.holder.forget_all(self.situation))
                case GoOnFromDisks():
                    self._go_on_from_disks(each)
                case Beat():
                    self._beat_to(each)
                case BeatNow():
                    self._beat_watch()
                case AskAround():
                    self._beat_to(Beat(tuple(asked(self.situation, each.peers)), True))
                case OrderChanged():
                    self._order_changed()
                case LetUsGo():
                    self._depart(self.departure.let_go(self.situation, each.everybody))
                case _:
                    self._out.append(each)

    def send(self, to: Peer, message: ms.Message) -> None:
        self._send(fx.Send(to, message, None))

    def _send(self, sent: fx.Send) -> None:
        if sent.to == self.me:
            self._to_self.append(sent)
        else:
            self._out.append(sent)

    def note(self, kind: str, text: str, **fields: str) -> None:
        """A decision and its reason; repeated only when it changes."""
        subject = kind + fields.get("peer", "") + fields.get("stages", "")
        if self._last_notes.get(subject) != text or kind in ("lost", "offer", "answer", "stand", "rebuilt"):
            if len(self._last_notes) > NOTES_KEPT:
                self._last_notes.clear()
            self._last_notes[subject] = text
            self._out.append(fx.Note(kind, text, tuple(fields.items())))

    @property
    def member(self) -> bool:
        return self.me in self.members

    def waiting(self) -> str:
        """What this peer waits for, in words; the leader says it for the run. Empty while it works."""
        return waiting_for(self.situation)

    def _remember(self, peer: Peer, addresses: tuple[str, ...]) -> None:
        if self.peers.contacts.get(peer) != addresses:
            self.carry_out(self.peers.remember(peer, addresses, self.members, self.memory.pupils()))

    # -- decisions about views

    def install(self, view: View) -> None:
        """Take up a chosen view: ours or, as a standby, the one to follow."""
        old, self.view = self.view, view
        ours = not self.mine and self.following.former.shares_past(view)
        self.presence_changed = True
        self.members = frozenset(view.members())
        was, self.mine = self.mine, view.stages_of(self.me)
        self.balloting = self.election.balloting_of(view)
        self.heartbeats.on_view()
        for name in ("poll", "offer", "join"):
            self.timers.clear(name)
        self.changed()
        self.leader = None
        if view.leader == self.me:
            self.leader = Leader(self.situation, view, self.memory, self.chronicle, self.balloting)
        self.reports = {peer: report for peer, report in self.reports.items() if peer in self.members}
        self.peers.on_view(self.members, self.memory.pupils(), self.liveness)
        self.changed()
        same = old is not None and old.lineage == view.lineage
        forked = old is not None and not same and (view.previous == old.digest() or ours)
        if self.leader is None or not same:
            self.memory.unstick()
        why = why_founded(self.situation, view)
        text = f"{why} (change {view.number} of who holds what, branch {view.lineage.id[:6]})"
        self.note("view", text, view=str(view.number))
        self.carry_out(self.undoing_votes.on_view(self.situation))
        self.carry_out(self.following.on_view(self.situation, old if same else None, view, forked))
        self.changed()
        self._depart(self.departure.on_view(self.situation, was, old))
        self.carry_out(self.holder.on_view(self.situation, view, was, forked))
        self.chronicle.view(view)
        self._out.append(fx.PublishView(view))
        if self.leader is not None:
            self._out.append(fx.Search("leads since a change of who holds what"))

    def _take_up(self, taken: TakeUp) -> None:
        before = self.certificate() if taken.both else None
        self.following.proofs.keep(taken.view, taken.proof)
        self.install(taken.view)
        after = self.certificate() if taken.tell else None
        for peer in taken.tell:
            for certificate in (before, after):
                if certificate is not None:
                    self.send(peer, certificate)

    def _yield_to(self, winner: YieldTo) -> None:
        self.following.proofs.keep(winner.view, winner.proof)
        self.carry_out(self.holder.yield_to(self.situation, winner.view.lineage))
        self.install(winner.view)

    def _go_back(self, back: GoBack) -> None:
        self.holder.weights.go_back()
        self.changed()
        self.install(back.view)

    def _give_view_up(self) -> None:
        self.carry_out(self.holder.abandon(self.situation))
        self.view, self.members, self.mine, self.balloting, self.leader = None, frozenset(), (), None, None
        self.changed()

    def _go_on_from_disks(self, go: GoOnFromDisks) -> None:
        assert self.view is not None and self.leader is not None
        self.memory.unstick()
        if self.leader.base is None or self.leader.base != self.view.lineage.start:  # which may be a lie
            self.memory.known_step = self.situation.highest_step
        if go.order > self.view.lineage.order:
            self.memory.known_step = go.start.step
        self.carry_out(self.following.go_on_from_disks(self.situation, go))

    def certificate(self, since: int = -1) -> ms.Certificate:
        """`since`: the number of the view of our lineage by which the receiver goes; -1: by none."""
        assert self.view is not None
        s, proofs = self.situation, self.following.proofs
        known = self.contacts_of(self.view.members())
        told = self.leader.told_step(s) if self.leader is not None else 0
        proof, between = proofs.of(self.view), proofs.between(since, self.view)
        lineage = self.view.lineage
        roll = self.memory.roll_of(lineage.start) or self.holder.rolls.speaks_for(lineage)
        order = self.undoing_votes.in_force(self.order)
        return ms.Certificate(self.view, self.following.vouches(s), known, told, proof, between, roll, order)

    def contacts_of(self, peers: Sequence[Peer]) -> tuple[ms.Contact, ...]:
        known = [self.peers.contacts.get(peer, ()) for peer in peers]
        return tuple(ms.Contact(*each) for each in zip(peers, told_addresses(known)))

    def presence(self) -> Presence:
        """What we say of ourselves in the directory."""
        return presence_of(self.situation, self.holder, self.addresses)

    def status(self) -> ms.Status:
        """What we say to the leader of our view (rule 17)."""
        assert self.view is not None
        return self.holder.status(self.situation, self.view)

    def heartbeat(self, wants_reply: bool) -> ms.Heartbeat:
        """What we say of ourselves now."""
        return heartbeat_of(self.situation, self.holder, self.waiting(), wants_reply)

    def _beat_to(self, beat: Beat) -> None:
        heartbeat = self.heartbeat(beat.wants_reply)
        for peer in beat.to:
            self.send(peer, heartbeat)

    def _introduce(self, to: tuple[Peer, ...]) -> None:
        if self._announced is None:
            return
        self._introduced = self._announced, to
        for peer in to:
            if peer != self.me:
                self.send(peer, ms.Introduction(self._announced))

    def _depart(self, outcome: Iterable[fx.Effect | Decision]) -> None:
        """What has become of our own way out; whoever stays after all leaves no more."""
        self.changed()
        if not self.departure.leaving:
            self.memory.leavers.pop(self.me, None)
        self.carry_out(outcome)

    # -- events

    def _hear(self, event: ev.Event) -> None:
        match event:
            case ev.Received():
                self._receive(event.sender, event.message, event.handle, event.relay)
            case ev.Done():
                self.carry_out(self.holder.on_done(self.situation, event))
            case ev.Wake():
                pass
            case ev.LinkUp():
                self._on_link_up(event)
            case ev.LinkDown():
                self._on_link_down(event)
            case ev.ComputeReady():
                self._on_compute_ready(event)
            case ev.ComputeLost():
                self.carry_out(self.holder.on_compute_lost(self.situation, event.reason))
            case ev.StageLost():
                self.carry_out(self.holder.on_stage_lost(self.situation, event))
            case ev.SumOwed():
                self.holder.on_sum_owed(event)
            case ev.Installed():
                self.carry_out(self.holder.on_installed(self.situation, event))
            case ev.InstallFailed():
                self.carry_out(self.holder.on_install_failed(self.situation, event))
            case ev.Kept():
                self.carry_out(self.holder.on_kept(self.situation, event))
            case ev.KeepFailed():
                self.carry_out(self.holder.copies.on_failed(event))
            case ev.Lent():
                self._on_lent(event.copy)
            case ev.Snapshots():
                self.holder.disk.replace(event.kept)
                self.carry_out(self.holder.rolls.say(self.situation, event.kept))
            case ev.Rolls():
                self.holder.rolls.replace(event.kept)
            case ev.Remembered():
                self.carry_out(self.convictions.remember(event.cases))
            case ev.Ordered():
                self.authors_order = max(self.authors_order, event.order, key=lambda order: order.number)
                self._order_changed()
            case ev.WantsUndo():
                self.carry_out(self.undoing_votes.wish(self.situation, event.step))
            case ev.OrderKept():
                self.carry_out(self.undoing_votes.on_kept(event.order))
            case ev.History():
                self.chronicle.learn(event.commits, self.now)
            case ev.Credited():
                self.chronicle.credit.restore(event.step, event.credits)
            case ev.Directory():
                self._on_directory(event)
            case ev.DirectoryLost():
                self.note("directory", f"the directory does not answer: {event.reason}")
            case ev.Seen():
                self.peers.see(event.peer, event.network, self.members, self.memory.pupils())
            case ev.Vouched():
                self.peers.vouched(event.answers)
                self.changed()
            case ev.Lied():
                self.chronicle.probation.renew(self.peers.crowds.answered_with(event.peer_id))
            case ev.Moved():
                self._on_moved(event)
            case ev.Leave():
                self._on_leave(event)
            case ev.Stay():
                self._depart(self.departure.waited_enough(self.situation))
            case _:
                assert_never(event)

    def _receive(self, sender: Peer, message: ms.Message, handle: Handle | None, relay: str = "") -> None:
        if sender != self.me:
            reason = objection(sender, message, self.view, self.settings)
            if reason:
                self.note("nonsense", f"{sender} sends {reason}", peer=sender.id)
                self._out.append(fx.Strike(sender, reason))
                if handle is not None:
                    self._out.append(fx.Release((handle,)))
                return
            self.liveness.on_message(sender, ms.lineage_of(message), self.now)
            if self.convictions.shuns(self.view, sender, message):
                return
            if self.heartbeats.errands:
                self.carry_out(self.heartbeats.on_message(self.situation, sender))
        match message:
            case ms.Boundary():
                assert handle is not None
                self.carry_out(self.holder.on_boundary(self.situation, sender, message, handle, relay))
            case ms.Stored():
                self.carry_out(self.holder.on_stored(self.situation, sender, message))
            case ms.Heartbeat():
                self._on_heartbeat(sender, message)
            case ms.Begin():
                self._on_begin(sender, message)
            case ms.Share():
                self.carry_out(self.holder.on_share(self.situation, sender, message))
            case ms.Show():
                self.carry_out(self.holder.on_show(self.situation, sender, message))
            case ms.WasGiven():
                self.carry_out(self.holder.on_given(self.situation, sender, message))
            case ms.Doubted():
                self.carry_out(self.holder.on_doubted(self.situation, sender, message))
            case ms.Judge():
                self.carry_out(self.holder.on_judge(self.situation, sender, message))
            case ms.Convicted():
                self.carry_out(self.convictions.on_convicted(self.situation, sender, message))
                self.holder.on_convicted(self.memory.convicted, message)
            case ms.Certificate():
                self._on_certificate(sender, message)
            case ms.Introduction():
                self._on_introduction(message.presence)
            case ms.Rolled():
                self._on_rolled(sender, message)
            case ms.UndoVote():
                self.carry_out(self.undoing_votes.on_vote(self.situation, sender, message))
            case ms.Poll():
                self.carry_out(self.heartbeats.on_poll(self.situation, sender, message))
            case ms.Offer():
                self.carry_out(self.candidacy.on_offer(self.situation, sender, message))
            case ms.Prepare() | ms.Promise() | ms.Propose() | ms.Accepted() | ms.Outbid():
                self.carry_out(self.election.on_vote(self.situation, sender, message))
            case _:
                self._tell_leader(sender, message)

    def _on_link_up(self, event: ev.LinkUp) -> None:
        self.liveness.on_link_up(event.peer, self.now)
        if self.view is not None and event.peer in hosts(self.view):
            self._introduced = None  # what we said when the link was down may be lost
        self.carry_out(self.holder.on_link_up(self.situation, event.peer))
        self.carry_out(self.candidacy.on_link_up(self.situation, event.peer))
        if self.view is not None and (event.peer in self.members or not self.member):
            self._beat_to(Beat((event.peer,), False))  # whoever is behind learns of it at once

    def _on_link_down(self, event: ev.LinkDown) -> None:
        self.liveness.on_link_down(event.peer, event.refused, self.now)
        self.carry_out(self.candidacy.on_link_down(self.situation, event.peer, event.reason))
        self.carry_out(self.heartbeats.on_link_down(self.situation, event.peer, event.refused, event.reason))
        if self.leader is not None:
            self.leader.on_candidate_lost(event.peer)

    def _on_directory(self, event: ev.Directory) -> None:
        pupils = self.memory.pupils()
        event, outcome = self.peers.read(event, self.settings, self.members, pupils, self.liveness, self.now)
        self.changed()
        self.carry_out(outcome)
        for presence in event.presences:
            self._remember(presence.peer, presence.addresses)
        if self.leader is not None:
            self.leader.on_directory()
        before, event = self.view, self.convictions.without(self.view, event)
        for listed in self.following.on_directory(self.situation, event.certificates):
            self.carry_out(self.following.consider(self.situation, listed, self.election.newest_of(listed)))
        self.carry_out(self.following.after_directory(self.situation, event, before))

    def _on_lent(self, copy: LentCopy) -> None:
        """To a keeper that the Begin names: whoever else asks for copies would have us talk. All others hear of it at
        once, for we may be lost as soon as the copy is whole. Not of weights that we may not believe ourselves."""
        holder, lent = self.holder, (copy,)
        named = (copy.stage, copy.keeper) in holder.copies.named and copy.stage in self.mine
        named = named and copy.stage not in holder.donor_trials.stages
        if named and self.view is not None and holder.lent.hear(lent, self.view.lineage.origin):
            self.memory.lent.hear(lent, self.view.lineage.origin)
            self._beat_to(Beat(tuple(sorted(beats_to(self.view, self.me, self.settings.swap))), False))

    def _order_changed(self) -> None:
        """The later one of the author's and the members' orders counts."""
        before, order = self.order, max(self.authors_order, self.undoing_votes.given, key=lambda order: order.rank)
        if order == before:
            return
        self.order = order
        self.holder.disk.on_order(order)
        self.changed()
        if order.rank > before.rank:
            self.undoing_votes.on_order()
            text = f"{order.giver} ordered to roll back to step {order.step} or an earlier one"
            self.note("rollback", text, step=str(order.step))
            self.carry_out(self.holder.tell_disk(self.situation))

    def _on_compute_ready(self, event: ev.ComputeReady) -> None:
        self.holder.on_compute_ready(event)
        self.carry_out(self.following.on_compute_ready(self.situation))

    def _on_moved(self, event: ev.Moved) -> None:
        """Present ourselves at other addresses from now on, in the directory and in certificates."""
        self.addresses = self.peers.contacts[self.me] = usable_addresses(event.addresses)
        self.here = site_of(self.site, self.addresses)
        self.changed()

    def _on_leave(self, event: ev.Leave) -> None:
        self.departure.wish(event)
        self.changed()
        self._depart(self.departure.leave(self.situation, event))

    # -- messages

    def _on_certificate(self, sender: Peer, message: ms.Certificate) -> None:
        newest = self.election.newest_of(message.view)
        self.carry_out(self.undoing_votes.on_shown(self.situation, message))
        s, following = self.situation, self.following
        order = self.undoing_votes.followed_by(s, message, following.proofs)
        outcome = following.on_certificate(s if order == NO_ORDER else s._replace(order=order), sender, message, newest)
        if order != NO_ORDER and any(isinstance(each, (TakeUp, YieldTo, GoBack)) for each in outcome):
            self.carry_out(self.undoing_votes.taken_up(message))
        self.carry_out(outcome)
        for contact in message.contacts:
            trusted = sender in self.members or contact.peer not in self.peers.contacts
            if contact.peer in self.members and trusted:
                self._remember(contact.peer, contact.addresses)

    def _on_introduction(self, presence: Presence) -> None:
        """From the peer itself: what it can do for the run."""
        if self.member:
            self.peers.introduce(presence)
            self.changed()
            self._remember(presence.peer, presence.addresses)

    def _on_heartbeat(self, sender: Peer, heartbeat: ms.Heartbeat) -> None:
        if sender in self.members:
            self.reports[sender] = heartbeat
            self.holder.moves.told(sender, heartbeat.done, self.now)
            if heartbeat.lent and self.view is not None:
                told = [copy for copy in heartbeat.lent if sender in self.view.holders[copy.stage]]
                self.memory.lent.hear(told, self.view.lineage.origin, self.situation.highest_step + 1)
        if self.leader is not None:
            self.carry_out(self.leader.on_heartbeat(self.situation, sender, heartbeat))
        leads = self.view is not None and sender == self.view.leader
        if leads:
            self.holder.on_leader_at(heartbeat.step, self.now)
        begin = self.holder.begin
        s = self.situation
        self.carry_out(self.following.on_heartbeat(s, sender, heartbeat))
        self._heard_of_quorum()
        here = leads and s.member and s.of_view(heartbeat.lineage, heartbeat.view)
        if begin is not None and here and begin.view == heartbeat.view and heartbeat.step < begin.step:
            assert self.view is not None  # it has come back to a view that it led, and forgotten the Begin
            self.send(self.view.leader, self.status())
        if heartbeat.wants_reply:
            self._beat_to(Beat((sender,), False))

    def _on_rolled(self, sender: Peer, message: ms.Rolled) -> None:
        if self.view is None or not self.situation.of_view(message.lineage, message.view):
            return
        if self.leader is not None:
            self.carry_out(self.leader.on_rolled(self.situation, sender, message))
        if sender == self.view.leader:
            holder = self.holder
            self.carry_out(holder.rolls.on_rolled(self.situation, message, holder.disk.told()))

    def _tell_leader(self, sender: Peer, message: ms.ToLeader) -> None:
        s, leader = self.situation, self.leader
        if not s.of_view(message.lineage, message.view):
            return
        if leader is None:
            if isinstance(message, ms.Poisoned):
                self._on_accused_leader(sender, message)
            return
        match message:
            case ms.Ready():
                outcome = leader.on_ready(s, sender, message)
            case ms.Status():
                outcome = leader.on_status(s, sender, message)
            case ms.Suspect():
                outcome = leader.on_suspect(s, sender, message)
            case ms.PollReply():
                outcome = leader.on_poll_reply(s, sender, message)
            case ms.Answer():
                outcome = leader.on_answer(s, sender, message)
            case ms.Poisoned():
                outcome = leader.on_poisoned(s, sender, message)
            case ms.Verdict():
                outcome = leader.on_verdict(s, sender, message)
            case ms.Waits():
                outcome = leader.on_waits(s, sender, message)
            case ms.Resign():
                outcome = leader.on_resign(s, sender, message)
            case ms.Saved():
                outcome = leader.on_saved(s, sender, message)
            case _:
                assert_never(message)
        self.carry_out(outcome)

    def _on_accused_leader(self, sender: Peer, said: ms.Poisoned) -> None:
        """We do not lead. Where there is a new doubt of our leader, another one need not wait for a heartbeat."""
        s, following = self.situation, self.following
        if not s.leader_doubted and following.on_accused_leader(s, sender, said, self.holder.copies.named):
            self.changed()
            self.carry_out(following.beat(self.situation, self.balloting))

    def _on_begin(self, sender: Peer, message: ms.Begin) -> None:
        learner = any(peer == self.me for _, peer in message.learners)
        if self.view is None or sender != self.view.leader or not (self.member or learner):
            return
        if self.situation.of_view(message.lineage, message.view):
            for commit in message.commits:
                self.chronicle.commit(commit, self.now)
            self.memory.lent.hear(message.lent, self.view.lineage.origin)
            self.chronicle.begin(message, self.view, self.now)
            self.carry_out(self.holder.on_begin(self.situation, message))

    # -- timers

    def _beat(self) -> None:
        idle = self.view is not None and not self.member and not self.holder.learning
        period = self.settings.lease_seconds / 2 if idle else self.settings.heartbeat_seconds
        self.timers.set("beat", self.now + period)
        self.peers.beat(self.members, self.memory.pupils(), self.liveness)
        self._beat_watch()
        self.carry_out(self.departure.beat(self.situation))
        self.carry_out(self.following.beat(self.situation, self.balloting))
        self._heard_of_quorum()
        self.carry_out(self.holder.beat(self.situation))
        self.carry_out(self.convictions.beat(self.situation))
        self.carry_out(self.undoing_votes.beat(self.situation, self.following.proofs))
        if self.leader is not None:
            self.carry_out(self.leader.beat(self.situation))

    def _beat_watch(self) -> None:
        self.carry_out(self.heartbeats.beat(self.situation, self.waiting()))

    def _poll_due(self) -> None:
        if self.leader is not None:
            self.carry_out(self.leader.poll_due(self.situation))

    def _offer_due(self) -> None:
        if self.leader is not None:
            self.carry_out(self.leader.offer_due(self.situation))

    def _join_due(self) -> None:
        if self.leader is not None:
            self.carry_out(self.leader.join_due(self.situation))

    # -- presence

    def _announce(self) -> None:
        """Keep our presence in the directory as it is now; renewals are the directory's business."""
        if self._announced is None and not self.holder.compute_ready:
            return
        self.presence_changed = False
        presence = self.presence()
        if presence != self._announced:
            self._announced = presence
            self._out.append(fx.Announce(presence))
        if self.view is not None and (presence, hosts(self.view)) != self._introduced:
            self._introduce(hosts(self.view))
        if presence.capacity:
            self.peers.presences[self.me] = presence
        else:
            self.peers.presences.pop(self.me, None)


_TIMERS: Final[dict[str, Callable[[Participant], None]]] = {
    "beat": Participant._beat,
    "search": lambda core: core.carry_out(core.following.search(core.situation)),
    "poll": Participant._poll_due,
    "offer": Participant._offer_due,
    "errand": lambda core: core.carry_out(core.heartbeats.errands_due(core.situation)),
    "candidacy": lambda core: core.carry_out(core.candidacy.expire(core.situation)),
    "found": lambda core: core.carry_out(core.following.found_due(core.situation)),
    "leave": lambda core: core._depart(core.departure.due(core.situation)),
    "join": Participant._join_due,
}
