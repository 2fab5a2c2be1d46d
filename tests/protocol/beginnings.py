"""Begins of our making, for tests of what a holder does with one."""

from __future__ import annotations

from typing import Any

from ftnode.protocol.words.messages import Begin
from ftnode.protocol.words.types import Attempt, Version
from tests.protocol.situations import SETTINGS, A

BASE = Version(7, "c7", Attempt(3, 7))
"""Step 7, as view 3 committed it."""


def begun(base: Version = BASE, **changes: Any) -> Begin:
    """View 3 trains the step after `base`; A admits every microbatch. An attempt's number is that of its step."""
    step = base.step + 1
    said: dict[str, Any] = {
        "lineage": "lineage", "view": 3, "step": step, "attempt": Attempt(3, step), "base": base, "skipped": False,
        "skip": False, "training": True, "evaluate": False, "window": SETTINGS.window,
        "shares": ((A, tuple(range(SETTINGS.microbatches))),), "paths": (), "installs": (), "commits": (),
        "learners": (),
    }  # fmt: skip
    return Begin(**{**said, **changes})
