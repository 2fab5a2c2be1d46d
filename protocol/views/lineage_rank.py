"""Which of two lineages goes on when they meet (rule 16): the one that has followed the newest order to roll back, if
that binds both (47); where that is equal the one that can go on from more committed steps, counted in whole eights;
where these are equal a static rank decides.

What a leader says of its lineage is never more than what it goes by itself, and members of a lineage that does not
train leave it to their leader: so two lineages that learn of each other at once do not both yield.
"""

from __future__ import annotations

from typing import Final

from ftnode.protocol.situation import Situation
from ftnode.protocol.words.view import View

ABOUT: Final = 8
"""Steps are compared by whole numbers of so many."""


def own_step(s: Situation) -> int:
    """What would be lost if we yielded: 0 where nobody can go on with it."""
    if s.view is None:
        return 0
    if s.led is not None:
        return s.led.worth(s)
    newest = s.highest_step
    if s.quorate:
        return newest
    held = max((version.step for version in s.own.ours.values()), default=0)
    patience = s.settings.minority_wait_seconds + 4 * s.settings.lease_seconds
    return held if s.now - s.quorate_at <= patience else 0


def judges(s: Situation) -> bool:
    """Whether we know enough to yield to another lineage: a member whose leader waits, or has said
    nothing yet, does not know what its own is worth."""
    if s.led is not None or not s.member or not s.quorate or s.view is None:
        return True
    report = s.reports.get(s.view.leader)
    return report is not None and not report.waiting


def _farther(s: Situation, step: int) -> int:
    """Above 0: they are farther; below: we are; 0: about the same. By whole numbers of ABOUT, so that of any lineages
    that meet one is the best; a lineage with nothing to go on with is behind one that has something."""
    theirs, ours = ((told // ABOUT, told > 0) for told in (step, own_step(s)))
    return (theirs > ours) - (theirs < ours)


def wins(s: Situation, theirs: View, step: int) -> bool:
    """Their lineage, which says that it is at `step`, goes on rather than ours."""
    assert s.view is not None
    if s.order.binds and theirs.lineage.order != s.view.lineage.order:
        return theirs.lineage.order > s.view.lineage.order
    farther = _farther(s, step)
    return farther > 0 if farther else theirs.lineage.beats(s.view.lineage)


def behind(s: Situation, theirs: View, step: int) -> bool:
    """It is so far behind that nobody with weights yields to it, even without a quorum. A standby may go with any
    lineage that has a past with its own, since what it has from there is of use in both."""
    assert s.view is not None
    if s.order.binds and theirs.lineage.order != s.view.lineage.order:
        return theirs.lineage.order < s.view.lineage.order
    return _farther(s, step) < 0 and (s.member or theirs.lineage.origin != s.view.lineage.origin)
