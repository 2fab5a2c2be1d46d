"""One picture of the long runs: how far above the run without failures each is, and the residual against the damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ftnode.lab.demo.pictures import FAINT, INK
from ftnode.lab.long_recovery.plan import LongPlan
from ftnode.lab.long_recovery.tables import residual_pairs
from ftnode.lab.recovery.curves import smoothed
from ftnode.lab.recovery.pictures import COLOURS, new_figure
from ftnode.lab.recovery.plan import CHECKFREE, SHADOW

PICTURE = "long.png"
RESIDUALS_OF = (CHECKFREE.name, SHADOW.name)
"""The others' losses are in the table."""
ABOVE_SHOWN = 0.4
"""Nats per token; what is higher leaves the picture."""


def draw(plan: LongPlan, results: Any, pairs: list[Any], out: Path) -> None:
    """Nothing where no run with losses has come far enough."""
    if not pairs:
        return
    figure, (curves, dots) = new_figure(11, 5.4, columns=2, grid="both")
    seed = min(pair.run["seed"] for pair in pairs)
    clean = next(
        one["curve"] for row, one in [*results.runs, *results.begun] if row == plan.rows[0] and one["seed"] == seed
    )
    for number, pair in enumerate(pair for pair in pairs if pair.run["seed"] == seed):
        points = [
            (at, min(loss - other, ABOVE_SHOWN))
            for (at, loss), (_, other) in zip(smoothed(pair.run["curve"]), smoothed(clean))
            if at <= pair.until
        ]
        label = f"{pair.row.policy.name}, {pair.row.rate}"
        curves.plot(*zip(*points), label=label, **_line(number), linewidth=1.2)
    curves.axhline(0, color=FAINT, linewidth=1)
    curves.set_xlabel("iteration", color=INK)
    curves.set_ylabel("above the run without failures, nats per token", color=INK, fontsize=8.5)
    curves.set_title(f"Validation loss, seed {seed}", loc="left", fontsize=10, color=INK)
    _legend_below(curves, 3)
    _residuals(results, dots)
    figure.savefig(out / PICTURE)


def _residuals(results: Any, dots: Any) -> None:
    for number, ((policy, which), found) in enumerate(residual_pairs([*results.runs, *results.begun]).items()):
        points = [(measures[0], rise) for measures, rise in found if measures[0] > 0]
        if which != "all" and points and policy in RESIDUALS_OF:
            dots.plot(
                *zip(*points), ".", label=f"{policy}: {which}", color=COLOURS[1:][number % 9], markersize=4, alpha=0.7
            )
    dots.set_xscale("log")
    dots.set_yscale("symlog", linthresh=0.01)
    dots.axhline(0, color=FAINT, linewidth=1)
    dots.set_xlabel("CheckFree's residual: mean of ‖ω₁f(k+1) + ω₂f(k−1) − f(k)‖²", color=INK, fontsize=8.5)
    dots.set_ylabel("rise of the validation loss at once, nats per token", color=INK, fontsize=8.5)
    dots.set_title("Residual and damage, losses of one stage", loc="left", fontsize=10, color=INK)
    if dots.has_data():
        _legend_below(dots, 2)


def _line(number: int) -> dict[str, Any]:
    """Its colour, and the way it is drawn where the colours begin again."""
    colours = COLOURS[1:]
    return {"color": colours[number % len(colours)], "linestyle": ("-", "--", ":")[number // len(colours) % 3]}


def _legend_below(axes: Any, columns: int) -> None:
    axes.legend(frameon=False, fontsize=7.5, ncols=columns, loc="upper center", bbox_to_anchor=(0.5, -0.14))
