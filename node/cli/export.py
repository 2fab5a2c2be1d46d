"""`ftnode export` and `ftnode generate`: the model out of a swarm, and a first look at it."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final

import click

from ftnode.node.cli.options import (
    INPUT,
    OUTPUT,
    FiniteRange,
    WholeRange,
    device_option,
    home_option,
    json_option,
    peer_option,
    unused_home_option,
)
from ftnode.node.home.closed_terminal import heeded
from ftnode.node.home.size import size_text
from ftnode.node.home.waiting import spoken
from ftnode.protocol.words.errors import UserError

if TYPE_CHECKING:
    from ftnode.node.export.client import TakenModel, WantedModel
    from ftnode.node.export.folder import ExportFolder

REASONS_SHOWN_MAX: Final = 50


@click.command()
@click.argument("run", metavar="MANIFEST|LINK")
@click.argument("out", type=OUTPUT)
@peer_option
@click.option(
    "--tokenizer",
    metavar="T",
    help="tokenizer.json of the run's data, or the folder that has it; default: this home's, or the run's holders'.",
)
@click.option(
    "--dtype", type=click.Choice(["float32", "bfloat16", "float16"]),
    help="Numbers of the checkpoint; default: as the run trains, unrounded.",
)  # fmt: skip
@click.option(
    "--from", "base", type=INPUT, metavar="FOLDER",
    help="The model that the run goes on from. Of a run that trains a part of it, or adapters, OUT is the whole model "
    "then; without it, adapters in PEFT's format.",
)  # fmt: skip
@click.option(
    "--timeout", type=FiniteRange(0, min_open=True), default=120.0, show_default=True,
    help="Seconds to look for peers, and to try again while stages are missing or do not fit together.",
)  # fmt: skip
@json_option
@home_option
def export(
    run: str, out: Path, peers: tuple[str, ...], tokenizer: str | None, dtype: str | None, base: Path | None,
    timeout: float, as_json: bool, home: str | None,
) -> None:  # fmt: skip
    """Take the model of a run, of the file MANIFEST or the ftnode: LINK, out of its swarm into the new folder OUT, as a
    Hugging Face checkpoint."""
    from ftnode.node.home.identity import home_to_read
    from ftnode.node.manifests.invitation import is_link
    from ftnode.node.manifests.joining import find_run

    folder = home_to_read(home, needed=not peers and not is_link(run))
    manifest, text, invited = find_run(run, folder, timeout, allow_unsigned=True)

    from ftnode.models.config import ModelConfig
    from ftnode.node.cli.status import whom_to_ask
    from ftnode.node.export.checkpoint import creating, stage_sizes
    from ftnode.node.export.client import WantedModel
    from ftnode.node.export.continuing import opened_base
    from ftnode.node.export.folder import ExportFolder
    from ftnode.node.export.model_card import left_out_text
    from ftnode.node.export.tokenizer_files import find_tokenizer

    with spoken("the model that the run goes on from to be hashed"):
        first = opened_base(manifest, base)
    known = find_tokenizer(manifest, tokenizer, folder)
    addresses = whom_to_ask(folder, (*peers, *invited), manifest.run_id)
    sizes = stage_sizes(manifest)
    number_bytes = ModelConfig.of(manifest.model).number_bytes
    wanted = WantedModel(manifest.run_id, manifest.run.steps, sizes, number_bytes, manifest.recovery.omit)
    started = time.monotonic()
    with (
        ended_by_any_signal(), creating(out, manifest, dtype or "", first) as checkpoint,
        shown_progress(sum(sizes), as_json) as shown,
    ):  # fmt: skip
        model = take(wanted, addresses, timeout, ExportFolder(checkpoint, out, known, text), shown)
    seconds = time.monotonic() - started
    if as_json:
        from ftnode.node.export.model_card import provenance

        click.echo(
            json.dumps(
                {"out": str(out), "seconds": seconds, "receiving_seconds": model.seconds, **provenance(manifest, model)}
            )
        )
        return
    size = sum(sizes[taken.stage] for taken in model.stages)
    click.echo(f"step {model.step:,} of {manifest.run.steps:,}: {size_text(size)} in {seconds:.1f} s into {out}")
    if model.left_out:
        click.echo(left_out_text(manifest, model.left_out))
    if checkpoint.adapters:
        click.echo(f'try it: PeftModel.from_pretrained(model, "{out}"), of the model that the run goes on from; or '
                   "export with --from FOLDER to have the whole model")  # fmt: skip
        return
    click.echo(what_next(out))


def what_next(out: Path) -> str:
    """How to use the model in `out`, to be copied into a shell or a program."""
    return f'try it: ftnode generate {quote(str(out))} "…"; or AutoModelForCausalLM.from_pretrained("{out}")'


def take(
    wanted: WantedModel, addresses: tuple[str, ...], seconds: float, folder: ExportFolder, shown: Shown
) -> TakenModel:
    """Through a p2pd of our own that listens nowhere, with an identity that is gone afterwards. Raises UserError."""
    import tempfile

    import trio

    from ftnode.node.export.client import ModelReader
    from ftnode.node.home.identity import take_identity
    from ftnode.node.links.addresses import parse_peers
    from ftnode.node.links.p2pd import P2pd

    async def main(home: str) -> TakenModel | UserError:
        """Errors for the user are returned, since nurseries would wrap them."""
        identity = take_identity(Path(home))
        async with trio.open_nursery() as nursery:
            try:
                p2pd = await P2pd.start(nursery, identity.path, listen=())
                p2pd.gate.give(parse_peers(addresses))
                try:
                    await folder.complete(p2pd, parse_peers(addresses), seconds, shown.tell)
                    reader = ModelReader(p2pd, wanted, folder.open_stage, shown.progress, shown.tell, folder.leave_out)
                    return await reader.take(parse_peers(addresses), seconds, folder.keep)
                finally:
                    p2pd.close()
            except UserError as error:
                return error
            finally:
                identity.release()
                nursery.cancel_scope.cancel()

    with tempfile.TemporaryDirectory(prefix="ftnode-export-") as home:
        result = trio.run(main, home)
    if isinstance(result, UserError):
        raise result
    return result


@contextmanager
def ended_by_any_signal() -> Iterator[None]:
    """SIGTERM, and a terminal that is closed, end it as Ctrl-C does: what was written so far goes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: object) -> None:
        if signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, signal.SIG_DFL, None):
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)  # trio hears it where it can be heard

    before = {one: signal.signal(one, interrupt) for one in heeded(signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler or signal.SIG_DFL)


class Shown:
    """What a person sees of an export. `progress`: what is being done, and how many more bytes are here. `tell`: why
    it is not done yet; each reason is shown once, and on stderr also without a terminal."""

    def __init__(self, progress: Callable[[str, int], None], write: Callable[[str], None]) -> None:
        self.progress, self._write = progress, write
        self._told: set[str] = set()

    def tell(self, reason: str) -> None:
        if reason not in self._told and len(self._told) < REASONS_SHOWN_MAX:
            self._told.add(reason)
            self._write(f"{reason}; trying again")


@contextmanager
def shown_progress(total: int, as_json: bool) -> Iterator[Shown]:
    """On a terminal also a bar of the bytes."""
    if as_json or not sys.stderr.isatty():
        doing, done = "the search for the run", 0

        def note(what: str, size: int) -> None:
            nonlocal doing, done
            doing, done = what or doing, done + size

        with spoken(lambda: f"the export: {doing}, {done / 1e6:,.1f} of {total / 1e6:,.1f} MB"):
            yield Shown(note, lambda line: click.echo(f"ftnode: {line}", err=True))
        return

    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=total)

        def show(what: str, size: int) -> None:
            if what:
                bar.reset(task, description=what, total=total)
            bar.advance(task, size)

        yield Shown(show, lambda line: bar.console.print(line, markup=False, highlight=False))


@click.command()
@click.argument("folder", metavar="OUT", type=INPUT)
@click.argument("prompt")
@click.option("--tokens", type=WholeRange(1, 100_000), default=100, show_default=True,
    help="How many to add at most; a document's end ends the text.",
)  # fmt: skip
@click.option(
    "--temperature", type=FiniteRange(0, 100), default=0.8, show_default=True,
    help="0: always the most probable token.",
)  # fmt: skip
@click.option("--seed", type=WholeRange(0), help="Draws the same tokens again; default: others each time.")
@device_option
@json_option
@unused_home_option
def generate(
    folder: Path, prompt: str, tokens: int, temperature: float, seed: int | None, device: str, as_json: bool,
    home: str | None,
) -> None:  # fmt: skip
    """Let the exported model in OUT go on with PROMPT. Needs torch, and `tokenizers` where tokens are not bytes."""
    generation: Any = import_module("ftnode.node.export.generate")  # by name: torch is loaded there and only there
    with spoken(f"the model in {folder} to load"):
        pieces = generation.generate(folder, prompt, tokens, temperature, seed, device)
    if as_json:
        click.echo(json.dumps({"prompt": prompt, "text": "".join(pieces)}))
        return
    click.echo(prompt, nl=False)
    for piece in pieces:
        click.echo(_harmless(piece), nl=False)
    click.echo()


def _harmless(text: str) -> str:
    """What a model says must not steer a terminal."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "�" for letter in text)
