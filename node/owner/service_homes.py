"""Where the nodes of this machine may have their home: the user's own, those of the services that ftnode brings
(`ftnode service`), and those of the user's other nodes that run."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from platformdirs import user_data_path

from ftnode.node.home.paths import platform_folder
from ftnode.node.owner.join_options import Running, running_nodes
from ftnode.node.owner.other_homes import homes_of_processes
from ftnode.protocol.words.errors import UserError

SERVICE_HOMES: tuple[Path, ...] = (Path("/var/lib/ftnode"), Path("/var/lib/ftnode-bootstrap"))
"""As the units have them."""


def homes_beside(home: Path) -> tuple[Path, ...]:
    """`home`, and where that is the user's own, those of services that are here."""
    return (home, *(place for place in SERVICE_HOMES if os.path.lexists(place))) if _is_own(home) else (home,)


def nodes_here(home: Path) -> tuple[Running, ...]:
    """Those of `home` that run; where that is the user's own and none does, those of the services, else those of all
    other homes."""
    for place in homes_beside(home):
        if found := running_nodes(place):
            return found
    found = tuple(node for place in other_homes(home) for node in running_nodes(place))
    return tuple(sorted(found, key=lambda node: not node.run))


def other_homes(home: Path) -> tuple[Path, ...]:
    """Where other nodes of this user run, when `home` is the user's own."""
    if not _is_own(home):
        return ()
    return tuple(place for place in homes_of_processes() if place != home and running_nodes(place))


def _is_own(home: Path) -> bool:
    try:
        return home == platform_folder(user_data_path)
    except UserError:  # a user without a home directory, who named another folder
        return False


def closed_homes(home: Path) -> tuple[Path, ...]:
    """Of services that this user may not look into."""
    return tuple(place for place in homes_beside(home)[1:] if not _is_open(place))


def _is_open(place: Path) -> bool:
    with suppress(OSError):
        return os.access(place, os.R_OK | os.X_OK)
    return False
