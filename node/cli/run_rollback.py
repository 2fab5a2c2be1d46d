"""`ftnode run rollback`: the author, or most of the voters, order a swarm to go back to a snapshot, and to undo all
steps after it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ftnode.node.cli.options import INPUT, WholeRange, home_option, json_option, peer_option, warn
from ftnode.node.cli.run_peers import refuse_to_lose, timeout_option
from ftnode.node.manifests.authorship import order_of
from ftnode.node.manifests.reading import read_manifest
from ftnode.protocol.manifest.parse import Manifest, parse, settings
from ftnode.protocol.words.errors import UserError

if TYPE_CHECKING:
    from ftnode.node.watch.status import ConvictedRow, SwarmStatus

ERRORS = "cli_run_rollback"

HEARD_LATER: Final = "heard here only later, so that nobody here saw in which step it was"
NOT_HERE: Final = "only told by the swarm's status, and this home has no signed words of it"


@click.command()
@click.argument("manifest", type=INPUT)
@click.option(
    "--to-step", type=WholeRange(0, 10_000_000), metavar="N",
    help="Go back to the newest snapshot of this step or of an earlier one.",
)  # fmt: skip
@click.option(
    "--before-lies", is_flag=True,
    help="Go back to before the first step in which a node of this home saw it proven that somebody lied.",
)  # fmt: skip
@click.option(
    "--by-members", is_flag=True,
    help="Vote for it with the nodes that run here; most voters of the run give the order, without its author.",
)  # fmt: skip
@click.option("--withdraw", is_flag=True, help="Take the votes of the nodes that run here back.")
@peer_option
@json_option
@timeout_option
@home_option
def rollback(
    manifest: Path, to_step: int | None, before_lies: bool, by_members: bool, withdraw: bool, peers: tuple[str, ...],
    as_json: bool, timeout: float, home: str | None,
) -> None:  # fmt: skip
    """Order the swarm of MANIFEST to undo its newest steps: it goes on from the newest snapshots of all stages, of step
    N or earlier, that volunteers have on their disks. What it has trained since is lost. The order is signed with this
    machine's author key and kept in MANIFEST. Where no disk has such snapshots, nothing changes, and `ftnode status`
    says so. MANIFEST's list goes with it, and is refused where `ftnode run push` refuses it. Without --peer: through
    this machine's node, else through peers remembered.

    With --before-lies the step is the one before the first proven lie. Only a node that was there can tell, so it goes
    by what nodes of this home have seen and kept, and not by what others say. Lies that nobody has proven stay.

    With --by-members nothing is signed with the author key. Each node of this home in the run votes, for an hour or
    until --withdraw. When more than half of the run's voters want the same step, that is the order. `ftnode status`
    shows what others want."""
    from ftnode.node.cli.manifest import replace_manifest
    from ftnode.node.cli.run_rollback_votes import vote
    from ftnode.node.cli.status import whom_to_ask
    from ftnode.node.home.identity import home_directory
    from ftnode.node.manifests.fetch import show_manifest
    from ftnode.node.watch.light_client import fetch_status

    if [to_step is not None, before_lies, withdraw].count(True) != 1:
        raise UserError(
            "--to-step, --before-lies and --withdraw exclude each other, and one is needed; give one of them"
        )
    if withdraw and not by_members:
        raise UserError(
            "--withdraw takes votes back, and an author's order only gives way to another one; give --by-members with "
            "it, or order another step: --to-step N"
        )
    folder = home_directory(home, known=True)
    checked, text = read_manifest(manifest)
    if not checked.recovery.snapshot_every:
        raise UserError(
            f"{manifest} has recovery.snapshot_every = 0: volunteers keep no snapshots, so there is nothing to go back "
            "to; a new run can have them", 78,
        )  # fmt: skip
    proven = _proven(folder, checked) if before_lies else None
    wanted = max(0, proven.first.step - 1) if proven is not None else to_step
    if by_members:
        vote(folder, checked, wanted, as_json)
        return
    assert wanted is not None
    changed = _signed(folder, text, wanted, manifest.name)
    addresses = whom_to_ask(folder, peers, checked.run_id)
    status = fetch_status(addresses, timeout, checked.run_id)
    if status.rollback_number >= parse(changed, manifest.name).membership.rollback_order:  # members gave one meanwhile
        changed = _signed(folder, text, wanted, manifest.name, after=status.rollback_number)
    ordered = parse(changed, manifest.name)
    if status.step <= wanted:
        raise UserError(
            f"the run is at step {status.step}: nothing after step {wanted} can be undone; name an earlier step"
        )
    refuse_to_lose(status, ordered, folder)
    replace_manifest(manifest, changed)
    show_manifest(addresses, ordered, changed, timeout)
    _tell(ordered, status, proven.with_told(status.convicted) if proven is not None else None, as_json)


def _signed(home: Path, text: str, step: int, source: str, after: int = 0) -> str:
    """The manifest with the order, signed with this home's author key; see order_rollback."""
    from ftnode.node.manifests.authorship import author_key, order_rollback

    key = author_key(home)
    try:
        return order_rollback(text, step, key, source, after)
    finally:
        key.release()


@dataclass(frozen=True, slots=True)
class Proven:
    """The first lie that counts, and others that do not: why, in words."""

    first: ConvictedRow
    passed_over: tuple[tuple[ConvictedRow, str], ...] = ()

    def with_told(self, told: Iterable[ConvictedRow]) -> Proven:
        """Also with what a status tells of earlier lies. Its words come without signatures, and count for nothing."""
        known = {self.first.peer, *(row.peer for row, _ in self.passed_over)}
        earlier = [(row, NOT_HERE) for row in told if row.step < self.first.step and row.peer not in known]
        return Proven(self.first, (*self.passed_over, *earlier))


def _proven(home: Path, manifest: Manifest) -> Proven:
    """What nodes of this home have seen of the run, with every signature verified again. Raises UserError (75)."""
    from ftnode.node.links.seals import Seals
    from ftnode.node.snapshots.liar_book import LiarBook
    from ftnode.node.watch.run_status import convicted_row
    from ftnode.protocol.leader.first_lie import first_lie, is_undone, was_seen
    from ftnode.protocol.words.types import Peer

    reader = Seals(Peer("", 0))
    kept = LiarBook(home, manifest.run_id, settings(manifest), reader, lambda event: None).read(warn)
    order = order_of(manifest)
    first = first_lie(kept, order)
    if first is None and any(map(was_seen, kept)):
        raise UserError(
            f"the order to go back to step {order.step} goes before every lie that was proven here; ftnode status "
            "shows where it went", 75,
        )  # fmt: skip
    if first is None:
        raise UserError(
            f"no node of this home has seen a lie proven in {manifest.run.name}; name a step that ftnode status shows: "
            "--to-step N", 75,
        )  # fmt: skip
    row = convicted_row(first.case)
    others = [convicted_row(each.case) for each in kept if not was_seen(each) and not is_undone(each, order)]
    return Proven(row, tuple((other, HEARD_LATER) for other in others if other.step < row.step))


def _tell(ordered: Manifest, status: SwarmStatus, proven: Proven | None, as_json: bool) -> None:
    order = order_of(ordered)
    undone = status.step - order.step
    if as_json:
        found = {"run": ordered.run_id, "revision": order.number, "to_step": order.step, "step": status.step}
        lies = {} if proven is None else {
            "before_lie": asdict(proven.first),
            "passed_over": [asdict(row) | {"because": why} for row, why in proven.passed_over],
        }  # fmt: skip
        click.echo(json.dumps(found | {"undone_steps": undone} | lies))
        return
    if proven is not None:
        from ftnode.node.watch.status_table import printable, short_peer

        lie, names = proven.first, ", ".join(map(short_peer, proven.first.signed_by))
        click.echo(
            f"the first lie that a node here saw proven: {printable(lie.peer)} lied in step {lie.step}: "
            f"{printable(lie.reason)} (signed by {names})"
        )
        for row, why in proven.passed_over:
            click.echo(f"passed over: {printable(row.peer)} lied in step {row.step}, {why}")
    click.echo(
        f"the swarm has the order, revision {order.number} of {ordered.run.name}: back to step {order.step} or to the "
        "newest snapshots before it"
    )
    click.echo(
        f"it is at step {status.step}: at least {undone} steps are lost where its disks have snapshots so old, and "
        "else nothing changes; ftnode status shows which"
    )
