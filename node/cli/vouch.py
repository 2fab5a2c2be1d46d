"""`ftnode run vouch`: the owner of a volunteer says by its key that somebody else may take part."""

from __future__ import annotations

import json
import time

import click

from ftnode.node.cli.options import WholeRange, home_option, json_option
from ftnode.node.cli.run_peers import timeout_option
from ftnode.protocol.words.errors import UserError

ERRORS = "cli_vouch"


@click.command()
@click.argument("run", metavar="MANIFEST|LINK")
@click.argument("peer", metavar="PEER_ID")
@click.option("--days", type=WholeRange(1, 366), default=30, show_default=True, help="That it may take part.")
@timeout_option
@json_option
@home_option
def vouch(run: str, peer: str, days: int, timeout: float, as_json: bool, home: str | None) -> None:
    """Print a voucher for PEER_ID (ftnode id), to send to its owner, who joins with --voucher. It is signed with the
    key of this machine's volunteer, which may run meanwhile. In a run whose membership.join is vouched, those of its
    list may vouch."""
    from ftnode.node.home.identity import home_to_read, peer_id_bytes
    from ftnode.node.manifests.joining import find_run
    from ftnode.node.manifests.vouch_for import vouched_for
    from ftnode.node.manifests.voucher import DAY

    try:
        peer_id_bytes(peer)
    except ValueError:
        raise UserError(f"{peer[:60]} is no PeerId; the other one's owner sees it with: ftnode id") from None
    folder = home_to_read(home)
    manifest, _, _ = find_run(run, folder, timeout, allow_unsigned=True)
    voucher, text = vouched_for(manifest, folder, peer, int(time.time()), days * DAY)
    if as_json:
        told = {"run": voucher.run, "by": voucher.by, "peer": voucher.peer, "made": voucher.made}
        click.echo(json.dumps({"format": 1, **told, "until": voucher.until, "voucher": text}))
        return
    click.echo(text)
    until = time.strftime("%Y-%m-%d", time.localtime(voucher.until))
    click.echo(f"{voucher.by} vouches for {peer} until {until}; it joins with: --voucher TEXT", err=True)
