"""`ftnode lab data`: a door into the lab, which is loaded by name and only here."""

from __future__ import annotations

from importlib import import_module

import click

from ftnode.node.cli_options import json_option, unused_home_option


@click.command()
@click.option("--rounds", type=click.IntRange(1, 100), default=3, show_default=True, help="Times to measure the speed.")
@click.option(
    "--megabytes", type=click.IntRange(1, 10_000), default=8, show_default=True, help="Text to measure it on."
)
@json_option
@unused_home_option
def data(rounds: int, megabytes: int, as_json: bool, home: str | None) -> int:
    """Speed of `ftnode data build` against the tokenizer library alone, and its peak memory. Exit code 1 when a budget
    is missed. A minute on two idle cores."""
    figures = import_module("ftnode.lab.data").run(as_json, rounds, megabytes)
    return 0 if figures["passed"] else 1
