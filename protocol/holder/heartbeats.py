"""Heartbeats, suspicions and the voter's part in a poll (rules 8, 9, 14)."""

from __future__ import annotations

from collections.abc import Collection

from ftnode.protocol.holder.holder import Holder
from ftnode.protocol.holder.presence import state_of
from ftnode.protocol.liveness.liveness import PollErrand
from ftnode.protocol.situation import Introduce, Outcome, Situation
from ftnode.protocol.step.routes import neighbours
from ftnode.protocol.wire.admission import REASON_MAX
from ftnode.protocol.words.effects import Dial
from ftnode.protocol.words.messages import HALTED, Heartbeat, Poll, PollReply, StageReport, bare
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import View

ALL_TO_ALL_MAX = 16
"""Up to so many members everybody sends heartbeats to everybody; beyond, to leader, two voters and neighbours."""

SUCCESSORS = 2
"""Voters to whom newcomers introduce themselves beside the leader, so that the next one knows them already."""


def beats_to(view: View, peer: Peer, swap: bool) -> frozenset[Peer]:
    """To whom a member sends its heartbeats, so who may suspect it of silence."""
    members = view.members()
    if len(members) <= ALL_TO_ALL_MAX or peer == view.leader:
        return frozenset(members) - {peer}
    near = {other for stage in view.stages_of(peer) for other in neighbours(view, stage, swap)}
    return frozenset({view.leader, *view.voters[:2], *near}) - {peer}


def hosts(view: View) -> tuple[Peer, ...]:
    """Who may ask somebody to hold a stage: the leader, and the voters that come after it."""
    return (view.leader, *[peer for peer in view.voters if peer != view.leader][:SUCCESSORS])


def heartbeat_of(s: Situation, holder: Holder, waiting: str, wants_reply: bool) -> Heartbeat:
    """What we say of ourselves. `waiting`: what we wait for, in words."""
    view, leading = s.view, s.led is not None
    reports = tuple(
        StageReport(
            stage,
            state_of(holder, stage),
            holder.weights.applied(stage),
            len(holder.work.accumulated_of(stage)) if holder.work is not None else 0,
            holder.work.queue_length(stage) if holder.work is not None else 0,
            holder.installs.fetched.get(stage, 0),
            holder.pace.seconds(stage),
            holder.line.seconds(stage),
        )
        for stage in (*s.mine, *holder.learning)
    )
    validation = s.history.validation
    newest = max(validation, default=None)
    return Heartbeat(
        lineage=view.lineage.id if view is not None else "",
        view=view.number if view is not None else -1,
        quorate=s.quorate and s.member,
        step=holder.begin.step if holder.begin is not None else 0,
        stages=reports,
        busy_seconds=holder.busy_seconds(s),
        wants_reply=wants_reply,
        commits=tuple(map(bare, s.history.newest_commits())) if leading else (),
        validation=((newest, validation[newest]),) if leading and newest is not None else (),
        waiting=waiting[:REASON_MAX],
        copies=holder.copies.told(),
        done=holder.done,
        lent=holder.lent.newest(s.mine),
    )


class Heartbeats:
    """Who is sent our heartbeats, and what we do about members that are not heard."""

    def __init__(self) -> None:
        self._view: View | None = None
        self._targets: tuple[Peer, ...] = ()
        self._watched: tuple[Peer, ...] = ()
        self.errands: dict[Peer, PollErrand] = {}
        """Polls of the leader that we listen for."""

    def _look_up(self, s: Situation) -> None:
        view, me = s.view, s.me
        if view is not None and view is not self._view:
            self._view = view
            self._targets = tuple(sorted(beats_to(view, me, s.settings.swap))) if s.member else ()
            others = [peer for peer in view.members() if peer != me and s.member]
            self._watched = tuple(sorted(peer for peer in others if me in beats_to(view, peer, s.settings.swap)))

    def on_view(self) -> None:
        """Polls of the view before are over."""
        self.errands.clear()

    # -- heartbeats

    def beat(self, s: Situation, waiting: str) -> Outcome:
        """`waiting`: what we wait for, in words."""
        out, view = Outcome(), s.view
        self._look_up(s)
        if waiting:
            out.note("waiting", waiting if waiting.startswith(HALTED) else f"waits for {waiting}")
        if s.member:
            out.beat(False, *self._targets)
            self._suspect_silent(s, out)
        elif view is not None:
            if view.leader in s.liveness.alive(s.members, s.now):
                out.beat(True, view.leader)
            else:
                out.beat(True, *asked(s, view.members()))
            out.append(Introduce(hosts(view)))
        return out

    # -- suspicion

    def _suspect_silent(self, s: Situation, out: Outcome) -> None:
        patience = 2 * s.settings.heartbeat_seconds
        for peer in self._watched:
            since = s.liveness.down.get(peer)
            if s.liveness.silent(peer, s.now):
                how = "its address refuses" if peer in s.liveness.refused else "it is silent"
                out.suspect(s, peer, "silent", f"{how} for {s.liveness.silence(peer, s.now):.1f} s")
            elif since is not None:
                out.append(Dial(peer))
                if s.now - since > patience:
                    out.suspect(s, peer, "broken", f"the link is broken for {s.now - since:.1f} s")

    def on_link_down(self, s: Situation, peer: Peer, refused: bool, reason: str) -> Outcome:
        """A broken link to a member is dialled at once; one that is refused makes it a suspect at once."""
        out, errand = Outcome(), self.errands.get(peer)
        if refused and errand is not None:
            del self.errands[peer]
            _answer(s, out, errand, heard=False)
        if s.member and peer in s.members:
            if refused:
                out.suspect(s, peer, "silent", reason)
            else:
                out.append(Dial(peer))
        return out

    # -- polls

    def on_poll(self, s: Situation, sender: Peer, poll: Poll) -> Outcome:
        """Ping the suspect and listen; the leader hears what we hear."""
        out = Outcome()
        if not s.of_view(poll.lineage, poll.view) or s.view is None or sender != s.view.leader:
            return out
        if poll.peer not in s.members:
            return out
        deadline = s.now + s.settings.poll_seconds
        errand = PollErrand(poll.number, sender, poll.peer, s.now, deadline)
        if poll.peer == s.me:
            _answer(s, out, errand, heard=True)
        elif poll.peer in s.liveness.refused:
            _answer(s, out, errand, heard=False)
        else:
            self.errands[poll.peer] = errand
            out.beat(True, poll.peer)
            out.set_timer("errand", deadline, keep=True)
        return out

    def on_message(self, s: Situation, sender: Peer) -> Outcome:
        """Whoever sends anything is heard."""
        out = Outcome()
        if sender in self.errands:
            _answer(s, out, self.errands.pop(sender), heard=True)
        return out

    def errands_due(self, s: Situation) -> Outcome:
        out = Outcome()
        for errand in list(self.errands.values()):
            if s.now >= errand.deadline:
                del self.errands[errand.peer]
                _answer(s, out, errand, heard=False)
        if self.errands:
            out.set_timer("errand", min(errand.deadline for errand in self.errands.values()))
        return out


def asked(s: Situation, peers: Collection[Peer]) -> list[Peer]:
    """Is anybody of them there? Those first whose addresses have not refused us yet."""
    others = sorted({*peers} - {s.me}, key=lambda peer: (peer in s.liveness.refused, peer))
    return others[:ALL_TO_ALL_MAX]


def _answer(s: Situation, out: Outcome, errand: PollErrand, heard: bool) -> None:
    if s.view is not None:
        refused = errand.peer in s.liveness.refused
        reply = PollReply(s.view.lineage.id, s.view.number, errand.number, errand.peer, heard, refused)
        out.send(errand.leader, reply)
