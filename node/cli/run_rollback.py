"""`ftnode run rollback`: the author orders a swarm to go back to a snapshot, and to undo all steps after it."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ftnode.node.cli.options import INPUT, home_option, json_option, peer_option
from ftnode.node.cli.run_peers import timeout_option
from ftnode.node.manifests.authorship import order_of
from ftnode.node.manifests.reading import read_manifest
from ftnode.protocol.manifest.parse import parse
from ftnode.protocol.words.errors import UserError

ERRORS = "cli_run_rollback"


@click.command()
@click.argument("manifest", type=INPUT)
@click.option(
    "--to-step", type=click.IntRange(0, 10_000_000), required=True, metavar="N",
    help="Go back to the newest snapshot of this step or of an earlier one.",
)  # fmt: skip
@peer_option
@json_option
@timeout_option
@home_option
def rollback(
    manifest: Path, to_step: int, peers: tuple[str, ...], as_json: bool, timeout: float, home: str | None
) -> None:
    """Order the swarm of MANIFEST to undo its newest steps: it goes on from the newest snapshots of all stages, of step
    N or earlier, that volunteers have on their disks. What it has trained since is lost. The order is signed with this
    machine's author key and kept in MANIFEST. Where no disk has such snapshots, nothing changes, and `ftnode status`
    says so. Without --peer: through this machine's node, else through peers remembered."""
    from ftnode.node.cli.manifest import replace_manifest
    from ftnode.node.cli.status import whom_to_ask
    from ftnode.node.home.identity import home_directory
    from ftnode.node.manifests.authorship import author_key, order_rollback
    from ftnode.node.manifests.fetch import show_manifest
    from ftnode.node.watch.light_client import fetch_status

    folder = home_directory(home, known=True)
    checked, text = read_manifest(manifest)
    if not checked.recovery.snapshot_every:
        raise UserError(
            f"{manifest} has recovery.snapshot_every = 0: volunteers keep no snapshots, so there is nothing to go back "
            "to; a new run can have them", 78,
        )  # fmt: skip
    key = author_key(folder)
    try:
        changed = order_rollback(text, to_step, key, manifest.name)
    finally:
        key.release()
    ordered = parse(changed, manifest.name)
    addresses = whom_to_ask(folder, peers, ordered.run_id)
    step = fetch_status(addresses, timeout, ordered.run_id).step
    if step <= to_step:
        raise UserError(f"the run is at step {step}: nothing after step {to_step} can be undone; name an earlier step")
    replace_manifest(manifest, changed)
    show_manifest(addresses, ordered, changed, timeout)
    order = order_of(ordered)
    if as_json:
        found = {"run": ordered.run_id, "revision": order.number, "to_step": order.step, "step": step}
        click.echo(json.dumps(found | {"undone_steps": step - order.step}))
        return
    click.echo(
        f"the swarm has the order, revision {order.number} of {ordered.run.name}: back to step {order.step} or to the "
        "newest snapshots before it"
    )
    click.echo(f"it is at step {step}: at least {step - order.step} steps are lost; ftnode status shows where it went")
