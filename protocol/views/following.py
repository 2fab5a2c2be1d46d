"""Finding the run and keeping up with it: genesis, certificates, lineages that meet, a leader or a quorum that is gone.

Rules 11, 14, 16, 37 and the genesis paragraph of docs/explanation/protocol.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from ftnode.protocol.chronicle import Chronicle
from ftnode.protocol.recovery.rolls import undone
from ftnode.protocol.situation import (
    AskAround,
    BeatNow,
    ClearTimer,
    GiveViewUp,
    GoBack,
    GoOnFromDisks,
    Outcome,
    ShowView,
    Situation,
    TakeUp,
    YieldTo,
)
from ftnode.protocol.views.ballot import Balloting
from ftnode.protocol.views.former_holders import FormerHolder
from ftnode.protocol.views.founding import found, founded_for_us, on_disks
from ftnode.protocol.views.given_up import GivenUpLineages
from ftnode.protocol.views.lineage_rank import ABOUT, behind, judges, own_step, wins
from ftnode.protocol.views.proofs import LINEAGES_KEPT, Known, Proofs
from ftnode.protocol.views.succession import fork, next_view, restart, revive
from ftnode.protocol.words.effects import AskOrder, PublishView, Search
from ftnode.protocol.words.events import Directory
from ftnode.protocol.words.messages import HALTED, Certificate, Heartbeat, Poisoned, Roll, founding_proof
from ftnode.protocol.words.types import Peer, names_of
from ftnode.protocol.words.view import Lineage, View

FOUNDER_PATIENCE_WINDOWS = 4
"""How many windows a peer waits for a rival with a lower PeerId that is alive but does not found."""
UNMOVED_LEASES = 3
"""So long a lineage that meets ours has to follow the members' order that ours has followed."""
LATELY_SECONDS = 60.0
"""How long it is remembered whom we answered about our lineage."""


def may_say(said: dict[Peer, float], peer: Peer, s: Situation) -> bool:
    """Once per heartbeat to each peer. `said`: when to whom; what is long ago is taken out, and this put in."""
    if s.now - said.get(peer, float("-inf")) < s.settings.heartbeat_seconds:
        return False
    for old in [each for each, at in said.items() if s.now - at >= LATELY_SECONDS]:
        del said[old]
    said[peer] = s.now
    return True


def _is_idle(view: View, s: Situation) -> bool:
    """Our lineage has nothing to lose but what is on disks."""
    return view.lineage.start is None and not s.own.ours


def _what_is_wrong(s: Situation, view: View) -> str:
    """With a leader in whose place another one is to lead."""
    if s.leader_lied:
        return "has lied, as two words prove that it signed"
    if s.leader_idle:
        return f"has let nothing be done for {s.still_seconds:.1f} s"
    if s.leader_silent:
        return f"is silent for {s.liveness.silence(view.leader, s.now):.1f} s"
    return "is doubted by who keeps a copy of what it holds alone"


class Following:
    """Which view this peer goes by, and whether a quorum stands behind it."""

    def __init__(self, chronicle: Chronicle) -> None:
        self.chronicle = chronicle
        self.quorate_at = 0.0
        self._told_at = float("-inf")
        """When the leader of this view last said that it hears a quorum; of a view just taken up it has not."""
        self._leader_silent_at: float | None = None
        self.leader_doubted = False
        """By who keeps a copy of what it holds alone."""
        self._alone_since: float | None = None
        self._windows = 0
        self._founded = 0
        """How many lineages this life of ours has founded."""
        self._searched_empty = False
        self._rivals: tuple[Peer, ...] = ()
        self._followed: Lineage | None = None
        self._came_back_from = ""
        """The lineage that we yielded to and left again. Who yields to it once more stays, also when it halts: ours did
        not go on either."""
        self._false: dict[str, float] = {}
        """Lineages that go on from snapshots in which we did not believe, and since when."""
        self._answered: dict[Peer, float] = {}
        """Whom we told of our lineage, and when: once per heartbeat to each, since neither side may find the other one
        better as long as one does not know where it stands."""
        self.given_up, self.former, self.proofs = GivenUpLineages(), FormerHolder(), Proofs()
        self._unmoved: dict[str, float] = {}
        """Lineages that have not followed the members' order that ours has, and since when we know of them."""
        self._asked_order: dict[Peer, float] = {}
        self._asked: dict[Peer, float] = {}
        """Who showed us a view that did not follow from ours, and when we asked for what is between."""

    # -- quorum

    def started(self, now: float) -> None:
        self.quorate_at = now

    def vouches(self, s: Situation) -> bool:
        """May others yield to our lineage on our word? Taking up a view is no evidence that anybody stands behind it:
        two peers that came back to a dead lineage would call each other for ever."""
        told = s.led is not None or s.now - self._told_at <= s.settings.lease_seconds
        return s.member and s.quorate and told

    def on_blocked(self, s: Situation) -> Outcome:
        """We were suspended: suspect ourselves first, and learn what became of the view."""
        out = Outcome()
        out.note("blocked", "this machine stood still for a while: asks the others what has happened since")
        if s.view is not None:
            out.beat(True, *(peer for peer in s.view.members() if peer != s.me))
            out.append(Search("was blocked"))
        return out

    # -- certificates and lineages

    def on_view(self, s: Situation, before: View | None, view: View, forked: bool) -> Outcome:
        """`s` is the situation in the view. `before`: the view before, if it is of the same lineage."""
        out = Outcome()
        self.quorate_at = max(s.now, self.quorate_at)
        self._told_at = float("-inf")
        self._leader_silent_at = self._alone_since = None
        self.leader_doubted = False
        self.former.on_view(view, before is not None, s.member)
        out.append(ClearTimer("found"))
        last, self._followed = self._followed, view.lineage
        if last is not None and last.origin != view.lineage.origin:
            start = view.lineage.start if forked else None
            self.chronicle.forget(start.step if start is not None else 0)
        if before is None:
            out.note("lineage", f"goes by branch {view.lineage.id[:6]} of the run from now on")
        return out

    def on_certificate(self, s: Situation, sender: Peer, message: Certificate, view: View) -> Outcome:
        """`view`: that of the message, or a later one of its lineage that we had before."""
        out, mine = Outcome(), s.view
        if view.run != s.settings.run or len(view.holders) != s.settings.stage_count:
            return out
        proof = message.proof if view == message.view else self.proofs.of(view)
        s = self._as_bound(s, view)
        if self._is_false(s, view):
            self._answer(s, out, sender)
        elif self._by_order(s, out, sender, view, message.roll):
            pass
        elif mine is None:
            wrong = self.given_up.was_wrong(message.view, sender)
            if message.quorate or wrong or not self.given_up.keeps_from(view):
                out.append(TakeUp(view, proof))
        elif view.lineage.id == mine.lineage.id:
            self._same_lineage(s, out, sender, message, mine)
        elif self._doubts(s, view, message.roll):
            self._disbelieve(s, out, sender, view)
        elif founded_for_us(s, self.former, sender, view) and self.proofs.akin(proof):
            out.append(TakeUp(view, proof))
        else:
            self._meet(s, out, sender, message, Known(view, proof))
        return out

    def _as_bound(self, s: Situation, view: View) -> Situation:
        """Members' order, which binds those no longer whose lineage has been shown it, and has not followed: too few of
        theirs have signed it. As without it, one of both goes on."""
        mine, order = s.view, s.order
        if mine is None or not order.members or not view.lineage.order < mine.lineage.order == order.number:
            return s
        since = self._unmoved.setdefault(view.lineage.id, s.now)
        while len(self._unmoved) > LINEAGES_KEPT:
            del self._unmoved[next(iter(self._unmoved))]
        patient = s.now - since <= UNMOVED_LEASES * s.settings.lease_seconds
        return s if patient else s._replace(order=replace(order, binds=False))

    def _by_order(
        self, s: Situation, out: Outcome, sender: Peer, view: View, shown: Roll | None, hint: bool = False
    ) -> bool:
        """True where the author's orders to roll back decide that a view is not taken up (rule 47). What follows an
        order that is not known here is believed when its manifest has been seen. What has not followed the one that
        ours has is over. `hint`: the directory says it, which has no rolls to show."""
        theirs, start = view.lineage.order, view.lineage.start
        if theirs > s.order.number:
            if may_say(self._asked_order, sender, s):
                out.append(AskOrder(sender))
            return True
        if s.view is None or theirs == s.view.lineage.order:
            return False
        if theirs < s.view.lineage.order and s.order.binds:
            self._answer(s, out, sender)
            return True
        ours = () if shown is None else (shown,)
        if theirs == s.order.number and start is not None and undone(s.order, start, ours):
            if hint:
                return True
            self._disbelieve(s, out, sender, view)
            return True
        return False

    def _doubts(self, s: Situation, view: View, shown: Roll | None) -> bool:
        """It goes on from snapshots that a quorum of those whom we know has not signed, though they are about (rule
        44). Only of a lineage that is founded for us, or while ours has nothing to lose but what is on disks."""
        assert s.view is not None
        ours = _is_idle(s.view, s) or s.view.digest() == view.previous
        start = view.lineage.start
        if not ours or start is None or not view.lineage.from_disks:
            return False
        present = {peer.id for peer in (*s.presences, *s.members, s.me)}
        tellers = {
            peer.id
            for peer, presence in s.presences.items()
            if any(kept.version == start for kept in presence.snapshots)
        }
        return s.own.disbelieves(view.lineage, shown, present, tellers)

    def _disbelieve(self, s: Situation, out: Outcome, sender: Peer, view: View) -> None:
        """We do not yield to it for as long as we have another one."""
        assert view.lineage.start is not None
        step = view.lineage.start.step
        text = f"does not follow {sender} to snapshots of step {step}: nobody whom this node knows has signed them"
        out.note("disk", text, peer=sender.id)
        self._false.pop(view.lineage.id, None)
        self._false[view.lineage.id] = s.now
        while len(self._false) > LINEAGES_KEPT:
            del self._false[next(iter(self._false))]
        self._answer(s, out, sender)

    def _is_false(self, s: Situation, view: View) -> bool:
        """Should we find nobody else who has anything, we may be the ones who do not know."""
        since = self._false.get(view.lineage.origin)
        sure = s.view is not None and s.quorate and not _is_idle(s.view, s)
        return since is not None and (sure or s.now - since < 3 * s.settings.restart_wait_seconds)

    def _answer(self, s: Situation, out: Outcome, sender: Peer) -> None:
        """Show whoever goes by another lineage what ours is."""
        if self.vouches(s) and may_say(self._answered, sender, s):
            out.append(ShowView(sender))

    def _same_lineage(self, s: Situation, out: Outcome, sender: Peer, message: Certificate, mine: View) -> None:
        """A later view of our lineage counts when it follows from ours. What we go by on the directory's word alone
        also gives way to whatever those show whom it names."""
        view, proof, proved = message.view, message.proof, self.proofs.of(mine) is not None
        if view == mine:
            if proof is not None and not proved:
                self.proofs.keep(view, proof)
        elif view.number >= mine.number and not proved and self._speaks_for(mine, sender):
            out.append(TakeUp(view, proof))
        elif view.number > mine.number:
            later = self.proofs.follow(mine, message)
            if later is not None:
                out.append(TakeUp(*later))
            if later is None or later.view != view:
                self._ask(s, out, sender)
        elif view.number < mine.number:
            out.append(ShowView(sender, view.number))

    def _speaks_for(self, mine: View, sender: Peer) -> bool:
        """Whether it is named in the view that the directory has shown us. Whoever is not may be anybody."""
        return sender in mine.members()

    def _ask(self, s: Situation, out: Outcome, sender: Peer) -> None:
        """Our heartbeat says by which view we go, and is answered with what leads from there."""
        if may_say(self._asked, sender, s):
            out.beat(True, sender)

    def _can_choose(self, s: Situation) -> bool:
        """Whether we hear enough voters to choose a view without our leader: a lower lineage is no reason to yield."""
        assert s.view is not None
        followers = s.liveness.followers(s.view.voters, s.view.lineage.id, s.now)
        return s.member and not s.own.finished and s.view.is_quorum({s.me, *followers})

    def _meet(self, s: Situation, out: Outcome, sender: Peer, message: Certificate, other: Known) -> None:
        """Another lineage. Its leader alone knows how far it is."""
        view = other.view
        theirs = message.quorate and sender == view.leader
        if theirs and judges(s) and self._loses(s, view, message.step) and self._may_yield_to(s, other):
            self._yield(s, out, other)
            return
        if not may_say(self._answered, sender, s):
            return
        if message.quorate and view.leader not in (sender, s.me):
            out.beat(True, view.leader)
        if self.vouches(s):
            out.append(ShowView(sender))

    def _loses(self, s: Situation, theirs: View, step: int) -> bool:
        """Their lineage, which says that it is at `step`, goes before ours, or nothing stands behind ours."""
        if wins(s, theirs, step):
            return True
        return not (s.quorate or self._can_choose(s) or behind(s, theirs, step))

    def _may_yield_to(self, s: Situation, other: Known) -> bool:
        """Anybody can found a lineage, and claim anything of it. We believe it of listed peers, where it is signed by
        somebody whom we know from our own past, and where there is nothing to lose."""
        assert s.view is not None
        nothing_to_lose = own_step(s) < ABOUT or not (s.own.ours or s.quorate)
        return s.settings.listed or nothing_to_lose or self.proofs.akin(other.proof)

    def _yield(self, s: Situation, out: Outcome, winner: Known) -> None:
        """Our lineage loses: its weights must not mix with the winner's. If it was the winner before, we go back to the
        one that we left for it, with what we had there."""
        assert s.view is not None
        given_up = s.own.given_up
        if given_up is not None and given_up.lineage.id == winner.view.lineage.id:
            ours, theirs = s.view.lineage.id[:6], winner.view.lineage.id[:6]
            text = f"goes back to branch {theirs} of the run, which it had left for {ours}"
            self._go_back(out, s.view, given_up, text)
            return
        out.note("yield", f"the run was split: leaves branch {s.view.lineage.id[:6]} for {winner.view.lineage.id[:6]}")
        out.append(YieldTo(*winner))

    def _go_back(self, out: Outcome, left: View, given_up: View, text: str) -> None:
        self._came_back_from = left.lineage.id
        out.note("back", text)
        out.append(GoBack(given_up))

    def on_heartbeat(self, s: Situation, sender: Peer, heartbeat: Heartbeat) -> Outcome:
        out, view = Outcome(), s.view
        if view is None:
            return out
        if heartbeat.lineage != view.lineage.id:
            if s.member or s.quorate:
                out.append(ShowView(sender))
            return out
        if heartbeat.view > view.number:
            self._ask(s, out, sender)
        elif heartbeat.view < view.number and self.proofs.of(view) is not None:
            out.append(ShowView(sender, heartbeat.view))
        if sender == view.leader and heartbeat.view == view.number:
            if heartbeat.quorate and not s.liveness.stale(s.now):
                self.quorate_at = self._told_at = s.now
            for commit in heartbeat.commits:
                self.chronicle.commit(commit, s.now)
            for step, loss in heartbeat.validation:
                self.chronicle.evaluate(step, loss)
        return out

    # -- the directory and genesis

    def search(self, s: Situation) -> Outcome:
        """Read the directory: often while something is missing, else now and then."""
        out = Outcome()
        out.append(Search("periodic"))
        wanting = s.led is not None and s.led.wanting(s)
        missing = s.view is None or wanting
        lost = s.view is not None and not s.member and not s.quorate
        period = s.settings.search_seconds if missing or lost else 2 * s.settings.lease_seconds
        out.set_timer("search", s.now + period)
        return out

    def on_directory(self, s: Situation, certificates: Sequence[View]) -> list[View]:
        """The certificates to `consider`, one after the other; then comes `after_directory`."""
        self.former.read(s)
        listed = self.given_up.read(s, [each for each in certificates if not self._is_false(s, each)])
        self._searched_empty = not listed and not self.given_up.doubtful(s)
        return [each for each in listed if each.run == s.settings.run and len(each.holders) == s.settings.stage_count]

    def after_directory(self, s: Situation, found: Directory, before: View | None) -> Outcome:
        """`before`: the view that we went by before."""
        out = Outcome()
        self._rivals = tuple(
            presence.peer for presence in found.presences if presence.lineage or presence.peer.id < s.me.id
        )
        if s.view is None and self._searched_empty and s.own.compute_ready:
            out.set_timer("found", s.now + s.settings.found_window_seconds, keep=True)
        if before is None and s.view is not None:
            out.append(BeatNow())
        return out

    def on_compute_ready(self, s: Situation) -> Outcome:
        return Outcome([Search("ready to hold a stage")] if s.view is None else [])

    def consider(self, s: Situation, listed: View, certificate: View) -> Outcome:
        """A certificate from the directory is a hint: enough to follow, never enough to yield to, and none where
        somebody of our view can be asked. `certificate`: the one that is listed, or a later one of its lineage that we
        had before."""
        out, mine = Outcome(), s.view
        if self._by_order(s, out, certificate.leader, certificate, None, hint=True):
            out.append(AskAround((certificate.leader,)))
        elif mine is not None and self._doubts(s, certificate, None):
            out.append(AskAround((certificate.leader,)))  # who may have a roll
        elif mine is None and self.given_up.keeps_from(certificate):
            # a record of it is not enough, a word is
            out.append(AskAround(tuple(set(listed.members()) - s.liveness.refused)))
        elif mine is None:
            out.append(TakeUp(certificate, None))
        elif certificate.lineage.id == mine.lineage.id:
            higher = certificate.number > mine.number
            if higher and self.proofs.of(mine) is None and not self._can_ask(s):
                out.append(TakeUp(certificate, None))
            elif higher:
                out.append(AskAround(tuple(set(listed.members()) - s.liveness.refused)))
        elif not s.member and not s.quorate and not s.liveness.alive(s.members, s.now):
            other = certificate.lineage.origin != mine.lineage.origin
            if founded_for_us(s, self.former, certificate.leader, certificate):
                out.append(TakeUp(certificate, None))
            elif (certificate.lineage.beats(mine.lineage) or self._everybody_gone(s)) and not (other and own_step(s)):
                self._yield(s, out, Known(certificate, None))
        elif s.member:
            out.beat(True, certificate.leader)
        return out

    def _can_ask(self, s: Situation) -> bool:
        """Whether somebody of our view is heard, who would show us a later one."""
        return bool(s.liveness.alive(s.members, s.now))

    def _halted(self, s: Situation, view: View) -> bool:
        """The leader says that its lineage cannot go on with what is left of it."""
        report = s.reports.get(view.leader)
        return report is not None and report.waiting.startswith(HALTED)

    def _everybody_gone(self, s: Situation) -> bool:
        return s.now - self.quorate_at > 2 * s.settings.lease_seconds

    def found_due(self, s: Situation) -> Outcome:
        """The window is over: found the run, unless a rival with a lower PeerId is alive, or somebody who follows a
        lineage already, whose certificate the directory has not shown us yet (genesis)."""
        out = Outcome()
        if s.view is not None or not s.own.compute_ready:
            return out
        if s.highest_step > 0 and not on_disks(s):
            out.note("gone", "this run is under way: waits for those who have its weights, instead of starting it anew")
            return out
        rivals = [peer for peer in self._rivals if peer not in s.liveness.refused]
        self._windows += 1
        if rivals and self._windows <= FOUNDER_PATIENCE_WINDOWS:
            out.beat(True, *rivals)
            out.append(Search("waits for a founder"))
            out.set_timer("found", s.now + s.settings.found_window_seconds)
        elif self._searched_empty:
            self._founded += 1
            return found(s, self._founded - 1)
        return out

    def go_on_from_disks(self, s: Situation, go: GoOnFromDisks) -> Outcome:
        """Rules 36 and 47: we lead, and memory does not suffice and disks do, or the author has ordered it: found the
        lineage that goes on from them."""
        assert s.view is not None
        out = Outcome()
        self._founded += 1
        out.note("restart", go.reason, step=str(go.start.step))
        view = restart(s.view, s.me, self._founded, go.number, go.start, go.exact_stages, go.reason, go.order)
        out.append(TakeUp(view, founding_proof(s.me), tuple(sorted({*view.members()} - {s.me}))))
        return out

    # -- a leader or a quorum that is gone

    def beat(self, s: Situation, balloting: Balloting | None) -> Outcome:
        out = Outcome()
        if s.view is None:
            return out
        if not s.member:
            self._watch_as_standby(s, s.view, out)
            return out
        assert balloting is not None
        self._take_over(s, s.view, out, balloting)
        if s.led is not None and s.quorate:
            self.quorate_at = s.now
        self._fork(s, s.view, out, balloting)
        return out

    def _watch_as_standby(self, s: Situation, view: View, out: Outcome) -> None:
        """A swarm that nobody hears any more is not advertised any longer."""
        halted = self._halted(s, view) and self._came_back_from != view.lineage.id
        before = s.own.given_up
        undone_since = before is not None and before.lineage.order < view.lineage.order
        if before is not None and not undone_since and (self._everybody_gone(s) or halted):
            self.given_up.silent(view)
            why = f"branch {view.lineage.id[:6]} of the run cannot go on, or nobody is left in it"
            self._go_back(out, view, before, f"{why}; goes back to the one before")
            return
        if self._everybody_gone(s):
            out.note("gone", "no member of the run answers; waits for them, or for others to go on without them")
            out.append(PublishView(None))
        if self._revive(s, view, out):
            return
        if not s.liveness.alive(s.members, s.now):
            out.append(Search("no member of the run is heard"))
        if self.given_up.is_over(s, view, self.quorate_at):
            self.given_up.over(view, s.now)
            self._give_up_view(out, view, "all of its members have begun another life")
        elif s.now - self.quorate_at > s.settings.look_for_seconds:
            self._give_up_view(out, view)

    def _give_up_view(self, out: Outcome, view: View, reason: str = "nobody has answered for too long") -> None:
        out.note("gone", f"the list of members that it had is given up: {reason}")
        out.append(PublishView(None))
        out.append(GiveViewUp())
        self.given_up.silent(view)
        self._windows = 0

    def _revive(self, s: Situation, view: View, out: Outcome) -> bool:
        """Rule 16 for a former holder of newest weights when no voter is left: True if it goes on or waits its turn."""
        settings, newest, held = s.settings, s.highest_step, s.own.ours
        room = min(s.hold, s.own.capacity)
        stages = sorted(stage for stage in held if held[stage].step == newest > 0)[:room]
        if not stages or s.leaving or not s.own.compute_ready or s.liveness.alive(view.voters, s.now):
            return False
        place = min(self.former.place_in_queue(s, newest), len(view.holders))
        waited = s.now - self.quorate_at
        if waited < settings.minority_wait_seconds + 2 * (1 + place) * settings.lease_seconds:
            return True
        reason = f"nobody who may vote is left; a former holder goes on with {names_of(stages)} of step {newest}"
        out.note("fork", reason)
        self._founded += 1
        revived = revive(view, s.me, self._founded, stages, reason)
        out.append(TakeUp(revived, founding_proof(s.me), self.former.reporting(), both=True))
        return True

    def _take_over(self, s: Situation, view: View, out: Outcome, balloting: Balloting) -> None:
        """Rule 11: the i-th voter proposes after D (1 + i) of a silent leader, or of one that is idle, has lied, or is
        doubted. That one stays a holder: the next leader goes by what is said of it."""
        if not s.another_leads:
            self._leader_silent_at = balloting.asked_since = None
            return
        if s.me not in view.voters or s.own.finished:
            return
        if s.leader_idle and not s.members <= {s.me, *s.reports}:  # others may do what we are not told of
            return
        if self._leader_silent_at is None:
            self._leader_silent_at = s.now
        before = [peer for peer in view.voters[: view.voters.index(s.me)] if peer != view.leader]
        rank = sum(not s.liveness.silent(peer, s.now) for peer in before)
        if s.now - self._leader_silent_at < s.settings.takeover_seconds * (s.leader_silent + rank):
            return  # all hear of a doubt at once, and nothing is to be waited for
        if balloting.proposing and s.now - balloting.since < s.settings.ballot_seconds * (1 + s.chance.random()):
            out.extend(balloting.resend())
            return
        goes = s.leader_silent
        reason = f"leader {view.leader} {_what_is_wrong(s, view)}"
        if goes:
            stages = ", ".join(map(str, view.stages_of(view.leader)))
            out.note("lost", f"{reason}; proposes to go on without it", peer=view.leader.id, stages=stages)
        else:
            out.note("lead", f"{reason}; proposes to lead", peer=view.leader.id)
        successor = next_view(view, s.me, {view.leader} if goes else (), (), {}, (), reason)
        out.extend(balloting.propose(successor, s.now))

    def on_accused_leader(self, s: Situation, sender: Peer, said: Poisoned, kept: Collection[tuple[int, str]]) -> bool:
        """A member says that our leader does something else at a stage than its visits give. True: we doubt the leader
        for that. `kept`: (stage, PeerId) of the keepers of copies. Nobody else could tell of a stage that the leader
        holds alone, and a newcomer's word counts for nothing."""
        view = s.view
        if view is None or sender not in s.members or not said.distance or said.giver != view.leader:
            return False
        alone = view.holders[said.stage] == (view.leader,)
        chosen = view.is_quorum({*view.voters} - {view.leader})  # else nobody could be, and views would be held up
        if alone and chosen and (said.stage, sender.id) in kept and sender not in s.new([sender]):
            self.leader_doubted = True
        return self.leader_doubted

    def _abstaining(self, s: Situation, balloting: Balloting) -> set[Peer]:
        """Those that say nothing in the election for as long as a peer may be silent count as silent. Whoever hears the
        leader promises nothing, and rightly (rule 11); but its word for that does not count for ever."""
        asked = balloting.asked_since
        if s.led is not None or asked is None:
            return set()
        if s.now - asked < s.settings.look_for_seconds:
            balloting.took_part |= {peer: s.now for peer, report in s.reports.items() if report.quorate}
        quiet = balloting.quiet(s.now, s.liveness.grace)
        return {peer for peer, seconds in quiet.items() if seconds > s.liveness.patience(peer)}

    def _fork(self, s: Situation, view: View, out: Outcome, balloting: Balloting) -> None:
        """Rule 16: without a quorum for minority_wait, the first living voter founds a lineage with those it hears."""
        settings = s.settings
        if s.quorate or s.own.finished or s.now - s.liveness.grace < settings.lease_seconds:
            self._alone_since = None
            return
        if self._alone_since is None:
            self._alone_since = s.now
        alive = s.liveness.followers(s.members, view.lineage.id, s.now) | {s.me}
        alive -= self._abstaining(s, balloting)
        founders = [peer for peer in view.voters if peer in alive] or sorted(alive)
        if s.me not in founders or view.is_quorum(alive):
            return
        if s.me not in view.voters and not s.own.ours:
            # A newcomer without weights has nothing to go on with. When no voter is left, others may have.
            alone = s.now - self._alone_since > settings.minority_wait_seconds + 5 * settings.lease_seconds
            if alone and not s.liveness.followers(view.voters, view.lineage.id, s.now):
                self._give_up_view(out, view)
            return
        patience = settings.minority_wait_seconds + founders.index(s.me) * 2 * settings.lease_seconds
        if s.now - self._alone_since < patience:
            return
        waited = s.now - self._alone_since
        names = ", ".join(str(peer) for peer in sorted(alive))
        reason = f"no majority was heard for {waited:.0f} s; the run goes on with {names}"
        out.note("fork", reason)
        self._founded += 1
        forked = fork(view, s.me, self._founded, alive, reason)
        out.append(TakeUp(forked, founding_proof(s.me), tuple(sorted(alive - {s.me}))))
