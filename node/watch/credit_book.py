"""What a node notes of everybody's credit, so that it outlasts this life: totals and names, by run, in the home.

The core counts (protocol/step/credit.py). Names come from the peers themselves, and from the statuses of others for
peers that are gone; each is signed by its peer, and checked here. `credits/RUN.json` is written now and then, and at
the end. A note that cannot be read is as good as none: the leader tells the totals.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import trio

from ftnode.node.home.files import folder_of, write_file
from ftnode.node.home.name_card import NameCard, read_name
from ftnode.node.links.newest import newest
from ftnode.node.watch.credit_table import first
from ftnode.node.watch.status import CreditRow
from ftnode.protocol.step.credit import CreditLedger
from ftnode.protocol.wire.admission import sensible_totals
from ftnode.protocol.words.codec import from_plain, to_plain
from ftnode.protocol.words.errors import PeerError
from ftnode.protocol.words.events import Credited
from ftnode.protocol.words.types import CREDITED_MAX, Credit

log = logging.getLogger(__name__)

FOLDER: Final = "credits"
FORMAT: Final = 2
BEFORE_RELAYS: Final = 1
"""A note of this format says nothing of what was relayed."""
NOTE_BYTES_MAX: Final = 1 << 20
SAVE_SECONDS: Final = 30.0
NAMES_MAX: Final = 2 * CREDITED_MAX
ROWS_TOLD: Final = 128
"""In a status; all others are one row."""


class CreditBook:
    """Of one run. `look` gives the core's ledger."""

    def __init__(self, home: Path, run_id: str, look: Callable[[], CreditLedger]) -> None:
        self._home, self._run, self._look = home, run_id, look
        self._names: dict[str, NameCard] = {}
        self._saved: tuple[int, int] = (0, 0)
        """Step and number of names in the note."""

    # -- names

    def learn(self, peer: str, name: str, text: str) -> None:
        """A card that somebody told; one that the peer did not sign, or an older one, counts for nothing."""
        card, known = read_name(peer, name, text), self._names.get(peer)
        if card is not None and (known is None or card.made_ms > known.made_ms):
            newest(self._names, peer, card, NAMES_MAX)

    def learn_from(self, rows: Iterable[CreditRow]) -> None:
        for row in rows:
            self.learn(row.peer, row.name, row.name_card)

    # -- what watchers are told

    def rows(self) -> tuple[CreditRow, ...]:
        """Most visits first, then all others together."""
        return first([self._row(row) for row in self._look().rows()], ROWS_TOLD)

    def _row(self, row: Credit) -> CreditRow:
        card = self._names.get(row.peer)
        name = (card.name, card.text) if card is not None and card.name else ("", "")
        return CreditRow(row.peer, row.visits, row.seconds, row.rebuilt, *name, row.relayed)

    @property
    def step(self) -> int:
        """All steps up to this one are counted."""
        return self._look().step

    # -- the note

    def read(self) -> Credited | None:
        """What was noted when a node of this home was last in the run. None where there is nothing that can be read."""
        path = self._home / FOLDER / f"{self._run}.json"
        try:
            with path.open("rb") as file:
                found = json.loads(file.read(NOTE_BYTES_MAX))
            form, rows, names = found["format"], found["credits"], found["names"]
            if form == BEFORE_RELAYS:
                rows = [[*row, 0] for row in rows]
            told: Credited = from_plain(Credited, [found["step"], rows])
            if form not in (BEFORE_RELAYS, FORMAT) or told.step < 0 or not sensible_totals(told.credits):
                raise ValueError("totals that cannot be")
            for peer, (name, text) in names.items():
                self.learn(str(peer), str(name), str(text))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, PeerError) as error:
            log.warning("the note of what each gave, %s, cannot be read: %s", path, error)
            return None
        self._saved = (told.step, len(self._names))
        return told

    def write(self) -> None:
        """The note as it is now, if there is something new in it. That it cannot be written costs nothing now."""
        ledger = self._look()
        state = (ledger.step, len(self._names))
        if state == self._saved or not ledger.rows():
            return
        names = {peer: (card.name, card.text) for peer, card in self._names.items()}
        note: dict[str, Any] = {
            "format": FORMAT, "step": ledger.step, "credits": to_plain(ledger.rows()), "names": names,
        }  # fmt: skip
        try:
            with folder_of(self._home, FOLDER) as folder:
                write_file(self._home, folder, f"{self._run}.json", json.dumps(note))
            self._saved = state
        except OSError as error:
            log.warning("cannot note what each gave: %s", error.strerror)

    async def run(self) -> None:
        while True:
            await trio.sleep(SAVE_SECONDS)
            self.write()
