"""`ftnode lab transport`, `reduction`, `sums`, `data` and others: single parts are measured."""

from __future__ import annotations

from pathlib import Path

import click

from ftnode.node.cli.options import INPUT, FiniteRange, WholeRange, json_option, unused_home_option
from ftnode.node.home.paths import whole_path
from ftnode.protocol.words.errors import UserError

ERRORS = "cli_lab_snapshots"


@click.command()
@json_option
@unused_home_option
def transport(as_json: bool, home: str | None) -> int:
    """Megabytes per second of the tensor path, against p2pd bare, hivemind's P2P class and py-libp2p. Exit code 1
    when a budget is missed."""
    from ftnode.lab.parts.transport import run

    return 0 if run(as_json)["passed"] else 1


@click.command()
@click.option("--peers", type=WholeRange(2, 16), default=4, show_default=True, help="Members of the group.")
@click.option("--megabytes", type=WholeRange(1, 4000), default=100, show_default=True, help="Size of the gradient.")
@click.option("--rounds", type=WholeRange(1, 1000), default=5, show_default=True, help="Sums to measure.")
@click.option("--kill", is_flag=True, help="Then three times as many, with a peer killed in every third.")
@click.option("--out", metavar="DIR", help="Folder for the figures as JSON, too.")
@json_option
@unused_home_option
def reduction(
    peers: int, megabytes: int, rounds: int, kill: bool, out: str | None, as_json: bool, home: str | None
) -> int:  # fmt: skip
    """Seconds that a group takes to sum a gradient, against hivemind's averager, and when a peer is killed. Exit code 1
    when a sum is wrong, or the budget is missed."""
    from ftnode.lab.parts.reduction import run

    folder = whole_path(out) if out else None
    return 0 if run(as_json, peers, megabytes, rounds, kill, folder)["passed"] else 1


@click.command()
@click.option("--peers", type=WholeRange(2, 16), default=4, show_default=True, help="Members of the group.")
@click.option("--megabytes", type=WholeRange(1, 4000), default=100, show_default=True, help="Size of the gradient.")
@click.option("--line", type=FiniteRange(0, 1e5), default=20.0, show_default=True, help="Mbit/s each way; 0: no limit.")
@click.option("--rounds", type=WholeRange(1, 1000), default=3, show_default=True, help="Sums of each encoding.")
@click.option("--seeds", type=WholeRange(0, 100), default=4, show_default=True, help="Runs for the loss; 0: none.")
@click.option("--steps", type=WholeRange(6, 100_000), default=300, show_default=True, help="Steps of each run.")
@json_option
@unused_home_option
def sums(
    peers: int, megabytes: int, line: float, rounds: int, seeds: int, steps: int, as_json: bool, home: str | None
) -> int:  # fmt: skip
    """Seconds that encoded sums take on thin lines, and the loss after as many steps, against exact sums. Exit code 1
    when int8 is above its budget."""
    from ftnode.lab.parts.sums import run

    return 0 if run(as_json, peers, megabytes, line, rounds, seeds, steps)["passed"] else 1


@click.command()
@click.option("--peers", type=WholeRange(2, 200), default=50, show_default=True, help="Fake responders.")
@click.option("--runs", type=WholeRange(1, 1000), default=10, show_default=True, help="Cold starts to measure.")
@click.option("--seconds", type=FiniteRange(1, 3600), default=60.0, show_default=True, help="To watch the watcher for.")
@json_option
@unused_home_option
def watch(peers: int, runs: int, seconds: float, as_json: bool, home: str | None) -> int:
    """Seconds from a cold start of ftnode status to its table, and what a watcher of many peers costs itself. Two
    minutes; exit code 1 when one of the two is above its budget."""
    from ftnode.lab.parts.watch import run

    return 0 if run(as_json, peers, runs, seconds)["passed"] else 1


@click.command()
@click.option("--watchers", type=WholeRange(1, 400), default=200, show_default=True, help="Of the page, at once.")
@click.option("--peers", type=WholeRange(2, 200), default=50, show_default=True, help="Fake responders.")
@click.option("--seconds", type=FiniteRange(1, 3600), default=60.0, show_default=True, help="Of each measurement.")
@json_option
@unused_home_option
def watchers(watchers: int, peers: int, seconds: float, as_json: bool, home: str | None) -> int:
    """What many watchers of one public page (ftnode dashboard --public) cost the dashboard and the run that it shows.
    Four minutes; exit code 1 beyond the budget."""
    from ftnode.lab.parts.watchers import run

    return 0 if run(as_json, watchers, peers, seconds)["passed"] else 1


@click.command("dashboard")
@click.argument("directory", metavar="DIR", type=INPUT)
@json_option
@unused_home_option
def dashboard_bench(directory: Path, as_json: bool, home: str | None) -> int:
    """First paint of the dashboard's page, and what an hour costs the browser: a demo's traces below DIR, repeated.
    Needs Chromium. Two minutes; exit code 1 beyond the budget."""
    from ftnode.lab.parts.dashboard import run

    return 0 if run(directory, as_json)["passed"] else 1


@click.command()
@click.option("--preset", metavar="NAME", default="small", show_default=True, help="Sizes of the stage.")
@click.option("--rounds", type=WholeRange(1, 1000), default=5, show_default=True, help="Microbatches to measure.")
@json_option
@unused_home_option
def encoding(preset: str, rounds: int, as_json: bool, home: str | None) -> int:
    """What encoding and decoding boundary tensors takes of a stage's work, on one thread. Half a minute; exit code 1
    beyond the budget."""
    from ftnode.lab.parts.boundary_encoding import run

    return 0 if run(as_json, preset, rounds)["passed"] else 1


@click.command()
@json_option
@unused_home_option
def world(as_json: bool, home: str | None) -> int:
    """Seconds that the virtual world needs for one virtual hour of 50 peers."""
    from ftnode.lab.parts.world import run

    run(as_json)
    return 0


@click.command()
@click.option("--rounds", type=WholeRange(1, 100), default=3, show_default=True, help="Times to measure the speed.")
@click.option("--megabytes", type=WholeRange(1, 10_000), default=8, show_default=True, help="Text to measure it on.")
@json_option
@unused_home_option
def data(rounds: int, megabytes: int, as_json: bool, home: str | None) -> int:
    """Speed of `ftnode data build` against the tokenizer library alone, and its peak memory. Exit code 1 when a budget
    is missed. A minute on two idle cores."""
    from ftnode.lab.parts.data import run

    figures = run(as_json, rounds, megabytes)
    return 0 if figures["passed"] else 1


@click.command()
@click.option("--quick", is_flag=True, help="0.1 GB and three rounds; a minute.")
@click.option(
    "--gigabytes", "sizes", multiple=True, type=FiniteRange(0.01, 100), metavar="GB",
    help="State to keep; repeats. Default: 0.1, 1 and 4.",
)  # fmt: skip
@click.option("--rounds", type=WholeRange(1, 100), default=5, show_default=True, help="Times to measure each.")
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
    from ftnode.lab.parts.snapshots import run

    figures = run(as_json, sizes, rounds, orbax, folder, quick)
    return 0 if figures["passed"] else 1


@click.command()
@click.option("--steps", type=WholeRange(1, 100_000), default=800, show_default=True, help="Of the first model.")
@click.option("--more", type=WholeRange(1, 100_000), default=200, show_default=True, help="That go on from it.")
@click.option("--seeds", type=WholeRange(1, 100), default=3, show_default=True, help="Runs of each kind.")
@json_option
@unused_home_option
def adapters(steps: int, more: int, seeds: int, as_json: bool, home: str | None) -> int:
    """What training a part of a model, or adapters, costs and saves, and what a lost stage of it is worth."""
    from ftnode.lab.parts.adapters import run

    run(as_json, steps, more, seeds)
    return 0


@click.command()
@click.option("--dim", type=WholeRange(32, 4096), default=128, show_default=True, help="Width of the model.")
@click.option("--steps", type=WholeRange(1, 100_000), default=320, show_default=True, help="Of each run.")
@click.option("--seeds", type=WholeRange(1, 100), default=2, show_default=True, help="Runs of each trial.")
@click.option(
    "--trial", "trials", multiple=True, metavar="KIND:RATE",
    help="What to train with, as muon:0.01; repeats. Default: adam and muon at 0.004 and at 0.01.",
)  # fmt: skip
@click.option(
    "--update-dim", "dims", multiple=True, type=WholeRange(32, 16384), metavar="DIM",
    help="Width of a block of which an update is timed; repeats. Default: 128, 256, 512 and 1024.",
)  # fmt: skip
@json_option
@unused_home_option
def optimisers(
    dim: int, steps: int, seeds: int, trials: tuple[str, ...], dims: tuple[int, ...], as_json: bool, home: str | None
) -> int:  # fmt: skip
    """Loss after equally many steps by optimiser and rate, and seconds of an update. One thread; half an hour."""
    from ftnode.lab.parts.optimisers import parse_trial, run

    try:
        chosen = tuple(map(parse_trial, trials or ("adam:0.004", "adam:0.01", "muon:0.004", "muon:0.01")))
    except ValueError as error:
        raise click.BadParameter(f"give KIND:RATE, as muon:0.01: {error}", param_hint="--trial") from None
    run(as_json, dim, steps, seeds, chosen, dims or (128, 256, 512, 1024))
    return 0
