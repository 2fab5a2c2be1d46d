"""Options that say what a volunteer or a meeting point gives at most."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from ftnode.node.cli.options import WholeRange
from ftnode.node.owner.limits import NICE, Limits, Memory, parse_memory, parse_rate


class Rate(float):
    """Bytes per second that were parsed; a bare number of a file may mean anything, and is parsed first."""


class Limit(click.ParamType):  # type: ignore[type-arg]  # of what it makes; older click knows no such argument
    """Text as typed or from a file becomes what `parse` makes of it."""

    def __init__(self, name: str, parse: Callable[[str], float | Memory]) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | Memory:
        if isinstance(value, Memory | Rate):
            return value
        try:
            return self._parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


RATE = Limit("rate", lambda text: Rate(parse_rate(text)))
vram_option = click.option(
    "--vram", type=Limit("memory", parse_memory), default="none", show_default=True, metavar="SHARE|AMOUNT",
    help="Memory of each device to use at most, as 0.7 or 12GiB; with --device cpu that of the compute process.",
)  # fmt: skip
up_option = click.option(
    "--up", type=RATE, default="none", show_default=True, metavar="RATE",
    help="Send at most this to peers, as 20Mbit or 2.5MB/s.",
)  # fmt: skip
down_option = click.option(
    "--down", type=RATE, default="none", show_default=True, metavar="RATE",
    help="Take at most this from peers, as 100Mbit or 12MB/s.",
)  # fmt: skip
OPTIONS = (
    vram_option,
    up_option,
    down_option,
    click.option(
        "--nice", type=WholeRange(0, 19), default=NICE, show_default=True,
        help="How far to step back when other programs want the processor; 0: not at all.",
    ),
)  # fmt: skip


def limits_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options; `command` gets them as one argument, `limits`."""

    @wraps(command)
    def gathered(*arguments: Any, vram: Memory, up: float, down: float, nice: int, **others: Any) -> Any:
        return command(*arguments, limits=Limits(vram, up, down, nice), **others)

    for option in reversed(OPTIONS):
        gathered = option(gathered)
    return gathered
