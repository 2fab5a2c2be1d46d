"""`ftnode lab snapshots`: a door into the lab, which is loaded by name and only here."""

from __future__ import annotations

from importlib import import_module

import click

from ftnode.node.cli_options import FiniteRange, json_option, unused_home_option
from ftnode.node.typed_paths import whole_path
from ftnode.protocol.errors import UserError


@click.command()
@click.option("--quick", is_flag=True, help="0.1 GB and three rounds; a minute.")
@click.option(
    "--gigabytes", "sizes", multiple=True, type=FiniteRange(0.01, 100), metavar="GB",
    help="State to keep; repeats. Default: 0.1, 1 and 4.",
)  # fmt: skip
@click.option("--rounds", type=click.IntRange(1, 100), default=5, show_default=True, help="Times to measure each.")
@click.option("--orbax", metavar="PYTHON", help="A Python that has orbax-checkpoint; default: this one, if it has.")
@click.option("--out", metavar="DIR", help="Folder on the disk to measure; default: the temporary folder.")
@json_option
@unused_home_option
def snapshots(
    quick: bool, sizes: tuple[float, ...], rounds: int, orbax: str | None, out: str | None, as_json: bool,
    home: str | None,
) -> int:  # fmt: skip
    """What keeping a stage costs, against torch.distributed.checkpoint and orbax-checkpoint. Needs three times the
    state's memory. Twenty minutes; exit code 1 when a budget is missed."""
    folder = whole_path(out) if out else None
    if folder is not None and not folder.is_dir():
        raise UserError(f"--out {folder} is no folder; choose one on the disk to measure", 66)
    figures = import_module("ftnode.lab.snapshots").run(as_json, sizes, rounds, orbax, folder, quick)
    return 0 if figures["passed"] else 1
