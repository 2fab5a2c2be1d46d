"""The first proven lie that a node has seen: what a run's author may go back to before (rules 47 and 51).

A liar can sign two tensors for one place at any time later, also for a step of long ago, and so have an author undo
all since. And who comes late cannot tell who held a stage. So a lie counts for the step that the words name only where
the node heard of it while that was the newest.
"""

from __future__ import annotations

from collections.abc import Iterable

from ftnode.protocol.words.effects import KeepConvicted
from ftnode.protocol.words.types import RollbackOrder


def was_seen(kept: KeepConvicted) -> bool:
    """The words came in the step that they are about; or just after its commit, when they crossed."""
    return 0 <= kept.committed <= kept.case.accusation.step


def is_undone(kept: KeepConvicted, newest: RollbackOrder) -> bool:
    """The author's newest order goes before it, and was given after it."""
    return newest.number > kept.order and newest.step < kept.case.accusation.step


def first_lie(found: Iterable[KeepConvicted], newest: RollbackOrder) -> KeepConvicted | None:
    """Of those that were seen, and that no order goes before yet, the one of the earliest step."""
    counted = (kept for kept in found if was_seen(kept) and not is_undone(kept, newest))
    return min(counted, key=lambda kept: kept.case.accusation.step, default=None)
