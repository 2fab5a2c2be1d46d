"""`ftnode credits`: who gave what to a run. Loads neither torch nor hivemind, starts no process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from ftnode.node.cli.options import home_option, json_option, link_argument, peer_option, run_option
from ftnode.node.cli.status import answers_of, timeout_option, whom_to_ask, with_link
from ftnode.node.home.waiting import spoken
from ftnode.protocol.words.errors import UserError

if TYPE_CHECKING:
    from ftnode.node.watch.status import SwarmStatus

ASKED_MAX = 8


@click.command("credits")
@link_argument
@peer_option
@run_option
@json_option
@timeout_option
@home_option
def list_credits(
    link: str, peers: tuple[str, ...], run: str, as_json: bool, timeout: float, home: str | None
) -> None:  # fmt: skip
    """Who gave what to a run: visits in committed steps, hours, stages brought back, bytes relayed. Members count it
    of each other, nobody of itself. Whom to ask: as for `ftnode status`."""
    from ftnode.node.home.identity import home_to_read

    peers, run = with_link(link, peers, run)
    addresses = whom_to_ask(home_to_read(home, not peers), peers, run)

    from ftnode.node.watch.credit_table import credit_lines
    from ftnode.node.watch.status import to_mapping

    with spoken(answers_of(addresses)):
        found = _counted(addresses, timeout, run)
    if as_json:
        whole = to_mapping(found)
        kept = ("format", "speaker", "run", "name", "step", "credits_step", "credits")
        click.echo(json.dumps({name: whole[name] for name in kept}))
        return
    click.echo("\n".join(credit_lines(found)))


def _counted(addresses: tuple[str, ...], timeout: float, run: str) -> SwarmStatus:
    """Of a member, since who stands by does not hear who did a step; of whoever answers when no member does."""
    from ftnode.node.links.addresses import full_addresses
    from ftnode.node.watch import light_client

    found, _ = light_client.fetch_answer(addresses, timeout, run)
    if found.credits_step + 1 >= found.step:
        return found
    members = [row for row in found.peers if row.role in ("leader", "holder") and row.peer != found.speaker.peer]
    known = tuple(full for row in members[:ASKED_MAX] for full in full_addresses(row.peer, row.addresses))
    try:
        other = light_client.fetch_status(known, timeout, found.run) if known else found
    except UserError:
        return found
    return other if other.credits_step > found.credits_step else found
