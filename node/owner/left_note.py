"""What became of the stages of a node that has left, in a line, and in a file for the command that asked it to."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from ftnode.node.home.files import folder_of, write_file
from ftnode.node.owner.join_options import RUNNING_FOLDER
from ftnode.protocol.holder.own_departure import HandedOver
from ftnode.protocol.words.types import names_of

BYTES_MAX: Final = 64 * 1024


def told(fate: HandedOver) -> str:
    """`others have stage 2; stage 3 is not handed over, and comes back as if this node had been killed`; empty for a
    node that held nothing."""
    parts = []
    if fate.handed_over:
        parts.append(f"others have {names_of(fate.handed_over)}")
    if fate.under_way:
        verb = "was" if len(fate.under_way) == 1 else "were"
        parts.append(f"{names_of(fate.under_way)} {verb} being handed over")
    if fate.left_out:
        verb, back = ("is", "comes") if len(fate.left_out) == 1 else ("are", "come")
        parts.append(f"{names_of(fate.left_out)} {verb} not handed over, and {back} back as if this node was killed")
    if fate.on_disk:
        parts.append(f"nobody else was in the run, and this disk has {names_of(fate.on_disk)}")
    if fate.gone:
        verb = "is" if len(fate.gone) == 1 else "are"
        parts.append(f"nobody else was in the run: {names_of(fate.gone)} {verb} gone with this node")
    return "; ".join(parts)


def note_left(home: Path, peer: str, fate: HandedOver) -> None:
    """For `read_left`, until the next start. A disk that takes no note keeps nobody from leaving."""
    with suppress(OSError), folder_of(home, RUNNING_FOLDER) as folder:
        write_file(home, folder, _name(peer), json.dumps({"pid": os.getpid(), **fate._asdict()}))


def read_left(home: Path, peer: str, pid: int) -> HandedOver | None:
    """What this process said at its end; None where it said nothing."""
    try:
        with folder_of(home, RUNNING_FOLDER, make=False) as folder:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with open(os.open(_name(peer), flags, dir_fd=folder), "rb") as file:
                found = json.loads(file.read(BYTES_MAX))
        if int(found["pid"]) != pid:
            return None
        return HandedOver(*(tuple(map(int, found[name])) for name in HandedOver._fields))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def forget_left(home: Path, peer: str) -> None:
    """Of the life before this one."""
    with suppress(OSError), folder_of(home, RUNNING_FOLDER, make=False) as folder:
        os.unlink(_name(peer), dir_fd=folder)


def _name(peer: str) -> str:
    """Not that of a node that runs."""
    return f"{peer}.left"
