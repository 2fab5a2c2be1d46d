"""Which of two lineages goes on when they meet (rule 16).

With a common past in memory, a static rank tells: both sides judge alike, whatever they know. Without one, say because
one of them was founded anew or went on from disks, the rank says nothing about what would be lost, and the committed
step decides; the static rank does where the steps are about the same.

What a lineage says of itself is never more than what its members go by when they judge: so two lineages that learn of
each other at once do not both yield.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ftnode.protocol.view import View

if TYPE_CHECKING:
    from ftnode.protocol.participant import Participant

ABOUT: Final = 8
"""Steps by which two lineages may differ and count as equally far."""


def told_step(core: Participant) -> int:
    """What we say in a certificate: a leader that knows where the swarm stands, the newest committed step; one without
    the weights for it, the step that disks make possible. Nobody else's word is asked for."""
    leader = core.leader
    if leader is None:
        return 0
    if leader.restart.waiting or leader.halted:
        return leader.restart.prospect()
    return core.highest_step() if leader.base is not None else 0


def own_step(core: Participant) -> int:
    """What would be lost if we yielded: 0 where nobody could go on with it."""
    leader, view, holder = core.leader, core.view, core.holder
    if view is None:
        return 0
    if leader is not None:
        return leader.restart.prospect() if leader.restart.waiting or leader.halted else core.highest_step()
    report = core.reports.get(view.leader)
    if core.member and core.follow.quorate:
        return 0 if report is not None and report.waiting.startswith("halted") else core.highest_step()
    newest = core.highest_step()
    held = any(version.step == newest for version in holder.ours.values())
    patience = core.settings.minority_wait_seconds + 4 * core.settings.lease_seconds
    return newest if held and core.now - core.follow.quorate_at <= patience else 0


def _difference(core: Participant, step: int) -> int:
    """How many steps they are ahead; 0 when that is about the same."""
    ahead = step - own_step(core)
    return ahead if abs(ahead) > ABOUT else 0


def wins(core: Participant, theirs: View, step: int) -> bool:
    """Their lineage, which says that it is at `step`, goes on rather than ours."""
    assert core.view is not None
    ours = core.view.lineage
    ahead = _difference(core, step) if theirs.lineage.origin != ours.origin else 0
    return ahead > 0 if ahead else theirs.lineage.beats(ours)


def behind(core: Participant, theirs: View, step: int) -> bool:
    """It is of another past, and so far behind that nobody with weights yields to it, even without a quorum."""
    assert core.view is not None
    return theirs.lineage.origin != core.view.lineage.origin and _difference(core, step) < 0
