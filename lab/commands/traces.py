"""`ftnode replay` and `ftnode lab audit`: what recorded traces tell."""

from __future__ import annotations

from pathlib import Path

import click

from ftnode.node.cli.options import INPUT, json_option, unused_home_option
from ftnode.protocol.words.errors import UserError

ERRORS = "cli_lab"


@click.command()
@click.argument("trace", type=INPUT)
@json_option
@unused_home_option
def replay(trace: Path, as_json: bool, home: str | None) -> int:
    """Run the events recorded in TRACE through the core again, and show each decision with its reason."""
    from ftnode.lab.demo.replay import main

    return main(_existing(trace, "trace"), as_json)


@click.command()
@click.argument("directories", metavar="DIR...", nargs=-1, required=True, type=INPUT)
@json_option
@unused_home_option
def audit(directories: tuple[Path, ...], as_json: bool, home: str | None) -> int:
    """Check all traces below DIR against each other; several folders, as those of two homes, count as one. Exit code 0
    when nothing is wrong."""
    from ftnode.lab.audit.audit import main

    return main(*(_existing(directory, "folder") for directory in directories), as_json=as_json)


def _existing(path: Path, what: str) -> Path:
    """Raises UserError (66)."""
    if not path.exists():
        raise UserError(f"there is no {what} {path}", 66)
    return path
