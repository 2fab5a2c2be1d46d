"""What the owner said last, kept in the home: `paused/all.json` and `paused/PEERID.json`, of which the newest counts.

So a pause survives a restart, and can be said when nothing runs. A note that cannot be read counts as a pause whatever
the other one says, and is named: when in doubt the machine is left alone. The word that replaces it ends that.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ftnode.node.home.files import folder_of, write_file
from ftnode.node.owner.pause_rules import Word
from ftnode.protocol.words.errors import UserError

FOLDER: Final = "paused"
ALL: Final = "all"
NOTE_BYTES_MAX: Final = 4096
FORMAT: Final = 1
MOMENT_MAX: Final = 1e11
"""Seconds since 1970; in the year 5138."""


def read_word(home: Path, peer: str) -> Word | None:
    """What counts for the node `peer` now; None when nothing was ever said."""
    return newest(_words(home, peer))


def newest(words: Iterable[Word]) -> Word | None:
    """The one that counts. When a word was said that cannot be read is not known either: it may be the last."""
    return max(words, key=lambda word: (bool(word.unread), word.written), default=None)


def as_newest(home: Path, peer: str, word: Word) -> Word:
    """`word`, later than all that is written and can be read."""
    before = max((each.written for each in _words(home, peer) if not each.unread), default=-math.inf)
    return word if word.written > before else replace(word, written=math.nextafter(before, math.inf))


def fields_of(word: Word) -> dict[str, Any]:
    """For a note, or for the question that tells a node of it."""
    return {"until": word.until, "written": word.written, "now": word.now}


def told_word(paused: bool, fields: Mapping[str, Any]) -> Word:
    """As `fields_of` wrote it. Raises ValueError, KeyError and TypeError."""
    try:
        until, written = fields["until"], float(fields["written"])
        until = None if until is None else float(until)
    except OverflowError as error:
        raise ValueError(str(error)) from None
    if not math.isfinite(written) or (until is not None and not 0 <= until < MOMENT_MAX):
        raise ValueError("no moment that a calendar has")
    return Word(paused, until, written, fields.get("now") is True)


def write_word(home: Path, peer: str, word: Word) -> None:
    """For one node, or with ALL for every node of the home, whatever was said of each before. It is the newest from now
    on, also when a clock was set back since the last one. Raises UserError (73)."""
    folder, path = home / FOLDER, _path(home, peer)
    word = as_newest(home, peer, word)
    try:
        with folder_of(home, FOLDER) as descriptor:
            text = json.dumps({"format": FORMAT, "paused": word.paused, **fields_of(word)})
            write_file(home, descriptor, path.name, text, sync=True)
            for other in os.listdir(descriptor) if peer == ALL else ():
                if other.endswith(".json") and other != path.name:
                    with suppress(FileNotFoundError):
                        os.unlink(other, dir_fd=descriptor)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; see that {folder} can be written", 73) from None


def _words(home: Path, peer: str) -> list[Word]:
    return [word for name in (ALL, peer) if (word := _read(_path(home, name))) is not None]


def _path(home: Path, peer: str) -> Path:
    return home / FOLDER / f"{peer}.json"


def _read(path: Path) -> Word | None:
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(NOTE_BYTES_MAX))
        return told_word(found["paused"] is True, found)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return Word(paused=True, unread=f"the note {path} cannot be read")
