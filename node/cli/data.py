"""`ftnode data`: token shards out of text, and whether they are whole."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ftnode.node.cli.options import INPUT, OUTPUT_FILE, WholeRange, json_option, unused_home_option
from ftnode.node.home.paths import whole_path
from ftnode.node.home.waiting import spoken
from ftnode.protocol.words.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftnode.node.data.build import BuildProgress

ERRORS = "cli_data"

LINE_SECONDS = 10.0
"""Between two lines of progress where there is no terminal."""


@click.command()
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@click.option("--out", metavar="DIR", required=True, help="New folder for shards and index.")
@click.option(
    "--tokenizer", metavar="T", default="bytes", show_default=True,
    help="bytes, or the path of a Hugging Face tokenizer.json or of a folder with one.",
)  # fmt: skip
@click.option("--field", default="text", show_default=True, help="Field of JSON lines, Parquet and datasets to read.")
@click.option("--separator", metavar="TOKEN", help="Token behind each document; default: the tokenizer's end of text.")
@click.option(
    "--shard-megabytes", type=WholeRange(1, 1024), default=64, show_default=True, help="Size of a shard, MiB."
)
@json_option
@unused_home_option
def build(
    sources: tuple[str, ...], out: str, tokenizer: str, field: str, separator: str | None, shard_megabytes: int,
    as_json: bool, home: str | None,
) -> None:  # fmt: skip
    """Make token shards of SOURCE...: text files, folders of them, JSON lines (.jsonl), Parquet (.parquet), or
    hf:NAME@REVISION. A build that was stopped goes on when it is called again."""
    from ftnode.models.data import DataError, NotThere
    from ftnode.node.data import build
    from ftnode.node.data.records import find_sources
    from ftnode.node.data.tokenizers import open_tokenizer

    folder, started = whole_path(out), time.monotonic()
    try:
        build.check_apart(sources, folder)
        chosen = open_tokenizer(tokenizer, separator)
        with _showing() as show:
            built = build.build(find_sources(sources, field), chosen, folder, show, shard_bytes=shard_megabytes << 20)
    except DataError as error:
        raise UserError(str(error), 66 if isinstance(error, NotThere) else 65) from None
    except build.Occupied as error:
        raise UserError(str(error), 73) from None
    except KeyboardInterrupt:
        click.echo("ftnode: stopped; the same line again goes on from here", err=True)
        raise
    except OSError as error:
        raise UserError(f"cannot write {error.filename or folder}: {error.strerror}; call again to go on", 74) from None
    index = built.index
    facts = {
        "folder": str(folder), "sha256": built.sha256, "tokenizer": chosen.name,
        "vocabulary": index.tokenizer.vocabulary, "dtype": index.dtype, "documents": built.documents,
        "tokens": {part: index.tokens(part) for part in built.documents}, "shards": len(index.shards),
        "bytes": index.size, "resumed": built.resumed, "seconds": round(time.monotonic() - started, 3),
    }  # fmt: skip
    click.echo(json.dumps(facts, indent=2) if as_json else _described(facts))


@click.command("tokenizer")
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@click.option(
    "--out", type=OUTPUT_FILE, metavar="FILE", default="tokenizer.json", show_default=True, help="New file to write."
)
@click.option(
    "--vocabulary", type=WholeRange(257, 1_000_000), default=8192, show_default=True, metavar="TOKENS",
    help="Tokens at most, the 256 bytes among them.",
)  # fmt: skip
@click.option("--field", default="text", show_default=True, help="Field of JSON lines, Parquet and datasets to read.")
@unused_home_option
def tokenizer_of(sources: tuple[str, ...], out: Path, vocabulary: int, field: str, home: str | None) -> None:
    """Train a tokenizer on SOURCE..., which are as for `data build`, and write it as a tokenizer.json."""
    from ftnode.models.data import DataError, NotThere
    from ftnode.node.cli.manifest import write_new
    from ftnode.node.data.records import find_sources
    from ftnode.node.data.tokenizer_training import train

    if out.exists():
        raise UserError(f"{out} is already there and stays as it is; choose another --out", 73)
    try:
        with spoken("the tokenizer to be trained"):
            text, size = train(find_sources(sources, field), vocabulary)
    except DataError as error:
        raise UserError(str(error), 66 if isinstance(error, NotThere) else 65) from None
    write_new(out, text)
    named = " ".join(sources)
    click.echo(f"wrote {out}: {size:,} tokens; use it with: ftnode data build {named} --tokenizer {out} --out DIR")


@click.command()
@click.argument("directory", metavar="DIR", type=INPUT)
@json_option
@unused_home_option
def check(directory: Path, as_json: bool, home: str | None) -> None:
    """Hash every file of a folder of shards again. Exit code 65 when one is damaged, 66 without
    an index."""
    from ftnode.models.data import DataError, NotThere
    from ftnode.models.shards import PARTS, check_file, read_index

    try:
        index, sha256 = read_index(directory)
        for number, file in enumerate(index.files, 1):
            with spoken(f"{file.name} to be hashed, {number} of {len(index.files)}"):
                check_file(directory, file)
    except DataError as error:
        raise UserError(str(error), 66 if isinstance(error, NotThere) else 65) from None
    tokens = {part: index.tokens(part) for part in PARTS}
    facts = {"sha256": sha256, "shards": len(index.shards), "bytes": index.size, "tokens": tokens}
    parts = ", ".join(f"{count:,} tokens for {part}" for part, count in tokens.items())
    click.echo(json.dumps(facts, indent=2) if as_json else f"{len(index.shards)} shards are whole: {parts}; {sha256}")


def _described(facts: dict[str, Any]) -> str:
    parts = ", ".join(f"{count:,} for {part}" for part, count in facts["tokens"].items())
    return (
        f"wrote {facts['folder']}: tokens {parts}; {facts['shards']} shards, {facts['bytes'] / 1e6:,.1f} MB, "
        f"{facts['dtype']}\n"
        f"tokenizer {facts['tokenizer']}, vocabulary {facts['vocabulary']:,}; sha256 {facts['sha256']}\n"
        f"train on it with: ftnode run init RUN.toml --data {facts['folder']}"
    )


@contextmanager
def _showing() -> Iterator[Callable[[BuildProgress], None]]:
    """A bar on a terminal, else a line now and then; both on stderr."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("tokens", total=None)

        def show(progress: BuildProgress) -> None:
            text = f"{progress.tokens:,} tokens{' (resumed)' if progress.resumed else ''}"
            bar.update(task, description=text, completed=progress.done, total=progress.size or None)

        yield show


def _lines() -> Callable[[BuildProgress], None]:
    told = time.monotonic()

    def show(progress: BuildProgress) -> None:
        nonlocal told
        if time.monotonic() - told < LINE_SECONDS:
            return
        told = time.monotonic()
        share = f"{100 * progress.done / progress.size:.0f} %, " if progress.size else ""
        click.echo(f"{share}{progress.tokens:,} tokens", err=True)

    return show
