"""`ftnode run`: the manifest of a run, before anybody joins it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import click

from ftnode.models.config import ModelConfig
from ftnode.node.cli_options import json_option, read_manifest, readable_data, unused_home_option
from ftnode.node.presets import PRESETS, adapt, preset
from ftnode.protocol.errors import UserError
from ftnode.protocol.manifest import Manifest, parse, render

STATE_NUMBERS = 4
"""Numbers that a holder keeps per parameter: weight, gradient, and Adam's two moments."""


@click.command()
@click.argument("manifest", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--preset", "start", default="tiny", show_default=True, help=f"One of {', '.join(PRESETS)}.")
@click.option(
    "--data",
    metavar="PATH",
    help="Text file, folder of them, or folder of token shards; default: Python's standard library.",
)
@click.option("--stages", type=click.IntRange(1, 256), help="Block stages; layers become the nearest multiple.")
@click.option("--steps", type=click.IntRange(1), help="Optimiser steps of the run.")
@click.option("--seed", type=click.IntRange(0), help="Fixes initial weights and the order of the data.")
@unused_home_option
def init(
    manifest: Path, start: str, data: str | None, stages: int | None, steps: int | None, seed: int | None,
    home: str | None,
) -> None:  # fmt: skip
    """Write a commented manifest to MANIFEST. An existing file stays as it is."""
    if manifest.exists():
        raise UserError(f"{manifest} is already there and stays as it is; choose another name", 73)
    from ftnode.node.corpus import corpus_facts

    first, path = preset(start), readable_data(data)
    text = manifest_text(adapt(
        first, **asdict(corpus_facts(path, first.model.context)), name=_run_name(manifest, start), steps=steps,
        stages=stages, seed=seed,
    ))  # fmt: skip
    _write_new(manifest, text)
    click.echo(f"wrote {manifest}")
    click.echo(describe(parse(text, manifest.name)))


@click.command()
@click.argument("manifest", type=click.Path(path_type=Path))
@unused_home_option
def validate(manifest: Path, home: str | None) -> None:
    """Check MANIFEST and say what it needs."""
    checked, _ = read_manifest(manifest)
    click.echo(f"{manifest} is a valid manifest")
    click.echo(describe(checked))


@click.command()
@click.argument("manifest", type=click.Path(path_type=Path))
@json_option
@unused_home_option
def show(manifest: Path, as_json: bool, home: str | None) -> None:
    """Print the values of MANIFEST and the sizes that follow from them."""
    checked, _ = read_manifest(manifest)
    if as_json:
        click.echo(json.dumps(asdict(checked) | {"run_id": checked.run_id, "sizes": sizes(checked)}, indent=2))
    else:
        for section, values in asdict(checked).items():
            click.echo(f"{section}: " + ", ".join(f"{name} {value}" for name, value in values.items()))
        click.echo(describe(checked))


def manifest_text(manifest: Manifest, source: str = "the manifest of these options") -> str:
    """What `init` writes: the manifest under a heading that says what to do with it. Raises UserError (78)."""
    text = render(
        manifest,
        "A run of ftnode. Everybody who joins needs this same file: its values make the run id, comments do not.\n"
        "Share it with: ftnode join THIS-FILE --peer ADDRESS-OF-A-MEETING-POINT",
    )
    parse(text, source)
    return text


def model_config(manifest: Manifest) -> ModelConfig:
    return ModelConfig(**asdict(manifest.model))


def sizes(manifest: Manifest) -> dict[str, int]:
    """Parameters, and bytes of what a holder keeps and sends."""
    config, stages = model_config(manifest), manifest.pipeline.stages
    return {
        "parameters": config.total_parameters(),
        "parameters_per_stage": config.stage_parameters(stages, 1),
        "parameters_head": config.stage_parameters(stages, 0),
        "state_bytes_per_stage": config.stage_parameters(stages, 1) * STATE_NUMBERS * config.number_bytes,
        "boundary_bytes": manifest.boundary_bytes,
        "tokens_per_step": manifest.tokens_per_step,
    }


def describe(manifest: Manifest) -> str:
    """The run id and the sizes, for people."""
    found = sizes(manifest)
    return (
        f"run {manifest.run.name}, id {manifest.run_id}\n"
        f"{found['parameters']:,} parameters: {manifest.pipeline.stages} block stages of "
        f"{found['parameters_per_stage']:,} ({found['state_bytes_per_stage'] / 1e6:,.1f} MB of state each) "
        f"and a head of {found['parameters_head']:,}\n"
        f"{manifest.run.steps:,} steps of {found['tokens_per_step']:,} tokens; "
        f"{found['boundary_bytes'] / 1e3:,.1f} kB per boundary tensor"
    )


def _run_name(path: Path, fallback: str) -> str:
    """The file's name where it can be a run's name, else the preset's."""
    name = "".join(letter for letter in path.stem if letter.isascii() and (letter.isalnum() or letter in "._-"))
    return name[:64] if name[:1].isalnum() else fallback


def _write_new(path: Path, text: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        raise UserError(f"{path} is already there and stays as it is; choose another name", 73) from None
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}", 73) from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
