"""`ftnode dashboard`: a web page of a swarm, or of recorded traces. Loads neither torch nor hivemind."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from click.core import ParameterSource

from ftnode.node.cli.lab_by_name import load
from ftnode.node.cli.options import INPUT, FiniteRange, home_option, link_argument, peer_option, run_option
from ftnode.protocol.words.errors import UserError

if TYPE_CHECKING:
    from ftnode.node.manifests.announcement import AuthorsWords
    from ftnode.node.watch.dashboard_feed import Feed
    from ftnode.node.watch.light_client import Host
    from ftnode.node.watch.public_page import Joining

ERRORS = "cli_dashboard"

ENDING: Final = (signal.SIGINT, signal.SIGTERM)
"""What ends the page."""


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
@click.option(
    "--public", is_flag=True,
    help="A page for anyone on the Internet: rationed and cached, without addresses, and with how to join.",
)  # fmt: skip
@click.option(
    "--proxy", "proxies", multiple=True, metavar="ADDR",
    help="With --public: a reverse proxy on another machine, IP address or network, that says who asks it; repeats.",
)  # fmt: skip
@home_option
def dashboard(
    link: str, listen: str, peers: tuple[str, ...], run: str, recorded: Path | None, speed: float, public: bool,
    proxies: tuple[str, ...], home: str | None,
) -> int:  # fmt: skip
    """One live web page of a swarm: stages and holders, loss, decisions. Whom to ask: as for `ftnode status`. With
    --public for anyone: a given LINK, or --peer, is shown to them as the way to join."""
    import trio

    from ftnode.node.manifests.announcement import AuthorsWords
    from ftnode.node.watch.dashboard_feed import Feed
    from ftnode.node.watch.dashboard_server import Public, parse_listen, serve_in_background
    from ftnode.node.watch.public_clients import parse_proxies

    host, port = parse_listen(listen)
    if recorded is not None and (peers or run or link):
        raise UserError("--replay excludes --peer, --run and a link")
    if recorded is None and click.get_current_context().get_parameter_source("speed") is ParameterSource.COMMANDLINE:
        raise UserError("--speed is for a recording; name it with --replay, or leave --speed out")
    if proxies and not public:
        raise UserError("--proxy is for a page that anyone may see; add --public, or leave it out")
    feed, words = Feed("live" if recorded is None else "replay"), AuthorsWords(also_first=public)
    addresses: tuple[str, ...] = ()
    joining: Callable[[], Joining | None] | None = None
    if recorded is None:
        from ftnode.node.cli.status import whom_to_ask, with_link
        from ftnode.node.home.identity import home_to_read

        joining = _joining(link, peers, words)
        peers, run = with_link(link, peers, run)
        addresses = whom_to_ask(home_to_read(home, not peers), peers, run)
    else:
        replay = load("ftnode.lab.demo.dashboard_replay").open_replay(recorded, feed)
    anyone = Public(joining or (lambda: None), parse_proxies(proxies)) if public else None
    with _noted() as came:
        server, close = serve_in_background(host, port, feed, anyone)
        try:
            _say_where(server.url, host, public)
            if public and recorded is None and joining is None:
                hint = "pass an ftnode: link, or --peer with an address that the Internet can dial"
                click.echo(f"ftnode: warning: the page cannot say how to join; {hint}", err=True)
            if recorded is None:
                _observe(addresses, run, feed, words, came)
            else:
                trio.run(_until_asked, partial(replay.run, speed), came)
        finally:
            close()
    return 0


@contextmanager
def _noted() -> Iterator[list[int]]:
    """Signals that come while nobody hears them (`_until_asked`), as from who ends the page as soon as it is there.
    Without a handler Python raises KeyboardInterrupt wherever it is, and where a shell has a command in the background
    they would be lost."""
    came: list[int] = []
    before = {one: signal.signal(one, lambda number, _: came.append(number)) for one in ENDING}
    try:
        yield came
    finally:
        for one, handler in before.items():
            signal.signal(one, handler or signal.SIG_DFL)


def _say_where(url: str, host: str, public: bool) -> None:
    from urllib.parse import urlsplit

    from ftnode.node.watch.dashboard_server import is_loopback

    alone = is_loopback(host)
    if public:
        without = f"without one: --listen 0.0.0.0:{urlsplit(url).port}"
        elsewhere = f"here, and elsewhere through a reverse proxy of this machine ({without})"
        who = f"anyone can read it: {elsewhere}" if alone else "anyone who can reach this machine can read it"
        click.echo(f"the public dashboard is at {url}; {who}; Ctrl-C ends it")
        return
    click.echo(f"the dashboard is at {url}; Ctrl-C ends it")
    if not alone:
        click.echo(f"ftnode: warning: everybody who can reach {host} can watch; the page has no password", err=True)


def _joining(link: str, peers: tuple[str, ...], words: AuthorsWords) -> Callable[[], Joining | None] | None:
    """How to take part, for a public page: by the link or the peers that its owner gave, never by those that it finds
    by itself. None where nobody can dial those from the Internet. Raises UserError (64)."""
    from ftnode.node.manifests.invitation import is_link, parse_link
    from ftnode.node.manifests.ways_to_join import for_anyone, ways_to_join

    invitation = parse_link(link) if is_link(link) else None
    named = for_anyone(peers)
    return (lambda: ways_to_join(words.manifest, invitation, named)) if invitation or named else None


def _observe(addresses: tuple[str, ...], run: str, feed: Feed, words: AuthorsWords, came: list[int]) -> None:
    """Look at the swarm until Ctrl-C or SIGTERM."""
    from ftnode.node.links.addresses import parse_peers
    from ftnode.node.watch.dashboard_live import SwarmWatcher
    from ftnode.node.watch.leaders_plan import LeadersPlan
    from ftnode.node.watch.light_client import with_host

    peers, more = parse_peers(addresses), LeadersPlan(words.added).added

    async def observe(host: Host) -> None:
        await _until_asked(SwarmWatcher(host, peers, feed, run, more).run, came)

    with_host(observe)


async def _until_asked(work: Callable[[], Awaitable[None]], came: list[int]) -> None:
    """Work until Ctrl-C or SIGTERM; not at all where one `came` already."""
    import trio

    with trio.open_signal_receiver(*ENDING) as signals:
        if came:
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            async for _ in signals:
                nursery.cancel_scope.cancel()
                return
