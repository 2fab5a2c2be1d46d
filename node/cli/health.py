"""`ftnode health`: are the nodes of this home well? Loads neither torch nor hivemind."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from ftnode.node.cli.options import FiniteRange, home_option, json_option
from ftnode.protocol.words.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from ftnode.node.owner.join_options import Running
    from ftnode.node.watch.health import Health
    from ftnode.node.watch.light_client import Host
    from ftnode.node.watch.status import SwarmStatus

ERRORS = "cli_health"


@click.command()
@click.option(
    "--timeout", type=FiniteRange(0, min_open=True), default=10.0, show_default=True,
    help="Seconds in which a node must answer.",
)  # fmt: skip
@json_option
@home_option
def health(timeout: float, as_json: bool, home: str | None) -> int:
    """Say in a line whether this home's nodes are well. Exit code 0: all are; 1: one is not; 69: none runs."""
    from ftnode.node.home.identity import BOOTSTRAP_NAME, VOLUNTEER_NAME, home_to_read, is_taken
    from ftnode.node.owner.join_options import running_nodes
    from ftnode.node.watch.health import exit_code

    folder = home_to_read(home)
    # A process id may have been given to another program since; the lock on an identity goes with its owner.
    found = [
        look(folder, node, timeout)
        for node in running_nodes(folder)
        if is_taken(folder, node.peer, VOLUNTEER_NAME if node.run else BOOTSTRAP_NAME)
    ]
    code = exit_code(found)
    if as_json:
        click.echo(json.dumps({"format": 1, "healthy": code == 0, "nodes": [asdict(one) for one in found]}))
    elif found:
        shown = [f"{'healthy' if one.healthy else 'not healthy'}: {one.peer[-6:]} {one.text}" for one in found]
        click.echo("; ".join(shown))
    else:
        raise UserError(f"no node runs here (home {folder}); start one with ftnode join or ftnode bootstrap", 69)
    return code


def look(home: Path, running: Running, timeout: float) -> Health:
    """Ask one node, and nobody else."""
    from ftnode.node.watch.health import has_compute, judge

    if running.paused or running.leaving:
        return judge(running, "", None)
    if running.run and not running.addresses:
        return _look_here(home, running, timeout)
    return judge(running, _ask(running, timeout), has_compute(running.pid) if running.run else None)


def _look_here(home: Path, running: Running, timeout: float) -> Health:
    """Who listens nowhere, or is between two lives, has no address that could be dialled, but a socket of this
    machine."""
    from ftnode.node.owner.control_socket import ControlError, ask, socket_path
    from ftnode.node.watch.health import has_compute, judge, judge_by_socket

    try:
        told = ask(socket_path(home, running.peer), "state", within=timeout)
    except ControlError as error:
        return judge(running, f"it says no address, and {error}", None)
    return judge_by_socket(running, told, has_compute(running.pid))


def _ask(running: Running, timeout: float) -> SwarmStatus | str:
    from ftnode.node.links.addresses import parse_peers
    from ftnode.node.watch.light_client import Unanswered, ask_status, open_stream, with_host

    if not running.addresses:
        return "it says no address"
    (peer,) = parse_peers(running.addresses)

    async def ask(host: Host) -> SwarmStatus | str:
        import trio

        try:
            with trio.fail_after(timeout):
                async with open_stream(host, peer, timeout) as stream:
                    return await ask_status(stream)
        except (Unanswered, trio.TooSlowError) as error:
            return str(error) or f"no answer within {timeout:g} s"

    return with_host(ask)
