"""What is gone when this node goes: for good after the end of a run, when nobody takes a stage over any more; before
it, unless a disk keeps what nobody has taken over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ftnode.protocol.liveness.liveness import Signs
from ftnode.protocol.situation import Situation
from ftnode.protocol.words.types import Peer, Version
from ftnode.protocol.words.view import View


def last_copies(s: Situation) -> tuple[int, ...]:
    """Our stages whose last weights no other holder that we hear has; empty before the end of the run."""
    return held_alone(s.view, s.me, s.liveness, s.now) if s.own.finished else ()


def held_alone(view: View | None, me: Peer, signs: Signs, now: float) -> tuple[int, ...]:
    """Our stages that no other holder has that we hear.

    Holders that are silent, or whose address refuses us, count for nothing: a warning too many costs a second Ctrl-C,
    one too few the model.
    """

    def alone(group: Sequence[Peer]) -> bool:
        return all(peer == me or signs.silent(peer, now) for peer in group)

    groups = view.holders if view is not None else ()
    return tuple(stage for stage, group in enumerate(groups) if me in group and alone(group))


def left_behind(s: Situation) -> tuple[int, ...]:
    """Our stages of the newest step, with training in them, that the view gives to nobody else. In a run that keeps
    snapshots a disk can have them when we go."""
    view = s.view
    if view is None or s.own.finished or not s.settings.snapshot_every:
        return ()
    newest = [stage for stage in trained(s.own.versions) if s.own.versions[stage].step == s.highest_step]
    return tuple(stage for stage in newest if not {*view.holders[stage]} - {s.me})


def trained(versions: Mapping[int, Version]) -> tuple[int, ...]:
    """The stages with training in them."""
    return tuple(stage for stage, version in sorted(versions.items()) if version.step > 0)
