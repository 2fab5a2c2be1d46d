"""Finding the run and keeping up with it: genesis, certificates, lineages that meet, a leader or a quorum that is gone.

Rules 11, 14, 16, 37 and the genesis paragraph of docs/protocol.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftnode.protocol.effects import PublishView, Search, Stop
from ftnode.protocol.events import Directory
from ftnode.protocol.founding import found, founded_for_us, on_disks, start_again
from ftnode.protocol.last_copy import last_copies
from ftnode.protocol.messages import Certificate, Heartbeat
from ftnode.protocol.outside import Outside
from ftnode.protocol.past import Past
from ftnode.protocol.rank import Strangers, own_step
from ftnode.protocol.succession import fork, next_view, revive
from ftnode.protocol.types import Peer, Version
from ftnode.protocol.view import Lineage, View

if TYPE_CHECKING:
    from ftnode.protocol.participant import Participant

FOUNDER_PATIENCE_WINDOWS = 4
"""How many windows a peer waits for a rival with a lower PeerId that is alive but does not found."""


class Follow:
    """Which view this peer goes by, and whether a quorum stands behind it."""

    def __init__(self, core: Participant) -> None:
        self.core = core
        self.quorate_at = 0.0
        self._told_at = float("-inf")
        """When the leader of this view last said that it hears a quorum; of a view just taken up it has not."""
        self._leader_silent_at: float | None = None
        self._alone_since: float | None = None
        self._windows = 0
        self._given_up = ""
        """The lineage whose last view nobody stood behind: another one goes before it."""
        self._founded = 0
        """How many lineages this life of ours has founded."""
        self._searched_empty, self._strangers = False, Strangers(core)
        self._rivals: tuple[Peer, ...] = ()
        self._followed: Lineage | None = None
        self._past, self.outside = Past(core), Outside(core)

    # -- quorum

    def started(self) -> None:
        self.quorate_at = self._over_since = self.core.now

    @property
    def quorate(self) -> bool:
        """A leader: hears a quorum. Others: the leader said so within the lease, and we were not blocked since."""
        core = self.core
        if core.view is None:
            return False
        if core.leader is not None:
            return core.liveness.quorate(core.view, core.me, core.now)
        return core.now - self.quorate_at <= core.settings.lease_seconds and self.quorate_at >= core.liveness.grace

    @property
    def vouches(self) -> bool:
        """May others yield to our lineage on our word? Taking up a view is no evidence that anybody stands behind it:
        two peers that came back to a dead lineage would call each other for ever."""
        core = self.core
        told = core.leader is not None or core.now - self._told_at <= core.settings.lease_seconds
        return core.member and self.quorate and told

    def on_blocked(self) -> None:
        """We were suspended: suspect ourselves first, and learn what became of the view."""
        core = self.core
        core.note("blocked", "this node was blocked for more than half a lease; it suspects itself first")
        if core.view is not None:
            for peer in core.view.members():
                if peer != core.me:
                    core.send(peer, core.watch.heartbeat(True))
            core.emit(Search("was blocked"))

    # -- certificates and lineages

    def on_view(self, before: View | None, view: View, forked: bool) -> None:
        self.quorate_at = max(self.core.now, self.quorate_at)
        self._told_at = float("-inf")
        self._leader_silent_at = self._alone_since = None
        if self.core.leader is None or before is None:
            self.core.memory.unstick()
        self.outside.on_view(view, before is not None)
        self.core.timers.clear("found")
        last, self._followed = self._followed, view.lineage
        if last is not None and last.origin != view.lineage.origin:
            start = view.lineage.start if forked else None
            self.core.chronicle.forget(start.step if start is not None else 0)
        if before is None:
            self.core.note("lineage", f"follows lineage {view.lineage.id[:6]} at view {view.number}")

    def on_certificate(self, sender: Peer, message: Certificate) -> None:
        core, view, mine = self.core, self.core.election.newest_of(message.view), self.core.view
        if view.run != core.settings.run or len(view.holders) != core.settings.stage_count:
            return
        if mine is None:
            wrong = view.lineage.id in self._past.lineages and sender in message.view.members()
            if message.quorate or wrong or not self._is_given_up(view):
                core.install(view)
        elif view.lineage.id == mine.lineage.id:
            if view.number > mine.number:
                core.install(view)
            elif view.number < mine.number:
                core.send(sender, core.certificate())
        elif founded_for_us(core, sender, view):
            core.install(view)
        elif view.lineage.origin != mine.lineage.origin:
            self._strangers.meet(sender, message, view)
        elif message.quorate and (view.lineage.beats(mine.lineage) or not (self.quorate or self.can_choose())):
            self.yield_if_sure(sender, view)
        elif self.vouches:
            core.send(sender, core.certificate())

    def can_choose(self) -> bool:
        """Whether we hear enough voters to choose a view without our leader: a lower lineage is no reason to yield."""
        core, view = self.core, self.core.view
        assert view is not None
        followers = core.liveness.followers(view.voters, view.lineage.id, core.now)
        return core.member and not core.holder.finished and view.is_quorum({core.me, *followers})

    def yield_if_sure(self, sender: Peer, view: View) -> None:
        """A standby takes anybody's word. A member would lose work, so it asks the leader, who counts the quorum
        itself; a lineage that we led and left has nobody to ask."""
        core = self.core
        if sender == view.leader or not core.member:
            self._yield(view)
        elif view.leader != core.me:
            core.send(view.leader, core.watch.heartbeat(True))

    def _yield(self, view: View) -> None:
        """Our lineage loses: its weights must not mix with the winner's."""
        core = self.core
        assert core.view is not None
        core.note("yield", f"lineage {core.view.lineage.id[:6]} yields to {view.lineage.id[:6]}")
        core.holder.yield_to(view.lineage)
        core.install(view)

    def on_heartbeat(self, sender: Peer, heartbeat: Heartbeat) -> None:
        core, view = self.core, self.core.view
        if view is None:
            return
        if heartbeat.lineage != view.lineage.id:
            if core.member or self.quorate:
                core.send(sender, core.certificate())
            return
        if heartbeat.view > view.number:
            core.send(sender, core.watch.heartbeat(True))
        elif heartbeat.view < view.number:
            core.send(sender, core.certificate())
        if sender == view.leader and heartbeat.view == view.number:
            if heartbeat.quorate and not core.liveness.stale(core.now):
                self.quorate_at = self._told_at = core.now
            for commit in heartbeat.commits:
                core.chronicle.commit(commit, core.now)
            for step, loss in heartbeat.validation:
                core.chronicle.evaluate(step, loss)

    # -- the directory and genesis

    def search(self) -> None:
        """Read the directory: often while something is missing, else now and then."""
        core = self.core
        core.emit(Search("periodic"))
        leader = core.leader
        wanting = leader is not None and leader.wanting()
        missing = core.view is None or wanting
        lost = core.view is not None and not core.member and not self.quorate
        period = core.settings.search_seconds if missing or lost else 2 * core.settings.lease_seconds
        core.timers.set("search", core.now + period)

    def on_directory(self, event: Directory) -> None:
        core, view = self.core, self.core.view
        certificates = self._past.read(event.certificates)
        for certificate in certificates:
            if certificate.run == core.settings.run and len(certificate.holders) == core.settings.stage_count:
                self._consider(certificate)
        self._rivals = tuple(
            presence.peer for presence in event.presences if presence.lineage or presence.peer.id < core.me.id
        )
        self._searched_empty = not certificates and not self._past.doubtful()
        if core.view is None and self._searched_empty and core.holder.compute_ready:
            core.timers.set_if_clear("found", core.now + core.settings.found_window_seconds)
        if view is None and core.view is not None:
            core.watch.beat()

    def on_compute_ready(self) -> None:
        if self.core.view is None:
            self.core.emit(Search("ready to hold a stage"))

    def _consider(self, listed: View) -> None:
        """A certificate from the directory is a hint: enough to follow, never enough to yield to."""
        core, mine = self.core, self.core.view
        certificate = core.election.newest_of(listed)
        if mine is None and self._is_given_up(certificate):
            # a record of it is not enough, a word is
            core.watch.ask(set(listed.members()) - core.liveness.refused)
        elif mine is None:
            core.install(certificate)
        elif certificate.lineage.id == mine.lineage.id:
            if certificate.number > mine.number:
                core.install(certificate)
        elif not core.member and not self.quorate and not core.liveness.alive(core.members, core.now):
            other = certificate.lineage.origin != mine.lineage.origin
            if founded_for_us(core, certificate.leader, certificate):
                core.install(certificate)
            elif (certificate.lineage.beats(mine.lineage) or self._everybody_gone()) and not (other and own_step(core)):
                self._yield(certificate)
        elif core.member:
            core.send(certificate.leader, core.watch.heartbeat(True))

    def _everybody_gone(self) -> bool:
        core = self.core
        return core.now - self.quorate_at > 2 * core.settings.lease_seconds

    def found_due(self) -> None:
        """The window is over: found the run, unless a rival with a lower PeerId is alive, or somebody who follows a
        lineage already, whose certificate the directory has not shown us yet (genesis)."""
        core = self.core
        if core.view is not None or not core.holder.compute_ready:
            return
        if core.highest_step() > 0 and not on_disks(core):
            core.note("gone", "steps of this run are committed: waits for those who have them instead of founding anew")
            return
        rivals = [peer for peer in self._rivals if peer not in core.liveness.refused]
        self._windows += 1
        if rivals and self._windows <= FOUNDER_PATIENCE_WINDOWS:
            for peer in rivals:
                core.send(peer, core.watch.heartbeat(True))
            core.emit(Search("waits for a founder"))
            core.timers.set("found", core.now + core.settings.found_window_seconds)
            return
        if self._searched_empty:
            self._founded += 1
            found(core, self._founded - 1)

    def restart(self, number: int, start: Version, exact_stages: int, reason: str) -> None:
        """Rule 36: go on from disks, in a lineage of its own."""
        self._founded += 1
        core = self.core
        assert core.view is not None and core.leader is not None
        core.memory.unstick()
        if core.leader.base is None or core.leader.base != core.view.lineage.start:  # which may be a lie
            core.memory.known_step = core.highest_step()
        start_again(core, self._founded, number, start, exact_stages, reason)

    # -- a leader or a quorum that is gone

    def leader_silent(self) -> bool:
        """The leader is silent, refused, or has long been without a quorum itself."""
        core, view = self.core, self.core.view
        if view is None or view.leader == core.me:
            return False
        useless = core.now - max(self.quorate_at, core.liveness.grace) > 2 * core.settings.lease_seconds
        return useless or core.liveness.silent(view.leader, core.now)

    def beat(self) -> None:
        core = self.core
        if core.view is None:
            return
        if not core.member:
            self._watch_as_standby()
            return
        if not (core.leaving and core.holder.finished) or last_copies(core, core.now):
            self._over_since = core.now
        elif core.now - self._over_since > 2 * core.settings.lease_seconds:  # others may ask us meanwhile who is right
            core.emit(Stop(core.leaving))
        self._take_over()
        if core.leader is not None and self.quorate:
            self.quorate_at = core.now
        self._fork()

    def _watch_as_standby(self) -> None:
        """A swarm that nobody hears any more is not advertised any longer."""
        core, view = self.core, self.core.view
        assert view is not None
        if self._everybody_gone():
            core.note("gone", "no member of the view answers; waits for its members or for a new certificate")
            core.emit(PublishView(None))
        if self._revive():
            return
        if not core.liveness.alive(core.members, core.now):
            core.emit(Search("no member of the view is heard"))
        if self._past.is_over(view, self.quorate_at):
            self._past.give_up(view)
            self._give_up_view("all of its members have begun another life")
        elif core.now - self.quorate_at > core.settings.look_for_seconds:
            self._give_up_view()

    def _is_given_up(self, view: View) -> bool:
        return view.lineage.id == self._given_up or view.lineage.id in self._past.lineages

    def _give_up_view(self, reason: str = "nobody has answered for too long") -> None:
        core = self.core
        core.note("gone", f"the view is given up: {reason}")
        core.emit(PublishView(None))
        core.holder.abandon()
        self._given_up = core.view.lineage.id if core.view is not None else ""
        core.view, core.members, core.mine, core.balloting, core.leader = None, frozenset(), (), None, None
        self._windows = 0

    def _revive(self) -> bool:
        """Rule 16 for a former holder of newest weights when no voter is left: True if it goes on or waits its turn."""
        core, view, settings = self.core, self.core.view, self.core.settings
        assert view is not None
        newest, held = core.highest_step(), core.holder.ours
        room = min(core.hold, core.holder.capacity)
        stages = sorted(stage for stage in held if held[stage].step == newest > 0)[:room]
        if not stages or core.leaving or not core.holder.compute_ready or core.liveness.alive(view.voters, core.now):
            return False
        rank = min(self.outside.ahead(newest), len(view.holders))
        waited = core.now - self.quorate_at
        if waited < settings.minority_wait_seconds + 2 * (1 + rank) * settings.lease_seconds:
            return True
        listed = ", ".join(map(str, stages))
        reason = f"no voter of view {view.number} is left; a former holder goes on with stage {listed} of step {newest}"
        core.note("fork", reason)
        self._founded += 1
        before = core.certificate()
        core.install(revive(view, core.me, self._founded, stages, reason))
        self.outside.tell(before)
        return True

    def _take_over(self) -> None:
        """Rule 11: the i-th voter proposes after D (1 + i) of a silent leader."""
        core, view = self.core, self.core.view
        assert view is not None
        if not self.leader_silent():
            self._leader_silent_at = None
            return
        if core.me not in view.voters or core.holder.finished:
            return
        if self._leader_silent_at is None:
            self._leader_silent_at = core.now
        before = [peer for peer in view.voters[: view.voters.index(core.me)] if peer != view.leader]
        rank = sum(not core.liveness.silent(peer, core.now) for peer in before)
        balloting = core.balloting
        if core.now - self._leader_silent_at < core.settings.takeover_seconds * (1 + rank):
            return
        if balloting.proposing and core.now - balloting.since < core.settings.ballot_seconds * (
            1 + core.chance.random()
        ):
            core.route(balloting.resend())
            return
        reason = f"leader {view.leader} is silent for {core.liveness.silence(view.leader, core.now):.1f} s"
        stages = ", ".join(map(str, view.stages_of(view.leader)))
        core.note("lost", f"{reason}; proposes a view without it", peer=view.leader.id, stages=stages)
        successor = next_view(view, core.me, {view.leader}, (), {}, (), reason)
        core.route(balloting.propose(successor, core.now))

    def _fork(self) -> None:
        """Rule 16: without a quorum for minority_wait, the first living voter founds a lineage with those it hears."""
        core, view, settings = self.core, self.core.view, self.core.settings
        assert view is not None
        if self.quorate or core.holder.finished or core.now - core.liveness.grace < settings.lease_seconds:
            self._alone_since = None
            return
        if self._alone_since is None:
            self._alone_since = core.now
        alive = core.liveness.followers(core.members, view.lineage.id, core.now) | {core.me}
        founders = [peer for peer in view.voters if peer in alive] or sorted(alive)
        if core.me not in founders or view.is_quorum(alive):
            return
        if core.me not in view.voters and not core.holder.ours:
            # A newcomer without weights has nothing to go on with. When no voter is left, others may have.
            alone = core.now - self._alone_since > settings.minority_wait_seconds + 5 * settings.lease_seconds
            if alone and not core.liveness.alive(view.voters, core.now):
                self._give_up_view()
            return
        patience = settings.minority_wait_seconds + founders.index(core.me) * 2 * settings.lease_seconds
        if core.now - self._alone_since < patience:
            return
        waited = core.now - self._alone_since
        names = ", ".join(str(peer) for peer in sorted(alive))
        reason = f"no quorum of view {view.number} for {waited:.0f} s; survivors {names} go on"
        core.note("fork", reason)
        self._founded += 1
        core.install(fork(view, core.me, self._founded, alive, reason))
        for peer in sorted(alive - {core.me}):
            core.send(peer, core.certificate())
