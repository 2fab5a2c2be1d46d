"""The live line of `ftnode join`, kept up to date over all lives of a node, and what it counts over all of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import trio

from ftnode.node.owner.announcements import Speaking
from ftnode.node.owner.join_options import JoinConfig
from ftnode.node.watch.live_line import Part, fitted
from ftnode.node.watch.own_work import OwnWork

if TYPE_CHECKING:
    from ftnode.node.owner.terminal import Terminal

DRAW_SECONDS: Final = 1.0
STARTING: Final = "starting"


def terminal_for(config: JoinConfig) -> Terminal | None:
    """Where the line is kept; None where standard output is no terminal, or its owner wants none."""
    wanted = not (config.json or config.quiet or config.log_format == "json")
    if not wanted or sys.stdout is None or not sys.stdout.isatty():
        return None
    from ftnode.node.owner.terminal import terminal_on  # rich comes with it, which other nodes do without

    return terminal_on(sys.stdout)


class BottomLine:
    """`of_life`: what the line says of the life that there is; None between two. `work`: of all lives."""

    def __init__(self, speaking: Speaking) -> None:
        self.speaking, self.work = speaking, OwnWork()
        self.of_life: Callable[[], Sequence[Sequence[Part]]] | None = None

    async def keep(self, paused: Callable[[], str]) -> None:
        """Draw it once a second, until cancelled. `paused`: why it rests; empty while it does not."""
        while (terminal := self.speaking.terminal) is not None:
            if self.of_life is not None:
                groups = self.of_life()
            else:
                groups = [[Part(0, f"paused: {why}" if (why := paused()) else STARTING)]]
            self.speaking.show(fitted(groups, terminal.width, terminal.cells))
            await trio.sleep(DRAW_SECONDS)

    @contextmanager
    def gone_at_the_end(self) -> Iterator[None]:
        """While the body runs, what is printed to stderr stands above the line; afterwards there is no line."""
        if self.speaking.terminal is None:
            yield
            return
        from ftnode.node.owner.terminal import errors_above

        with errors_above(self.speaking.terminal):
            yield
