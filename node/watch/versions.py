"""Whether others run a newer ftnode. Peers say which one they run (`/ftnode/who/1`), over connections that prove who
they are, so that each speaks for itself alone. What a node has seen lies in its home, for `ftnode --version`. Nobody
else is asked, and what strangers say decides nothing."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

from ftnode.node.home.files import folder_of, write_file

VERSION: Final = version("ftnode")
"""Ours."""
NUMBERS: Final = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6}){0,3}")
"""A release. Whoever tries what is not released yet knows that."""
NOTE_NAME: Final = "versions.json"
NOTE_BYTES_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class Newer:
    """The version above ours that most peers run."""

    version: str
    peers: int
    of: int
    """Peers that said which one they run."""

    def __str__(self) -> str:
        run = f"{self.peers} of {self.of} peers run it" if self.of > 1 else "a peer runs it"
        return f"ftnode {self.version} is newer than this one, {VERSION}: {run}"


def newer(told: Iterable[str], ours: str = VERSION) -> Newer | None:
    """By what peers say. Of several versions that is one that most run, so that nobody alone makes a version up."""
    said = [text for text in told if text]
    mine = _numbers(ours)
    above = Counter(text for text in said if mine and (found := _numbers(text)) and found > mine)
    if not above:
        return None
    chosen = max(above, key=lambda text: (above[text], _numbers(text)))
    return Newer(chosen, above[chosen], len(said))


def _numbers(text: str) -> tuple[int, ...]:
    """Empty for what is no release; 1.2 and 1.2.0 are the same."""
    if not NUMBERS.fullmatch(text):
        return ()
    numbers = [int(part) for part in text.split(".")]
    return tuple(numbers + [0] * (4 - len(numbers)))


class VersionNews:
    """What a node tells its owner: once, when others run a newer ftnode, and again of one that is newer still."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._told: str = ""
        self._noted: Newer | None = read_note(home)

    def look(self, told: Iterable[str]) -> str:
        """What to say now; "" for nothing. The note in the home says what was seen last."""
        said = [text for text in told if text]
        found = newer(said)
        if said and (found and found.version) != (self._noted and self._noted.version):
            self._noted = found
            _write_note(self._home, found)
        if found is None or found.version == self._told or newer([self._told], found.version):
            return ""
        self._told = found.version
        return str(found)


def read_note(home: Path) -> Newer | None:
    """What a node of this home saw last, if that is newer than this ftnode. Anything may stand there."""
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError), folder_of(home, make=False) as folder:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(NOTE_NAME, flags, dir_fd=folder), "rb") as file:
            found = json.loads(file.read(NOTE_BYTES_MAX))
        noted = Newer(str(found["version"]), int(found["peers"]), int(found["of"]))
        return noted if newer([noted.version]) and 0 < noted.peers <= noted.of else None
    return None


def _write_note(home: Path, found: Newer | None) -> None:
    """A disk that takes none is no reason to end."""
    with suppress(OSError), folder_of(home) as folder:
        if found is not None:
            write_file(home, folder, NOTE_NAME, json.dumps(asdict(found)))
        else:
            os.unlink(NOTE_NAME, dir_fd=folder)
