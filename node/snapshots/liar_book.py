"""The words about liars that a home keeps of a run: HOME/convicted/RUN.json, the oldest first (rule 51).

Whatever convinced this node is written at once, and told to the core when the node begins again. What is read passes
what words from the network pass: sizes, shapes, and the signatures of those who said it. What does not is left out, and
the log says so. Of a file that cannot be used at all the owner is told. The words are public, and all nodes of a home
share them. Beside each case stands what the run had come to when a node here heard of it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from ftnode.node.home.files import folder_of, write_file
from ftnode.node.snapshots.disk import locked
from ftnode.node.snapshots.signed_book import SignedBook
from ftnode.node.snapshots.signed_words import LIARS, LIARS_BYTES_MAX, logged, read_list
from ftnode.protocol.leader.convictions import liar_of, newest_of
from ftnode.protocol.leader.leader_memory import CONVICTED_MAX
from ftnode.protocol.wire.admission import sensible_words
from ftnode.protocol.words.codec import from_plain, to_plain
from ftnode.protocol.words.effects import KeepConvicted
from ftnode.protocol.words.errors import PeerError
from ftnode.protocol.words.events import Remembered
from ftnode.protocol.words.messages import Convicted

log = logging.getLogger(__name__)

FOLDER: Final = LIARS


class LiarBook(SignedBook):
    """Of one run."""

    KIND = "convicted"
    _kept: tuple[KeepConvicted, ...] = ()

    def tell(self) -> None:
        """What lies there, when the node begins."""
        self._kept = self.read(self._say)
        if self._kept:
            self._deliver(Remembered(tuple(each.case for each in self._kept)))

    async def keep(self, found: KeepConvicted) -> None:
        """On the disk, as it is now. When the disk refuses, only this life knows."""
        sealed = self._seals.sealed(found.case)
        assert isinstance(sealed, Convicted)
        try:
            await self._in_thread(self._write, replace(found, case=sealed))
        except OSError as error:
            log.warning("that %s lied is not kept for the next start: %s", liar_of(found.case), error)

    def _write(self, found: KeepConvicted) -> None:
        with folder_of(self._home, FOLDER) as folder, locked(self._home / FOLDER):
            known = [*self._kept, *self.read(), found]
            first = {each.case: each for each in reversed(known)}
            self._kept = tuple(first[case] for case in newest_of(each.case for each in known))
            text = json.dumps([to_plain(each) for each in self._kept])
            write_file(self._home, folder, self._path.name, text + "\n", sync=True)

    @property
    def _path(self) -> Path:
        return self._home / FOLDER / f"{self._run}.json"

    def read(self, say: Callable[[str], None] = logged) -> tuple[KeepConvicted, ...]:
        """What lies there and convicts somebody, each signature verified."""
        path = self._path
        try:
            found = read_list(path, LIARS_BYTES_MAX)
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, RecursionError) as error:
            say(f"who was found to lie is not known from before: {path} cannot be used: {error}")
            return ()
        kept = [each for plain in found[-CONVICTED_MAX:] if (each := self._verified(plain)) is not None]
        if left_out := min(len(found), CONVICTED_MAX) - len(kept):
            log.warning("%d of the words about liars in %s are not used: not what was signed", left_out, path)
        return tuple(kept)

    def _verified(self, plain: object) -> KeepConvicted | None:
        """None for what nobody has signed, and for what convicts nobody."""
        try:
            kept: KeepConvicted = from_plain(KeepConvicted, plain)
            self._seals.check(kept.case.accuser, kept.case)
        except PeerError:
            return None
        return kept if sensible_words(kept.case, self._settings) and liar_of(kept.case) is not None else None
