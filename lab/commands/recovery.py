"""`ftnode lab recovery`."""

from __future__ import annotations

import re
from typing import Final

import click

from ftnode.node.cli.options import FiniteRange, device_option, json_option, unused_home_option
from ftnode.node.home.paths import whole_path
from ftnode.protocol.words.errors import UserError

ERRORS = "cli_lab"
SEEDS: Final = re.compile(r"\d{1,9}(,\d{1,9})*")


@click.command()
@click.option("--quick", is_flag=True, help="Two minutes: a little of everything, as CI runs it.")
@click.option("--full", is_flag=True, help="All experiments, at most 150 minutes; goes on where it was stopped.")
@click.option("--long", is_flag=True, help="What a loss costs in learning: 10,000 iterations a run, BPE tokens; hours.")
@click.option("--model", metavar="SIZE", help="mini, tiny, deep, wide or small; default: the mode's own.")
@click.option(
    "--seeds", metavar="N,N,...", help="Seeds of weights, data and failures; default: 0,1,2; quick: 0; long: 0 to 4."
)
@device_option
@click.option(
    "--out",
    metavar="DIR",
    help="Folder of results, tables and pictures; default: reports/recovery, long: reports/recovery-long.",
)
@click.option("--minutes", type=FiniteRange(0), help="Stop after this long; call again to go on (--full: 150).")
@json_option
@unused_home_option
def recovery(
    quick: bool, full: bool, long: bool, model: str | None, seeds: str | None, device: str, out: str | None,
    minutes: float | None, as_json: bool, home: str | None,
) -> int:  # fmt: skip
    """What each way of rebuilding a lost stage is worth, in one process; 25 minutes on two cores."""
    if quick + full + long > 1:
        raise UserError("--quick, --full and --long exclude each other")
    if long and model:
        raise UserError("--long has a model of its own; leave out --model")
    chosen = parse_seeds(seeds)
    folder = whole_path(out) if out else None
    if long:
        from ftnode.lab.long_recovery import long_runs

        return long_runs.run(long_runs.LongConfig(chosen, device, folder, minutes, as_json))
    from ftnode.lab.recovery.recovery import RecoveryConfig, run

    return run(RecoveryConfig(
        mode="quick" if quick else "full" if full else "default", model=model, seeds=chosen, device=device,
        out=folder, minutes=minutes, json=as_json,
    ))  # fmt: skip


def parse_seeds(text: str | None) -> tuple[int, ...] | None:
    """Numbers between commas, each once. Raises UserError (64)."""
    if text is None:
        return None
    if not SEEDS.fullmatch(text):
        raise UserError(f"--seeds {text} is not a list of numbers like 0,1,2")
    return tuple(dict.fromkeys(map(int, text.split(","))))
