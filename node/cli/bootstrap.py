"""`ftnode bootstrap` and `ftnode id`: who this machine is, and a meeting point for others."""

from __future__ import annotations

import json
import os

import click

from ftnode.node.cli.limits import down_option, up_option
from ftnode.node.cli.options import (
    check_metrics,
    home_option,
    json_option,
    metrics_option,
    port_mapping_option,
    relay_option,
)
from ftnode.node.owner.limits import Limits

PORT = 31337


@click.command()
@click.option(
    "--listen", multiple=True, metavar="ADDR",
    help="Multiaddr to listen on; repeats. Default: port 31337 of all addresses of this machine, IPv4 and IPv6.",
)  # fmt: skip
@click.option(
    "--announce", multiple=True, metavar="ADDR",
    help="Multiaddr or name where others reach it instead of where it listens, as behind a forwarded port; repeats.",
)  # fmt: skip
@port_mapping_option
@relay_option
@up_option
@down_option
@metrics_option
@home_option
def bootstrap(
    listen: tuple[str, ...], announce: tuple[str, ...], port_mapping: bool, relay: str, up: float, down: float,
    metrics: str, home: str | None,
) -> int | None:  # fmt: skip
    """Host a meeting point: newcomers dial it first. It trains nothing and holds nothing of a run. Ctrl-C ends it."""
    from ftnode.bootstrap.server import Wishes, run
    from ftnode.node.home.identity import home_directory
    from ftnode.node.links.listening import check_announce, check_listen, everywhere

    check_metrics(metrics)
    listen = listen or everywhere(PORT)
    check_listen(listen)
    check_announce(announce, listen)
    return run(Wishes(listen, home_directory(home), metrics, announce, port_mapping, relay, Limits(up=up, down=down)))


@click.command("id")
@json_option
@home_option
def identity(as_json: bool, home: str | None) -> None:
    """Print the PeerId that the next node of this home will have, made when there is none yet, and those of nodes that
    run now."""
    from ftnode.node.home.identity import (
        BOOTSTRAP_NAME,
        VOLUNTEER_NAME,
        home_directory,
        home_path,
        is_taken,
        take_identity,
    )
    from ftnode.node.owner.join_options import running_nodes

    is_new = home is not None and not os.path.exists(home_path(home))
    folder = home_directory(home)
    if is_new:
        click.echo(f"ftnode: made the home {folder}, which was not there", err=True)
    running = [
        node
        for node in running_nodes(folder)
        if is_taken(folder, node.peer, VOLUNTEER_NAME if node.run else BOOTSTRAP_NAME)
    ]
    taken = take_identity(folder)
    taken.release()
    if as_json:
        nodes = [{"peer": node.peer, "process": node.pid, "run": node.run} for node in running]
        click.echo(json.dumps({"format": 1, "next": taken.peer_id, "running": nodes}))
        return
    for node in running:
        what = f"volunteer of run {node.run[:12]}" if node.run else "meeting point"
        click.echo(f"{node.peer}  runs now: {what}, process {node.pid}")
    click.echo(f"{taken.peer_id}  the next node of this home" if running else taken.peer_id)
