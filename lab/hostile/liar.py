"""A volunteer that lies: `python -m ftnode.lab.hostile.liar LIE` and a command line of ftnode."""

from __future__ import annotations

import os
import sys

from ftnode.lab.hostile.lies import SUM_FACTORS, SUMS, told
from ftnode.node.cli.main import main
from ftnode.node.compute import client
from ftnode.node.reduction.piece_sum import WHOSE_SUM, PieceSum

PROGRAM = "ftnode.lab.hostile.lying_compute"


def lying_about_sums(times: float) -> None:
    """From now on, in this process: of the piece that it adds up."""
    honest = PieceSum._add_up

    async def add_up(self: PieceSum) -> None:
        at = self.done
        await honest(self)
        numbers = self.piece.chunk(at) * times
        self.content[at : self.done] = self.piece.encode(at, numbers, WHOSE_SUM)
        self.piece.chunk(at)[:] = self.piece.decode(at, self.content[at : self.done])

    PieceSum._add_up = add_up  # type: ignore[method-assign]


def run(arguments: list[str]) -> int:
    """The exit code."""
    way, *command = arguments
    try:
        said = told(way)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    if said.what == SUMS:
        lying_about_sums(SUM_FACTORS[said.lie])
        return main(command)
    os.environ["FTNODE_LIE"] = way
    client.PROGRAM = PROGRAM
    return main(command)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
