"""`curves.png` of `ftnode lab elastic`: the training loss with and without killed replicas, and how far apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ftnode.lab.benchmarks.elastic_times import Curve, differences
from ftnode.lab.demo.pictures import BLUE, FAINT, INK, ORANGE, RED

SMALLEST = 1e-8
"""Where a difference of nothing is drawn, which has no place on a logarithmic axis."""


def draw_curves(
    path: Path, *, undisturbed: Curve, again: Curve, disturbed: Curve, killed: Sequence[int], joined: Sequence[int]
) -> None:
    """Write the picture. `again`: undisturbed once more. `killed`: the steps in which a replica was lost; `joined`:
    those before which a newcomer had its place."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6.6), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[5, 2])
    figure.subplots_adjust(left=0.085, right=0.965, top=0.87, bottom=0.085, hspace=0.1)
    figure.text(
        0.085,
        0.95,
        "The same training, undisturbed and with replicas killed",
        fontsize=15,
        fontweight="bold",
        color=INK,
    )
    text = f"{len(killed)} replicas SIGKILLed in the middle of a step (red); {len(joined)} newcomers joined (dotted)"
    figure.text(0.085, 0.908, text, fontsize=10, color=FAINT)
    above.plot(*zip(*undisturbed), color=BLUE, linewidth=3.2, alpha=0.55, label="undisturbed")
    above.plot(*zip(*disturbed), color=ORANGE, linewidth=1.2, label="replicas killed")
    above.set_ylabel("training loss, nats per byte", color=INK, fontsize=10)
    for curve, colour, label in (
        (again, FAINT, "undisturbed, once more"),
        (disturbed, ORANGE, "replicas killed"),
    ):
        sizes = [(step, max(SMALLEST, abs(size))) for step, size in differences(curve, undisturbed)]
        below.plot(*zip(*sizes), color=colour, linewidth=1.2, label=label)
    below.set_yscale("log")
    below.set_ylabel("difference to\nundisturbed", color=INK, fontsize=10)
    below.set_xlabel("step", color=INK, fontsize=10)
    for axes, place in ((above, "upper right"), (below, "upper left")):
        _mark(axes, killed, joined)
        legend = axes.legend(loc=place, fontsize=9, labelcolor=INK, facecolor="white", edgecolor="none", framealpha=0.9)
        legend.set_zorder(7)
    figure.savefig(path)


def _mark(axes: Any, killed: Sequence[int], joined: Sequence[int]) -> None:
    for step in killed:
        axes.axvline(step, color=RED, linewidth=1, alpha=0.7, zorder=1)
    for step in joined:
        axes.axvline(step, color=FAINT, linewidth=1, linestyle=(0, (2, 3)), zorder=1)
    axes.grid(axis="y", color="#eaeef2", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#d0d7de")
    axes.tick_params(colors=INK, labelsize=9, length=3, color="#d0d7de")
