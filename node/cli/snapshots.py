"""`ftnode snapshots`: what this machine keeps of runs' stages; look at it, check it, clear it away."""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ftnode.node.cli.leave import chosen
from ftnode.node.cli.options import OUTPUT, FiniteRange, WholeRange, home_option, json_option
from ftnode.node.home.paths import whole_path
from ftnode.node.home.size import size_text
from ftnode.node.home.waiting import spoken
from ftnode.protocol.words.errors import UserError

if TYPE_CHECKING:
    from ftnode.node.snapshots.format import KeptSnapshot
    from ftnode.node.snapshots.store import SnapshotStore

ERRORS = "cli_snapshots"

PLACE = re.compile(r"(\d{1,12})/(\d{1,4})")
LOOK_SECONDS = 0.1
IDLE = {
    "paused": "is paused", "frozen": "stands still", "starting": "is only beginning",
    "handing over": "hands over what it holds",
}  # fmt: skip
"""States of a node that can save nothing, and how to say so."""
run_option = click.option("--run", metavar="RUN", help="Only of this run; as much of its id as is unique.")


@click.command("list")
@run_option
@json_option
@home_option
def list_snapshots(run: str | None, as_json: bool, home: str | None) -> None:
    """List the snapshots that are whole, as far as that shows without reading their tensors; what is not is said."""
    from ftnode.node.watch.status_table import Table

    found: list[KeptSnapshot] = []
    troubles: list[str] = []
    for store in _stores(home, run):
        whole, broken = store.survey()
        found += whole
        troubles += map(str, broken)
    if as_json:
        click.echo(json.dumps({"snapshots": [_plain(kept) for kept in found], "troubles": troubles}, indent=2))
        return
    if found:
        columns = ("run", "step", "stage", "commit", "epoch", "size", "saved")
        click.echo("\n".join(Table(columns, tuple(map(_row, found))).lines()))
    else:
        click.echo("no snapshots are kept here")
    for trouble in troubles:
        click.echo(f"not whole: {trouble}", err=True)


@click.command()
@click.argument("snapshot", metavar="STEP/STAGE|FOLDER")
@click.option("--tensors", is_flag=True, help="Every tensor, with its shape and its file.")
@run_option
@json_option
@home_option
def show(snapshot: str, tensors: bool, run: str | None, as_json: bool, home: str | None) -> None:
    """Print what is known of a snapshot, without loading it."""
    from ftnode.models.state_plan import PARTS
    from ftnode.node.snapshots.format import SnapshotError
    from ftnode.node.snapshots.store import tensors_of

    facts = []
    for kept in _named(snapshot, home, run):
        plain = _plain(kept)
        if tensors:
            try:
                named = {part: tensors_of(kept, part) for part in PARTS}
            except SnapshotError as error:
                raise UserError(str(error), 65) from None
            plain["tensors"] = {
                name: {"part": part, "dtype": dtype, "shape": list(shape)}
                for part, each in named.items() for name, (dtype, shape, _) in each.items()
            }  # fmt: skip
        facts.append(plain)
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    click.echo("\n\n".join("\n".join(_lines(plain)) for plain in facts))


@click.command()
@click.argument("snapshots", metavar="[STEP/STAGE|FOLDER]...", nargs=-1)
@run_option
@json_option
@home_option
def verify(snapshots: tuple[str, ...], run: str | None, as_json: bool, home: str | None) -> int:
    """Read snapshots, all of them when none is named, and compare their hashes. Exit code 65 when one is damaged, 74
    when none is and one cannot be read.

    A snapshot that a running node removes meanwhile is not damaged."""
    from ftnode.node.snapshots.format import SnapshotError, Unreadable
    from ftnode.node.snapshots.store import SnapshotStore

    good: list[str] = []
    troubles: list[SnapshotError] = []
    chosen = [kept for name in snapshots for kept in _named(name, home, run)]
    for store in [] if snapshots else _stores(home, run):
        whole, broken = store.survey()
        chosen += whole
        troubles += broken
    with spoken("snapshots to be read"):
        for kept in chosen:
            trouble = SnapshotStore(kept.folder, kept.index.run).trouble(kept)
            if trouble is not None and not kept.folder.is_dir():
                if not as_json:
                    click.echo(f"{kept.folder} has been removed meanwhile")
                continue
            if trouble is not None:
                troubles.append(trouble)
                continue
            good.append(str(kept.folder))
            if not as_json:
                click.echo(f"{kept.folder} is as it was written")
    unread = [str(each) for each in troubles if isinstance(each, Unreadable)]
    damaged = [str(each) for each in troubles if not isinstance(each, Unreadable)]
    if as_json:
        click.echo(json.dumps({"good": good, "damaged": damaged, "unread": unread}, indent=2))
    if damaged:
        more = f" (and {len(damaged) - 1} more)" if len(damaged) > 1 else ""
        raise UserError(f"{damaged[0]}{more}; remove its folder, a swarm that starts again takes an earlier one", 65)
    if unread:
        more = f" (and {len(unread) - 1} more)" if len(unread) > 1 else ""
        raise UserError(
            f"{unread[0]}{more}, and nobody can tell whether it is whole; see to its rights and to the disk", 74
        )
    if not chosen and not as_json:
        click.echo("no snapshots are kept here")
    return 0


@click.command()
@click.option("--keep", type=WholeRange(0), required=True, help="Of each stage, so many that were saved last stay.")
@run_option
@json_option
@home_option
def prune(keep: int, run: str | None, as_json: bool, home: str | None) -> None:
    """Remove all but the last snapshots of each stage, and what broken-off saves have left. Unless none are to stay,
    the newest step does of which all stages are here."""
    gone = []
    for store in _stores(home, run):
        try:
            gone += store.prune(keep)
        except OSError as error:
            raise UserError(f"cannot clear {store.folder}: {error.strerror or error}; try again", 74) from None
    size = sum(kept.bytes for kept in gone)
    if as_json:
        click.echo(json.dumps({"removed": [str(kept.folder) for kept in gone], "bytes": size}, indent=2))
        return
    click.echo(f"{len(gone)} snapshots are removed, {size_text(size)}" if gone else "nothing was to be removed")


@click.command()
@click.argument("path", metavar="PATH", type=OUTPUT)
@click.option("--stage", type=WholeRange(0), help="This one alone; default: all that the node holds.")
@click.option("--peer", metavar="PEERID", help="This one of several nodes; as much of its PeerId as is unique.")
@click.option(
    "--timeout", type=FiniteRange(0, min_open=True), default=300.0, show_default=True,
    help="Seconds to wait until it is on the disk.",
)  # fmt: skip
@json_option
@home_option
def save(path: Path, stage: int | None, peer: str | None, timeout: float, as_json: bool, home: str | None) -> None:
    """Have this machine's node save its stages once, as they are now, to the new folder PATH."""
    from ftnode.node.home.identity import home_to_read
    from ftnode.node.owner.control_socket import ControlError, ask, socket_path

    folder = home_to_read(home)
    running = chosen(folder, peer)
    if len(running) > 1:
        names = ", ".join(each.peer for each in running)
        raise UserError(f"several volunteers run here: {names}; choose one with --peer", 64)
    place, deadline = whole_path(path), time.monotonic() + timeout
    socket = socket_path(folder, running[0].peer)
    try:
        _require_working(ask(socket, "state"))
        with spoken(f"{place} to be written"):
            state = ask(socket, "snapshot", to=str(place), stage=stage)
            while state["waiting"]:
                if time.monotonic() > deadline:
                    raise UserError(f"{place} is still being written after {timeout:g} s; it will be there, or not", 75)
                time.sleep(LOOK_SECONDS)
                state = ask(socket, "snapshot-state")
    except ControlError as error:
        with suppress(ControlError):  # who rests meanwhile knows of no save any more
            _require_working(ask(socket, "state"))
        raise UserError(f"cannot save: {error}", 73) from None
    if not state["saved"] and not state["troubles"]:
        raise UserError("cannot save: the node has rested meanwhile; try again", 75)
    if as_json:
        click.echo(json.dumps({"saved": state["saved"], "troubles": state["troubles"]}, indent=2))
    else:
        for each in state["saved"]:
            click.echo(
                f"stage {each['stage']} of step {each['step']} is in {each['folder']}, {size_text(each['bytes'])}"
            )
    if state["troubles"]:
        raise UserError(f"not all is saved: {state['troubles'][0]}", 74)


def _require_working(node: dict[str, Any]) -> None:
    """Raises UserError (75) for a node that can save nothing in its state."""
    if how := IDLE.get(node["state"]):
        why = f" ({node['why']})" if node["why"] else ""
        raise UserError(f"cannot save: the node {how}{why}; try again when it works", 75)


def _stores(home: str | None, run: str | None) -> list[SnapshotStore]:
    """Of each run that this home has snapshots of. Raises UserError (64) when `run` is none of them, or several."""
    from ftnode.node.home.identity import home_to_read
    from ftnode.node.snapshots.store import SnapshotStore, runs_kept

    folder = home_to_read(home)
    runs = runs_kept(folder)
    chosen = [each for each in runs if run is None or each.startswith(run)]
    if run is not None and len(chosen) != 1:
        known = ", ".join(each[:8] for each in runs) or "none"
        what = "begins several ids" if chosen else "begins no id"
        raise UserError(f"--run {run} {what} of the runs that {folder} keeps snapshots of: {known}", 64)
    return [SnapshotStore(folder, each) for each in chosen]


def _named(text: str, home: str | None, run: str | None) -> list[KeptSnapshot]:
    """Those of a STEP/STAGE, or the one in a folder. Raises UserError: 64, 65 when it is broken, 66 when there is
    none."""
    from ftnode.node.snapshots.format import SnapshotError
    from ftnode.node.snapshots.store import read_snapshot

    place = PLACE.fullmatch(text)
    if place is None or os.path.isdir(text):
        if not os.path.isdir(text):
            raise UserError(f"{text} is neither STEP/STAGE, as 100/3, nor a folder; see ftnode snapshots list", 64)
        try:
            return [read_snapshot(whole_path(text))]
        except SnapshotError as error:
            raise UserError(str(error), 65) from None
    stores = _stores(home, run)
    wanted = int(place[1]), int(place[2])
    found = [kept for store in stores for kept in store.kept() if (kept.version.step, kept.stage) == wanted]
    if not found:
        raise UserError(f"no snapshot of stage {wanted[1]} at step {wanted[0]} is kept; see ftnode snapshots list", 66)
    if len({kept.index.run for kept in found}) > 1:
        names = ", ".join(sorted({kept.index.run[:8] for kept in found}))
        raise UserError(f"several runs have a snapshot {text}: {names}; choose one with --run", 64)
    return found


def _plain(kept: KeptSnapshot) -> dict[str, Any]:
    index = kept.index
    per_stage = index.model.layers_per_stage(index.stages)
    first = (index.stage - 1) * per_stage if index.stage else 0
    return {
        "run": index.run, "step": index.version.step, "stage": index.stage, "stages": index.stages,
        "layers": list(range(first, first + per_stage)) if index.stage else [], "commit": index.version.commit,
        "attempt": list(index.version.attempt), **asdict(index.lineal), "digest": index.digest,
        "whole_digest": index.whole_digest,
        **asdict(index.state), "data": asdict(index.data), "model": asdict(index.model), "optimiser": index.optimiser,
        "bytes": index.bytes,
        "parts": {name: asdict(part) for name, part in index.parts.items()}, "saved": index.saved,
        "ftnode": index.ftnode, "folder": str(kept.folder),
    }  # fmt: skip


def _row(kept: KeptSnapshot) -> tuple[str, ...]:
    index = kept.index
    return (
        index.run[:8], str(index.version.step), str(index.stage), index.version.commit[:8], str(index.lineal.epoch),
        size_text(index.bytes), _time(index.saved),
    )  # fmt: skip


def _lines(plain: dict[str, Any]) -> list[str]:
    shown = {**plain, "saved": _time(plain["saved"])}
    shown.pop("tensors", None)
    width = max(map(len, shown))
    lines = [f"{name.ljust(width)}  {_shown(value)}" for name, value in shown.items()]
    return lines + [
        f"{name}  {tensor['dtype']} {'×'.join(map(str, tensor['shape']))}  {tensor['part']}"
        for name, tensor in plain.get("tensors", {}).items()
    ]


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(each)}" for name, each in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
