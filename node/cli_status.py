"""`ftnode status`: look at a swarm through any peer of it. Loads neither torch nor hivemind and starts no process."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ftnode.node.cli_options import home_option, json_option, peer_option
from ftnode.protocol.errors import UserError

if TYPE_CHECKING:
    from ftnode.node.status import SwarmStatus


@click.command()
@peer_option
@json_option
@click.option(
    "--watch", "interval", type=click.FloatRange(0.1, 3600), metavar="SECONDS",
    help="Look again this often, until Ctrl-C.",
)  # fmt: skip
@click.option(
    "--timeout", type=click.FloatRange(0, min_open=True), default=10.0, show_default=True,
    help="Seconds to wait for a peer that answers.",
)  # fmt: skip
@home_option
def status(peers: tuple[str, ...], as_json: bool, interval: float | None, timeout: float, home: str | None) -> None:
    """Show a swarm: stages, peers, step, loss. Without --peer: of this machine's node, else of peers remembered."""
    from ftnode.node.identity import home_directory

    folder = home_directory(home)
    addresses = whom_to_ask(folder, peers)

    from ftnode.node import watch

    if interval is None:
        _show(watch.fetch_status(addresses, timeout), as_json)
    else:
        _watch(addresses, interval, timeout, as_json)
    if peers:
        from ftnode.node.addresses import remember_peers

        remember_peers(folder, addresses)


def whom_to_ask(home: Path, given: tuple[str, ...]) -> tuple[str, ...]:
    """Full multiaddrs: those given, else of nodes of this home that run, else remembered. Raises UserError (64)."""
    from ftnode.node.addresses import full_addresses, parse_peers, remembered_peers
    from ftnode.node.configuration import running_nodes

    if given:
        return tuple(full for peer in parse_peers(given) for full in full_addresses(peer.peer_id, peer.addresses))
    running = tuple(address for node in running_nodes(home) for address in node.addresses)
    found = running or remembered_peers(home)
    if not found:
        raise UserError("no node runs here and no peer is remembered; pass --peer ADDR of any peer of the swarm")
    return found


def _watch(addresses: tuple[str, ...], interval: float, timeout: float, as_json: bool) -> None:
    """On a terminal one picture that changes, elsewhere one block of lines after the other."""
    from ftnode.node import watch

    if as_json or not sys.stdout.isatty():
        watch.watch(addresses, interval, timeout, lambda found: _show(found, as_json))
        return

    from rich.live import Live

    from ftnode.node.status_table import render

    with Live(auto_refresh=False, vertical_overflow="crop") as live:
        watch.watch(addresses, interval, timeout, lambda found: live.update(render(found), refresh=True))


def _show(found: SwarmStatus, as_json: bool) -> None:
    if as_json:
        from ftnode.node.status import to_mapping

        click.echo(json.dumps(to_mapping(found)))
        return
    if sys.stdout.isatty():
        from rich.console import Console

        from ftnode.node.status_table import render

        Console().print(render(found))
        return
    from ftnode.node.status_table import plain_lines

    click.echo("\n".join(plain_lines(found)))
