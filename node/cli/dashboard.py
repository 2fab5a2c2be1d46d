"""`ftnode dashboard`: a web page of a swarm, or of recorded traces. Loads neither torch nor hivemind."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ftnode.node.cli.lab_by_name import load
from ftnode.node.cli.options import INPUT, FiniteRange, home_option, link_argument, peer_option, run_option
from ftnode.protocol.words.errors import UserError

if TYPE_CHECKING:
    from ftnode.node.watch.dashboard_feed import Feed
    from ftnode.node.watch.light_client import Host

ERRORS = "cli_dashboard"


@click.command()
@link_argument
@click.option(
    "--listen", default="127.0.0.1:8080", show_default=True, metavar="HOST:PORT",
    help="Where the page is; port 0: any that is free.",
)  # fmt: skip
@peer_option
@run_option
@click.option(
    "--replay", "recorded", metavar="DIR", type=INPUT,
    help="Show the traces below this folder, as a demo leaves them, instead of a swarm.",
)  # fmt: skip
@click.option(
    "--speed", type=FiniteRange(0.1, 10_000), default=1.0, show_default=True,
    help="Of a replay: recorded seconds per second.",
)  # fmt: skip
@home_option
def dashboard(
    link: str, listen: str, peers: tuple[str, ...], run: str, recorded: Path | None, speed: float, home: str | None
) -> int:
    """One live web page of a swarm: stages and holders, loss, decisions. Whom to ask: as for `ftnode status`."""
    import trio

    from ftnode.node.watch.dashboard_feed import Feed
    from ftnode.node.watch.dashboard_server import is_loopback, parse_listen, serve_in_background

    host, port = parse_listen(listen)
    if recorded is not None and (peers or run or link):
        raise UserError("--replay excludes --peer, --run and a link")
    feed = Feed("live" if recorded is None else "replay")
    addresses: tuple[str, ...] = ()
    if recorded is None:
        from ftnode.node.cli.status import whom_to_ask, with_link
        from ftnode.node.home.identity import home_directory

        peers, run = with_link(link, peers, run)
        addresses = whom_to_ask(home_directory(home), peers, run)
    else:
        replay = load("ftnode.lab.demo.dashboard_replay").open_replay(recorded, feed)
    server, close = serve_in_background(host, port, feed)
    try:
        click.echo(f"the dashboard is at {server.url}; Ctrl-C ends it")
        if not is_loopback(host):
            click.echo(f"ftnode: warning: everybody who can reach {host} can watch; the page has no password", err=True)
        if recorded is None:
            _observe(addresses, run, feed)
        else:
            trio.run(_until_asked, partial(replay.run, speed))
    except KeyboardInterrupt:
        pass  # before or after the signals are ours
    finally:
        close()
    return 0


def _observe(addresses: tuple[str, ...], run: str, feed: Feed) -> None:
    """Look at the swarm until Ctrl-C or SIGTERM."""
    from ftnode.node.links.addresses import parse_peers
    from ftnode.node.manifests.announcement import AuthorsWords
    from ftnode.node.watch.dashboard_live import SwarmWatcher
    from ftnode.node.watch.light_client import with_host

    peers, words = parse_peers(addresses), AuthorsWords()

    async def observe(host: Host) -> None:
        await _until_asked(SwarmWatcher(host, peers, feed, run, words.added).run)

    with_host(observe)


async def _until_asked(work: Callable[[], Awaitable[None]]) -> None:
    """Work until Ctrl-C or SIGTERM."""
    import trio

    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            async for _ in signals:
                nursery.cancel_scope.cancel()
                return
