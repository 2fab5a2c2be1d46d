"""Who holds which stage and where, as this node knows it, for readers of `/ftnode/export/1`."""

from __future__ import annotations

from typing import Final

from ftnode.node.export.wire import PLACES_MAX, Holders, Place
from ftnode.node.links.address_cards import bare
from ftnode.protocol.picture import Picture

ADDRESSES_TOLD: Final = 4
STEPS_LOOKED_AT: Final = 8


def holders_of(picture: Picture, run: str) -> Holders | None:
    """None while no view is known. When there are more holders than an answer names, each stage has some."""
    view = picture.view
    if view is None:
        return None
    replicas_max = max(1, PLACES_MAX // len(view.holders))
    places = tuple(
        Place(stage, view.epochs[stage], peer.id, bare(picture.contacts.get(peer, ()))[:ADDRESSES_TOLD])
        for stage, group in enumerate(view.holders)
        for peer in group[:replicas_max]
    )
    return Holders(run, picture.highest_step, _seconds(picture), places)


def _seconds(picture: Picture) -> float:
    """Per step, of the newest ones; 0 while the run is over or waits for something."""
    if picture.run_waiting or picture.finished or picture.highest_step >= picture.settings.steps:
        return 0.0
    newest = [commit.seconds for commit in picture.history.newest_commits(STEPS_LOOKED_AT) if commit.seconds > 0]
    return sum(newest) / len(newest) if newest else 0.0
