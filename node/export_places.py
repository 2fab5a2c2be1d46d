"""Who holds which stage and where, as this node knows it, for readers of `/ftnode/export/1`."""

from __future__ import annotations

from typing import Final

from ftnode.node.export_wire import PLACES_MAX, Holders, Place
from ftnode.protocol.participant import Participant

ADDRESSES_TOLD: Final = 4
STEPS_LOOKED_AT: Final = 8


def holders_of(core: Participant, run: str) -> Holders | None:
    """None while no view is known. When there are more holders than an answer names, each stage has some."""
    view = core.view
    if view is None:
        return None
    replicas_max = max(1, PLACES_MAX // len(view.holders))
    places = tuple(
        Place(stage, view.epochs[stage], peer.id, core.contacts.get(peer, ())[:ADDRESSES_TOLD])
        for stage, group in enumerate(view.holders)
        for peer in group[:replicas_max]
    )
    return Holders(run, core.highest_step(), _seconds(core), places)


def _seconds(core: Participant) -> float:
    """Per step, of the newest ones; 0 while the run is over or waits for something."""
    report = core.reports.get(core.view.leader) if core.view is not None else None
    waiting = core.waiting() if core.leader is not None or report is None else report.waiting
    if waiting or core.holder.finished or core.highest_step() >= core.settings.steps:
        return 0.0
    newest = [commit.seconds for commit in core.chronicle.newest_commits(STEPS_LOOKED_AT) if commit.seconds > 0]
    return sum(newest) / len(newest) if newest else 0.0
