"""`ftnode lab lines`."""

from __future__ import annotations

import re

import click

from ftnode.node.cli.options import FiniteRange, WholeRange, json_option, unused_home_option
from ftnode.node.home.paths import whole_path
from ftnode.node.owner.limits import parse_line

_DELAY = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s)")
_PACE = re.compile(r"(\d+(?:\.\d+)?)/(\d+(?:\.\d+)?)")


def line_of(_context: click.Context, _option: click.Parameter, value: str) -> tuple[float, float]:
    """One number is both ways."""
    try:
        up, down = parse_line(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return up, down or up


def _optional_line(context: click.Context, option: click.Parameter, value: str | None) -> tuple[float, float] | None:
    return None if value is None else line_of(context, option, value)


def _delay(_context: click.Context, _option: click.Parameter, value: str) -> float:
    found = _DELAY.fullmatch(value.strip())
    if not found:
        raise click.BadParameter(f"{value!r} is no delay; write 30ms or 0.03s")
    return float(found[1]) / (1000 if found[2] == "ms" else 1)


def _pace(_context: click.Context, _option: click.Parameter, value: str) -> tuple[float, float]:
    found = _PACE.fullmatch(value.strip())
    if not found:
        raise click.BadParameter(f"{value!r} is no pace; write 0.02/0.04, seconds forward and backward")
    return float(found[1]), float(found[2])


delay_option = click.option(
    "--delay", callback=_delay, default="30ms", show_default=True, help="From one volunteer to another, one way."
)


@click.command()
@click.option("--volunteers", type=WholeRange(2, 64), default=5, show_default=True, help="Each holds one stage.")
@click.option(
    "--line",
    "rates",
    callback=line_of,
    default="20/100Mbit",
    show_default=True,
    metavar="UP/DOWN",
    help="Of each home.",
)
@delay_option
@click.option(
    "--replica", callback=_optional_line, metavar="UP/DOWN",
    help="One volunteer more, on such a line. It joins after the first step and shares a stage.",
)  # fmt: skip
@click.option("--preset", default="tiny", show_default=True, help="The manifest to start from.")
@click.option("--sequences", type=WholeRange(1, 4096), default=40, show_default=True, help="Of a microbatch.")
@click.option("--microbatches", type=WholeRange(1, 1024), default=16, show_default=True, help="Of a step.")
@click.option(
    "--pace", callback=_pace, default="0.02/0.04", show_default=True, metavar="FORWARD/BACKWARD",
    help="Seconds of a stage for one microbatch.",
)  # fmt: skip
@click.option("--seconds", type=FiniteRange(1, 3600), default=60.0, show_default=True, help="To measure for.")
@click.option("--out", metavar="DIR", help="New folder for the figures as JSON, logs and traces.")
@json_option
@unused_home_option
def lines(
    volunteers: int, rates: tuple[float, float], delay: float, preset: str, sequences: int, microbatches: int,
    pace: tuple[float, float], replica: tuple[float, float] | None, seconds: float, out: str | None, as_json: bool,
    home: str | None,
) -> int:  # fmt: skip
    """Seconds of a step where volunteers have thin lines, against what the lines allow. Two minutes; needs root, or
    `unshare -rn ftnode lab lines`."""
    from ftnode.lab.lines.lines import Asked, run

    asked = Asked(volunteers, rates, delay, pace, seconds, preset, sequences, microbatches, replica)
    run(asked, as_json, whole_path(out) if out else None)
    return 0
