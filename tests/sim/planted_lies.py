"""Bugs planted into what the core does with lies; the fuzz target must find each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ftnode.protocol.leader.losses import Losses
from ftnode.protocol.situation import Outcome, Situation
from ftnode.protocol.wire import admission
from ftnode.protocol.words import messages as ms
from ftnode.protocol.words.types import Peer
from tests.sim.planted import patched


def any_stage_exists() -> Any:
    """Stages of a message are not compared with those of the run."""
    return patched((admission, "_stages", lambda stages, settings: True))


def links_lead_to_oneself() -> Any:
    """A member's link to itself can be broken. It shows when the member says so for a lease."""
    honest = Losses.on_suspect

    def on_suspect(self: Losses, s: Situation, sender: Peer, suspect: ms.Suspect) -> Outcome:
        if sender == suspect.peer and suspect.kind == "broken" and sender in s.members - {s.me} - self.gone.keys():
            self._broken.report(sender, sender, s.now)
        return honest(self, s, sender, suspect)

    return patched((Losses, "on_suspect", on_suspect))


class Lie(NamedTuple):
    """A bug, the kinds of messages that show it, and whether they do only when a hostile peer insists."""

    plant: Callable[[], Any]
    kinds: tuple[type, ...]
    insists: bool = False
    first: int = 1
    """The first seed that is looked at."""


LIES: dict[str, Lie] = {
    "any stage exists": Lie(any_stage_exists, (ms.Resign, ms.Offer, ms.Answer, ms.Ready), first=14),
    "links lead to oneself": Lie(links_lead_to_oneself, (ms.Suspect,), insists=True, first=123),
}
