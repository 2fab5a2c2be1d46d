"""Who did a visit of a step, as that one has signed it (rule 52).

In a run with checks each Ready tells what the groups of its sender's stages have accumulated, in the words of those who
did it. Whoever has accumulated a visit has had all its tensors, and keeps them until the next Begin.
"""

from __future__ import annotations

from collections.abc import Mapping

from ftnode.protocol.step.routes import expected_visits, route_of
from ftnode.protocol.words.messages import Begin, Poisoned, Ready, Share
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import View


def tells_all(view: View, settings: Settings, begin: Begin, sender: Peer, ready: Ready) -> bool:
    """Whether a Ready says who did what it is about. Nobody says so where nobody asks: in a run without checks, and of
    an attempt that an earlier view began."""
    if not settings.checks or not begin.training or begin.skip or begin.attempt.view != view.number:
        return True
    held = view.stages_of(sender)
    for stage in (result.stage for result in ready.results if result.stage in held):
        expected = expected_visits(settings.stages, settings.microbatches, stage, settings.swap, view.omitted)
        told = (share.visits for peer, share in ready.claims if _is_about(share, begin, stage))
        if not expected <= frozenset().union(*told):
            return False
    return True


def stage_beside(view: View, settings: Settings, said: Poisoned) -> int | None:
    """The stage whose visit somebody shows no tensors of. None: it is not beside the stage that the words name."""
    route = route_of(settings, said.microbatch, view)
    near = {route[at] for at in (said.beside - 1, said.beside + 1) if 0 <= at < len(route)}
    return route[said.beside] if said.beside < len(route) and said.stage in near else None


def who_did(
    view: View, begin: Begin, readies: Mapping[Peer, Ready], stage: int, visit: tuple[int, int]
) -> tuple[Peer, Share] | None:
    """One that says so, and its word. None: nobody of the group is Ready."""
    for peer in view.holders[stage]:
        for who, share in readies[peer].claims if peer in readies else ():
            if who in view.holders[stage] and _is_about(share, begin, stage) and visit in share.visits:
                return who, share
    return None


def _is_about(share: Share, begin: Begin, stage: int) -> bool:
    place = share.lineage, share.view, share.step, share.attempt, share.stage
    return place == (begin.lineage, begin.view, begin.step, begin.attempt, stage)
