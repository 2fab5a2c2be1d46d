"""`ftnode run fetch`, `push` and `announce`: manifests from a swarm and to it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ftnode.node.cli.options import INPUT, OUTPUT_FILE, FiniteRange, home_option, peer_option, unused_home_option
from ftnode.node.manifests.authorship import signer
from ftnode.node.manifests.reading import read_manifest
from ftnode.protocol.manifest.parse import Manifest, parse
from ftnode.protocol.words.errors import UserError

if TYPE_CHECKING:
    from ftnode.node.watch.status import SwarmStatus

ERRORS = "cli_run_peers"

timeout_option = click.option(
    "--timeout", type=FiniteRange(0, min_open=True), default=20.0, show_default=True,
    help="Seconds to wait for a peer that answers.",
)  # fmt: skip


@click.command()
@click.argument("link")
@click.argument("manifest", type=OUTPUT_FILE, required=False)
@timeout_option
@unused_home_option
def fetch(link: str, manifest: Path | None, timeout: float, home: str | None) -> None:
    """Get the manifest behind the ftnode: LINK from the peers that it names, check it, and write it to MANIFEST, else
    to standard output. An existing file stays as it is."""
    from ftnode.node.cli.manifest import write_new
    from ftnode.node.manifests.fetch import fetch_manifest
    from ftnode.node.manifests.invitation import parse_link

    if manifest is not None and manifest.exists():
        raise UserError(f"{manifest} is already there and stays as it is; choose another name", 73)
    found, text = fetch_manifest(parse_link(link), timeout)
    if manifest is None:
        click.echo(text, nl=False)
        return
    write_new(manifest, text)
    click.echo(f"wrote {manifest}: run {found.run.name}, signed by {found.run.author or 'nobody'}")


@click.command()
@click.argument("manifest", type=INPUT)
@click.option("--lose-stages", is_flag=True, help="Also where stages go with the peers that are cut off.")
@peer_option
@timeout_option
@home_option
def push(manifest: Path, lose_stages: bool, peers: tuple[str, ...], timeout: float, home: str | None) -> None:
    """Show a running swarm the signed MANIFEST, so that it admits those who were added, and cuts off those who were
    removed. Refused where only these hold a stage, which would be lost with them. Without --peer: through this
    machine's node, else through peers remembered."""
    from ftnode.node.cli.status import whom_to_ask
    from ftnode.node.home.identity import home_to_read

    checked, text = read_manifest(manifest)
    if not signer(checked, text, manifest.name):
        raise UserError(
            f"{manifest} is not signed, so no node would take it; sign it with: ftnode run sign {manifest}", 78
        )
    folder = home_to_read(home, not peers)
    addresses = whom_to_ask(folder, peers, checked.run_id)
    if not lose_stages:
        _check_stages(addresses, checked, folder, timeout)
    _show(addresses, checked, text, timeout)


@click.command()
@click.argument("manifest", type=INPUT)
@click.argument("message")
@peer_option
@timeout_option
@home_option
def announce(manifest: Path, message: str, peers: tuple[str, ...], timeout: float, home: str | None) -> None:
    """Show MESSAGE, one line, in the terminals of all volunteers, in `ftnode status` and on dashboards. It is signed
    with this machine's author key and kept in MANIFEST. An empty MESSAGE takes the last one back. Without --peer:
    through this machine's node, else through peers remembered. MANIFEST's list goes with it, and is refused
    where `ftnode run push` refuses it."""
    from ftnode.node.cli.manifest import replace_manifest
    from ftnode.node.cli.status import whom_to_ask
    from ftnode.node.home.identity import home_directory
    from ftnode.node.manifests.authorship import announce as announced
    from ftnode.node.manifests.authorship import author_key

    folder = home_directory(home, known=True)
    _, text = read_manifest(manifest)
    key = author_key(folder)
    try:
        changed = announced(text, message, key, manifest.name)
    finally:
        key.release()
    announcing = parse(changed, manifest.name)
    addresses = whom_to_ask(folder, peers, announcing.run_id)
    _check_stages(addresses, announcing, folder, timeout)
    if changed != text:
        replace_manifest(manifest, changed)
    _show(addresses, announcing, changed, timeout)


def _check_stages(addresses: tuple[str, ...], manifest: Manifest, home: Path, timeout: float) -> None:
    """As `refuse_to_lose`. Where no status is to be had, nobody can tell."""
    from ftnode.node.watch.light_client import fetch_status

    if manifest.membership.join == "open":
        return
    try:
        status = fetch_status(addresses, timeout, manifest.run_id)
    except UserError:
        return
    refuse_to_lose(status, manifest, home)


def refuse_to_lose(status: SwarmStatus, manifest: Manifest, home: Path) -> None:
    """Raises UserError (75) where stages would be lost with those whom the manifest cuts off."""
    from ftnode.node.manifests.cut_off import cut_off, stages_that_go
    from ftnode.protocol.words.types import names_of

    if lost := stages_that_go(status, cut_off(manifest, home)):
        who = ", ".join(dict.fromkeys(peer[-6:] for peers in lost.values() for peer in peers))
        raise UserError(
            f"{names_of(list(lost))} would be lost: this list cuts {who} off, and nobody else holds that; ask for "
            "ftnode leave there first, wait for another holder, or push the list with --lose-stages", 75,
        )  # fmt: skip


def _show(addresses: tuple[str, ...], manifest: Manifest, text: str, timeout: float) -> None:
    from ftnode.node.manifests.fetch import show_manifest

    show_manifest(addresses, manifest, text, timeout)
    click.echo(f"the swarm has revision {manifest.membership.revision} of {manifest.run.name}")
