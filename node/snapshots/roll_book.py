"""The rolls that a home keeps beside the snapshots of a run: HOME/snapshots/RUN/rolls.json, the oldest first.

They are few and small, and public: all nodes of a home share them. What cannot be read, or has a signature that is not
by whom it names, counts for nothing, and the node goes on as one that has none. Its owner is told.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Final

from ftnode.node.home.files import folder_of, write_file
from ftnode.node.snapshots.disk import locked
from ftnode.node.snapshots.signed_book import SignedBook
from ftnode.node.snapshots.signed_words import ROLLS, ROLLS_BYTES_MAX, logged, read_list
from ftnode.node.snapshots.store import FOLDER
from ftnode.protocol.recovery.rolls import ROLLS_KEPT, with_roll
from ftnode.protocol.wire.admission import sensible_roll
from ftnode.protocol.words.codec import from_plain, to_plain
from ftnode.protocol.words.errors import PeerError
from ftnode.protocol.words.events import Rolls
from ftnode.protocol.words.messages import Roll

log = logging.getLogger(__name__)

NAME: Final = ROLLS


class RollBook(SignedBook):
    """Of one run."""

    KIND = "disk"
    _kept: tuple[Roll, ...] = ()

    def tell(self) -> None:
        """What lies there, when the node begins."""
        self._kept = self._read(self._say)
        if self._kept:
            self._deliver(Rolls(self._kept))

    async def keep(self, roll: Roll) -> None:
        """On the disk, and then told. When the disk refuses, it is known for as long as this node lives."""
        roll = self._seals.sealed_roll(roll)
        try:
            self._kept = await self._in_thread(self._write, roll)
        except OSError as error:
            log.warning("the roll of step %d is not kept: %s", roll.version.step, error)
            self._kept = with_roll(self._kept, roll)
        self._deliver(Rolls(self._kept))

    @property
    def _folder(self) -> str:
        return f"{FOLDER}/{self._run}"

    def _write(self, roll: Roll) -> tuple[Roll, ...]:
        with folder_of(self._home, self._folder) as folder, locked(self._home / self._folder):
            kept = with_roll(self._read() or self._kept, roll)
            write_file(self._home, folder, NAME, json.dumps([to_plain(each) for each in kept]) + "\n", sync=True)
        return kept

    def _read(self, say: Callable[[str], None] = logged) -> tuple[Roll, ...]:
        path = self._home / self._folder / NAME
        try:
            rolls = from_plain(tuple[Roll, ...], read_list(path, ROLLS_BYTES_MAX))[-ROLLS_KEPT:]
            for roll in rolls:
                if not sensible_roll(roll, self._settings):
                    raise ValueError("no roll of this run")
                self._seals.check_roll(roll)
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, RecursionError, PeerError) as error:
            say(f"what a quorum has signed of snapshots is not known from before: {path} cannot be used: {error}")
            return ()
        return tuple(rolls)
