"""`ftnode lab recovery --long`: the runs of plan.py, one after the other, in a folder that another call goes on
from.

Every run leaves one result file. A state is saved every few minutes, so that a process that is killed loses no more.
"""

from __future__ import annotations

import json
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ftnode.lab.long_recovery.plan import HELD_OUT, LONG, SEEDS, LongPlan, Row
from ftnode.lab.recovery import failures
from ftnode.lab.recovery.recovery import keeping_what_is_finished, say_which
from ftnode.lab.results.cut_off_work import CutOff, Slice
from ftnode.lab.results.result_files import folder_for, kept_or_made, read_kept, write_atomically
from ftnode.models.data import Corpus, validation_batch
from ftnode.protocol.words.errors import UserError

if TYPE_CHECKING:
    from ftnode.lab.recovery.texts import Text

ERRORS = "recovery"

FOLDER: Final = Path("reports/recovery-long")
SAVE_EVERY: Final = 120.0
"""Seconds from one saved state of a run to the next."""
ABREAST: Final = 2
TURN: Final = 300.0
"""Two runs go on in turns of so many seconds, so that one with losses can be held against the one without before
either has ended."""
DIGITS: Final = 5


@dataclass(frozen=True, slots=True)
class LongConfig:
    """What a person asked for. `seeds` None: the five of the plan. `minutes`: what is not finished after this long is
    cut off; None: all is run."""

    seeds: tuple[int, ...] | None = None
    device: str = "cpu"
    out: Path | None = None
    minutes: float | None = None
    json: bool = False


@dataclass(slots=True)
class LongResults:
    """All results of the plan that lie in the folder, with the rows they belong to."""

    trigram: dict[str, Any]
    runs: list[tuple[Row, dict[str, Any]]] = field(default_factory=list)
    begun: list[tuple[Row, dict[str, Any]]] = field(default_factory=list)
    """Runs that have not ended: as far as they are."""
    missing: int = 0
    """Runs of the seeds that were asked for and that have not ended."""

    @property
    def complete(self) -> bool:
        return not self.missing

    @property
    def notes(self) -> list[str]:
        """How far those are that have begun."""
        return [
            f"- {row.policy.name}{', ' + row.rate if row.rate else ''}, seed {one['seed']}, has come to iteration "
            f"{one['reached']} of {one['iterations']}."
            for row, one in self.begun
        ]


def run(config: LongConfig, plan: LongPlan = LONG) -> int:
    """Measure what is missing, write tables and pictures, print them. Raises UserError: 65 for a folder with results of
    another text or model, 70 when training explodes, 73 for a folder that cannot be used."""
    out = folder_for(config.out or FOLDER, "--out", empty=False)
    with keeping_what_is_finished(out):
        results = measure(plan, config, out)
    told, text = written(plan, results, out)
    print(json.dumps(told) if config.json else text)
    return 0


def written(plan: LongPlan, results: LongResults, out: Path) -> tuple[dict[str, Any], str]:
    """Tables as CSV and Markdown, and a picture, into `out`; what `--json` prints, and the text."""
    from ftnode.lab.long_recovery.pictures import draw
    from ftnode.lab.long_recovery.tables import compared, heading, tables
    from ftnode.lab.recovery.tables import markdown, write_csv

    pairs = compared(plan, results)
    found = tables(plan, results, pairs)
    for table in found:
        write_csv(table, out / f"{table.name}.csv")
    text = heading(plan, results) + markdown(found, results)
    write_atomically(out / "long.md", text)
    draw(plan, results, pairs, out)
    told = {table.name: table.as_records() for table in found}
    return told | {"trigram": results.trigram, "complete": results.complete}, text


def measure(plan: LongPlan, config: LongConfig, out: Path) -> LongResults:
    """All rows with the first seed, then all with the next; ABREAST of them in turns. When the time is up, only what is
    there already, and how far the runs are that have begun."""
    import torch

    if config.device == "cpu":
        torch.set_num_threads(1)
    started = time.monotonic()
    corpus, held_out, trigram = text_of(plan, out)
    results = LongResults(trigram)

    def over_after(seconds: float | None, since: float) -> bool:
        return seconds is not None and time.monotonic() - since >= seconds

    seconds = None if config.minutes is None else 60 * config.minutes
    waiting = deque((row, seed) for seed in config.seeds or SEEDS for row in plan.rows)
    while waiting and not over_after(seconds, started):
        row, seed = waiting.popleft()
        path, turn = result_path(plan, row, seed, out), time.monotonic()
        say_which(path)

        def is_over(turn: float = turn) -> bool:
            return over_after(seconds, started) or (len(waiting) > 0 and over_after(TURN, turn))

        part = Slice(unfinished_path(path), is_over, SAVE_EVERY)
        try:
            kept_or_made(path, partial(one_run, plan, row, seed, (corpus, held_out), config.device, out, part))
        except CutOff:
            waiting.insert(ABREAST - 1, (row, seed))
        else:
            part.done()
    return found_in(plan, config.seeds or SEEDS, out, results)


def found_in(plan: LongPlan, seeds: tuple[int, ...], out: Path, results: LongResults) -> LongResults:
    """`results` with what lies in the folder."""
    import torch

    for seed in seeds:
        for row in plan.rows:
            path = result_path(plan, row, seed, out)
            if path.exists():
                results.runs.append((row, read_kept(path)))
                continue
            results.missing += 1
            if unfinished_path(path).exists():
                state = torch.load(unfinished_path(path), map_location="cpu", weights_only=True)["run"]
                results.begun.append((row, so_far(plan, row, seed, state)))
    return results


def so_far(plan: LongPlan, row: Row, seed: int, state: dict[str, Any]) -> dict[str, Any]:
    """Of a run that has not ended, what a result has."""
    names = ("curve", "counted", "damages", "returns", "residuals")
    rounded: dict[str, Any] = _rounded({name: state[name] for name in names} | {
        "seed": seed, "policy": asdict(row.policy), "iterations": plan.iterations_of(row), "rate": row.rate,
        "losing": row.losing, "reached": state["iteration"],
    })  # fmt: skip
    return rounded


def text_of(plan: LongPlan, out: Path) -> tuple[Corpus, Text, dict[str, Any]]:
    """The tokens, windows of held-out text, and what a trigram table of all training tokens makes of these windows."""
    from ftnode.lab.codecs import tokens, trigram
    from ftnode.lab.recovery.texts import TEXT_SEED, Text
    from ftnode.models.data import load_corpus

    corpus, _ = tokens.open_tokens(out / "tokens", plan)
    size = plan.size
    windows = tuple(
        validation_batch(corpus, TEXT_SEED, number, size.sequences, size.config.context)
        for number in range(plan.windows)
    )
    held_out = Text(HELD_OUT, windows)
    planned = f"{size}, {plan.iterations} iterations"

    def counted() -> dict[str, Any]:
        training = tokens.all_tokens(corpus.training)
        texts = tokens.documents(load_corpus("").training, plan.text_bytes_max)
        per_token = sum(len(text.encode()) for text in texts) / len(training)
        found = trigram.measure(training, plan.vocabulary, np.concatenate(windows))
        about = {"corpus": corpus.sha256, "plan": planned, "bytes per token": round(per_token, DIGITS)}
        return about | found

    table = kept_or_made(out / "trigram.json", counted)
    if (table["corpus"], table["plan"]) != (corpus.sha256, planned):
        raise UserError(f"{out} has results of another text or model; choose another --out", 65)
    return corpus, held_out, table


def one_run(
    plan: LongPlan, row: Row, seed: int, text: tuple[Corpus, Text], device: str, out: Path, part: Slice
) -> dict[str, Any]:
    """As JSON has it, numbers of DIGITS digits. Raises CutOff, and StageFault when training has exploded."""
    from ftnode.lab.recovery.runs import run as train

    schedule = schedule_of(plan, row, seed, out)
    corpus, held_out = text
    found = train(
        plan.size_of(row), corpus, (held_out,), row.policy, schedule, seed, device, out / "unfinished",
        plan.validate_every, slice_=part, residuals=True,
    )  # fmt: skip
    about = {"rate": row.rate, "losing": row.losing, "wall_seconds": part.seconds()}
    rounded: dict[str, Any] = _rounded(found | about)
    return rounded


def schedule_of(plan: LongPlan, row: Row, seed: int, out: Path) -> failures.Schedule:
    """What is lost, from the end of the warm-up on: from the file where there is one, so that all rows of a rate meet
    the same losses."""
    iterations, first, stages = plan.iterations_of(row), plan.size.warmup_steps + 1, plan.size.stages
    if not row.rate:
        return failures.Schedule("", seed, stages, iterations, 1.0, 0.0, ())
    path = out / "schedules" / f"{row.losing}-{row.rate.rstrip('%')}-i{iterations}-s{seed}.json"
    if not path.exists():
        draw = failures.draw_together if row.together else partial(failures.draw, scale=1.0)
        failures.write(draw(row.rate, seed, stages, iterations, first=first), path)
    return failures.read(path)


def result_path(plan: LongPlan, row: Row, seed: int, out: Path) -> Path:
    return out / "results" / f"{row.name}-i{plan.iterations_of(row)}-s{seed}.json"


def unfinished_path(result: Path) -> Path:
    return result.parent.parent / "unfinished" / f"{result.stem}.pt"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list | tuple) else value
