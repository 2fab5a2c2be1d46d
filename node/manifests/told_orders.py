"""What a node's owner has heard of orders to roll back: HOME/orders/RUN-PEER.json.

An order stands until another takes its place, and a node that starts again meets it as news. What its owner was told
in an earlier life is not said once more; `ftnode status` shows it for as long as it is so.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Final

from ftnode.node.home.files import folder_of, write_file
from ftnode.node.snapshots.signed_words import ORDERS

FOLDER: Final = ORDERS
BYTES_MAX: Final = 1 << 16
TEXTS_MAX: Final = 16
"""Of one order; what comes behind them is said again and again."""


class ToldOrders:
    """Of one node in one run."""

    def __init__(self, home: Path, run: str, peer_id: str) -> None:
        self._home, self._name = home, f"{run}-{peer_id}.json"

    def is_news(self, number: int, text: str) -> bool:
        """Whether the owner has not heard this of the order of that number; now it has. A disk that takes no note is no
        reason to be silent."""
        told = self._told(number)
        if text in told:
            return False
        note = {"format": 1, "order": number, "told": [*told, text][:TEXTS_MAX]}
        with suppress(OSError), folder_of(self._home, FOLDER) as folder:
            write_file(self._home, folder, self._name, json.dumps(note))
        return True

    def _told(self, number: int) -> list[str]:
        """Empty where there is no note of this order that can be read."""
        try:
            with (self._home / FOLDER / self._name).open("rb") as file:
                found = json.loads(file.read(BYTES_MAX))
            return [str(text) for text in found["told"]] if found["order"] == number else []
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return []
