"""For which runs an identity was used, the last one first: a note beside its file, written by who has its lock.

Members of a run wait for a volunteer that was killed, and know it by its identity alone. So a home that takes part in
several runs has to come back to each as who it was there, in whatever order its nodes start.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from ftnode.node.home.files import folder_of, write_file

RUNS_MAX: Final = 16
NOTE_BYTES_MAX: Final = 1 << 14


def runs_of(identity: Path) -> tuple[str, ...]:
    """Ids of runs; empty where there is no note that can be read."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(_note(identity), flags), "rb") as file:
            found = json.loads(file.read(NOTE_BYTES_MAX))
        return tuple(map(str, found["runs"]))[:RUNS_MAX]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ()


def rank(identity: Path, run: str) -> int:
    """The less, the later it was used for this run; RUNS_MAX: never, as far as is known."""
    runs = runs_of(identity)
    return runs.index(run) if run in runs else RUNS_MAX


def note_run(identity: Path, run: str) -> None:
    """It is used for this run now. A disk that takes no note is no reason not to take part."""
    before = runs_of(identity)
    runs = tuple(dict.fromkeys((run, *before)))[:RUNS_MAX]
    if runs == before:
        return
    with suppress(OSError), folder_of(identity.parent) as folder:
        write_file(identity.parent, folder, _note(identity).name, json.dumps({"format": 1, "runs": runs}))


def _note(identity: Path) -> Path:
    return identity.with_name(f"{identity.name}.runs")
