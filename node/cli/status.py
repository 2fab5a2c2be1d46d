"""`ftnode status` and `ftnode peers`: look at a swarm through any peer of it. Loads neither torch nor hivemind, starts
no process."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ftnode.node.cli.options import FiniteRange, home_option, json_option, peer_option
from ftnode.node.home.waiting import spoken
from ftnode.protocol.words.errors import UserError

if TYPE_CHECKING:
    from ftnode.node.watch.status import SwarmStatus

ERRORS = "cli_status"

WATCH_SECONDS = 2.0
timeout_option = click.option(
    "--timeout", type=FiniteRange(0, min_open=True), default=10.0, show_default=True,
    help="Seconds to wait for a peer that answers.",
)  # fmt: skip


@click.command()
@peer_option
@json_option
@click.option(
    "--watch", "interval", type=FiniteRange(0.1, 3600), metavar="[SECONDS]", is_flag=False,
    flag_value=WATCH_SECONDS, help="Look again this often (2), until Ctrl-C.",
)  # fmt: skip
@click.option("-v", "--verbose", is_flag=True, help="Each holder, and each peer with path, latency and version.")
@timeout_option
@home_option
def status(
    peers: tuple[str, ...], as_json: bool, interval: float | None, verbose: bool, timeout: float, home: str | None
) -> None:
    """Show a swarm: run, stages, recoveries. Without --peer: of this machine's node, else of peers remembered."""
    from ftnode.node.home.identity import home_directory

    folder = home_directory(home)
    addresses = whom_to_ask(folder, peers)
    if not peers:
        _tell_of_rest(folder)

    from ftnode.node.watch import light_client

    if interval is not None:
        _watch(addresses, interval, timeout, as_json, verbose)
        return
    with spoken(_answers(addresses)):
        found, answered = light_client.fetch_answer(addresses, timeout)
    _show(found, as_json, verbose)
    _remember(folder, peers, answered)


@click.command("peers")
@peer_option
@json_option
@timeout_option
@home_option
def list_peers(peers: tuple[str, ...], as_json: bool, timeout: float, home: str | None) -> None:
    """Who is in the swarm as one of its peers sees it. Without --peer: this machine's node, else peers remembered."""
    from ftnode.node.home.identity import home_directory

    folder = home_directory(home)
    addresses = whom_to_ask(folder, peers)

    from ftnode.node.watch import light_client
    from ftnode.node.watch.status import to_mapping
    from ftnode.node.watch.status_table import peer_table, printable, short_peer

    with spoken(_answers(addresses)):
        found, answered = light_client.fetch_answer(addresses, timeout)
    _remember(folder, peers, answered)
    if as_json:
        whole = to_mapping(found)
        kept = ("format", "speaker", "run", "name", "peers", "members")
        click.echo(json.dumps({name: whole[name] for name in kept}))
        return
    seen_by = f"{printable(found.speaker.role)} {short_peer(found.speaker.peer)}"
    click.echo(f"{printable(found.name) or 'no run'}, as {seen_by} sees it")
    click.echo("\n".join(peer_table(found).lines()))


def _answers(addresses: tuple[str, ...]) -> str:
    return f"an answer of {addresses[0]}" + (f" or {len(addresses) - 1} others" if len(addresses) > 1 else "")


def _remember(home: Path, given: tuple[str, ...], answered: tuple[str, ...]) -> None:
    """Who answered, when somebody was named: neither those who did not, nor this machine's own nodes."""
    if given:
        from ftnode.node.links.addresses import remember_peers

        remember_peers(home, answered)


def _tell_of_rest(home: Path) -> None:
    """On stderr, beside the swarm: this machine's nodes that rest."""
    from ftnode.node.owner.join_options import running_nodes
    from ftnode.node.watch.status_table import printable

    for node in running_nodes(home):
        if node.paused:
            click.echo(f"this machine's node {node.peer} is paused: {printable(node.paused)}", err=True)


def whom_to_ask(home: Path, given: tuple[str, ...]) -> tuple[str, ...]:
    """Full multiaddrs: those given, else of nodes of this home that run, else remembered. Raises UserError (64)."""
    from ftnode.node.links.addresses import full_addresses, parse_peers, remembered_peers
    from ftnode.node.owner.join_options import running_nodes

    if given:
        return tuple(full for peer in parse_peers(given) for full in full_addresses(peer.peer_id, peer.addresses))
    running = tuple(address for node in running_nodes(home) for address in node.addresses)
    found = running or remembered_peers(home)
    resting = [node for node in running_nodes(home) if node.paused]
    if not found and resting:
        raise UserError(f"this machine's node {resting[0].peer} is paused ({resting[0].paused}); pass --peer ADDR", 69)
    if not found:
        raise UserError("no node runs here and no peer is remembered; pass --peer ADDR of any peer of the swarm")
    return found


def _watch(addresses: tuple[str, ...], interval: float, timeout: float, as_json: bool, verbose: bool) -> None:
    """On a terminal one picture that changes, elsewhere one block of lines after the other."""
    from ftnode.node.watch import light_client

    if as_json or not sys.stdout.isatty():
        light_client.watch(addresses, interval, timeout, lambda found: _show(found, as_json, verbose))
        return

    from rich.live import Live

    from ftnode.node.watch.status_table import render

    with Live(auto_refresh=False, vertical_overflow="crop") as live:
        light_client.watch(
            addresses, interval, timeout, lambda found: live.update(render(found, verbose), refresh=True)
        )


def _show(found: SwarmStatus, as_json: bool, verbose: bool) -> None:
    if as_json:
        from ftnode.node.watch.status import to_mapping

        click.echo(json.dumps(to_mapping(found)))
        return
    if sys.stdout.isatty():
        from rich.console import Console

        from ftnode.node.watch.status_table import render

        Console().print(render(found, verbose))
        return
    from ftnode.node.watch.status_table import plain_lines

    click.echo("\n".join(plain_lines(found, verbose)))
