"""A volunteer that lies: `python -m ftnode.lab.hostile.liar LIE` and a command line of ftnode."""

from __future__ import annotations

import os
import sys

from ftnode.lab.hostile.lies import EVERY, SUM_LIES
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
    if way not in EVERY:
        raise SystemExit(f"no lie: {way}; one of {', '.join(EVERY)}")
    if way in SUM_LIES:
        lying_about_sums(SUM_LIES[way])
        return main(command)
    os.environ["FTNODE_LIE"] = way
    client.PROGRAM = PROGRAM
    return main(command)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
