"""`ftnode lab limits`: a door into the lab, which is loaded by name and only here."""

from __future__ import annotations

from importlib import import_module

import click

from ftnode.node.cli_options import FiniteRange, json_option, unused_home_option


@click.command()
@click.option("--seconds", type=FiniteRange(1, 600), default=30.0, show_default=True, help="To measure each line for.")
@json_option
@unused_home_option
def limits(seconds: float, as_json: bool, home: str | None) -> int:
    """Bytes on the wire, processor time and memory of limited nodes, measured from outside. Exit code 1 when a limit
    does not hold. Two and a half minutes."""
    figures = import_module("ftnode.lab.limits").run(as_json, seconds)
    return 0 if figures["passed"] else 1
