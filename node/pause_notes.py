"""What the owner said last, kept in the home: `paused/all.json` and `paused/PEERID.json`, of which the newest counts.

So a pause survives a restart, and can be said when nothing runs. A note that cannot be read counts as a pause: when in
doubt the machine is left alone.
"""

from __future__ import annotations

import json
import math
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from ftnode.node.pausing import Word
from ftnode.protocol.errors import UserError

FOLDER: Final = "paused"
ALL: Final = "all"
NOTE_BYTES_MAX: Final = 4096
FORMAT: Final = 1


def read_word(home: Path, peer: str) -> Word | None:
    """What counts for the node `peer` now; None when nothing was ever said."""
    words = [word for name in (ALL, peer) if (word := _read(_path(home, name))) is not None]
    return max(words, key=lambda word: word.written, default=None)


def write_word(home: Path, peer: str, word: Word) -> None:
    """For one node, or with ALL for every node of the home, whatever was said of each before. It is the newest from now
    on, also when a clock was set back since the last one. Raises UserError (73)."""
    folder, path = home / FOLDER, _path(home, peer)
    before = read_word(home, peer)
    written = word.written if before is None else max(word.written, math.nextafter(before.written, math.inf))
    draft = path.with_suffix(f".{os.getpid()}")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with draft.open("w", encoding="utf-8") as file:
            json.dump({"format": FORMAT, "paused": word.paused, "until": word.until, "written": written}, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        if peer == ALL:
            for other in folder.glob("*.json"):
                if other != path:
                    other.unlink(missing_ok=True)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise UserError(f"cannot write {path}: {error.strerror}; see that {folder} can be written", 73) from None


def _path(home: Path, peer: str) -> Path:
    return home / FOLDER / f"{peer}.json"


def _read(path: Path) -> Word | None:
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(NOTE_BYTES_MAX))
        until = found["until"]
        return Word(found["paused"] is True, None if until is None else float(until), float(found["written"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return Word(paused=True)
