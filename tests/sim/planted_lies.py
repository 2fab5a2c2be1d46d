"""Bugs planted into what the core does with lies; the fuzz target must find each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ftnode.protocol.holder import holder
from ftnode.protocol.step import early_tensors
from ftnode.protocol.wire import admission
from ftnode.protocol.words import messages as ms
from tests.sim.planted import patched


def begins_without_holders() -> Any:
    """A Begin is let in although its view has an empty stage: a learner looks for a donor among nobody."""
    return patched((admission, "_can_begin", lambda message, view: True))


def any_stage_exists() -> Any:
    """Stages of a message are not compared with those of the run."""
    return patched((admission, "_stages", lambda stages, settings: True))


def any_view_is_a_view() -> Any:
    """Nobody looks whether a view has as many groups as the run has stages, and a leader that votes."""
    return patched((admission, "well_formed", lambda view, settings: view.run == settings.run))


def left_behind_at_work() -> Any:
    """Who cannot get to the base of a Begin says that it works on it, and is behind a commit when it leads itself."""
    return patched((holder.Holder, "_working", lambda self: self.work.stages if self.work is not None else ()))


def early_tensors_without_bound() -> Any:
    """As many tensors wait for a Begin as anybody sends."""
    original = early_tensors.EarlyTensors.__init__
    return patched((early_tensors.EarlyTensors, "__init__", lambda self, limit: original(self, 10**6)))


def shares_of_other_stages() -> Any:
    """A group's word is let in on a stage that does not exist."""
    return patched((admission, "_share", lambda message, settings: True))


LIES: dict[str, tuple[Callable[[], Any], tuple[type, ...], int]] = {
    plant.__name__: (plant, kinds, seed)
    for plant, kinds, seed in (
        (begins_without_holders, (ms.Begin,), 0),
        (any_stage_exists, (ms.Resign, ms.Offer, ms.Answer, ms.Ready), 0),
        (any_view_is_a_view, (ms.Propose, ms.Certificate, ms.Promise), 0),
        (left_behind_at_work, (ms.Begin,), 0),
        (early_tensors_without_bound, (ms.Boundary, ms.Stored), 0),
        (shares_of_other_stages, (ms.Share,), 0),
    )
}
"""Each with the kinds of messages that show it, and the first seed in which lies of these kinds do."""
