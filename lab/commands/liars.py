"""`ftnode lab liars`."""

from __future__ import annotations

import click

from ftnode.node.cli.options import FiniteRange, WholeRange, json_option, unused_home_option
from ftnode.node.home.paths import whole_path


@click.command()
@click.option(
    "--only", multiple=True, metavar="KIND", help="Only this kind of lie, `honest`, `cost` or `hardware`; repeats."
)
@click.option("--out", metavar="DIR", help="Folder for liars.json, and what is kept when stopped.")
@click.option("--quick", is_flag=True, help="Wait for a liar to be found for 40 steps.")
@click.option(
    "--worlds", type=WholeRange(1, 100_000), default=20, show_default=True, help="Virtual worlds for each kind."
)
@click.option("--virtual", is_flag=True, help="Virtual worlds alone, without swarms; they go on where they stopped.")
@click.option(
    "--boundary", type=click.Choice(("float32", "bfloat16", "int8", "int4")), default="float32", show_default=True,
    help="How tensors travel.",
)  # fmt: skip
@click.option(
    "--sums", type=click.Choice(("exact", "int8", "int4")), default="exact", show_default=True,
    help="How parts of sums travel.",
)  # fmt: skip
@click.option(
    "--checks", metavar="SHARE", type=FiniteRange(0, 1), default=0.02, show_default=True,
    help="What is done again, from 0 to 1.",
)  # fmt: skip
@click.option("--group", type=WholeRange(2, 5), default=3, show_default=True, help="How many hold a stage together.")
@click.option(
    "--subspace", type=WholeRange(0, 48), default=0, show_default=True,
    help="Of 64 coordinates so many travel; 0: all.",
)  # fmt: skip
@json_option
@unused_home_option
def liars(
    only: tuple[str, ...], out: str | None, quick: bool, worlds: int, virtual: bool, boundary: str, sums: str,
    checks: float, group: int, subspace: int, as_json: bool, home: str | None,
) -> int:  # fmt: skip
    """Volunteers that lie, each kind in a swarm of its own on this machine: found, prevented, or not defended. A minute
    for each kind. Also what checks cost, and what honest machines differ by. Runs from a clone of the repository."""
    from ftnode.lab.liars.ground import Setting
    from ftnode.lab.liars.liars import Asked, run

    folder = whole_path(out) if out else None
    return run(Asked(only, folder, worlds, virtual, quick, Setting(boundary, sums, checks, group, subspace), as_json))
