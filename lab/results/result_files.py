"""Results on disk: one file per run of the recovery lab, written whole or not at all, so that a lab goes on where it
was stopped; and a new folder for the labs that measure a swarm several times.

What is kept names the version of ftnode that made it. Results of another version are used, since some took days, and a
line says so."""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import click

from ftnode.protocol.words.errors import UserError

FIGURES: Final = "figures.json"
VERSION: Final = version("ftnode")
"""Ours."""
MADE_BY: Final = "ftnode"
"""The key beside a result's own that has the version which made it."""


def write_atomically(path: Path, content: str) -> None:
    """Into a temporary neighbour first, then renamed: a file that is there is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(content, encoding="utf-8")
    os.replace(temporary, path)


def kept_or_made(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result at `path` where there is one, else what `make` gives, which is kept there."""
    if path.exists():
        return read_kept(path)
    made = make()
    write_atomically(path, json.dumps(made | {MADE_BY: VERSION}) + "\n")
    return made


def read_kept(path: Path) -> dict[str, Any]:
    """A result that `kept_or_made` has kept. Where another version made it, a line of the folder says so."""
    found: dict[str, Any] = json.loads(path.read_text())
    made_by = str(found.pop(MADE_BY, ""))
    if made_by != VERSION:
        _tell(path.parent, made_by)
    return found


@cache
def _tell(folder: Path, made_by: str) -> None:
    """Once for each folder and version."""
    other = f"ftnode {made_by}" if made_by else "an ftnode that did not say its version"
    click.echo(
        f"ftnode: {folder} has results of {other}, which are used; this is {VERSION}: with another --out all is "
        "measured by it", err=True,
    )  # fmt: skip


class Kept:
    """What is made is kept in the folder, by all that decides it. So the next call goes on where this one ended."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def __call__(self, part: str, decides: object, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        if self.folder is None:
            return make()
        return kept_or_made(self.folder / "kept" / f"{part}-{zlib.crc32(repr(decides).encode()):08x}.json", make)


def folder_for(given: Path, option: str, empty: bool = True) -> Path:
    """The folder that a person named with `option`, made where it is missing. Raises UserError (73) when it cannot be,
    or has something in it and two runs would mix (`empty`)."""
    directory = given.absolute()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        used = empty and any(directory.iterdir())
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise UserError(f"cannot write to {directory}: {error.strerror}; choose another {option}", 73) from None
    if used:
        raise UserError(f"{directory} is not empty; choose another {option}, nothing is written over", 73)
    return directory


def file_for(given: Path, option: str) -> Path:
    """The file that a person named with `option`, in a folder that is there now. Raises UserError (73) when nothing can
    be written there."""
    folder_for(given.parent, option, empty=False)
    if given.is_dir():
        raise UserError(f"cannot write to {given}: {os.strerror(errno.EISDIR)}; choose another {option}", 73)
    return given


def measured(measure: Callable[[Path | None], dict[str, Any]], runs: int, out: Path | None) -> list[dict[str, Any]]:
    """What `measure` finds each time. With `out`, it is given a folder `run-1`, `run-2`, ... there, in which its
    figures are written when it has ended.

    Raises UserError (73) when `out` is no new or empty folder.
    """
    if out is None:
        return [measure(None) for _ in range(runs)]
    whole = folder_for(out, "--out")

    def kept(folder: Path) -> dict[str, Any]:
        found = measure(folder)
        write_atomically(folder / FIGURES, json.dumps(found, indent=2) + "\n")
        return found

    return [kept(whole / f"run-{number + 1}") for number in range(runs)]
