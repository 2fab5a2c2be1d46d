"""What is gone for good when this node goes: after the end of a run nobody takes a stage over any more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ftnode.protocol.types import spoken_stage

if TYPE_CHECKING:
    from ftnode.protocol.participant import Participant


def last_copies(core: Participant, now: float) -> tuple[int, ...]:
    """Our stages whose last weights no other holder that we hear has; empty before the end of the run.

    Holders that are silent, or whose address refuses us, count for nothing: a warning too many costs a second Ctrl-C,
    one too few the model.
    """
    view = core.view
    if view is None or not core.holder.finished:
        return ()

    def has_it(stage: int) -> bool:
        others = [peer for peer in view.holders[stage] if peer != core.me]
        return any(not core.liveness.silent(peer, now) for peer in others)

    return tuple(stage for stage in core.mine if not has_it(stage))


def trained(core: Participant) -> tuple[int, ...]:
    """Our stages with training in them."""
    return tuple(stage for stage, version in sorted(core.holder.versions.items()) if version.step > 0)


def names_of(stages: Sequence[int]) -> str:
    """`the head, stage 1 and stage 2`."""
    names = [spoken_stage(stage) for stage in stages]
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
