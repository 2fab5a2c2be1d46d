"""Who will not be in the next view: the silent, the resigned, ends of broken links, hung computes (rules 8, 9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftnode.protocol.errors import LocalError
from ftnode.protocol.liveness import BrokenLinks, Inquiry
from ftnode.protocol.messages import Poll, PollReply, Resign, Suspect
from ftnode.protocol.resigning import NOT_LENT
from ftnode.protocol.types import Peer, Version

if TYPE_CHECKING:
    from ftnode.protocol.leader import Leader


class Losses:
    """The leader's list of losses in one view; the next view settles it."""

    def __init__(self, leader: Leader) -> None:
        settings = leader.core.settings
        self.leader, self.core, self.view = leader, leader.core, leader.view
        self.gone: dict[Peer, str] = {}
        """Peers that go as a whole, with the reason."""
        self._unheard: dict[Peer, float] = {}
        """Those of `gone` whom nobody heard, and since when: one that is heard again stays."""
        self.vacated: dict[tuple[int, Peer], str] = {}
        """(stage, peer) that are given up."""
        self._inquiries: dict[Peer, Inquiry] = {}
        self._inquiry_number = 0
        self._stalled: dict[Peer, tuple[float, float]] = {}
        """Who is said not to make progress: when first, and when last."""
        self._strays: dict[Peer, float] = {}
        """Who speaks of another lineage, and since when."""
        self._broken = BrokenLinks(settings.broken_link_seconds, 3 * settings.heartbeat_seconds)

    def __bool__(self) -> bool:
        return bool(self.gone or self.vacated)

    def staying(self, stage: int) -> list[Peer]:
        """The stage's holders of this view that keep it in the next one."""
        return [peer for peer in self.view.holders[stage] if not (peer in self.gone or (stage, peer) in self.vacated)]

    def on_suspect(self, sender: Peer, suspect: Suspect) -> None:
        peer = suspect.peer
        if (
            peer == self.core.me
            or peer not in self.core.members
            or peer in self.gone
            or sender not in self.core.members
        ):
            return
        if suspect.kind == "broken":
            self._broken.report(sender, peer, self.core.now)
            return
        if suspect.kind == "stalled":
            self._stall(peer, suspect.detail)
            return
        if peer in self._inquiries:
            return
        self._inquiry_number += 1
        asked = frozenset(voter for voter in self.view.voters if voter != peer)
        deadline = self.core.now + 1.5 * self.core.settings.poll_seconds
        self._inquiries[peer] = Inquiry(
            self._inquiry_number, peer, sender, suspect.kind, suspect.detail, self.core.now, deadline, asked
        )
        self.core.timers.set_if_clear("poll", deadline)
        poll = Poll(self.view.lineage.id, self.view.number, self._inquiry_number, peer)
        for voter in sorted(asked):
            self.core.send(voter, poll)

    def _stall(self, peer: Peer, detail: str) -> None:
        """One report may be a resend away from being wrong; a lease of them is not."""
        now, settings = self.core.now, self.core.settings
        first, last = self._stalled.get(peer, (now, now))
        self._stalled[peer] = (first if now - last <= 3 * settings.heartbeat_seconds else now, now)
        if now - self._stalled[peer][0] >= settings.lease_seconds:
            self.lose(peer, f"no progress: {detail}")

    def on_poll_reply(self, sender: Peer, reply: PollReply) -> None:
        inquiry = self._inquiries.get(reply.peer)
        if inquiry is None or reply.number != inquiry.number or sender not in inquiry.asked:
            return
        if reply.heard:
            del self._inquiries[reply.peer]
            self._broken.report(inquiry.reporter, reply.peer, self.core.now)
            self.core.note("void", f"{reply.peer} is alive: {sender} hears it", peer=reply.peer.id)
            return
        inquiry.silent.add(sender)
        self.conclude_inquiries()

    def conclude_inquiries(self) -> None:
        for inquiry in list(self._inquiries.values()):
            if inquiry.expired(self.core.now):
                del self._inquiries[inquiry.peer]
            elif inquiry.concluded(self.core.now, self.core.liveness.refused):
                del self._inquiries[inquiry.peer]
                if self.core.liveness.heard_since(inquiry.peer, inquiry.since):
                    self.core.note("void", f"{inquiry.peer} is alive: the leader hears it", peer=inquiry.peer.id)
                else:
                    self.lose(inquiry.peer, f"{inquiry.kind}: {inquiry.detail}")
                    self._unheard[inquiry.peer] = self.core.now
        if self._inquiries:
            self.core.timers.set("poll", min(inquiry.deadline for inquiry in self._inquiries.values()))

    def lose(self, peer: Peer, reason: str) -> None:
        """The peer will not be in the next view."""
        if peer in self.gone or peer not in self.core.members or self.leader.finished:
            return
        self.gone[peer] = reason
        stages = self.view.stages_of(peer)
        for stage in stages:
            self.leader.memory.failed(peer, stage, self.core.now)
        listed = ", ".join(map(str, stages))
        self.core.note("lost", f"{peer} with stage {listed} is lost ({reason})", peer=peer.id, stages=listed)

    def expel(self, behind: tuple[Peer, ...], base: Version) -> None:
        """A peer that says it is behind a commit that needed its Ready: theirs to answer for. When it is us, those who
        speak of the commit."""
        if self.core.me not in behind:
            for peer in behind:
                self.lose(peer, "its weights are behind a commit")
            return
        told = self.leader.statuses.items()
        liars = [peer for peer, said in told if base in (said.base, *(s.version for s in said.stages))]
        if self.core.me in liars or not liars:
            raise LocalError("our own weights are behind a commit that needed our Ready")
        for peer in liars:
            self.lose(peer, f"speaks of a commit of step {base.step}, which needed our Ready")

    def on_resign(self, sender: Peer, resign: Resign) -> None:
        if sender not in self.core.members or self.leader.finished:
            return
        if resign.leaving and resign.hand_over:
            if sender != self.core.me or self.core.leaving:  # else we stay after all
                self.leader.leavers.announce(sender)
            return
        if resign.leaving and sender != self.core.me:
            self.lose(sender, resign.reason)
            return
        for stage in resign.stages:
            news = sender in self.view.holders[stage] and (stage, sender) not in self.vacated
            self.leader.recruiting.on_given_up(sender, stage, news and resign.reason.startswith(NOT_LENT))
            if news:
                self.vacated[(stage, sender)] = resign.reason
                self.leader.memory.failed(sender, stage, self.core.now)
                fields = {"peer": sender.id, "stages": str(stage)}
                self.core.note("lost", f"{sender} gives up stage {stage} ({resign.reason})", **fields)

    def vacate(self, stage: int, peer: Peer, reason: str) -> None:
        """The peer stays, without this stage."""
        self.vacated[(stage, peer)] = reason

    def may_settle(self) -> bool:
        """Whether the voters that are not lost could choose a view. Otherwise those that a new view would remove would
        have to accept it, which shows that they are alive: a leader that was cut off would throw all weights away."""
        return self.view.is_quorum({voter for voter in self.view.voters if voter not in self._unheard})

    def _forgive(self) -> None:
        """Nobody is lost who is heard again before a view was proposed without it."""
        for peer, since in list(self._unheard.items()):
            if self.core.liveness.heard_since(peer, since) and peer not in self.core.liveness.refused:
                del self._unheard[peer]
                self.gone.pop(peer, None)
                self.core.note("void", f"{peer} is alive: the leader hears it again", peer=peer.id)

    def beat(self) -> None:
        """Look at links that stay broken and at computes that hang."""
        core = self.core
        if not core.balloting.proposing:
            self._forgive()
        victim = self._broken.victim(self.view, core.now)
        if victim is not None:
            self.lose(*victim)
        self._lose_strays()
        limit = 1.5 * core.settings.task_seconds
        for peer in sorted(core.members):
            report = core.reports.get(peer)
            if report is not None and report.view == self.view.number and report.busy_seconds > limit:
                self.lose(peer, f"its compute has been on one task for {report.busy_seconds:.0f} s")

    def _lose_strays(self) -> None:
        """Whoever accepted two leaders' offers follows one of them: it is alive, and the other one would wait for its
        Status for ever. Who is only late has our certificate within two leases."""
        core, ours, told = self.core, self.view.lineage.id, self.core.liveness.lineages
        others = core.members - {core.me} if core.follow.quorate else ()  # else it is we who are out of it
        strays = [peer for peer in sorted(others) if told.get(peer, ours) != ours]
        self._strays = {peer: self._strays.get(peer, core.now) for peer in strays}
        for peer, since in self._strays.items():
            if core.now - since > 2 * core.settings.lease_seconds:
                self.lose(peer, f"it follows lineage {told[peer][:6]}" if told[peer] else "it follows no lineage")
