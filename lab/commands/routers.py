"""`ftnode lab routers`."""

from __future__ import annotations

import click

from ftnode.lab.commands.lines import delay_option, line_of
from ftnode.node.cli.options import json_option, unused_home_option
from ftnode.node.home.paths import whole_path


@click.command()
@click.option("--only", multiple=True, metavar="KIND", help="Only routers of this kind; repeats.")
@click.option(
    "--line",
    "rates",
    callback=line_of,
    default="20/100Mbit",
    show_default=True,
    metavar="UP/DOWN",
    help="Of each home.",
)
@click.option(
    "--point-line", "point_rates", callback=line_of, default="20/20Mbit", show_default=True, metavar="UP/DOWN",
    help="Of the meeting point.",
)  # fmt: skip
@delay_option
@click.option("--out", metavar="FILE", help="New file for the figures as JSON.")
@json_option
@unused_home_option
def routers(
    only: tuple[str, ...], rates: tuple[float, float], point_rates: tuple[float, float], delay: float,
    out: str | None, as_json: bool, home: str | None,
) -> int:  # fmt: skip
    """Which way two volunteers find to each other by their routers, each kind with each. Two minutes; needs root, or
    `unshare -rn ftnode lab routers`."""
    from ftnode.lab.lines.router import KINDS
    from ftnode.lab.routers.routers import Asked, run

    unknown = [kind for kind in only if kind not in KINDS]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is no kind of router; choose of {', '.join(KINDS)}")
    figures = run(Asked(only or tuple(KINDS), rates, point_rates, delay), as_json, whole_path(out) if out else None)
    return 1 if figures["missed"] else 0
