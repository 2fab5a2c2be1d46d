"""Bugs planted into what the core does with lies; the fuzz target must find each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ftnode.protocol.wire import admission
from ftnode.protocol.words import messages as ms
from tests.sim.planted import patched


def any_stage_exists() -> Any:
    """Stages of a message are not compared with those of the run."""
    return patched((admission, "_stages", lambda stages, settings: True))


LIES: dict[str, tuple[Callable[[], Any], tuple[type, ...]]] = {
    plant.__name__: (plant, kinds) for plant, kinds in ((any_stage_exists, (ms.Resign, ms.Offer, ms.Answer, ms.Ready)),)
}
"""Each with the kinds of messages that show it."""
