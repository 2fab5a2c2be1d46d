"""Pictures of the recovery lab: damage at once, curves under losses, iterations behind."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

from ftnode.lab.demo.pictures import FAINT, INK
from ftnode.lab.recovery.curves import excess_iterations, smoothed
from ftnode.lab.recovery.plan import ALTERNATIVES, MAIN, NONE, SWAPPED
from ftnode.lab.recovery.tables import by_policy, compared, found_until, merged, reference

COLOURS = (
    "#22272e", "#cf222e", "#d9822b", "#1f6feb", "#8250df", "#1a7f37", "#bf3989", "#0a7ea4", "#9a6700", "#57606a",
)  # fmt: skip
HEADROOM = 0.35
LINEAR_BELOW = 0.1
TICKS = (0, 0.05, 0.1, 0.2, 0.5, 1, 2)
CUT_SHARE = 0.15
"""The first part of a run falls too fast to be seen with the rest."""


def draw_all(results: Any, out: Path) -> list[str]:
    """Write what the results allow; the names of the files."""
    drawn = []
    if results.at_once:
        _at_once(results.at_once, out / "at_once.png")
        drawn.append("at_once.png")
    measured = compared(results.runs)
    kinds = {(one["scale"], one["rate"], one["losing"]) for one in measured}
    for scale, rate, losing in sorted(kinds):
        runs = [one for one in measured if (one["scale"], one["rate"], one["losing"]) == (scale, rate, losing)]
        stem = f"{losing}-{rate.rstrip('%')}x{scale:.1f}"
        title = f"Losing {losing} block stages: {rate} per hour, its probability per iteration times {scale:.2f}"
        _curves(runs, [NONE.name, *(policy.name for policy in MAIN)], title, out / f"runs-{stem}.png")
        _behind(runs, title, out / f"behind-{stem}.png")
        drawn += [f"runs-{stem}.png", f"behind-{stem}.png"]
    rarest = min((scale for scale, _, losing in kinds if losing == "all"), default=0.0)
    runs = [one for one in measured if (one["scale"], one["losing"]) == (rarest, "all")]
    names = {one["policy"]["name"] for one in runs}
    for name, wanted, title in (
        ("alternatives", [NONE.name, *(p.name for p in (*ALTERNATIVES, *MAIN[2:]))], "Against the alternatives"),
        ("swap", [NONE.name, SWAPPED.name], "The cost of swapped routes without a failure"),
    ):
        if set(wanted) & names > {NONE.name}:
            _curves(runs, wanted, title, out / f"{name}.png")
            drawn.append(f"{name}.png")
    return drawn


def new_figure(width: float, height: float, columns: int = 1, grid: str = "y") -> tuple[Any, list[Any]]:
    """A figure and its panels side by side; sizes in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=110, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, columns, squeeze=False)[0]
    for one in axes:
        for side in ("top", "right"):
            one.spines[side].set_visible(False)
        one.grid(axis=grid, color="#eaeef2", linewidth=0.8)
        one.set_axisbelow(True)
        one.tick_params(colors=INK, labelsize=8)
    return figure, list(axes)


def _curves(runs: list[dict[str, Any]], wanted: list[str], title: str, path: Path) -> None:
    """Mean validation loss of the seeds per policy, and the losses of the first seed as ticks below."""
    groups = {name: found for (*_, name), found in by_policy(runs).items()}
    figure, (axes,) = new_figure(9, 5)
    until = found_until(runs)
    for name in [name for name in dict.fromkeys(wanted) if name in groups]:
        curves = [smoothed(one["curve"]) for one in groups[name]]
        points = [
            (column[0][0], mean(loss for _, loss in column))
            for column in zip(*curves)
            if CUT_SHARE * until <= column[0][0] <= until
        ]
        colour = COLOURS[wanted.index(name) % len(COLOURS)]
        axes.plot(*zip(*points), label=name, color=colour, linewidth=2.4 if name == NONE.name else 1.5)
        if name == NONE.name:
            losses = [loss for _, loss in points]
            # What never gets anywhere may leave the picture.
            axes.set_ylim(min(losses) - 0.05, max(losses) + HEADROOM * (max(losses) - min(losses)))
    axes.set_xlabel("iteration", color=INK)
    axes.set_ylabel("validation loss, nats per byte", color=INK)
    axes.set_title(title, loc="left", fontsize=11, color=INK)
    axes.legend(frameon=False, fontsize=8.5)
    figure.savefig(path)


def _behind(runs: list[dict[str, Any]], title: str, path: Path) -> None:
    """Iterations behind the run without failures: a bar per policy, a dot per seed."""
    rows = []
    for (*_, name), found in by_policy(runs).items():
        if name != NONE.name:
            rows.append((name, [excess_iterations(one["curve"], reference(runs, one)) for one in found]))
    rows.sort(key=lambda row: -mean(row[1]))
    figure, (axes,) = new_figure(8, 1.2 + 0.3 * len(rows), grid="x")
    for number, (_, values) in enumerate(rows):
        axes.barh(number, mean(values), color="#b6d3f7", height=0.7)
        axes.plot(values, [number] * len(values), "o", color="#1f6feb", markersize=4)
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.set_xlabel("iterations behind the run without failures, second half", color=INK)
    axes.set_title(title, loc="left", fontsize=11, color=INK)
    figure.savefig(path)


def _at_once(measured: list[dict[str, Any]], path: Path) -> None:
    """Excess loss right after and after 20 steps, per lost stage; normal routes of the first size and age."""
    first = measured[0]
    age = first["rows"][0]["age"]
    groups = {
        (lost, way): list(by_seed.values())
        for (size, routes, aged, lost, way), by_seed in merged(measured).items()
        if (size, routes, aged) == (first["size"], "normal", age)
    }
    losses = list(dict.fromkeys(lost for lost, _ in groups))
    ways = list(dict.fromkeys(way for _, way in groups))
    moments = (0, 1)
    figure, both = new_figure(11, 1.4 + 0.3 * len(ways), columns=len(moments), grid="x")
    for axes, moment in zip(both, moments):
        for number, lost in enumerate(losses):
            values = [mean(e[moment] for e in groups[lost, way]) if (lost, way) in groups else None for way in ways]
            points = [(value, row) for row, value in enumerate(values) if value is not None]
            axes.plot(
                *zip(*points), "o", color=COLOURS[1:][number % 9], label=f"stage {lost}", markersize=6, alpha=0.85
            )
        axes.set_yticks(range(len(ways)), ways if moment == 0 else [""] * len(ways))
        axes.invert_yaxis()
        axes.axvline(0, color=FAINT, linewidth=1)
        # The first stage's loss is worth twenty of the others'.
        axes.set_xscale("symlog", linthresh=LINEAR_BELOW)
        axes.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
        axes.set_title(f"after {first['after'][moment]} steps", loc="left", fontsize=10, color=INK)
        axes.set_xlabel("validation loss above the undamaged model's, nats per byte", color=INK, fontsize=8.5)
    both[0].legend(frameon=False, fontsize=8)
    figure.suptitle(f"One loss after {age} steps ({first['size']})", x=0.01, ha="left", fontsize=12, color=INK)
    figure.savefig(path)
