"""Files of a home with words that others have signed: who lied (liar_book.py), what snapshots are (roll_book.py), and
what members ordered (order_book.py).

Each is a JSON list. What is in it, and whether it is signed, its book looks at.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, Final

from ftnode.node.snapshots.store import FOLDER as SNAPSHOTS

log = logging.getLogger(__name__)

LIARS: Final = "convicted"
ORDERS: Final = "orders"
ROLLS: Final = "rolls.json"
LIARS_BYTES_MAX: Final = 4 << 20
"""CONVICTED_MAX cases of four words each take a tenth of it."""
ROLLS_BYTES_MAX: Final = 16 << 20
ORDER_BYTES_MAX: Final = 1 << 20
"""A view, and a signature of each voter."""


def logged(text: str) -> None:
    """Where nobody else is to be told."""
    log.warning("%s", text)


def read_list(path: Path, bytes_max: int) -> list[Any]:
    """Raises OSError, and ValueError or RecursionError for what is no list, or a larger file."""
    if (size := path.stat().st_size) > bytes_max:
        raise ValueError(f"it has {size} bytes")
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, list):
        raise ValueError("it is no list")
    return found


def unusable(home: Path) -> list[str]:
    """A line for each of these files that cannot be read, or is damaged as a whole."""
    files = [(path, LIARS_BYTES_MAX) for path in sorted((home / LIARS).glob("*.json"))]
    orders = sorted((home / ORDERS).glob("*.json"))  # beside notes of what each node's owner was told
    files += [(path, ORDER_BYTES_MAX) for path in orders if "-" not in path.stem]
    files += [(path, ROLLS_BYTES_MAX) for path in sorted((home / SNAPSHOTS).glob(f"*/{ROLLS}"))]
    troubles = []
    for path, bytes_max in files:
        try:
            read_list(path, bytes_max)
        except FileNotFoundError:
            continue
        except (OSError, ValueError, RecursionError) as error:
            troubles.append(f"{path} cannot be used: {error}")
    return troubles
