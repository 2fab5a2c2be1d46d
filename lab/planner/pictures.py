"""Pictures of the planner's report: a course of failures, other settings, and volunteers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ftnode.lab.demo.pictures import FAINT, INK
from ftnode.lab.planner.setting import HOUR
from ftnode.lab.recovery.pictures import new_figure

COLOURS: Final = {
    "planner": "#1f6feb", "oobleck": "#d9822b", "recycle": "#cf222e", "bamboo": "#8250df", "ladder": "#1a7f37",
}  # fmt: skip
SIZES: Final = {"recycle": 8, "ladder": 5}
"""Of dots. These two often lie in one place."""
NAMES: Final = {
    "planner": "planner", "oobleck": "Oobleck", "recycle": "ReCycle", "bamboo": "Bamboo", "ladder": "CheckFree, ladder",
}  # fmt: skip


def draw_all(found: Mapping[str, Any], out: Path) -> None:
    """What the results allow, into planner-course.png, planner-settings.png, planner-volunteers.png and
    planner-open.png."""
    if "course" in found:
        _course(found["course"], found["assumed"]["hours"], out / "planner-course.png")
    if found.get("settings"):
        _settings(found["settings"], out / "planner-settings.png")
    if "volunteers" in found:
        _volunteers(found["volunteers"]["draws"], out / "planner-volunteers.png")
    if "second_attempt" in found:
        _open(found["second_attempt"], out / "planner-open.png")


def _course(course: Mapping[str, Any], hours: float, path: Path) -> None:
    figure, (axes,) = new_figure(9, 3.6)
    times = [at / HOUR for at, _ in course["machines"]]
    for name in ("recycle", "oobleck", "planner"):
        rates = course["rates"][name]
        style = "--" if name == "oobleck" else "-"
        axes.step([*times, hours], [*rates, rates[-1]], style, where="post", color=COLOURS[name], label=NAMES[name],
                  linewidth=2.2 if name == "planner" else 1.4, zorder=2 + (name == "oobleck"))  # fmt: skip
    axes.set_xlabel("hours", color=INK)
    axes.set_ylabel("microbatches a second", color=INK)
    axes.set_ylim(bottom=0)
    there = axes.twinx()
    counts = [count for _, count in course["machines"]]
    there.step([*times, hours], [*counts, counts[-1]], where="post", color=FAINT, linewidth=1)
    there.set_ylabel("machines (thin line)", color=INK)
    there.set_ylim(bottom=0)
    axes.set_title("A course of failures, the first seed", loc="left", fontsize=11, color=INK)
    axes.legend(frameon=False, fontsize=8.5, loc="lower left")
    figure.savefig(path)


def _settings(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Each rival's work as a share of the planner's; what lies right of the line does more than the planner."""
    figure, (axes,) = new_figure(9, 1.2 + 0.28 * len(rows), grid="x")
    for number, one in enumerate(rows):
        work = one["microbatches_a_second"]
        for name in ("recycle", "oobleck", "bamboo", "ladder"):
            share = work[name] / work["planner"] if work["planner"] else 0.0
            axes.plot([share], [number], "o", color=COLOURS[name], markersize=SIZES.get(name, 6),
                      label=NAMES[name] if number == 0 else None)  # fmt: skip
    axes.axvline(1.0, color=COLOURS["planner"], linewidth=1.6, label="planner")
    axes.axvline(1.02, color=FAINT, linewidth=1, linestyle="--")
    axes.set_yticks(range(len(rows)), [one["name"] for one in rows])
    axes.invert_yaxis()
    axes.set_xlim(left=min(0.6, *axes.get_xlim()), right=1.06)
    axes.set_xlabel("work, as a share of the planner's; dashed: 2 % more than it", color=INK)
    axes.legend(frameon=False, fontsize=8.5, loc="lower left")
    figure.savefig(path)


def _volunteers(draws: Sequence[Mapping[str, Any]], path: Path) -> None:
    good = sorted((one for one in draws if one["tokens_a_second"]), key=lambda one: -one["tokens_a_second"])
    figure, (axes,) = new_figure(9, 3.6)
    for shift, key, label, colour in (
        (-0.27, "equal", "equal stages, in order of arrival", "#cf222e"),
        (0.0, "fastest_first", "equal stages, the fastest first", "#d9822b"),
        (0.27, "tokens_a_second", "the layout that was found", COLOURS["planner"]),
    ):
        axes.bar([number + shift for number in range(len(good))], [one[key] for one in good], 0.27, label=label,
                 color=colour)  # fmt: skip
    axes.set_xticks([])
    axes.set_xlabel("draws of 20 volunteers", color=INK)
    axes.set_ylabel("tokens a second", color=INK)
    axes.legend(frameon=False, fontsize=8.5)
    figure.savefig(path)


def _open(found: Mapping[str, Any], path: Path) -> None:
    """What the planner reaches over each rival, up to what nobody exceeds in ranges, by assumption."""
    rows = found["lines"]
    figure, panels = new_figure(11, 1.4 + 0.3 * len(rows), 2, grid="x")
    for axes, goal, rivals in (
        (panels[0], "oobleck", (("oobleck", "at its best"), ("oobleck_published", "fixed templates"))),
        (panels[1], "recycle", (("recycle", "at its best"), ("recycle_published", "equation 13"))),
    ):
        for shift, colour, (rival, label) in zip((-0.15, 0.15), (COLOURS["planner"], COLOURS["oobleck"]), rivals):
            for number, one in enumerate(rows):
                ratio, most = one["planner_over"].get(rival), one["most_over"]["ranges"].get(rival)
                if ratio is not None and most is not None:
                    axes.plot([ratio, most], [number + shift] * 2, "-", color=colour, linewidth=1.4, alpha=0.6)
                    axes.plot([ratio], [number + shift], "o", color=colour, markersize=6,
                              label=label if number == 0 else None)  # fmt: skip
        axes.axvline(found["goals"][goal], color=FAINT, linewidth=1.2, linestyle="--", label="goal")
        axes.set_yticks(range(len(rows)), [one["name"] for one in rows] if axes is panels[0] else [""] * len(rows))
        axes.invert_yaxis()
        axes.set_xlim(left=0.9)
        axes.set_xlabel(f"planner over {NAMES[goal]}; lines end where nobody gets further", color=INK)
        axes.legend(frameon=False, fontsize=8.5, loc="lower right")
    figure.savefig(path)
