"""`ftnode run`: the manifest of a run, before anybody joins it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from secrets import token_hex
from typing import Any
from unicodedata import combining, normalize

import click
from click.core import ParameterSource

from ftnode.models.config import TRAINED, ModelConfig
from ftnode.models.state_plan import StatePlan
from ftnode.node.cli.options import (
    INPUT,
    OUTPUT_FILE,
    FiniteRange,
    Once,
    WholeRange,
    home_option,
    json_option,
    peer_option,
    readable_data,
    unused_home_option,
)
from ftnode.node.cli.run_lines import Assumed, chosen_text, figures, line_option, lines_text
from ftnode.node.home.identity import home_directory
from ftnode.node.home.paths import typed_path
from ftnode.node.home.size import size_text
from ftnode.node.home.waiting import spoken
from ftnode.node.manifests.authorship import author_key, sign, signer
from ftnode.node.manifests.check_choice import CHECKS, checks_text, with_checks
from ftnode.node.manifests.invitation import Invitation
from ftnode.node.manifests.line_choice import choose
from ftnode.node.manifests.presets import PRESETS, adapt, preset
from ftnode.node.manifests.protection_choice import PROTECTIONS, protection_text, with_protection
from ftnode.node.manifests.reading import check_new_name, read_manifest
from ftnode.node.manifests.snapshot_choice import with_snapshots
from ftnode.protocol.lines.step_estimate import Line, estimate
from ftnode.protocol.manifest.parse import Manifest, parse, render
from ftnode.protocol.manifest.sections import SEED_MAX, STEPS_MAX
from ftnode.protocol.words.errors import UserError

ERRORS = "cli_run"

SNAPSHOTS = 2
"""That `ftnode join` keeps of a stage, by default; one more is written beside them."""
LINE_BYTES = 1e6
"""A second; what a step sends does not depend on it."""


def part_option(_context: click.Context, _option: click.Parameter, typed: str) -> str:
    """`last 4 layers`, also as `last 4` or `last-4`."""
    words = typed.lower().replace("-", " ").split()
    if words[:1] == ["last"] and len(words) in (2, 3) and words[1].isdecimal():
        typed = f"last {int(words[1])} layer{'' if int(words[1]) == 1 else 's'}"
    if not TRAINED.fullmatch(typed):
        raise click.BadParameter(f"{typed!r} is not all, norms+mlp or 'last N layers'")
    return typed


@click.command()
@click.argument("manifest", type=OUTPUT_FILE)
@click.option("--preset", "start", default="tiny", show_default=True, help=f"One of {', '.join(PRESETS)}.")
@click.option(
    "--data",
    cls=Once,
    metavar="PATH",
    help="Text file, folder of them, or folder of token shards; default: Python's standard library.",
)
@click.option(
    "--from", "model", metavar="FOLDER",
    help="Go on from the model in FOLDER: a LLaMA, Mistral or Qwen 2 checkpoint with config.json, tokenizer.json and "
    "safetensors. Instead of a preset.",
)  # fmt: skip
@click.option(
    "--context", type=WholeRange(2, 131072),
    help="With --from: tokens of a training sequence. Default: 1024, or what the model was made for.",
)  # fmt: skip
@click.option(
    "--train", callback=part_option, metavar="PART", default="all", show_default=True,
    help="With --from: all, norms+mlp, or 'last N layers'. The rest of the model stays as it is.",
)  # fmt: skip
@click.option(
    "--lora", type=WholeRange(1, 1024), metavar="RANK",
    help="With --from: train adapters of this rank in place of the model's weights, for thin lines and small cards.",
)  # fmt: skip
@click.option("--stages", type=WholeRange(1, 256), help="Block stages; layers become the nearest multiple.")
@click.option("--steps", type=WholeRange(1, STEPS_MAX), help="Optimiser steps of the run.")
@click.option("--seed", type=WholeRange(0, SEED_MAX), help="Fixes initial weights and the order of the data.")
@click.option(
    "--line", callback=line_option, metavar="UP[/DOWN]Mbit",
    help="Of a typical volunteer, as 20Mbit or 20/100Mbit: chooses encodings, microbatches and window for it.",
)  # fmt: skip
@click.option(
    "--snapshot-every", "every", type=WholeRange(0), metavar="STEPS",
    help="Steps between two snapshots that volunteers keep on their disks; 0: none. Default: as validations.",
)  # fmt: skip
@click.option(
    "--protect", type=click.Choice(PROTECTIONS),
    help="What is spent so that a lost stage costs little: nothing; copies of the head; also swapped routes; or copies "
    "of all stages. Default: what measured best for its bytes.",
)  # fmt: skip
@click.option(
    "--checks", type=FiniteRange(0, 1), metavar="SHARE",
    help="The share of visits that another holder of the stage does again, by lot, so that who lies is found; 0: none, "
    f"for a run among friends. Default: {CHECKS:g}.",
)  # fmt: skip
@json_option
@home_option
def init(
    manifest: Path, start: str, data: str | None, model: str | None, context: int | None, train: str,
    lora: int | None, stages: int | None, steps: int | None, seed: int | None,
    line: Line | None, every: int | None, protect: str | None, checks: float | None, as_json: bool,
    home: str | None,
) -> None:  # fmt: skip
    """Write a commented manifest to MANIFEST, signed with this machine's author key, which is made at the first use.
    An existing file stays as it is."""
    check_new_name(manifest)
    if manifest.exists():
        raise UserError(f"{manifest} is already there and stays as it is; choose another name", 73)
    from ftnode.node.data.corpus import corpus_facts

    first, path = preset(start), readable_data(data)
    folder = None if model is None else typed_path(model)
    if folder is not None:
        if click.get_current_context().get_parameter_source("start") is ParameterSource.COMMANDLINE:
            raise UserError("--preset and --from exclude each other; the model has its own shape")
        from ftnode.node.export.continuing import check_tokens, described_model, with_weights

        if lora is not None and train != "all":
            raise UserError("--lora trains adapters in place of the model's own weights; leave --train out")
        first = described_model(folder, context, stages, train, lora or 0)
        start, stages = folder.name, None
    elif context is not None:
        raise UserError("--context goes with --from; a preset has its own")
    elif lora is not None or train != "all":
        raise UserError("--train and --lora go with --from; random first weights are all trained")
    with spoken("the corpus to be read and hashed"):
        facts = corpus_facts(path, first.model.context)
    if folder is not None:
        check_tokens(first, facts, path, folder)
        facts = replace(facts, vocabulary=None)
        with spoken("the model's weights to be read and hashed"):
            first = with_weights(first, folder)
    adapted = adapt(
        first, **asdict(facts), name=_run_name(manifest, start), steps=steps,
        stages=stages, seed=seed,
    )  # fmt: skip
    choice = with_checks(with_protection(with_snapshots(choose(adapted, line), every), protect), checks)
    text = manifest_text(choice.manifest, reasons=choice.reasons)
    signed = _signed(text, manifest.name, home)
    write_new(manifest, signed)
    if as_json:
        click.echo(_facts(manifest, parse(signed, manifest.name), signed))
        return
    click.echo(f"wrote {manifest}")
    if otherwise := _named_otherwise(manifest, choice.manifest.run.name):
        click.echo(otherwise)
    click.echo(describe(parse(signed, manifest.name)))
    click.echo(protection_text(choice.manifest))
    click.echo(checks_text(choice.manifest))
    if line is not None:
        click.echo(chosen_text(choice.manifest, line, manifest.name))
    click.echo(f"signed by {signer(parse(signed), signed)}")


@click.command()
@click.argument("manifest", type=INPUT)
@json_option
@unused_home_option
def validate(manifest: Path, as_json: bool, home: str | None) -> None:
    """Check MANIFEST and say what it needs."""
    checked, text = read_manifest(manifest)
    author = signer(checked, text, manifest.name)
    if as_json:
        click.echo(_facts(manifest, checked, text))
        return
    click.echo(f"{manifest} is a valid manifest")
    click.echo(describe(checked))
    click.echo(_who_signed(author))


@click.command("sign")
@click.argument("manifest", type=INPUT)
@json_option
@home_option
def sign_manifest(manifest: Path, as_json: bool, home: str | None) -> None:
    """Sign MANIFEST after an edit, with this machine's author key. Comments stay; an edit of who may join raises
    membership.revision."""
    checked, text = read_manifest(manifest)
    signed = _signed(text, manifest.name, home)
    now = parse(signed, manifest.name)
    raised = now.membership.revision > checked.membership.revision
    if signed != text:
        replace_manifest(manifest, signed)
    if as_json:
        click.echo(_facts(manifest, now, signed, changed=signed != text, raised=raised))
        return
    if signed == text:
        click.echo(f"{manifest} is signed already, by {checked.run.author}")
        return
    click.echo(f"signed {manifest} as {now.run.author}")
    if raised:
        click.echo(f"revision {now.membership.revision} of who may join; tell the swarm: ftnode run push {manifest}")
    click.echo(describe(now))


@click.command()
@click.argument("manifest", type=INPUT)
@peer_option
@click.option(
    "--device-tflops", type=FiniteRange(0, 1e6, min_open=True), metavar="N",
    help="What a volunteer's device reaches, in TFLOP/s; says how much of a step it computes.",
)  # fmt: skip
@click.option("--holders", type=WholeRange(1, 64), default=1, show_default=True, help="Volunteers for each stage.")
@json_option
@unused_home_option
def show(
    manifest: Path, peers: tuple[str, ...], device_tflops: float | None, holders: int, as_json: bool, home: str | None
) -> None:
    """Print the values of MANIFEST, the sizes that follow from them, and what a step takes over lines of volunteers.
    With --peer, also the link that invites to it through these peers."""
    from ftnode.node.links.addresses import parse_peers

    checked, text = read_manifest(manifest)
    author = signer(checked, text, manifest.name)
    parse_peers(peers)
    assumed = Assumed(None if device_tflops is None else device_tflops * 1e12, holders)
    link = str(Invitation(checked.run_id, author, peers)) if peers else ""
    if as_json:
        more: dict[str, Any] = {"run_id": checked.run_id, "signer": author, "link": link, "sizes": sizes(checked)}
        more["lines"] = figures(checked, assumed)
        click.echo(json.dumps(asdict(checked) | more, indent=2))
        return
    for section, values in asdict(checked).items():
        click.echo(f"{section}: " + ", ".join(f"{name} {_shown(value)}" for name, value in values.items()))
    click.echo(describe(checked))
    click.echo(protection_text(checked))
    click.echo(checks_text(checked))
    for line in lines_text(checked, assumed):
        click.echo(line)
    click.echo(_who_signed(author))
    if link:
        click.echo(f"others join with: ftnode join '{link}'")


def _facts(path: Path, manifest: Manifest, text: str, **more: bool) -> str:
    """For programs, with names as of `run show --json`, which also has all values."""
    who = {"signer": signer(manifest, text, path.name), "revision": manifest.membership.revision}
    found = {"manifest": str(path), "run_id": manifest.run_id, "name": manifest.run.name, **who}
    return json.dumps(found | {"sizes": sizes(manifest)} | more)


def manifest_text(
    manifest: Manifest, source: str = "the manifest of these options", reasons: Mapping[str, str] | None = None
) -> str:
    """What `init` writes: the manifest under a heading that says what to do with it. `reasons`: for values, by
    section.key. Raises UserError (78)."""
    text = render(
        manifest,
        "A run of ftnode. Everybody who joins needs this same file: its values make the run id, comments do not.\n"
        "Share it with: ftnode join THIS-FILE --peer ADDRESS-OF-A-MEETING-POINT",
        reasons,
    )
    parse(text, source)
    return text


def sizes(manifest: Manifest) -> dict[str, int]:
    """Parameters, and bytes of what a holder keeps, state and gradient, and sends."""
    config, stages = ModelConfig.of(manifest.model), manifest.pipeline.stages
    plan = StatePlan(config, stages, manifest.optimiser.kind)
    return {
        "parameters": config.total_parameters(),
        "parameters_per_stage": config.stage_parameters(stages, 1),
        "parameters_head": config.stage_parameters(stages, 0),
        "parameters_trained": sum(plan.numbers(stage, "weights") for stage in range(stages + 1)),
        "state_bytes_per_stage": plan.held_size(stages),
        "boundary_bytes": manifest.boundary_bytes.forward,
        "boundary_gradient_bytes": manifest.boundary_bytes.backward,
        "tokens_per_step": manifest.tokens_per_step,
    }


def describe(manifest: Manifest) -> str:
    """The run id and the sizes, for people."""
    found = sizes(manifest)
    forward, backward = manifest.boundary_encodings
    return (
        f"run {manifest.run.name}, id {manifest.run_id}\n"
        f"{found['parameters']:,} parameters: {manifest.pipeline.stages} block stages of "
        f"{found['parameters_per_stage']:,} ({found['state_bytes_per_stage'] / 1e6:,.1f} MB of state each) "
        f"and a head of {found['parameters_head']:,}\n"
        f"{_trained(manifest, found['parameters_trained'])}"
        f"{manifest.run.steps:,} steps of {found['tokens_per_step']:,} tokens; "
        f"{found['boundary_bytes'] / 1e3:,.1f} kB per boundary tensor ({forward}), "
        f"{found['boundary_gradient_bytes'] / 1e3:,.1f} kB per gradient of one ({backward})\n"
        f"{needs(manifest)}"
    )


def _trained(manifest: Manifest, parameters: int) -> str:
    """A line about what changes, unless all does."""
    model = manifest.model
    if model.trains_all:
        return ""
    what = f"adapters of rank {model.lora}" if model.lora else f"{model.train}, {parameters:,} of them"
    return f"trained are {what}{f', {parameters:,} parameters' if model.lora else ''}; all else stays as it is\n"


def needs(manifest: Manifest) -> str:
    """What a volunteer with one block stage needs, in one line. Activations depend on the device, so that only a dry
    microbatch tells their size."""
    found, (each, once) = sizes(manifest), manifest.copies_bytes
    kept = (SNAPSHOTS + 1) * manifest.stage_state_bytes if manifest.recovery.snapshot_every else 0
    copied = each + once + (manifest.stage_state_bytes if kept else 0) + manifest.shown_parts_bytes
    line = estimate(manifest, Line.of_home(LINE_BYTES)).stages[1].traffic.total
    return (
        f"a volunteer with one block stage needs {size_text(found['state_bytes_per_stage'])} of device memory and room "
        f"for {manifest.pipeline.live_activations} activations, {size_text(copied)} of memory besides half a GB for "
        f"the program, {size_text(kept)} of disk besides 2 GB for logs, and sends and gets {size_text(line)} a step"
    )


def _signed(text: str, source: str, home: str | None) -> str:
    key = author_key(home_directory(home))
    try:
        return sign(text, key, source)
    finally:
        key.release()


def _who_signed(author: str) -> str:
    if author:
        return f"signed by {author}"
    return "not signed: it is joined with --allow-unsigned only; sign it with: ftnode run sign"


def _shown(value: object) -> str:
    """As it stands in a manifest, but for a name, which has no quotes here, and a list of peers, which is counted."""
    if isinstance(value, tuple) and len(value) > 2:
        return f"({len(value)})"
    return value if isinstance(value, str) and value else json.dumps(value)


def replace_manifest(path: Path, text: str) -> None:
    """Another text in the same file, whole or not at all, with the same rights. Raises UserError (73)."""
    try:
        with _drafted(path, text, path.stat().st_mode & 0o777) as draft:
            draft.replace(path)
    except OSError as error:
        raise _not_written(path, error) from None


def _run_name(path: Path, fallback: str) -> str:
    """The file's name, as far as it can be a run's name, else the preset's. Letters lose their accents, a plus is
    written out, and a dash stands for what else cannot be in one."""
    plain = "".join(letter for letter in normalize("NFKD", path.stem) if not combining(letter)).replace("+", "-plus")
    name = re.sub("[^A-Za-z0-9._]+", "-", plain).strip("-._")[:64]
    return name or fallback


def _named_otherwise(path: Path, name: str) -> str:
    """A line about a run that is not called as its file."""
    return "" if name == path.stem else (
        f"the run is called {name}: names have letters without accents, digits, dots, dashes and underscores, 64 at "
        "most; change run.name in the file to call it otherwise, and sign that with: ftnode run sign"
    )  # fmt: skip


def write_new(path: Path, text: str) -> None:
    """A new file, whole or not at all. Raises UserError (73) when the name is taken, or it cannot be written."""
    try:
        with _drafted(path, text) as draft:
            _rename_new(draft, path)
    except FileExistsError:
        raise UserError(f"{path} is already there and stays as it is; choose another name", 73) from None
    except OSError as error:
        raise _not_written(path, error) from None


@contextmanager
def _drafted(path: Path, text: str, mode: int | None = None) -> Iterator[Path]:
    """The text beside `path`, on the disk; what is still there in the end goes. `mode`: rights, else the usual ones."""
    draft = path.with_name(f".{path.name}.{token_hex(4)}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w", encoding="utf-8") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def _rename_new(draft: Path, path: Path) -> None:
    """Raises FileExistsError when there is one of that name, even when it came this moment."""
    try:
        os.link(draft, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if os.path.lexists(path):
            raise FileExistsError from None
        draft.rename(path)


def _not_written(path: Path, error: OSError) -> UserError:
    return UserError(f"cannot write {path}: {error.strerror}; check the folder, its rights and the disk", 73)
