"""`ftnode lab codecs`."""

from __future__ import annotations

import click

from ftnode.lab.commands.recovery import parse_seeds
from ftnode.node.cli.options import FiniteRange, json_option, unused_home_option
from ftnode.node.home.paths import whole_path


@click.command()
@click.option("--quick", is_flag=True, help="Seconds: everything once, on a model that shows nothing.")
@click.option("--only", multiple=True, metavar="ROW", help="Only this row, as int4-muon; repeats.")
@click.option("--seeds", metavar="N,N,...", help="Seeds of weights and batches; default: 0,1,2, quick: 0.")
@click.option("--minutes", type=FiniteRange(0), help="Stop after this long; call again to go on.")
@click.option(
    "--device-tflops", type=FiniteRange(0, 1e6, min_open=True), default=40.0, show_default=True, metavar="N",
    help="What a volunteer's device reaches in training, in TFLOP/s.",
)  # fmt: skip
@click.option(
    "--lines", "files", multiple=True, metavar="FILE",
    help="A lines.json of ftnode lab lines: what a step took of its bound; repeats. Default: 1.3.",
)  # fmt: skip
@click.option("--out", metavar="DIR", help="Folder of shards, results and table; default: reports/codecs.")
@json_option
@unused_home_option
def codecs(
    quick: bool, only: tuple[str, ...], seeds: str | None, minutes: float | None, device_tflops: float,
    files: tuple[str, ...], out: str | None, as_json: bool, home: str | None,
) -> int:  # fmt: skip
    """Steps to a fixed loss, times seconds of a step over thin lines, for each codec with Adam and Muon. Hours on one
    thread; goes on where it was stopped."""
    chosen = parse_seeds(seeds)
    from ftnode.lab.codecs.codecs import Asked, run
    from ftnode.lab.codecs.step_seconds import read_measured

    measured = tuple(read_measured(whole_path(file)) for file in files)
    return run(Asked(quick, only, chosen, minutes, device_tflops, measured, whole_path(out) if out else None, as_json))
