"""`ftnode lab planner`."""

from __future__ import annotations

import click

from ftnode.node.cli.options import FiniteRange, WholeRange, json_option, unused_home_option
from ftnode.node.home.paths import whole_path


@click.command()
@click.option("--seeds", type=WholeRange(1, 1000), default=5, show_default=True, help="Courses of failures.")
@click.option("--hours", type=FiniteRange(0.1, 1000), default=9.0, show_default=True, help="Simulated.")
@click.option(
    "--failures", type=FiniteRange(0, 10), default=0.1, show_default=True, metavar="RATE",
    help="An hour, of each machine.",
)  # fmt: skip
@click.option(
    "--away", type=FiniteRange(0, 1000), default=1.0, show_default=True, metavar="HOURS",
    help="Until a machine is back, on average; 0: it stays away.",
)  # fmt: skip
@click.option(
    "--only", type=click.Choice(("odyssey", "settings", "volunteers", "flexitrain", "estimator", "memory", "open")),
    multiple=True,
    help="This part; repeats.  [default: all but estimator and memory, which measure real processes, and open, a grid "
    "of what a paper leaves open]",
)  # fmt: skip
@click.option("--out", metavar="DIR", help="Folder for planner.json, pictures, and what is kept when stopped.")
@json_option
@unused_home_option
def planner(
    seeds: int, hours: float, failures: float, away: float, only: tuple[str, ...], out: str | None, as_json: bool,
    home: str | None,
) -> int:  # fmt: skip
    """The planner against ReCycle, Oobleck, Bamboo and CheckFree in Odyssey's simulation of failures and in 20 other
    settings; unequal volunteers; FlexiTrain's tables. Up to 30 minutes. The estimate itself against real swarms."""
    from ftnode.lab.planner.planner import Asked, run

    return run(Asked(seeds, hours, failures, away, only, whole_path(out) if out else None, as_json))
