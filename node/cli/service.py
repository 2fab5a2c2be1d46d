"""`ftnode service`: what a service manager needs to run a node, as the package brings it."""

from __future__ import annotations

from importlib.resources import files

import click

from ftnode.node.cli.options import unused_home_option

UNITS = {
    "volunteer": "ftnode.service",
    "user": "ftnode-user.service",
    "bootstrap": "ftnode-bootstrap.service",
}


@click.command()
@click.argument("unit", type=click.Choice(list(UNITS)))
@unused_home_option
def service(unit: str, home: str | None) -> None:
    """Print the systemd unit of a volunteer, of one user's volunteer, or of a meeting point."""
    click.echo(unit_text(unit), nl=False)


def unit_text(unit: str) -> str:
    """The whole file. Raises KeyError for a unit that there is not."""
    return files("ftnode.node.cli").joinpath("units", UNITS[unit]).read_text(encoding="utf-8")
