"""What a running node notes of itself for other commands of this machine. A disk that takes no note is no reason to
end, or to leave without a hand-over."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio

from ftnode.node.home.identity import is_taken
from ftnode.node.owner.join_options import RUNNING_FOLDER, Running, note_running, running_nodes

log = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 10.0
"""Until what could not be written is tried again."""


class RunningNote:
    """`say` hears once that it cannot be written, and again after it could."""

    def __init__(self, home: Path, say: Callable[[str, str], None]) -> None:
        self._home, self._say = home, say
        self._failing = False
        self.last: Running | None = None
        """What counts, also where the disk does not take it."""

    async def keep(self) -> None:
        """Until cancelled: try again what could not be written."""
        while True:
            await trio.sleep(AGAIN_SECONDS)
            if self._failing and self.last is not None:
                self.write(self.last)

    def write(self, running: Running) -> None:
        """As `note_running`, without its errors."""
        self.last = running
        try:
            note_running(self._home, running)
            self._failing = False
        except OSError as error:
            log.warning("no note of this node: %s", error)
            if not self._failing:
                self._failing = True
                where = self._home / RUNNING_FOLDER
                self._say(
                    "note", f"cannot write to {where}: {error.strerror}; it goes on, but status, health and pause "
                    "of this machine know less of this node until that can be written"
                )  # fmt: skip


def others_beside(home: Path, peer: str) -> str:
    """A line for who starts a volunteer in a home where others run, maybe without knowing of them; empty for none."""
    found = [one for one in running_nodes(home) if one.run and one.peer != peer and is_taken(home, one.peer)]
    if not found:
        return ""
    which = ", ".join(f"{one.peer} (process {one.pid})" for one in found)
    verb = (
        "another volunteer of this home runs" if len(found) == 1 else f"{len(found)} other volunteers of this home run"
    )
    return f"{verb}, {which}; this is one more, and they share the machine; ftnode leave --peer PEERID ends one of them"
