"""The contest as a picture: validation losses over the time that the steps would take behind thin lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, Final

from ftnode.lab.codecs.step_seconds import LINES
from ftnode.lab.codecs.table import described
from ftnode.lab.demo.pictures import FAINT, INK
from ftnode.lab.recovery.curves import smoothed
from ftnode.lab.recovery.pictures import COLOURS, new_figure

DAY: Final = 86_400
FIRST_STEP: Final = 20
"""Before it all rows fall alike."""


def draw(told: Mapping[str, Any], results: Sequence[Mapping[str, Any]], path: Path) -> None:
    """`told`: as figures() makes it; `results`: of the runs, whose curves are drawn, the mean of the seeds."""
    lines = list(LINES)
    figure, panels = new_figure(11, 4.8, len(lines))
    for axes, line in zip(panels, lines):
        rows = [row for row in told["rows"] if row["line"] == line]
        for number, (row, trained) in enumerate(zip(rows, told["trained"], strict=True)):
            curves = [smoothed(one["curve"]) for one in results if one["row"] == trained["row"]]
            points = [
                (column[0][0] * row["seconds_per_step"] / DAY, mean(loss for _, loss in column))
                for column in zip(*curves)
                if column[0][0] >= FIRST_STEP
            ]
            label, colour = f"{described(row)}, {row['optimiser']}", COLOURS[number % len(COLOURS)]
            axes.plot([x for x, _ in points], [y for _, y in points], label=label, color=colour, linewidth=1.6)
        axes.axhline(told["target_loss"], color=INK, linewidth=0.8)
        axes.axhline(told["trigram_loss"], color=FAINT, linewidth=0.8, linestyle="--")
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlabel("days of steps", color=INK)
        axes.set_title(line, loc="left", fontsize=11, color=INK)
    panels[0].set_ylabel("validation loss, nats per token", color=INK)
    panels[-1].legend(frameon=False, fontsize=8)
    figure.savefig(path)
