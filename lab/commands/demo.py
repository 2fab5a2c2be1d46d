"""`ftnode demo`."""

from __future__ import annotations

import re
from typing import Final

import click

from ftnode.node.cli.options import WholeRange, device_option, json_option, readable_data, unused_home_option
from ftnode.node.home.paths import whole_path
from ftnode.node.manifests.presets import PRESETS, preset
from ftnode.node.manifests.protection_choice import PROTECTIONS
from ftnode.protocol.words.errors import UserError
from ftnode.protocol.words.settings import SWAP_STAGES_MIN

ERRORS = "cli_lab"
KILL: Final = re.compile(r"(\d{1,3})(\*?)@(\d{1,7})")


@click.command()
@click.option("--stages", type=WholeRange(1, 64), default=4, show_default=True, help="Block stages; the head is extra.")
@click.option(
    "--volunteers",
    type=WholeRange(1, 128),
    help="Nodes; default: holders for all stages and the head, and a standby per kill that leaves none.",
)
@click.option(
    "--replicas",
    type=WholeRange(1, 64),
    default=1,
    show_default=True,
    help="Holders of each stage and of the head.",
)
@click.option("--steps", type=WholeRange(1), help="Optimiser steps; default: the preset's.")
@click.option(
    "--kill", "kills", multiple=True, metavar="STAGE@STEP",
    help="Kill a holder of STAGE in the middle of STEP (STAGE*: all of them); repeats; none: nobody. "
    "Default: a middle stage, half way.",
)  # fmt: skip
@click.option(
    "--swap",
    is_flag=True,
    help="Swapped routes (CheckFree+): the first two and the last two stages learn each other's part.",
)
@click.option(
    "--protect", type=click.Choice(PROTECTIONS),
    help="What is spent so that a lost stage costs little, as in `ftnode run init`; default: checkfree.",
)  # fmt: skip
@click.option("--preset", "start", default="tiny", show_default=True, help=f"One of {', '.join(PRESETS)}.")
@device_option
@click.option("--data", metavar="PATH", help="Text file or folder to train on; default: Python's standard library.")
@click.option("--seed", type=WholeRange(0), help="Fixes initial weights and the order of the data.")
@click.option(
    "--report", metavar="DIR", help="New folder for report, picture, logs and traces; default: ftnode-demo-DATE-TIME."
)
@json_option
@unused_home_option
def demo(
    stages: int, volunteers: int | None, replicas: int, steps: int | None, kills: tuple[str, ...], swap: bool,
    protect: str | None, start: str, device: str, data: str | None, seed: int | None, report: str | None, as_json: bool,
    home: str | None,
) -> int:  # fmt: skip
    """A swarm on this machine trains, loses a stage and heals, and shows it."""
    preset(start)
    parsed = parse_kills(kills, stages)
    if swap and stages < SWAP_STAGES_MIN:
        raise UserError(
            f"--stages {stages}: swapped routes need {SWAP_STAGES_MIN} stages; give more, or leave --swap out"
        )
    from ftnode.lab.demo.demo import DemoConfig, run

    return run(DemoConfig(
        stages=stages, volunteers=volunteers, replicas=replicas, steps=steps, kills=parsed, preset=start, device=device,
        data=readable_data(data), seed=seed, swap=swap, protect=protect, report=whole_path(report) if report else None,
        json=as_json,
    ))  # fmt: skip


def parse_kills(texts: tuple[str, ...], stages: int) -> tuple[tuple[int, int, bool], ...] | None:
    """(stage, step, all holders of it); empty for `none`, None when nothing was said. Raises UserError (64)."""
    if not texts:
        return None
    if set(texts) == {"none"}:
        return ()
    if "none" in texts:
        raise UserError("--kill none stands alone; leave the other --kill out, or none")
    found = []
    for text in texts:
        match = KILL.fullmatch(text)
        if match is None:
            raise UserError(f"--kill {text} is not STAGE@STEP, like 2@150, or STAGE*@STEP, like 2*@150, or none")
        stage, step = int(match[1]), int(match[3])
        if stage > stages:
            raise UserError(f"--kill {text}: there is no stage {stage}; stages are 0 (the head) to {stages}")
        if step < 1:
            raise UserError(f"--kill {text}: steps count from 1")
        found.append((stage, step, bool(match[2])))
    return tuple(sorted(found, key=lambda kill: (kill[1], kill[0])))
