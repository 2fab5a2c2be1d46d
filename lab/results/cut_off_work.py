"""Work that is cut off when its time is up and goes on in the next call, from a file that was written whole.

A GPU is often lent for minutes: the recovery lab's runs of a larger model take several such slices each.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


class CutOff(Exception):
    """The time is up, and what there is has been written down. The text says how far the work has come."""


class Slice:
    """One piece of work within its time. `path` None: it is never cut off, and begins at its beginning.

    `is_over` says whether the time is up. `seconds` are those of the slices before. `save_every`: seconds from one
    saved state to the next while the work goes on, so that a process that is killed loses no more; 0: none is saved.
    """

    def __init__(
        self, path: Path | None = None, is_over: Callable[[], bool] = lambda: False, save_every: float = 0.0
    ) -> None:
        self._path, self._is_over, self._settings = path, is_over, ""
        self._seconds = 0.0
        self._began = self._saved = time.monotonic()
        self._save_every = save_every

    def load(self, settings: str = "") -> dict[str, Any] | None:
        """What the slice before has left, None when this is the first. `settings`: all that decides what comes out of
        the work; what was begun with others is not gone on with, and overwritten by the next `check`."""
        self._settings = settings
        if self._path is None or not self._path.exists():
            return None
        found: dict[str, Any] = torch.load(self._path, map_location="cpu", weights_only=True)
        if found.pop("settings", "") != settings:
            print(f"{self._path} was begun with other settings; begins anew", file=sys.stderr, flush=True)
            return None
        self._seconds = found.pop("seconds")
        return found

    def check(self, reached: str, state: Callable[[], dict[str, Any]]) -> None:
        """Between two parts of the work. Raises CutOff when the time is up, after `state` (plain values and tensors)
        was written."""
        if self._path is None:
            return
        if self._is_over():
            self._write(self._path, state())
            raise CutOff(reached)
        if self._save_every and time.monotonic() - self._saved >= self._save_every:
            self._write(self._path, state())
            self._saved = time.monotonic()

    def _write(self, path: Path, state: dict[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".new")
        torch.save(state | {"seconds": self.seconds(), "settings": self._settings}, temporary)
        os.replace(temporary, path)

    def seconds(self) -> float:
        """Of wall clock, all slices together."""
        return self._seconds + time.monotonic() - self._began

    def done(self) -> None:
        """The work is finished: what the slices left is no longer needed."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
