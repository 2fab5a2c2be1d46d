"""Which of two lineages goes on when they meet (rule 16).

With a common past in memory, a static rank tells: both sides judge alike, whatever they know. Without one, say because
one of them was founded anew or went on from disks, the rank says nothing about what would be lost, and the committed
step decides; the static rank does where the steps are about the same.

What a leader says of its lineage is never more than what it goes by itself, and members of a lineage that does not
train leave it to their leader: so two lineages that learn of each other at once do not both yield.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ftnode.protocol.messages import Certificate
from ftnode.protocol.types import Peer
from ftnode.protocol.view import View

if TYPE_CHECKING:
    from ftnode.protocol.leader import Leader
    from ftnode.protocol.participant import Participant

ABOUT: Final = 8
"""Steps are compared by whole numbers of so many."""
LATELY_SECONDS: Final = 60.0


def told_step(core: Participant) -> int:
    """What we say in a certificate: a leader that knows where the swarm stands, the newest committed step; one without
    the weights for it, the step that disks make possible. Nobody else's word is asked for."""
    leader = core.leader
    if leader is None:
        return 0
    if leader.restart.waiting or leader.halted:
        return leader.restart.prospect()
    return _led(leader) if leader.base is not None else 0


def _led(leader: Leader) -> int:
    """Of a lineage that does not halt. One that has not begun yet, say for want of a volunteer, may have disks."""
    core, base, start = leader.core, leader.base, leader.view.lineage.start
    idle = leader.begin is None and base is not None and (base.step == 0 or base == start)
    return max(core.highest_step(), leader.restart.prospect() if idle else 0)


def own_step(core: Participant) -> int:
    """What would be lost if we yielded: 0 where nobody can go on with it."""
    leader, holder, settings = core.leader, core.holder, core.settings
    if core.view is None:
        return 0
    if leader is not None and (leader.restart.waiting or leader.halted):
        since, prospect = core.memory.stuck_since, leader.restart.prospect()
        lately = since is None or core.now - since < settings.restart_wait_seconds
        somebody = leader.base is not None and leader.base.step > 0
        return max(prospect, core.highest_step()) if somebody and lately else prospect
    if leader is not None:
        return _led(leader)
    if core.follow.quorate:
        return core.highest_step()
    newest = core.highest_step()
    held = any(version.step == newest for version in holder.ours.values())
    patience = settings.minority_wait_seconds + 4 * settings.lease_seconds
    return newest if held and core.now - core.follow.quorate_at <= patience else 0


def judges(core: Participant) -> bool:
    """Whether we know enough to yield to a lineage without a common past: a member whose leader waits, or has said
    nothing yet, does not know what its own is worth."""
    if core.leader is not None or not core.member or not core.follow.quorate or core.view is None:
        return True
    report = core.reports.get(core.view.leader)
    return report is not None and not report.waiting


def _farther(core: Participant, step: int) -> int:
    """Above 0: they are farther; below: we are; 0: about the same. By whole numbers of ABOUT, so that of any lineages
    that meet one is the best; who has nothing to go on with is behind whoever has."""
    theirs, ours = ((told // ABOUT, told > 0) for told in (step, own_step(core)))
    return (theirs > ours) - (theirs < ours)


def wins(core: Participant, theirs: View, step: int) -> bool:
    """Their lineage, which says that it is at `step`, goes on rather than ours."""
    assert core.view is not None
    ours = core.view.lineage
    farther = _farther(core, step) if theirs.lineage.origin != ours.origin else 0
    return farther > 0 if farther else theirs.lineage.beats(ours)


def behind(core: Participant, theirs: View, step: int) -> bool:
    """It is of another past, and so far behind that nobody with weights yields to it, even without a quorum."""
    assert core.view is not None
    return theirs.lineage.origin != core.view.lineage.origin and _farther(core, step) < 0


class Strangers:
    """What we do about certificates of lineages without a common past. Whoever stays says so, once per heartbeat to
    each: neither side may find the other one better as long as one does not know where it stands."""

    def __init__(self, core: Participant) -> None:
        self.core = core
        self._answered: dict[Peer, float] = {}

    def meet(self, sender: Peer, message: Certificate, view: View) -> None:
        """Their leader alone knows how far they are."""
        core, follow = self.core, self.core.follow
        stands = follow.quorate or follow.can_choose() or behind(core, view, message.step)
        if (
            message.quorate
            and sender == view.leader
            and judges(core)
            and (wins(core, view, message.step) or not stands)
        ):
            follow.yield_if_sure(sender, view)
            return
        if core.now - self._answered.get(sender, float("-inf")) < core.settings.heartbeat_seconds:
            return
        self._answered = {peer: at for peer, at in self._answered.items() if core.now - at < LATELY_SECONDS}
        self._answered[sender] = core.now
        if message.quorate and view.leader not in (sender, core.me):
            core.send(view.leader, core.watch.heartbeat(True))
        if follow.vouches:
            core.send(sender, core.certificate())
