"""`ftnode lab routers`."""

from __future__ import annotations

import click

from ftnode.lab.commands.lines import delay_option, line_of
from ftnode.node.cli.options import FiniteRange, json_option, unused_home_option
from ftnode.node.home.paths import whole_path


@click.command()
@click.option("--only", "parts", multiple=True, metavar="PART", help="Only this part; repeats.")
@click.option(
    "--kind", "kinds", multiple=True, metavar="KIND", help="Of matrix and trains, only routers of this kind; repeats."
)
@click.option(
    "--line",
    "rates",
    callback=line_of,
    default="20/100Mbit",
    show_default=True,
    metavar="UP/DOWN",
    help="Of each home in the matrix.",
)
@click.option(
    "--point-line", "point_rates", callback=line_of, default="20/20Mbit", show_default=True, metavar="UP/DOWN",
    help="Of the meeting point in the matrix.",
)  # fmt: skip
@delay_option
@click.option("--seconds", type=FiniteRange(1, 3600), default=60.0, show_default=True, help="To measure a swarm for.")
@click.option("--out", metavar="FILE", help="File for the figures as JSON, written after each part.")
@json_option
@unused_home_option
def routers(
    parts: tuple[str, ...], kinds: tuple[str, ...], rates: tuple[float, float], point_rates: tuple[float, float],
    delay: float, seconds: float, out: str | None, as_json: bool, home: str | None,
) -> int:  # fmt: skip
    """Volunteers behind routers: which way two of them find to each other (matrix), whether a run trains then (trains),
    how fast five train (swarm), how soon somebody sees that (watch), and what a dead relay costs (relay-killed). Twenty
    minutes; needs root, or `unshare -rn ftnode lab routers`."""
    from ftnode.lab.lines.router import KINDS
    from ftnode.lab.routers import matrix
    from ftnode.lab.routers.routers import PARTS, Asked, run

    for given, known, what in ((parts, PARTS, "part"), (kinds, tuple(KINDS), "kind of router")):
        for unknown in (one for one in given if one not in known):
            raise click.BadParameter(f"{unknown!r} is no {what}; choose of {', '.join(known)}")
    pairs = matrix.Asked(tuple(dict.fromkeys(kinds)) or tuple(KINDS), rates, point_rates, delay)
    asked = Asked(tuple(dict.fromkeys(parts)) or PARTS, pairs, seconds)
    figures = run(asked, as_json, whole_path(out) if out else None)
    return 1 if any(part["missed"] for part in figures.values()) else 0
