"""`ftnode lab throughput`, `outage`, `pause` and others: whole swarms and nodes are measured."""

from __future__ import annotations

import click

from ftnode.node.cli.options import FiniteRange, WholeRange, json_option, unused_home_option
from ftnode.node.home.paths import whole_path


@click.command()
@click.option("--thin", is_flag=True, help="only one node with many thin stages against a few thick ones; four minutes")
@json_option
@unused_home_option
def throughput(thin: bool, as_json: bool, home: str | None) -> int:
    """Tokens per second of a swarm against one torch process on the same cores, bubbles with a paced backend, and thin
    stages against thick ones. Ten minutes."""
    from ftnode.lab.benchmarks.throughput import run

    run(as_json, thin_only=thin)
    return 0


@click.command()
@click.option("--runs", type=WholeRange(1, 1000), default=10, show_default=True, help="Losses to measure.")
@json_option
@unused_home_option
def outage(runs: int, as_json: bool, home: str | None) -> int:
    """Seconds from the SIGKILL of a sole holder to the next committed step, by part. Ten seconds each; exit code 1 when
    the audit finds something."""
    from ftnode.lab.benchmarks.outage import run

    return int(run(as_json, runs=runs)["audit"] != "passed")


@click.command("pause")
@click.option("--runs", type=WholeRange(1, 100), default=5, show_default=True, help="Pauses to measure.")
@json_option
@unused_home_option
def pause_cost(runs: int, as_json: bool, home: str | None) -> int:
    """Seconds from a pause to free memory and from a resume to work, and what the swarm waits. Two minutes."""
    from ftnode.lab.benchmarks.pause import run

    return int(not run(as_json, runs=runs)["passed"])


@click.command()
@click.option("--runs", type=WholeRange(1, 100), default=3, show_default=True, help="Swarms to measure.")
@click.option("--out", metavar="DIR", help="New folder for the figures as JSON, logs and traces.")
@json_option
@unused_home_option
def scaling(runs: int, out: str | None, as_json: bool, home: str | None) -> int:
    """Step time with 1, 2 and 4 holders of the slowest stage, and when one or two of the four are killed. Four
    minutes a run; exit code 1 when an audit finds something."""
    from ftnode.lab.benchmarks.scaling import run

    return int(run(as_json, runs, whole_path(out) if out else None)["audit"] != ["passed"])


@click.command()
@click.option("--runs", type=WholeRange(1, 100), default=3, show_default=True, help="Times to measure it all.")
@click.option("--out", metavar="DIR", help="New folder for the figures as JSON, curves.png, logs and traces.")
@json_option
@unused_home_option
def elastic(runs: int, out: str | None, as_json: bool, home: str | None) -> int:
    """Time to join, its stall, a killed replica's cost, and training losses with and without failures. Ten minutes a
    run; exit code 1 when an audit finds something."""
    from ftnode.lab.benchmarks.elastic import run

    figures = run(as_json, runs, whole_path(out) if out else None)
    return 0 if figures["passed"] else 1


@click.command("export")
@click.option("--megabytes", type=WholeRange(1, 20_000), default=800, show_default=True, help="Size of the model.")
@click.option("--runs", type=WholeRange(1, 100), default=3, show_default=True, help="Exports to measure.")
@json_option
@unused_home_option
def export_speed(megabytes: int, runs: int, as_json: bool, home: str | None) -> int:
    """Memory and speed of `ftnode export` while a run of paced volunteers goes on, against the tensor path."""
    from ftnode.lab.benchmarks.export import run

    run(as_json, megabytes=megabytes, runs=runs)
    return 0


@click.command()
@json_option
@unused_home_option
def memory(as_json: bool, home: str | None) -> int:
    """Resident memory (PSS) of an idle node, by process."""
    from ftnode.lab.swarms.memory import run

    run(as_json)
    return 0


@click.command()
@click.option("--seconds", type=FiniteRange(1, 600), default=30.0, show_default=True, help="To measure each line for.")
@json_option
@unused_home_option
def limits(seconds: float, as_json: bool, home: str | None) -> int:
    """Bytes on the wire, processor time and memory of limited nodes, measured from outside. Exit code 1 when a limit
    does not hold. Two and a half minutes."""
    from ftnode.lab.benchmarks.limits import run

    figures = run(as_json, seconds)
    return 0 if figures["passed"] else 1
