"""The command that a node names at its start, to look at its run."""

from __future__ import annotations

import shlex
from pathlib import Path

from ftnode.node.life.node import how_to_look


def test_a_shell_takes_the_command_whole() -> None:
    for home in ("/srv/ftnode", "/srv/my swarm's home", "/srv/jürgen/$HOME"):
        assert shlex.split(how_to_look(Path(home)))[-2:] == ["--home", home]
    assert how_to_look(Path("/var/lib/ftnode")) == "ftnode status --watch --home /var/lib/ftnode"
