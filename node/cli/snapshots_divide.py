"""`ftnode snapshots divide`: what this machine kept of a run, for another run of the same model with other stages."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ftnode.node.cli.options import INPUT, WholeRange, home_option, json_option, snapshot_limit_option
from ftnode.node.home.waiting import spoken
from ftnode.node.manifests.reading import read_manifest
from ftnode.protocol.words.errors import UserError

if TYPE_CHECKING:
    from ftnode.node.snapshots.format import KeptSnapshot
    from ftnode.protocol.manifest.parse import Manifest

ERRORS = "cli_snapshots_divide"


@click.command()
@click.argument("manifest", metavar="MANIFEST", type=INPUT)
@click.option("--run", metavar="RUN", help="The run whose snapshots these are; default: the only other one kept here.")
@click.option("--step", type=WholeRange(1), help="Of this step; default: the newest that makes some stage.")
@snapshot_limit_option
@json_option
@home_option
def divide(
    manifest: Path, run: str | None, step: int | None, snapshot_limit: float, as_json: bool, home: str | None
) -> None:
    """Make snapshots for the run of MANIFEST, of the same model in other stages, from those kept here."""
    from ftnode.node.snapshots.format import SnapshotError
    from ftnode.node.snapshots.write import GIGABYTE

    found, _ = read_manifest(manifest)
    versions = _by_version(found, run, home)
    troubles: list[str] = []
    for kept in versions:
        version = kept[0].version
        if (step is not None and version.step != step) or version.step > found.run.steps:
            continue
        try:
            with spoken("snapshots to be divided"):
                made, left = _divided(found, kept, home, int(snapshot_limit * GIGABYTE))
        except SnapshotError as error:
            raise UserError(str(error), 74) from None
        if made:
            _say(made, left, as_json)
            return
        troubles += left
    if troubles:
        raise UserError(f"{troubles[0]}; a node with more layers on its disk can make it", 66)
    which = "none are kept" if step is None and not versions else "there is none"
    raise UserError(
        f"no snapshots to divide: {which} of up to step {step or found.run.steps}; see ftnode snapshots list", 66
    )


def _by_version(found: Manifest, run: str | None, home: str | None) -> list[list[KeptSnapshot]]:
    """Those of the other run, by version, the newest first. Raises UserError (64, 78)."""
    from ftnode.node.home.identity import home_to_read
    from ftnode.node.snapshots.store import SnapshotStore, runs_kept

    if not found.recovery.snapshot_every:
        raise UserError(
            "the manifest keeps no snapshots, so that its run looks at none; set recovery.snapshot_every", 78
        )
    folder = home_to_read(home)
    others = [each for each in runs_kept(folder) if each != found.run_id and each.startswith(run or "")]
    if len(others) != 1:
        known = ", ".join(each[:8] for each in others)
        raise UserError(f"several runs are kept here: {known}; choose one with --run" if others
                        else f"{folder} keeps no snapshots of another run", 64 if others else 66)  # fmt: skip
    versions: dict[object, list[KeptSnapshot]] = {}
    for kept in SnapshotStore(folder, others[0]).kept():
        versions.setdefault(kept.version, []).append(kept)
    return list(versions.values())


def _divided(
    found: Manifest, kept: list[KeptSnapshot], home: str | None, limit_bytes: int
) -> tuple[list[KeptSnapshot], list[str]]:
    """The stages that these snapshots of one version make, written down, and why not the others. Raises SnapshotError
    when one cannot be read or written; those made before it stay."""
    from ftnode.models.config import ModelConfig
    from ftnode.models.state_plan import StatePlan
    from ftnode.node.home.identity import home_directory
    from ftnode.node.snapshots.format import DataPosition, SnapshotError
    from ftnode.node.snapshots.split import sources_of, split
    from ftnode.node.snapshots.store import SnapshotStore
    from ftnode.node.snapshots.write import DiskAllowance, write_snapshot

    stages = found.pipeline.stages
    plan = StatePlan(ModelConfig.of(found.model), stages, found.optimiser.kind)
    store, allowance = SnapshotStore(home_directory(home), found.run_id), DiskAllowance(limit_bytes=limit_bytes)
    made: list[KeptSnapshot] = []
    left: list[str] = []
    for stage in range(stages + 1):
        try:
            sources = sources_of(kept, plan, stage)
        except SnapshotError as error:
            left.append(str(error))
            continue
        index, state = split(sources, found.run_id, plan, stage)
        position = DataPosition(found.data.sha256, found.run.seed, index.version.step + 1)
        about = replace(index, data=position)
        try:
            made.append(write_snapshot(store, memoryview(state), about, allowance, range(stages + 1)))
        except SnapshotError as error:
            before = f"{len(made)} of {stages + 1} stages are made: " if made else ""
            raise SnapshotError(f"{before}{error}") from None
    return made, left


def _say(made: list[KeptSnapshot], left: list[str], as_json: bool) -> None:
    if as_json:
        stages = [{"step": kept.version.step, "stage": kept.stage, "folder": str(kept.folder)} for kept in made]
        click.echo(json.dumps({"made": stages, "left_out": left}, indent=2))
        return
    for kept in made:
        click.echo(f"stage {kept.stage} of step {kept.version.step} is in {kept.folder}")
    for trouble in left:
        click.echo(trouble, err=True)
