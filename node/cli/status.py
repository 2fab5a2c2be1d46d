"""`ftnode status` and `ftnode peers`: look at a swarm through any peer of it. Loads neither torch nor hivemind, starts
no process."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ftnode.node.cli.options import (
    FiniteRange,
    home_option,
    json_option,
    link_argument,
    peer_option,
    run_option,
    warn,
)
from ftnode.node.home.waiting import spoken
from ftnode.protocol.words.errors import UserError

if TYPE_CHECKING:
    from ftnode.node.owner.join_options import Running
    from ftnode.node.watch.light_client import Completion
    from ftnode.node.watch.status import SwarmStatus

ERRORS = "cli_status"

WATCH_SECONDS = 2.0
NOBODY = "it knows of nobody; the first volunteer is seen some seconds after its start"
timeout_option = click.option(
    "--timeout", type=FiniteRange(0, min_open=True), default=10.0, show_default=True,
    help="Seconds to wait for a peer that answers.",
)  # fmt: skip


@click.command()
@link_argument
@peer_option
@run_option
@json_option
@click.option(
    "--watch", "interval", type=FiniteRange(0.1, 3600), metavar="[SECONDS]", is_flag=False,
    flag_value=WATCH_SECONDS, help="Look again this often (2), until Ctrl-C.",
)  # fmt: skip
@click.option("-v", "--verbose", is_flag=True, help="Each holder, and each peer with path, latency and version.")
@timeout_option
@home_option
def status(
    link: str, peers: tuple[str, ...], run: str, as_json: bool, interval: float | None, verbose: bool, timeout: float,
    home: str | None,
) -> None:  # fmt: skip
    """Show a swarm: run, stages, recoveries. Without --peer and an ftnode: LINK: of this machine's node or meeting
    point, else of peers remembered. Where several runs are found: a line for each."""
    from ftnode.node.home.identity import home_to_read

    peers, run = with_link(link, peers, run)
    folder = home_to_read(home, needed=not peers)

    from ftnode.node.watch import light_client

    try:
        addresses = whom_to_ask(folder, peers, run)
    except SeveralHere as several:
        if interval is not None:
            raise
        _tell_of_others(folder)
        with spoken("an answer of a node of each run"):
            _show_runs(_told(several, light_client.fetch_runs(several.asked, timeout)), as_json)
        return
    if not peers:
        _tell_of_others(folder)
    if interval is not None:
        _watch(addresses, interval, timeout, run, as_json, verbose)
        return
    try:
        with spoken(answers_of(addresses)):
            found, answered = light_client.fetch_answer(addresses, timeout, run, _completion(verbose), hear=True)
    except light_client.SeveralRuns as several:
        _show_runs(several.statuses, as_json)
        return
    _show(found, as_json, verbose)
    _remember(home, peers, answered)


@click.command("peers")
@link_argument
@peer_option
@run_option
@json_option
@timeout_option
@home_option
def list_peers(
    link: str, peers: tuple[str, ...], run: str, as_json: bool, timeout: float, home: str | None
) -> None:  # fmt: skip
    """Who is in the swarm as one of its peers sees it. Whom to ask: as for `ftnode status`."""
    from ftnode.node.home.identity import home_to_read

    peers, run = with_link(link, peers, run)
    folder = home_to_read(home, needed=not peers)
    addresses = whom_to_ask(folder, peers, run)

    from ftnode.node.watch import light_client
    from ftnode.node.watch.status import to_mapping
    from ftnode.node.watch.status_table import peer_table, printable, short_peer

    with spoken(answers_of(addresses)):
        found, answered = light_client.fetch_answer(addresses, timeout, run)
    _remember(home, peers, answered)
    if as_json:
        whole = to_mapping(found)
        kept = ("format", "speaker", "run", "name", "peers", "members")
        click.echo(json.dumps({name: whole[name] for name in kept}))
        return
    seen_by = f"{printable(found.speaker.role)} {short_peer(found.speaker.peer)}"
    click.echo(f"{printable(found.name) or 'no run'}, as {seen_by} sees it")
    table = peer_table(found)
    click.echo("\n".join(table.lines()) if table.rows else NOBODY)


def answers_of(addresses: tuple[str, ...]) -> str:
    """What a command waits for that asks these."""
    first, others = f"an answer of {addresses[0]}", len(addresses) - 1
    return f"{first} or {others} other{'s' if others > 1 else ''}" if others else first


def _remember(home: str | None, given: tuple[str, ...], answered: tuple[str, ...]) -> None:
    """Who answered, when somebody was named: neither those who did not, nor this machine's own nodes. The platform's
    home is made for that; one that a person names may be misspelt."""
    if given:
        from ftnode.node.home.identity import home_directory, home_path
        from ftnode.node.links.addresses import remember_peers

        with suppress(UserError):
            remember_peers(home_path(home) if home else home_directory(None), answered)


class SeveralHere(UserError):
    """Nodes of several runs run on this machine, and nobody said which is meant. `asked`: by run id, the full
    multiaddrs that tell of it."""

    def __init__(self, named: Mapping[str, str], asked: Mapping[str, tuple[str, ...]]) -> None:
        """`named`: run id → name."""
        from ftnode.node.watch.status_table import run_text

        shown = ", ".join(run_text(run, name) for run, name in named.items())
        super().__init__(f"nodes of several runs run here: {shown}; choose one with --run")
        self.named, self.asked = named, asked


def _told(several: SeveralHere, found: Mapping[str, SwarmStatus | UserError]) -> list[SwarmStatus]:
    """Of those runs of which somebody told; of the others a line on stderr. Raises UserError when nobody did."""
    from ftnode.node.watch.status import SwarmStatus
    from ftnode.node.watch.status_table import run_text

    told = [status for status in found.values() if isinstance(status, SwarmStatus)]
    failed = {run: why for run, why in found.items() if isinstance(why, UserError)}
    if not told:
        raise next(iter(failed.values()))
    for run, why in failed.items():
        click.echo(f"{run_text(run, several.named[run])}: {why}", err=True)
    return sorted(told, key=lambda status: (status.name, status.run))


def _tell_of_others(home: Path) -> None:
    """On stderr, beside the swarm: this machine's nodes that rest, those of another home, and a meeting point that
    may know more runs than the volunteers beside it."""
    from ftnode.node.owner.service_homes import nodes_here
    from ftnode.node.watch.status_table import printable

    nodes = nodes_here(home)
    for node in nodes:
        if node.paused:
            click.echo(f"this machine's node {node.peer} is paused: {printable(node.paused)}", err=True)
    points = [node for node in nodes if not node.run and node.addresses]
    if points and len(points) < len(nodes):
        click.echo(f"a meeting point runs here, too: ftnode status --peer {points[0].addresses[0]}", err=True)


def with_link(link: str, peers: tuple[str, ...], run: str) -> tuple[tuple[str, ...], str]:
    """Peers and run that a person means. Raises UserError (64) for a link that is none."""
    from ftnode.node.manifests.invitation import is_link, parse_link

    if not link:
        return peers, run
    if not is_link(link):
        raise UserError(f"{link} is no ftnode: link; give a peer's address with --peer, and a run's name with --run")
    invitation = parse_link(link)
    return (*peers, *invitation.peers), run or invitation.run_id


def whom_to_ask(home: Path, given: tuple[str, ...], run: str = "") -> tuple[str, ...]:
    """Full multiaddrs: those given, else of nodes that run on this machine (`nodes_here`), else remembered. `run`: what
    a person calls the run that is meant, if anything. Raises SeveralHere where that fits several runs of such nodes;
    UserError: 64, 69 while the node rests, 77 when there is but a service that this user may not look into."""
    from ftnode.node.links.addresses import full_addresses, parse_peers, remembered_peers
    from ftnode.node.owner.service_homes import closed_homes, nodes_here
    from ftnode.node.watch.peer_choice import is_meant

    if given:
        return tuple(full for peer in parse_peers(given) for full in full_addresses(peer.peer_id, peer.addresses))
    nodes = nodes_here(home)
    remembered = remembered_peers(home, warn)
    can_tell = [node for node in nodes if node.run and (node.addresses or remembered)]
    meant = [node for node in can_tell if is_meant(run, node.run, node.name)]
    named = {node.run: node.name for node in sorted(meant, key=lambda node: (node.name, node.run))}
    if len(named) > 1:
        raise SeveralHere(named, {one: _addresses(n for n in meant if n.run == one) or remembered for one in named})
    found = _addresses(meant) or _addresses(nodes) or remembered
    resting = [node for node in nodes if node.paused]
    if not found and resting:
        raise UserError(f"this machine's node {resting[0].peer} is paused ({resting[0].paused}); pass --peer ADDR", 69)
    if not found and (closed := closed_homes(home)):
        raise UserError(f"no node of yours runs here; for the service of {closed[0]}: sudo ftnode status", 77)
    if not found:
        raise UserError(
            f"no node runs here and no peer is remembered (home {home}); pass --peer ADDR of any peer of the swarm, or "
            "another --home"
        )
    return found


def _addresses(nodes: Iterable[Running]) -> tuple[str, ...]:
    return tuple(address for node in nodes for address in node.addresses)


def _completion(verbose: bool) -> Completion:
    """What is asked for besides the status of the peer that answers."""
    from ftnode.node.manifests.announcement import AuthorsWords
    from ftnode.node.watch.leaders_plan import LeadersPlan

    words = AuthorsWords().added
    return LeadersPlan(words).added if verbose else words


def _watch(
    addresses: tuple[str, ...], interval: float, timeout: float, run: str, as_json: bool, verbose: bool
) -> None:  # fmt: skip
    """On a terminal one picture that changes, elsewhere one block of lines after the other."""
    from ftnode.node.watch import light_client

    more = _completion(verbose)
    if as_json or not on_terminal():
        light_client.watch(addresses, interval, timeout, lambda found: _show(found, as_json, verbose), run, more)
        return

    from rich.live import Live

    from ftnode.node.watch.status_table import render

    with Live(auto_refresh=False, vertical_overflow="crop") as live:
        light_client.watch(
            addresses, interval, timeout, lambda found: live.update(render(found, verbose), refresh=True), run, more
        )


def on_terminal() -> bool:
    """A standard output that was closed is None."""
    return sys.stdout is not None and sys.stdout.isatty()


def _show(found: SwarmStatus, as_json: bool, verbose: bool) -> None:
    if as_json:
        from ftnode.node.watch.status import to_mapping

        click.echo(json.dumps(to_mapping(found)))
        return
    if on_terminal():
        from rich.console import Console

        from ftnode.node.watch.status_table import render

        Console().print(render(found, verbose))
        return
    from ftnode.node.watch.status_table import plain_lines

    click.echo("\n".join(plain_lines(found, verbose)))


def _show_runs(statuses: Sequence[SwarmStatus], as_json: bool) -> None:
    from ftnode.node.watch.status import to_mapping
    from ftnode.node.watch.status_table import run_table

    if as_json:
        click.echo(json.dumps({"format": statuses[0].format, "runs": [to_mapping(one) for one in statuses]}))
        return
    click.echo("\n".join(run_table(statuses).lines()))
    click.echo("choose one with --run NAME, or --run and the beginning of its id")
