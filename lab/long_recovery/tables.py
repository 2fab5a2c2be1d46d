"""Tables of the long runs: what policies are behind at the end, what a loss costs on the way, CheckFree's residual
against the damage, and the planner's cost of a loss against all of it.

A run that has not ended is held against the run without failures as far as both are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log
from random import Random
from statistics import mean
from typing import Any, Final

from ftnode.lab.long_recovery import cost_fit
from ftnode.lab.long_recovery.cost_fit import Cost, Fitted, Measured
from ftnode.lab.long_recovery.plan import HELD_OUT, LongPlan, Row
from ftnode.lab.long_recovery.ranks import correlation_interval, mean_interval, rank_correlation
from ftnode.lab.recovery.curves import excess_iterations
from ftnode.lab.recovery.plan import CHECKFREE, NONE
from ftnode.lab.recovery.tables import Table

PAIRS_MIN: Final = 8
"""Losses, before a rank correlation of them says anything."""
RESIDUAL: Final = ("averaged", "rebuilt", "averaged, of own", "rebuilt, of own")
"""As `residual_pairs` has them."""

Run = dict[str, Any]
"""A result, or what there is of one."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A run with losses against the run of its seed without, up to the iteration that both have reached.

    `rise`: of the validation loss, mean over the last quarter. `behind`: iterations, at equal loss, over the second
    half. `worth`: how many iterations shorter a run without failures is that ends at the same loss; None while a run
    of another length is missing, or this one has not ended.
    """

    row: Row
    run: Run
    until: int
    rise: float
    behind: float
    worth: float | None

    @property
    def losses(self) -> tuple[tuple[int, int], ...]:
        return tuple((at, stage) for at, lost, _ in self.run["damages"] for stage in lost if at <= self.until)


def tables(plan: LongPlan, results: Any, pairs: list[Compared]) -> list[Table]:
    """All that the results allow; a table without rows is left out."""
    fits = fitted(pairs)
    found = [
        ended(plan, results, pairs), on_the_way(pairs), damages(plan, results), left_out(results), residuals(results),
        costs(pairs, fits),
    ]  # fmt: skip
    return [table for table in found if table.rows]


def heading(plan: LongPlan, results: Any) -> str:
    table = results.trigram
    each = table["bytes per token"]
    return (
        f"A table of three tokens has {table['loss']:.3f} nats per token ({table['loss'] / each:.3f} per byte, "
        f"{each:.2f} bytes a token) on {table['targets']:,} held-out tokens; it counts {table['tokens']:,}. "
        f"The model has {plan.size.config.total_parameters():,} parameters and reads "
        f"{plan.iterations * plan.size.tokens_per_step:,} tokens. Runs that have ended: {len(results.runs)}; "
        f"begun: {len(results.begun)}; missing, with these: {results.missing}.\n\n"
    )


def compared(plan: LongPlan, results: Any) -> list[Compared]:
    """Of all runs with losses whose reference has begun."""
    everything = [*results.runs, *results.begun]
    references = {one["seed"]: one for row, one in everything if row.policy.name == NONE.name and row.share == 1}
    found = []
    for row, one in everything:
        reference = references.get(one["seed"])
        if not row.rate or reference is None:
            continue
        until = min(one["curve"][-1][0], reference["curve"][-1][0])
        ours, clean = (_until(each["curve"], until) for each in (one, reference))
        if len(ours) < 4:
            continue
        ends = [loss - other for (at, loss), (_, other) in zip(ours, clean) if at > 0.75 * until]
        worth = None
        if until == plan.iterations and HELD_OUT in one["texts"]:
            worth = worth_of(one["texts"][HELD_OUT], lengths(results, one["seed"]), plan.iterations)
        found.append(Compared(row, one, until, mean(ends), excess_iterations(ours, clean), worth))
    return found


def lengths(results: Any, seed: int) -> list[tuple[int, float]]:
    """(iterations, loss at the end) of the runs without failures, the shortest first."""
    return sorted(
        (one["iterations"], one["texts"][HELD_OUT])
        for row, one in results.runs
        if row.policy.name == NONE.name and one["seed"] == seed
    )


def worth_of(loss: float, points: Sequence[tuple[int, float]], iterations: int) -> float | None:
    """Iterations by which a run without failures that ends at `loss` is shorter than `iterations`: between the lengths
    that were run, losses go in proportion to the logarithm of the length; beyond them they go on so."""
    if len(points) < 2 or points[-1][0] != iterations:
        return None
    for (short, high), (longer, low) in reversed(list(pairwise(points))):
        if loss <= high or short == points[0][0]:
            share = (loss - low) / (high - low)
            return iterations - exp(log(longer) - share * (log(longer) - log(short)))
    raise AssertionError("the shortest pair takes all")


def ended(plan: LongPlan, results: Any, pairs: list[Compared]) -> Table:
    groups: dict[Row, list[Run]] = {}
    for row, one in results.runs:
        groups.setdefault(row, []).append(one)
    clean = {one["seed"]: one["texts"][HELD_OUT] for row, one in results.runs if row == plan.rows[0]}
    rows = []
    for row, found in groups.items():
        losses = [one["texts"][HELD_OUT] for one in found]
        above = [one["texts"][HELD_OUT] - clean[one["seed"]] for one in found if one["seed"] in clean]
        its = [pair for pair in pairs if pair.row == row and pair.until == plan.iterations]
        worth = [pair.worth for pair in its if pair.worth is not None]
        rows.append((
            row.losing or "nothing", row.rate or "0", row.policy.name, plan.iterations_of(row), len(found),
            round(mean(one["counted"]["failures"] for one in found), 1), round(mean(losses), 4),
            round(results.trigram["loss"] - mean(losses), 3), *_mean_and_interval(above, 4),
            *_mean_and_interval([pair.behind for pair in its], 0), *_mean_and_interval(worth, 0),
        ))  # fmt: skip
    return Table(
        "ended", "Runs that have ended",
        "Loss: nats per token on held-out text. Below the table: of three tokens. Above: the run without failures of "
        "the seed. Behind: iterations at equal validation loss, mean over the second half. Worth: how many iterations "
        "shorter a run without failures is that ends at the same loss. Intervals: 90 %, by Student's distribution "
        "over the seeds.",
        ("losing", "rate", "policy", "iterations", "seeds", "failures", "loss", "below the table", "above",
         "above, interval", "behind", "behind, interval", "worth", "worth, interval"), tuple(rows),
    )  # fmt: skip


def on_the_way(pairs: list[Compared]) -> Table:
    """Also of runs that have ended: what the planner foretells beside what was measured."""
    rows = [
        (pair.row.losing, pair.row.rate, pair.row.policy.name, pair.run["seed"], pair.until, len(pair.losses),
         round(pair.rise, 4), round(pair.behind), "" if pair.worth is None else round(pair.worth))
        for pair in pairs
    ]  # fmt: skip
    return Table(
        "on_the_way", "Each run against the run without failures",
        "As far as both have come. Losses: stages lost so far. Rise: of the validation loss, nats per token, mean over "
        "the last quarter. Behind, worth: as above.",
        ("losing", "rate", "policy", "seed", "until", "losses", "rise", "behind", "worth"), tuple(rows),
    )  # fmt: skip


def damages(plan: LongPlan, results: Any) -> Table:
    """What a loss does at once, by the stage and the age of the run."""
    found: dict[tuple[str, str, str, str, int], list[float]] = {}
    for row, one in [*results.runs, *results.begun]:
        for at, lost, rise in one["damages"]:
            quarter = min(3, 4 * (at - 1) // one["iterations"])
            key = (row.losing, row.rate, row.policy.name, _which(lost, plan.size.stages), quarter)
            found.setdefault(key, []).append(rise)
    kinds = dict.fromkeys(key[:4] for key in found)
    rows = [
        (*kind, *(cell for quarter in range(4) for cell in _count_and_mean(found.get((*kind, quarter), []))))
        for kind in kinds
    ]
    return Table(
        "damages", "What a loss does at once, in the course of a run",
        "Rise of the validation loss when what was lost is rebuilt, or left out; nats per token, mean of the losses in "
        "each quarter of the run.",
        ("losing", "rate", "policy", "stage",
         *(cell for quarter in range(1, 5) for cell in (f"losses, {quarter}/4", f"rise, {quarter}/4"))),
        tuple(rows),
    )  # fmt: skip


def left_out(results: Any) -> Table:
    rows = []
    for policy in dict.fromkeys(row.policy for row, _ in [*results.runs, *results.begun] if row.policy.omit_steps):
        its = [one for row, one in [*results.runs, *results.begun] if row.policy == policy]
        returns = [rise for one in its for _, _, rise in one["returns"]]
        omitted = sum(one["counted"]["by"].get("omit", 0) for one in its)
        rebuilt = sum(one["counted"]["by"].get(policy.way, 0) for one in its)
        rows.append((policy.omit_steps, len(its), omitted, rebuilt, *_count_and_mean(returns)))
    return Table(
        "left_out", "Stages left out",
        "How often a loss was answered so, and what it did when they were rebuilt: rise of the validation loss, nats "
        "per token. Ends are rebuilt at once.",
        ("steps", "runs", "left out", "rebuilt", "returns", "rise at return"), tuple(rows),
    )  # fmt: skip


def residual_pairs(runs: Iterable[tuple[Row, Run]]) -> dict[tuple[str, str], list[tuple[tuple[float, ...], float]]]:
    """(policy, which stages) → (the four measures of RESIDUAL, rise) of each loss of one stage alone."""
    found: dict[tuple[str, str], list[tuple[tuple[float, ...], float]]] = {}
    for row, one in runs:
        rises = {(at, lost[0]): rise for at, lost, rise in one["damages"] if len(lost) == 1}
        for at, stage, own, averaged, rebuilt in one["residuals"]:
            if (at, stage) in rises and own > 0:
                measures = (averaged, rebuilt, averaged / own, rebuilt / own)
                for which in ("all", "the first" if stage == 1 else "others"):
                    found.setdefault((row.policy.name, which), []).append((measures, rises[at, stage]))
    return found


def residuals(results: Any) -> Table:
    rows = []
    for (policy, which), pairs in residual_pairs([*results.runs, *results.begun]).items():
        if len(pairs) >= PAIRS_MIN:
            cells: list[Any] = []
            for number in range(len(RESIDUAL)):
                each = [(measures[number], rise) for measures, rise in pairs]
                low, high = correlation_interval(each, Random(0))
                cells.append(f"{rank_correlation(each):+.2f} ({low:+.2f} to {high:+.2f})")
            rows.append((policy, which, len(pairs), *cells))
    return Table(
        "residuals", "CheckFree's residual (its section 4.4) against the damage",
        "Rank correlation (Spearman) with the rise of the validation loss at once, and 90 % of a bootstrap over the "
        "losses. Averaged: the mean squared norm of ω₁f(k+1) + ω₂f(k−1) − f(k). Rebuilt: of what stands there "
        "afterwards, less f(k). Of own: divided by that of f(k). Stages that were lost alone.",
        ("policy", "stages", "losses", *RESIDUAL), tuple(rows),
    )  # fmt: skip


def measured(pairs: Iterable[Compared]) -> list[Measured]:
    """Of CheckFree's runs that lose block stages one at a time: the worth where it is known, else iterations behind."""
    return [
        Measured(pair.run["seed"], pair.losses, pair.behind if pair.worth is None else pair.worth)
        for pair in pairs
        if pair.row.policy == CHECKFREE and not pair.row.together
    ]


def fitted(pairs: Iterable[Compared]) -> list[Fitted]:
    """With the planner's window, and with none."""
    runs = measured(pairs)
    now = Cost()
    return [cost_fit.fitted(runs, now.ends, window, Random(0)) for window in (now.window, 10**9)] if runs else []


def costs(pairs: list[Compared], fits: list[Fitted]) -> Table:
    rows: list[tuple[Any, ...]] = []
    now = Cost()
    rows += [
        (f"seed {one.seed}, {len(one.losses)} losses", round(one.behind), round(now.steps(one.losses)),
         *(round(fit.cost.steps(one.losses)) for fit in fits))
        for one in measured(pairs)
    ]  # fmt: skip
    for fit in fits:
        about = f"first {fit.cost.first:.1f}{_range(fit.first_interval, 1)}, H {fit.cost.half:.2f}" + _range(
            fit.half_interval, 2
        )
        rows.append((f"fitted, window {fit.cost.window}: {about}", "", "", *([""] * len(fits))))
    return Table(
        "cost_of_a_loss", "The planner's cost of a loss",
        "Steps of learning that CheckFree's runs lost: measured (worth, or behind where that is not known yet), as "
        "protocol/recovery/learning_cost.py has it now, and by its formula when fitted to these runs.",
        ("run", "measured", "as it is now", *(f"fitted, window {fit.cost.window}" for fit in fits)), tuple(rows),
    )  # fmt: skip


def _which(lost: Sequence[int], stages: int) -> str:
    if len(lost) > 1:
        return "several"
    return {0: "head", 1: "first", stages: "last"}.get(lost[0], "middle")


def _until(curve: Sequence[Sequence[float]], until: int) -> list[Sequence[float]]:
    return [point for point in curve if point[0] <= until]


def _count_and_mean(values: Sequence[float]) -> tuple[Any, Any]:
    return (len(values), round(mean(values), 4)) if values else (0, "")


def _mean_and_interval(values: Sequence[float], digits: int) -> tuple[Any, Any]:
    if not values:
        return "", ""
    found = mean_interval(values)
    shown = "" if found is None else f"{found[0]:.{digits}f} to {found[1]:.{digits}f}"
    return round(mean(values), digits) if digits else round(mean(values)), shown


def _range(interval: tuple[float, float] | None, digits: int) -> str:
    return "" if interval is None else f" ({interval[0]:.{digits}f} to {interval[1]:.{digits}f})"
