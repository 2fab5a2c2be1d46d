"""`loss.png`: the training loss, what was lost and how it came back, and the tables that a model has to beat."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from ftnode.lab.demo.baselines import Baselines
from ftnode.lab.demo.report import SURVIVORS, Recovery
from ftnode.node.watch.status_table import spoken_rung
from ftnode.protocol.words.types import spoken_stage

INK, FAINT, BLUE, ORANGE, RED, GREEN = "#22272e", "#8b949e", "#1f6feb", "#d9822b", "#cf222e", "#1a7f37"
PARTS = (
    ("detect", "detect_seconds", "#cf222e"),
    ("elect", "elect_seconds", "#d9822b"),
    ("fetch", "fetch_seconds", "#8250df"),
    ("blend", "blend_seconds", "#1a7f37"),
    ("first step", "first_step_seconds", "#1f6feb"),
)
SMOOTHING_STEPS = 15
LETTERS_MAX = 30
"""Of a line of words in the picture, so that they end before the legend; four lines are 62 points high."""
CUT_ONE_IN = 40
"""This part of the steps, at the beginning, does not decide the height of the picture."""


def draw_loss(
    path: Path,
    *,
    losses: Sequence[tuple[int, float]],
    evaluated: Sequence[tuple[int, float]],
    recoveries: Sequence[Recovery],
    baselines: Baselines | None,
    title: str,
    subtitle: str,
) -> None:
    """Write the picture. `losses` and `evaluated` are (step, nats per byte), in order, `losses` not empty."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = len(recoveries)
    figure = Figure(figsize=(10, 5.6 + (0.75 + 0.32 * rows if rows else 0)), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    heights = [5.0, 0.45 + 0.32 * rows] if rows else [5.0]
    grid = figure.add_gridspec(len(heights), 1, height_ratios=heights, hspace=0.36)
    figure.subplots_adjust(left=0.075, right=0.885, top=0.87, bottom=0.1)
    figure.text(0.075, 0.95, title, fontsize=15, fontweight="bold", color=INK, va="center")
    figure.text(0.075, 0.908, subtitle, fontsize=10, color=FAINT, va="center")
    _draw_curve(figure.add_subplot(grid[0]), losses, evaluated, recoveries, baselines)
    if rows:
        _draw_outages(figure.add_subplot(grid[1]), recoveries)
    figure.savefig(path)


def smooth(losses: Sequence[tuple[int, float]]) -> list[float]:
    """Mean over a window centred on each step, narrower at both ends so that it stays centred."""
    steps = min(SMOOTHING_STEPS, len(losses) // 10)
    values, last = np.array([loss for _, loss in losses]), len(losses) - 1
    halves = [min(steps // 2, i, last - i) for i in range(len(values))]
    return [float(values[i - half : i + half + 1].mean()) for i, half in enumerate(halves)]


def _draw_curve(
    axes: Any,
    losses: Sequence[tuple[int, float]],
    evaluated: Sequence[tuple[int, float]],
    recoveries: Sequence[Recovery],
    baselines: Baselines | None,
) -> None:
    steps = [step for step, _ in losses]
    axes.plot(steps, [loss for _, loss in losses], color=BLUE, alpha=0.25, linewidth=0.9)
    axes.plot(steps, smooth(losses), color=BLUE, linewidth=2, label="training", solid_capstyle="round")
    if evaluated:
        at, value = zip(*evaluated)
        axes.plot(at, value, "o", color=INK, markersize=5.5, markeredgecolor="white", label="validation", zorder=5)
        axes.annotate(
            f"{value[-1]:.3f}", (at[-1], value[-1]), (0, -9), textcoords="offset points", ha="center", va="top",
            fontsize=10, fontweight="bold", color=INK,
        )  # fmt: skip
    _frame(axes, steps, losses, evaluated, baselines)
    if baselines is not None:
        for name, level in (("bigram table", baselines.bigram), ("trigram table", baselines.trigram)):
            axes.axhline(level, color=FAINT, linewidth=1, linestyle=(0, (5, 4)), zorder=1)
            axes.annotate(
                f"{name}\n{level:.2f}", (1, level), (6, 0), xycoords=("axes fraction", "data"),
                textcoords="offset points", fontsize=9, color=FAINT, va="center", linespacing=1.2,
            )  # fmt: skip
    top = axes.get_ylim()[1]
    for index, recovery in enumerate(recoveries):
        axes.axvline(recovery.step, color=RED, linewidth=1.2, alpha=0.75, zorder=3)
        near_end = recovery.step > steps[0] + 0.7 * (steps[-1] - steps[0])
        lost = f"{spoken_stage(recovery.stage)} lost at step {recovery.step}"
        back = fill(f"{origin(recovery.rung)}, redone after {recovery.outage_seconds:.1f} s", LETTERS_MAX)
        axes.annotate(
            f"{lost}\n{back}", (recovery.step, top), (-7 if near_end else 7, -10 - 62 * index),
            textcoords="offset points", ha="right" if near_end else "left", va="top", fontsize=9.5, color=RED,
            linespacing=1.35, zorder=6,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 2},
        )  # fmt: skip
    legend = axes.legend(frameon=False, loc="upper right", fontsize=10, labelcolor=INK)
    legend.set_zorder(7)


def origin(rung: str) -> str:
    """Of the weights that the stage goes on with."""
    return "others did its part" if rung == SURVIVORS else f"back from {spoken_rung(rung)}"


def _frame(
    axes: Any,
    steps: Sequence[int],
    losses: Sequence[tuple[int, float]],
    evaluated: Sequence[tuple[int, float]],
    baselines: Baselines | None,
) -> None:
    lowest = [loss for _, loss in (*losses, *evaluated)]
    if baselines is not None:
        lowest += [baselines.bigram, baselines.trigram]
    # The first steps fall so fast that all the rest would be flat: they may leave the picture at the top.
    bottom, top = min(lowest), max(loss for _, loss in losses[len(losses) // CUT_ONE_IN :])
    room = max(0.05, top - bottom)
    axes.set_ylim(bottom - 0.12 * room, top + 0.04 * room)
    axes.set_xlim(steps[0] - 0.01 * len(steps), steps[-1] + max(1.0, 0.02 * len(steps)))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("step", color=INK, fontsize=10)
    axes.set_ylabel("nats per byte", color=INK, fontsize=10)
    axes.grid(axis="y", color="#eaeef2", linewidth=0.8)
    axes.set_axisbelow(True)
    _clean(axes)


def _draw_outages(axes: Any, recoveries: Sequence[Recovery]) -> None:
    """One bar per outage, its parts after one another on one time axis."""
    longest = max(recovery.outage_seconds for recovery in recoveries)
    for row, recovery in enumerate(recoveries):
        left = 0.0
        for name, field, colour in PARTS:
            width = getattr(recovery, field)
            axes.barh(row, width, left=left, height=0.62, color=colour, edgecolor="white", linewidth=1,
                      label=f"{name} {width:.2f}" if len(recoveries) == 1 else name if row == 0 else None)  # fmt: skip
            if width > 0.07 * longest:
                axes.text(left + width / 2, row, f"{width:.2f}", ha="center", va="center", fontsize=8.5, color="white")
            left += width
        axes.text(left + 0.008 * longest, row, f"{recovery.outage_seconds:.2f} s", va="center", fontsize=9, color=INK)
    axes.set_yticks(range(len(recoveries)), [f"stage {recovery.stage}" for recovery in recoveries])
    axes.set_ylim(len(recoveries) - 0.45, -0.55)
    axes.set_xlim(0, longest * 1.09)
    axes.set_xlabel("seconds from SIGKILL to the next committed step", color=INK, fontsize=10)
    axes.legend(frameon=False, ncols=len(PARTS), loc="lower left", bbox_to_anchor=(-0.005, 0.97), fontsize=9,
                labelcolor=INK, handlelength=1, handleheight=1, columnspacing=1.4)  # fmt: skip
    _clean(axes)


def _clean(axes: Any) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#d0d7de")
    axes.tick_params(colors=INK, labelsize=9, length=3, color="#d0d7de")
