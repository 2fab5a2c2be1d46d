"""A volunteer that lies: `python -m ftnode.lab.hostile.liar LIE` and a command line of ftnode."""

from __future__ import annotations

import os
import sys

from ftnode.lab.hostile.lies import told
from ftnode.node.cli.main import main
from ftnode.node.compute import client

PROGRAM = "ftnode.lab.hostile.lying_compute"


def run(arguments: list[str]) -> int:
    """The exit code."""
    way, *command = arguments
    try:
        told(way)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    os.environ["FTNODE_LIE"] = way
    client.PROGRAM = PROGRAM
    return main(command)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
