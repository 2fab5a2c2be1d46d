"""Stages that other nodes of this home hold: they share its limit, and none removes what another goes on from."""

from __future__ import annotations

import os
from pathlib import Path

from ftnode.node.home.identity import is_taken
from ftnode.node.owner.control_socket import ControlError, ask, socket_path
from ftnode.node.owner.join_options import running_nodes


def held_by_others(home: Path, run: str, stages: int) -> frozenset[int]:
    """What they say when asked, all stages of the run where one does not; blocks until they answer."""
    found: set[int] = set()
    for node in running_nodes(home):
        if node.run != run or node.pid == os.getpid():
            continue
        try:
            found.update(map(int, ask(socket_path(home, node.peer), "state")["holds"]))
        except (ControlError, KeyError, TypeError, ValueError):
            if is_taken(home, node.peer):  # else a note of a dead node
                found.update(range(stages + 1))
    return frozenset(found)
