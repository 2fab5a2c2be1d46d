"""`ftnode lab sums`: what encoded sums save on lines that are thin, and what they cost in loss.

Time: peers as in `ftnode lab reduction`, each with a limit of its own in both directions, as `ftnode join --up --down`
sets it; the encodings take turns. Loss: sum_losses.py.
"""

from __future__ import annotations

import json as json_module
from contextlib import ExitStack
from statistics import mean, median
from typing import Any

from rich.console import Console
from rich.table import Table

from ftnode.lab.parts.reduction import NUMBERS_PER_MEGABYTE, Results, Swarm

ENCODINGS = ("exact", "int8", "int4")
TIME_BUDGET = 0.3
"""int8, of the exact sum's time."""
LOSS_BUDGET = 1.01
"""Of the exact sum's loss."""


def run(json: bool, peers: int, megabytes: int, megabits: float, rounds: int, seeds: int, steps: int) -> dict[str, Any]:
    """Measure, print a table or JSON, and return the figures."""
    seconds = times(peers, megabytes * NUMBERS_PER_MEGABYTE, megabits, rounds)
    found = losses(seeds, steps) if seeds else {}
    result = {
        "peers": peers, "megabytes": megabytes, "megabits": megabits, "seconds": seconds, "steps": steps,
        "losses": found, "passed": passed(seconds, found),
    }  # fmt: skip
    if json:
        print(json_module.dumps(result, indent=2))
    else:
        Console().print(table(result))
    return result


def times(peers: int, numbers: int, megabits: float, rounds: int) -> dict[str, list[float | None]]:
    """Seconds of each round."""
    with ExitStack() as stack:
        swarms = {name: Swarm(stack, peers, numbers, name, megabits) for name in ENCODINGS}
        results = {name: Results() for name in ENCODINGS}
        for _ in range(rounds):
            for name, swarm in swarms.items():
                swarm.round(results[name])
                if len(swarm.digests()) != 1:
                    raise AssertionError(f"peers have different sums with {name}")
    return {name: found.ours for name, found in results.items()}


def losses(seeds: int, steps: int) -> dict[str, list[float]]:
    """Nats per byte for each seed."""
    from ftnode.lab.parts.sum_losses import loss_of
    from ftnode.models.data import load_corpus
    from ftnode.node.reduction.encoding import encoding_of

    corpus = load_corpus("")
    return {
        name: [loss_of(corpus, seed, encoding_of(name, 4), steps) for seed in range(1, seeds + 1)] for name in ENCODINGS
    }


def share(values: dict[str, Any], name: str) -> float | None:
    """Of what exact sums have: of times the median of the rounds' ratios, of losses the ratio of the means."""
    pairs = [(one, exact) for one, exact in zip(values.get(name, ()), values.get("exact", ())) if one and exact]
    return median(one / exact for one, exact in pairs) if pairs else None


def loss_share(values: dict[str, list[float]], name: str) -> float | None:
    return mean(values[name]) / mean(values["exact"]) if values else None


def passed(seconds: dict[str, list[float | None]], found: dict[str, list[float]]) -> bool:
    time, loss = share(seconds, "int8"), loss_share(found, "int8")
    return time is not None and time <= TIME_BUDGET and (loss is None or loss <= LOSS_BUDGET)


def table(result: dict[str, Any]) -> Table:
    title = f"Sum of {result['megabytes']} MB on {result['peers']} peers, {result['megabits']:g} Mbit/s both ways each"
    shown = Table(title=title, caption=f"int8 must be ≤ {TIME_BUDGET} of the time, ≤ {LOSS_BUDGET} of the loss")
    for column in ("", "median s", "of exact", f"loss after {result['steps']} steps", "of exact"):
        shown.add_column(column, justify="right" if column else "left")
    seconds, found = result["seconds"], result["losses"]
    for name in ENCODINGS:
        done = [one for one in seconds[name] if one]
        time, loss = share(seconds, name), loss_share(found, name)
        shown.add_row(
            name, f"{median(done):.1f}" if done else "failed", f"{time:.3f}" if time else "",
            f"{mean(found[name]):.4f}" if found else "", f"{loss:.4f}" if loss else "",
        )  # fmt: skip
    return shown
