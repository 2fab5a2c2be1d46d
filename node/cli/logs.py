"""`ftnode logs`: what the node of this machine has written into its log."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

import click

from ftnode.node.cli.options import WholeRange, home_option
from ftnode.protocol.words.errors import UserError

ERRORS = "cli_logs"

LOOK_SECONDS: Final = 0.5
BLOCK_BYTES: Final = 64 * 1024
TAIL_BYTES_MAX: Final = 16 << 20
"""Of a log's end, whatever number of lines is asked for."""


@click.command()
@click.option(
    "--lines", type=WholeRange(0, 1_000_000), default=50, show_default=True, metavar="N", help="From the end."
)
@click.option("--follow", is_flag=True, help="Go on with what the node writes, until Ctrl-C.")
@home_option
def logs(lines: int, follow: bool, home: str | None) -> None:
    """Show the newest log of this machine's node: of --home, else of the user's own, else of a service."""
    path = newest_log(home)
    click.echo(f"ftnode: {path}", err=True)
    try:
        with path.open("rb") as file:
            for line in last_lines(file, lines):
                _show(line)
            if follow:
                _follow(path, file)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; see who owns it", 66) from None


def newest_log(home: str | None) -> Path:
    """The log of the node of a home that wrote last. Raises UserError: 66 when there is none, 77 when it may be that of
    a service that this user may not look at."""
    from ftnode.node.home.identity import home_to_read
    from ftnode.node.home.log_folders import LOG_NAME
    from ftnode.node.owner.service_homes import closed_homes, homes_beside

    folder = home_to_read(home)
    for place in homes_beside(folder):
        if found := [path for path in _folders(place, home) if (path / LOG_NAME).exists()]:
            return max((path / LOG_NAME for path in found), key=lambda path: path.stat().st_mtime)
    if closed := closed_homes(folder):
        raise UserError(f"no log of yours; a service keeps its own in {closed[0]}: sudo ftnode logs", 77)
    raise UserError(f"no node has written a log here (home {folder}); another home is chosen with --home", 66)


def _folders(place: Path, home: str | None) -> Iterator[Path]:
    """Where nodes that run say that they write, else those below where logs of this home lie."""
    from ftnode.node.home.log_folders import log_folders
    from ftnode.node.owner.join_options import log_root, running_nodes
    from ftnode.node.owner.service_homes import SERVICE_HOMES

    running = [Path(node.log) for node in running_nodes(place) if node.log]
    if running:
        yield from running
        return
    with suppress(OSError):
        root = log_root(str(place) if place in SERVICE_HOMES else home)
        yield from (folder.path for folder in log_folders(root))


def last_lines(file: IO[bytes], count: int) -> list[bytes]:
    """The last lines of a file, whose position is its end afterwards."""
    end = start = file.seek(0, os.SEEK_END)
    data = b""
    while start > 0 and data.count(b"\n") <= count and end - start < TAIL_BYTES_MAX:
        size = min(BLOCK_BYTES, start)
        start -= size
        file.seek(start)
        data = file.read(size) + data
    file.seek(end)
    found = data.splitlines(keepends=True)
    return found[len(found) - min(count, len(found)) :]


def _follow(path: Path, file: IO[bytes]) -> None:
    """Also into the next file, when this one is full and the node begins it anew. No earlier one is kept open: it would
    take its room on the disk as long as somebody looks."""
    with suppress(KeyboardInterrupt):
        while True:
            for line in file:
                _show(line)
            with suppress(FileNotFoundError):
                if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    fresh = path.open("rb")
                    for line in file:  # what came before it was put aside
                        _show(line)
                    file.close()
                    file = fresh
                    continue
            time.sleep(LOOK_SECONDS)


def _show(line: bytes) -> None:
    """A log quotes peers, who must not steer a terminal."""
    text = line.decode("utf-8", errors="replace")
    click.echo("".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text), nl=False)
