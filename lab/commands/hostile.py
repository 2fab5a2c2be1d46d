"""`ftnode lab hostile`."""

from __future__ import annotations

import click

from ftnode.node.cli.options import json_option, unused_home_option
from ftnode.node.home.paths import whole_path


@click.command()
@click.option("--quick", is_flag=True, help="Measure each rate for half as long.")
@click.option("--only", multiple=True, metavar="NAME", help="Only this attack; repeats.")
@click.option("--out", metavar="DIR", help="New folder for the figures as JSON, logs and traces.")
@json_option
@unused_home_option
def hostile(quick: bool, only: tuple[str, ...], out: str | None, as_json: bool, home: str | None) -> int:
    """Attack swarms on this machine, one attack a swarm, and say what held. A minute for each."""
    from ftnode.lab.hostile.hostile import run

    run(as_json, quick, only, whole_path(out) if out else None)
    return 0
