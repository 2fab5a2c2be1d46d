"""The words about liars that a home keeps of a run: HOME/convicted/RUN.json, the oldest first (rule 51).

Whatever convinced this node is written at once, and told to the core when the node begins again. What is read passes
what words from the network pass: sizes, shapes, and the signatures of those who said it. What does not is left out, and
the log says so. They are public, and all nodes of a home share them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import trio

from ftnode.node.home.files import folder_of, write_file
from ftnode.node.links.seals import Seals
from ftnode.node.snapshots.disk import locked
from ftnode.protocol.leader.convictions import liar_of, newest_of
from ftnode.protocol.leader.leader_memory import CONVICTED_MAX
from ftnode.protocol.wire.admission import sensible_words
from ftnode.protocol.words.codec import from_plain, to_plain
from ftnode.protocol.words.errors import PeerError
from ftnode.protocol.words.events import Event, Remembered
from ftnode.protocol.words.messages import Convicted
from ftnode.protocol.words.settings import Settings

log = logging.getLogger(__name__)

FOLDER: Final = "convicted"
BYTES_MAX: Final = 4 << 20
"""CONVICTED_MAX cases of four words each take a tenth of it."""


class LiarBook:
    """Of one run. `seals`: ours, which fill in what we have signed, and check what is read."""

    def __init__(
        self, home: Path, run: str, settings: Settings, seals: Seals, deliver: Callable[[Event], None]
    ) -> None:
        self._home, self._name = home, f"{run}.json"
        self._settings, self._seals, self._deliver = settings, seals, deliver
        self._writing = trio.CapacityLimiter(1)
        self._kept: tuple[Convicted, ...] = ()

    def tell(self) -> None:
        """What lies there, when the node begins."""
        self._kept = self._read()
        if self._kept:
            self._deliver(Remembered(self._kept))

    async def keep(self, case: Convicted) -> None:
        """On the disk, as it is now. When the disk refuses, only this life knows."""
        sealed = self._seals.sealed(case)
        in_thread: Any = trio.to_thread.run_sync  # the stubs of trio-typing do not know that option
        try:
            await in_thread(self._write, sealed, limiter=self._writing)
        except OSError as error:
            log.warning("that %s lied is not kept for the next start: %s", liar_of(case), error)

    def _write(self, case: Convicted) -> None:
        with folder_of(self._home, FOLDER) as folder, locked(self._home / FOLDER):
            self._kept = newest_of([*self._kept, *self._read(), case])
            text = json.dumps([to_plain(each) for each in self._kept])
            write_file(self._home, folder, self._name, text + "\n", sync=True)

    def _read(self) -> tuple[Convicted, ...]:
        path = self._home / FOLDER / self._name
        try:
            if path.stat().st_size > BYTES_MAX:
                raise ValueError(f"{path.stat().st_size} bytes")
            found = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(found, list):
                raise ValueError("no list")
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, RecursionError) as error:
            log.warning("who was found to lie is not known from before: %s cannot be used: %s", path, error)
            return ()
        cases = [case for each in found[-CONVICTED_MAX:] if (case := self._verified(each)) is not None]
        if left_out := min(len(found), CONVICTED_MAX) - len(cases):
            log.warning("%d of the words about liars in %s are not used: not what was signed", left_out, path)
        return tuple(cases)

    def _verified(self, plain: object) -> Convicted | None:
        """None for what nobody has signed, and for what convicts nobody."""
        try:
            case: Convicted = from_plain(Convicted, plain)
            self._seals.check(case.accuser, case)
        except PeerError:
            return None
        return case if sensible_words(case, self._settings) and liar_of(case) is not None else None
