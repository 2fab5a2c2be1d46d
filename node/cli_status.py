"""`ftnode status`: look at a swarm through any peer of it."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ftnode.node.cli_options import home_option, json_option, peer_option


@click.command()
@peer_option
@json_option
@click.option(
    "--watch", type=click.FloatRange(0.1, 3600), metavar="SECONDS", help="Look again this often, until Ctrl-C."
)
@click.option(
    "--timeout", type=click.FloatRange(0, min_open=True), default=10.0, show_default=True,
    help="Seconds to look for a peer that answers.",
)  # fmt: skip
@home_option
def status(peers: tuple[str, ...], as_json: bool, watch: float | None, timeout: float, home: str | None) -> None:
    """Show a swarm: stages, peers, step, loss. Without --peer: of this machine's node, else of peers remembered."""
    from ftnode.node.identity import home_directory

    found = _addresses(home_directory(home), peers)
    raise NotImplementedError(found)


def _addresses(home: Path, given: tuple[str, ...]) -> tuple[str, ...]:
    """Whom to ask, best first."""
    raise NotImplementedError(json.dumps([str(home), *given]))
