"""`ftnode demo`, `ftnode replay` and `ftnode lab`: doors into the lab, which is loaded by name and only here."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from ftnode.node.cli_options import FiniteRange, device_option, json_option, readable_data, unused_home_option
from ftnode.node.presets import PRESETS, preset
from ftnode.node.typed_paths import whole_path
from ftnode.protocol.errors import UserError
from ftnode.protocol.paths import SWAP_STAGES_MIN

KILL = re.compile(r"(\d{1,3})(\*?)@(\d{1,7})")
SEEDS = re.compile(r"\d{1,9}(,\d{1,9})*")


@click.command()
@click.option(
    "--stages", type=click.IntRange(1, 64), default=4, show_default=True, help="Block stages; the head is extra."
)
@click.option(
    "--volunteers",
    type=click.IntRange(1, 128),
    help="Nodes; default: holders for all stages and the head, and a standby per kill that leaves none.",
)
@click.option(
    "--replicas",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Holders of each stage and of the head.",
)
@click.option("--steps", type=click.IntRange(1), help="Optimiser steps; default: the preset's.")
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
@click.option("--preset", "start", default="tiny", show_default=True, help=f"One of {', '.join(PRESETS)}.")
@device_option
@click.option("--data", metavar="PATH", help="Text file or folder to train on; default: Python's standard library.")
@click.option("--seed", type=click.IntRange(0), help="Fixes initial weights and the order of the data.")
@click.option(
    "--report", metavar="DIR", help="New folder for report, picture, logs and traces; default: ftnode-demo-DATE-TIME."
)
@json_option
@unused_home_option
def demo(
    stages: int, volunteers: int | None, replicas: int, steps: int | None, kills: tuple[str, ...], swap: bool,
    start: str, device: str, data: str | None, seed: int | None, report: str | None, as_json: bool, home: str | None,
) -> int:  # fmt: skip
    """A swarm on this machine trains, loses a stage and heals, and shows it."""
    preset(start)
    parsed = parse_kills(kills, stages)
    if swap and stages < SWAP_STAGES_MIN:
        raise UserError(
            f"--stages {stages}: swapped routes need {SWAP_STAGES_MIN} stages; give more, or leave --swap out"
        )
    lab = _lab("demo")
    return _code(lab.run(lab.DemoConfig(
        stages=stages, volunteers=volunteers, replicas=replicas, steps=steps, kills=parsed, preset=start, device=device,
        data=readable_data(data), seed=seed, swap=swap, report=whole_path(report) if report else None,
        json=as_json,
    )))  # fmt: skip


@click.command()
@click.argument("trace", type=click.Path(path_type=Path))
@json_option
@unused_home_option
def replay(trace: Path, as_json: bool, home: str | None) -> int:
    """Run the events recorded in TRACE through the core again, and show each decision with its reason."""
    return _code(_run_on("replay", trace, "trace", as_json))


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@json_option
@unused_home_option
def audit(directory: Path, as_json: bool, home: str | None) -> int:
    """Check all traces below DIR against each other. Exit code 0 when nothing is wrong."""
    return _code(_run_on("audit", directory, "folder", as_json))


@click.command()
@json_option
@unused_home_option
def transport(as_json: bool, home: str | None) -> int:
    """Megabytes per second of the tensor path, against p2pd bare, hivemind's P2P class and py-libp2p."""
    return _bench("transport", as_json)


@click.command()
@json_option
@unused_home_option
def throughput(as_json: bool, home: str | None) -> int:
    """Tokens per second of a swarm against one torch process on the same cores, and bubbles with a paced backend. Six
    minutes."""
    return _bench("throughput", as_json)


@click.command("export")
@click.option("--megabytes", type=click.IntRange(1, 20_000), default=800, show_default=True, help="Size of the model.")
@click.option("--runs", type=click.IntRange(1, 100), default=3, show_default=True, help="Exports to measure.")
@json_option
@unused_home_option
def export_speed(megabytes: int, runs: int, as_json: bool, home: str | None) -> int:
    """Memory and speed of `ftnode export` while a run of paced volunteers goes on, against the tensor path."""
    return _bench("export", as_json, megabytes=megabytes, runs=runs)


@click.command()
@click.option("--runs", type=click.IntRange(1, 1000), default=10, show_default=True, help="Losses to measure.")
@json_option
@unused_home_option
def outage(runs: int, as_json: bool, home: str | None) -> int:
    """Seconds from the SIGKILL of a sole holder to the next committed step, by part. Ten seconds each."""
    return _bench("outage", as_json, runs=runs)


@click.command("pause")
@click.option("--runs", type=click.IntRange(1, 100), default=5, show_default=True, help="Pauses to measure.")
@json_option
@unused_home_option
def pause_cost(runs: int, as_json: bool, home: str | None) -> int:
    """Seconds from a pause to free memory and from a resume to work, and what the swarm waits. Two minutes."""
    return int(not _lab("pause").run(as_json, runs=runs)["passed"])


@click.command()
@click.option("--runs", type=click.IntRange(1, 100), default=3, show_default=True, help="Swarms to measure.")
@click.option("--out", metavar="DIR", help="New folder for the figures as JSON, logs and traces.")
@json_option
@unused_home_option
def scaling(runs: int, out: str | None, as_json: bool, home: str | None) -> int:
    """Step time with 1, 2 and 4 holders of the slowest stage, and when one or two of the four are killed. Four
    minutes a run."""
    _lab("scaling").run(as_json, runs, whole_path(out) if out else None)
    return 0


@click.command()
@click.option("--runs", type=click.IntRange(1, 100), default=3, show_default=True, help="Times to measure it all.")
@click.option("--out", metavar="DIR", help="New folder for the figures as JSON, curves.png, logs and traces.")
@json_option
@unused_home_option
def elastic(runs: int, out: str | None, as_json: bool, home: str | None) -> int:
    """Time to join, its stall, a killed replica's cost, and training losses with and without failures. Ten minutes a
    run; exit code 1 when an audit finds something."""
    figures = _lab("elastic").run(as_json, runs, whole_path(out) if out else None)
    return 0 if figures["passed"] else 1


@click.command()
@click.option("--peers", type=click.IntRange(2, 200), default=50, show_default=True, help="Fake responders.")
@click.option("--runs", type=click.IntRange(1, 1000), default=10, show_default=True, help="Cold starts to measure.")
@click.option("--seconds", type=FiniteRange(1, 3600), default=60.0, show_default=True, help="To watch the watcher for.")
@json_option
@unused_home_option
def watch(peers: int, runs: int, seconds: float, as_json: bool, home: str | None) -> int:
    """Seconds from a cold start of ftnode status to its table, and what a watcher of many peers costs itself. Two
    minutes; exit code 1 when one of the two is above its budget."""
    return 0 if _lab("watch").run(as_json, peers, runs, seconds)["passed"] else 1


@click.command()
@json_option
@unused_home_option
def memory(as_json: bool, home: str | None) -> int:
    """Resident memory (PSS) of an idle node, by process."""
    return _bench("memory", as_json)


@click.command("dashboard")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@json_option
@unused_home_option
def dashboard_bench(directory: Path, as_json: bool, home: str | None) -> int:
    """First paint of the dashboard's page, and what an hour costs the browser: a demo's traces below DIR, repeated.
    Needs Chromium. Two minutes; exit code 1 beyond the budget."""
    return 0 if _lab("dashboard").run(directory, as_json)["passed"] else 1


@click.command()
@json_option
@unused_home_option
def world(as_json: bool, home: str | None) -> int:
    """Seconds that the virtual world needs for one virtual hour of 50 peers."""
    return _bench("world", as_json)


@click.command()
@click.option("--peers", type=click.IntRange(2, 16), default=4, show_default=True, help="Members of the group.")
@click.option("--megabytes", type=click.IntRange(1, 4000), default=100, show_default=True, help="Size of the gradient.")
@click.option("--rounds", type=click.IntRange(1, 1000), default=5, show_default=True, help="Sums to measure.")
@click.option("--kill", is_flag=True, help="Then three times as many, with a peer killed in every third.")
@click.option("--out", metavar="DIR", help="Folder for the figures as JSON, too.")
@json_option
@unused_home_option
def reduction(
    peers: int, megabytes: int, rounds: int, kill: bool, out: str | None, as_json: bool, home: str | None
) -> int:  # fmt: skip
    """Seconds that a group takes to sum a gradient, against hivemind's averager, and when a peer is killed."""
    folder = whole_path(out) if out else None
    _lab("reduction").run(as_json, peers, megabytes, rounds, kill, folder)
    return 0


@click.command()
@click.option("--quick", is_flag=True, help="Two minutes: a little of everything, as CI runs it.")
@click.option("--full", is_flag=True, help="All experiments, at most 150 minutes; goes on where it was stopped.")
@click.option("--model", metavar="SIZE", help="mini, tiny, deep, wide or small; default: the mode's own.")
@click.option("--seeds", metavar="N,N,...", help="Seeds of weights, data and failures; default: 0,1,2, quick: 0.")
@device_option
@click.option("--out", metavar="DIR", help="Folder of results, tables and pictures; default: reports/recovery.")
@click.option("--minutes", type=FiniteRange(0), help="Stop after this long; call again to go on (--full: 150).")
@json_option
@unused_home_option
def recovery(
    quick: bool, full: bool, model: str | None, seeds: str | None, device: str, out: str | None,
    minutes: float | None, as_json: bool, home: str | None,
) -> int:  # fmt: skip
    """What each way of rebuilding a lost stage is worth, in one process; 25 minutes on two cores."""
    if quick and full:
        raise UserError("--quick and --full exclude each other")
    chosen = parse_seeds(seeds)
    lab = _lab("recovery")
    return _code(lab.run(lab.RecoveryConfig(
        mode="quick" if quick else "full" if full else "default", model=model, seeds=chosen, device=device,
        out=whole_path(out) if out else None, minutes=minutes, json=as_json,
    )))  # fmt: skip


def parse_seeds(text: str | None) -> tuple[int, ...] | None:
    """Numbers between commas, each once. Raises UserError (64)."""
    if text is None:
        return None
    if not SEEDS.fullmatch(text):
        raise UserError(f"--seeds {text} is not a list of numbers like 0,1,2")
    return tuple(dict.fromkeys(map(int, text.split(","))))


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


def _lab(name: str) -> Any:
    """A module of the lab, by name: nothing but this door depends on it."""
    return import_module(f"ftnode.lab.{name}")


def _bench(name: str, as_json: bool, **options: int) -> int:
    """Run a benchmark that prints its own table or JSON. What it returns is for callers in Python."""
    _lab(name).run(as_json, **options)
    return 0


def _run_on(name: str, path: Path, what: str, as_json: bool) -> Any:
    if not path.exists():
        raise UserError(f"there is no {what} {path}", 66)
    return _lab(name).main(path, as_json)


def _code(result: Any) -> int:
    return result if isinstance(result, int) else 0
