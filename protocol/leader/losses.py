"""Who will not be in the next view: the silent, the resigned, ends of broken links, hung computes (rules 8, 9)."""

from __future__ import annotations

from ftnode.protocol.leader.disputes import Suspects, most_at_odds
from ftnode.protocol.leader.leader_memory import LeaderMemory
from ftnode.protocol.leader.progress import ViewProgress
from ftnode.protocol.liveness.liveness import BrokenLinks, Inquiry
from ftnode.protocol.recovery.standing import BEHIND
from ftnode.protocol.situation import Outcome, Situation
from ftnode.protocol.words.errors import LocalError
from ftnode.protocol.words.messages import Poll, PollReply, Suspect
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Peer, Version, names_of, spoken_stage
from ftnode.protocol.words.view import View


class Losses:
    """The leader's list of losses in one view; the next view settles it."""

    def __init__(self, view: View, memory: LeaderMemory, progress: ViewProgress, settings: Settings) -> None:
        self.view, self.memory, self.progress = view, memory, progress
        self.gone: dict[Peer, str] = {}
        """Peers that go as a whole, with the reason."""
        self._unheard: dict[Peer, float] = {}
        """Those of `gone` whom nobody heard, and since when: one that is heard again stays."""
        self.vacated: dict[tuple[int, Peer], str] = {}
        """(stage, peer) that are given up."""
        self._inquiries: dict[Peer, Inquiry] = {}
        self._inquiry_number = 0
        self._stalled: dict[Peer, tuple[float, float, frozenset[Peer]]] = {}
        """Who is said not to make progress: when first, when last, and by whom."""
        self._strays: dict[Peer, float] = {}
        """Who speaks of another lineage, and since when."""
        self._broken = BrokenLinks(settings.broken_link_seconds, 3 * settings.heartbeat_seconds)

    def __bool__(self) -> bool:
        return bool(self.gone or self.vacated)

    def staying(self, stage: int) -> list[Peer]:
        """The stage's holders of this view that keep it in the next one."""
        return [peer for peer in self.view.holders[stage] if not (peer in self.gone or (stage, peer) in self.vacated)]

    def on_suspect(self, s: Situation, sender: Peer, suspect: Suspect) -> Outcome:
        out, peer = Outcome(), suspect.peer
        if peer in (s.me, sender) or peer not in s.members or peer in self.gone or sender not in s.members:
            return out
        if suspect.kind == "broken":
            self._broken.report(sender, peer, s.now)
            return out
        if suspect.kind == "stalled":
            self._stall(s, out, sender, peer, suspect.detail)
            return out
        if peer in self._inquiries:
            return out
        self._inquiry_number += 1
        asked = frozenset(voter for voter in self.view.voters if voter != peer)
        deadline = s.now + 1.5 * s.settings.poll_seconds
        self._inquiries[peer] = Inquiry(
            self._inquiry_number, peer, sender, suspect.kind, suspect.detail, s.now, deadline, asked
        )
        out.set_timer("poll", deadline, keep=True)
        poll = Poll(self.view.lineage.id, self.view.number, self._inquiry_number, peer)
        for voter in sorted(asked):
            out.send(voter, poll)
        return out

    def _stall(self, s: Situation, out: Outcome, sender: Peer, peer: Peer, detail: str) -> None:
        """One report may be a resend away from being wrong; a lease of them is not. Who alone says so is at odds with
        that peer. While somebody is awaited for a stage, nobody can go on."""
        if self or self.view.vacancies():
            self._stalled.clear()
            return
        first, last, by = self._stalled.get(peer, (s.now, s.now, frozenset[Peer]()))
        if s.now - last > 3 * s.settings.heartbeat_seconds:
            first, by = s.now, frozenset()
        by |= {sender}
        self._stalled[peer] = first, s.now, by
        if s.now - first < s.settings.lease_seconds or sender in self.gone:
            return
        suspects, disputes = most_at_odds([(accuser, peer) for accuser in by]), self.memory.disputes
        gone = peer if s.me in by else disputes.choose(self.view, suspects)
        alone = f"says alone that {peer} makes no progress, after it was at odds with one that went"
        self.lose(s, out, gone, f"no progress: {detail}" if gone == peer else alone)
        if s.me not in by and gone in self.gone:
            disputes.settle(self.view, gone, suspects)

    def on_poll_reply(self, s: Situation, sender: Peer, reply: PollReply) -> Outcome:
        out, inquiry = Outcome(), self._inquiries.get(reply.peer)
        if inquiry is None or reply.number != inquiry.number or sender not in inquiry.asked:
            return out
        if reply.heard:
            del self._inquiries[reply.peer]
            self._broken.report(inquiry.reporter, reply.peer, s.now)
            out.note("void", f"{reply.peer} is alive: {sender} hears it", peer=reply.peer.id)
            return out
        inquiry.silent.add(sender)
        return out.extended(self.conclude_inquiries(s))

    def conclude_inquiries(self, s: Situation) -> Outcome:
        """Those that are answered, or have had the time for it."""
        out = Outcome()
        for inquiry in list(self._inquiries.values()):
            if inquiry.expired(s.now):
                del self._inquiries[inquiry.peer]
            elif inquiry.concluded(s.now, s.liveness.refused):
                del self._inquiries[inquiry.peer]
                if s.liveness.heard_since(inquiry.peer, inquiry.since):
                    out.note("void", f"{inquiry.peer} is alive: the leader hears it", peer=inquiry.peer.id)
                elif inquiry.peer not in self.gone:  # who is gone for something else is not back when it is heard
                    self.lose(s, out, inquiry.peer, f"{inquiry.kind}: {inquiry.detail}")
                    self._unheard[inquiry.peer] = s.now
        if self._inquiries:
            out.set_timer("poll", min(inquiry.deadline for inquiry in self._inquiries.values()))
        return out

    def lose(self, s: Situation, out: Outcome, peer: Peer, reason: str) -> None:
        """The peer will not be in the next view."""
        if peer in self.gone or peer not in s.members or self.progress.finished:
            return
        self.gone[peer] = reason
        self.memory.losses_seen += peer not in self.memory.leavers
        stages = self.view.stages_of(peer)
        for stage in stages:
            self.memory.failed(peer, stage, s.now)
        text = f"{peer} with {names_of(stages) or 'no stage'} is lost ({reason})"
        out.note("lost", text, peer=peer.id, stages=", ".join(map(str, stages)))

    def let_go(self, s: Situation, out: Outcome, peer: Peer, suspects: Suspects, reason: str) -> None:
        """Of the suspects this one goes. We ourselves stay, without our stages."""
        self.memory.disputes.settle(self.view, peer, suspects)
        if peer != s.me:
            self.lose(s, out, peer, reason)
            return
        for stage in self.view.stages_of(peer):
            self.give_up(s, out, stage, peer, reason)

    def expel(self, s: Situation, out: Outcome, behind: tuple[Peer, ...], base: Version) -> None:
        """A peer that says it is behind a commit that needed its Ready: theirs to answer for. When it is us, those who
        speak of the commit."""
        if s.me not in behind:
            for peer in behind:
                self.lose(s, out, peer, f"it {BEHIND}")
            return
        told = self.progress.statuses.items()
        liars = [peer for peer, said in told if base in (said.base, *(stage.version for stage in said.stages))]
        if s.me in liars or not liars:
            raise LocalError("our own weights are behind a commit that needed our Ready")
        for peer in liars:
            self.lose(s, out, peer, f"calls step {base.step} done, which was not without us")

    def keeps(self, stage: int, peer: Peer) -> bool:
        """It holds the stage, and has not given it up."""
        return peer in self.view.holders[stage] and (stage, peer) not in self.vacated

    def give_up(self, s: Situation, out: Outcome, stage: int, peer: Peer, reason: str) -> None:
        """The peer says that it cannot keep the stage."""
        self.vacated[(stage, peer)] = reason
        self.memory.failed(peer, stage, s.now)
        out.note("lost", f"{peer} gives up {spoken_stage(stage)} ({reason})", peer=peer.id, stages=str(stage))

    def vacate(self, stage: int, peer: Peer, reason: str) -> None:
        """The peer stays, without this stage."""
        self.vacated[(stage, peer)] = reason

    def may_settle(self) -> bool:
        """Whether the voters that are not lost could choose a view. Otherwise those that a new view would remove would
        have to accept it, which shows that they are alive: a leader that was cut off would throw all weights away."""
        return self.view.is_quorum({voter for voter in self.view.voters if voter not in self._unheard})

    def _forgive(self, s: Situation, out: Outcome) -> None:
        """Nobody is lost who is heard again before a view was proposed without it. Once we hear a quorum again after we
        heard none, it was we who were cut off: of the others it is asked again."""
        cut_off = not self.may_settle()
        for peer, since in list(self._unheard.items()):
            if s.liveness.heard_since(peer, since) and peer not in s.liveness.refused:
                self._find(peer)
                out.note("void", f"{peer} is alive: the leader hears it again", peer=peer.id)
        if cut_off and self.may_settle():
            for peer in sorted(self._unheard.keys() - s.liveness.refused):
                self._find(peer)
                out.note("void", f"{peer} is asked for again: the leader was cut off itself", peer=peer.id)

    def _find(self, peer: Peer) -> None:
        del self._unheard[peer]
        self.gone.pop(peer, None)

    def beat(self, s: Situation) -> Outcome:
        """Look at links that stay broken and at computes that hang."""
        out = Outcome()
        if not s.proposing:
            self._forgive(s, out)
        self._lose_an_end(s, out)
        self._lose_strays(s, out)
        limit = 1.5 * s.settings.task_seconds
        for peer in sorted(s.members):
            report = s.reports.get(peer)
            if report is not None and report.view == self.view.number and report.busy_seconds > limit:
                self.lose(s, out, peer, f"its compute has been on one task for {report.busy_seconds:.0f} s")
        return out

    def _lose_an_end(self, s: Situation, out: Outcome) -> None:
        """Of a link that stays broken, although both its ends are alive. They are at odds; on a tie the one goes that
        holds the higher stage."""
        found = self._broken.lasting(self.view, s.now)
        if found is None or found[0] & self.gone.keys():
            return
        link, worst = found
        higher = max(sorted(worst), key=lambda peer: max(self.view.stages_of(peer), default=-1))
        disputes = self.memory.disputes
        peer = disputes.choose(self.view, Suspects(worst, frozenset({higher})))
        (other,) = link - {peer}
        seconds = self._broken.patience
        self.lose(s, out, peer, f"its link to {other} has been broken for {seconds:.0f} s and both are alive")
        if peer in self.gone:
            disputes.settle(self.view, peer, Suspects(link - {self.view.leader}))

    def broken_links(self, now: float) -> list[frozenset[Peer]]:
        """Links between living members that are reported still."""
        return self._broken.links(now)

    def _lose_strays(self, s: Situation, out: Outcome) -> None:
        """Whoever accepted two leaders' offers follows one of them: it is alive, and the other one would wait for its
        Status for ever. Who is only late has our certificate within two leases."""
        ours, told = self.view.lineage.id, s.liveness.lineages
        others = s.members - {s.me} if s.quorate else ()  # else it is we who are out of it
        strays = [peer for peer in sorted(others) if told.get(peer, ours) != ours]
        self._strays = {peer: self._strays.get(peer, s.now) for peer in strays}
        for peer, since in self._strays.items():
            if s.now - since > 2 * s.settings.lease_seconds:
                branch = told[peer][:6]
                self.lose(s, out, peer, f"it goes by branch {branch} of the run" if branch else "it has left the run")
