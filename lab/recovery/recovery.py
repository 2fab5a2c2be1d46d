"""`ftnode lab recovery`: what each way of answering a lost stage is worth, on the swarm's own code in one process.

Every run leaves one result file, every seed and rate one schedule file that all policies share. Called again with the
same folder, the lab goes on with what is missing; tables and pictures are made from what is there.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ftnode.lab.recovery import failures
from ftnode.lab.recovery.plan import NONE, REFERENCE_FACTOR, Mode, Runs, mode
from ftnode.lab.recovery.runs import Policy
from ftnode.lab.recovery.whole_model import SIZES, Size
from ftnode.lab.results.cut_off_work import CutOff, Slice
from ftnode.lab.results.result_files import folder_for, kept_or_made, write_atomically
from ftnode.models.faults import StageFault
from ftnode.protocol.words.errors import UserError

FOLDER = Path("reports/recovery")
MINUTES = {"full": 150.0}
"""How long a mode may take that says nothing else; the others end by themselves."""


@dataclass(frozen=True, slots=True)
class RecoveryConfig:
    """What a person asked for. `seeds` and `model` None: the mode's own."""

    mode: str = "default"
    model: str | None = None
    seeds: tuple[int, ...] | None = None
    device: str = "cpu"
    out: Path | None = None
    minutes: float | None = None
    """What is not finished after this long is cut off; the next call goes on. None: the mode's own (MINUTES)."""
    json: bool = False


@dataclass(slots=True)
class Results:
    """What has been measured: experiment 1's files, and each run's with the policy's name and the rate's."""

    at_once: list[dict[str, Any]]
    runs: list[dict[str, Any]]
    notes: list[str]
    complete: bool = True


def run(config: RecoveryConfig) -> int:
    """Measure what is missing, write tables and pictures, print where they are or the tables as JSON."""
    from ftnode.lab.recovery.pictures import draw_all
    from ftnode.lab.recovery.tables import markdown, tables, write_csv

    if config.model is not None and config.model not in SIZES:
        raise UserError(f"no model is called {config.model}; there are {', '.join(SIZES)}")
    plan = mode(config.mode, config.model, config.seeds)
    out = folder_for(config.out or FOLDER, "--out", empty=False)
    _check_device(config.device)
    with keeping_what_is_finished(out):
        results = measure(plan, config, out)
    found = tables(results)
    for table in found:
        write_csv(table, out / f"{table.name}.csv")
    write_atomically(out / "recovery.md", markdown(found, results))
    pictures = draw_all(results, out)
    if config.json:
        print(json.dumps({table.name: table.as_records() for table in found} | {"complete": results.complete}))
    else:
        print(markdown(found, results))
        print(f"in {out}: {', '.join(['recovery.md', *(table.name + '.csv' for table in found), *pictures])}")
    return 0


@contextmanager
def keeping_what_is_finished(out: Path) -> Iterator[None]:
    """Raises UserError (70) when training explodes: all that has ended lies in the folder."""
    try:
        yield
    except StageFault as fault:
        raise UserError(
            f"training has exploded ({fault}); what was finished lies in {out}; try other --seeds", 70
        ) from None


def _check_device(device: str) -> None:
    """Raises UserError (69) when torch has no such device here."""
    import torch

    found = torch.cuda.device_count()
    if device != "cpu" and int(device.partition(":")[2] or 0) >= found:
        raise UserError(f"--device {device}: torch finds {found} CUDA devices here; use cpu", 69)


def measure(plan: Mode, config: RecoveryConfig, out: Path) -> Results:
    """In the plan's order; when the time is up, only what is there already."""
    import torch

    from ftnode.lab.recovery import at_once
    from ftnode.lab.recovery.runs import is_of as is_of_policy
    from ftnode.lab.recovery.runs import run as train
    from ftnode.lab.recovery.texts import held_out_texts
    from ftnode.models.data import load_corpus

    if config.device == "cpu":
        torch.set_num_threads(1)
    size, corpus, started = SIZES[plan.size], load_corpus(""), time.monotonic()
    text = corpus.sha256
    texts, missing = held_out_texts(4, size.sequences, size.config.context)
    results = Results([], [], list(missing))
    minutes = MINUTES.get(config.mode) if config.minutes is None else config.minutes

    def is_over() -> bool:
        return minutes is not None and time.monotonic() - started >= 60 * minutes

    def made(
        path: Path, make: Callable[..., dict[str, Any]], is_wanted: Callable[[dict[str, Any]], bool]
    ) -> dict[str, Any] | None:
        if is_over() and not path.exists():
            results.complete = False
            return None
        say_which(path)
        part = Slice(out / "unfinished" / f"{path.stem}.pt", is_over)
        try:
            found = kept_or_made(
                path,
                lambda: make(slice_=part) | {"corpus": text, "wall_seconds": round(part.seconds(), 1)},
            )
        except CutOff as cut:
            results.complete = False
            results.notes.append(f"{path.stem} was cut off at {cut}; another call goes on there.")
            return None
        part.done()
        if found.get("corpus", text) != text or not is_wanted(found):
            raise UserError(f"{out} has results of another text or model; choose another --out", 65)
        return found

    for runs, policy, seed, schedule, path in _planned(plan, size, out):
        make = partial(train, size, corpus, texts, policy, schedule, seed, config.device, out, plan.validate_every)
        found = made(path, partial(make, texts_at=plan.iterations), partial(is_of_policy, policy, plan.validate_every))
        if found is not None:
            about = {"rate": runs.rate, "losing": runs.losing, "scale": schedule.scale}
            results.runs.append(found | about | {"failures": len(schedule.failures)})
    for number, (name, at_once_plan) in enumerate(plan.at_once):
        for seed in plan.seeds:
            path = out / "results" / f"at-once-{name}-{number}-s{seed}.json"
            found = made(
                path, partial(at_once.measure, SIZES[name], corpus, seed, at_once_plan, config.device),
                partial(at_once.is_of, at_once_plan),
            )  # fmt: skip
            if found is not None:
                results.at_once.append(found)
    return results


def _planned(plan: Mode, size: Size, out: Path) -> Iterator[tuple[Runs, Policy, int, failures.Schedule, Path]]:
    """Each run once, though several parts of the plan may name it."""
    seen: set[tuple[str, str, float, Path]] = set()
    for runs in plan.runs:
        scale = failures.scale_for(runs.scale_rates, size.stages, plan.iterations, runs.losing)
        for seed in plan.seeds:
            schedule = _schedule(runs, seed, size, plan.iterations, scale, out)
            longer = _schedule(runs, seed, size, int(plan.iterations * REFERENCE_FACTOR), scale, out)
            for policy in (NONE, *runs.policies):
                chosen = schedule if policy.loses else longer
                # A run that loses nothing is the same whatever the rate.
                rate = f"{runs.losing}-p{1e4 * chosen.probability:.0f}" if policy.loses else "p0"
                label = re.sub(r"[^\w.+]+", "-", policy.name)
                path = out / "results" / f"{size.name}-{label}-{rate}-i{chosen.iterations}-s{seed}.json"
                if (runs.losing, runs.rate, scale, path) not in seen:
                    seen.add((runs.losing, runs.rate, scale, path))
                    yield runs, policy, seed, chosen, path


def _schedule(runs: Runs, seed: int, size: Size, iterations: int, scale: float, out: Path) -> failures.Schedule:
    """The file where there is one, so that every policy meets the same losses, else a new one."""
    path = out / "schedules" / f"{size.name}-{runs.losing}-{runs.rate}-x{scale:.2f}-i{iterations}-s{seed}.json"
    if not path.exists():
        drawn = failures.draw(runs.rate, seed, size.stages, iterations, scale, size.warmup_steps + 1, runs.losing)
        failures.write(drawn, path)
    return failures.read(path)


def say_which(path: Path) -> None:
    """Of which result it is the turn now, and whether it is there."""
    print(f"{'have' if path.exists() else 'measuring'} {path.name}", file=sys.stderr, flush=True)
