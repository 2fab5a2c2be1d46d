"""Homes of nodes of this user that no command was told of, as those of `ftnode join --home`: a node holds its identity
open as long as it runs, and its processes say so in /proc (proc(5))."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from ftnode.node.home.identity import BOOTSTRAP_NAME, VOLUNTEER_NAME
from ftnode.node.owner.join_options import RUNNING_FOLDER

IDENTITY: Final = re.compile(rf"({VOLUNTEER_NAME}|{BOOTSTRAP_NAME})(-\d{{1,3}})?")
HOMES_MAX: Final = 64


def homes_of_processes() -> tuple[Path, ...]:
    """In the order of their paths; none where there is no /proc. Whether a node runs there is for its notes to say."""
    found: set[Path] = set()
    for path in _held_open():
        if IDENTITY.fullmatch(path.name) and (path.parent / RUNNING_FOLDER).is_dir():
            found.add(path.parent)
            if len(found) == HOMES_MAX:
                break
    return tuple(sorted(found))


def _held_open() -> Iterator[Path]:
    """Files that processes of this user have open, in our network and among our files: what a container's say leads
    nowhere from here. Processes end meanwhile."""
    us = os.geteuid()
    with suppress(OSError):
        here = _namespaces("self")
        for process in os.scandir("/proc"):
            with suppress(OSError):
                if process.name.isdigit() and process.stat().st_uid == us and _namespaces(process.name) == here:
                    for entry in os.scandir(f"/proc/{process.name}/fd"):
                        with suppress(OSError):
                            yield Path(os.readlink(entry.path))


def _namespaces(process: str) -> tuple[str, ...]:
    """Raises OSError."""
    return tuple(os.readlink(f"/proc/{process}/ns/{kind}") for kind in ("net", "mnt"))
