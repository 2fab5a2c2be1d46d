"""Ten locations, and how long a tensor is on its way from each to each.

The table is that of DT-FM (Yuan et al. 2022, DS3Lab/DT-FM, scheduler/generate_sim_com_matrices.py): ten regions of a
cloud. The first author of GWTF has the same numbers in NikolayBlagoev/DecCom-Python, testarpegio.py. Whether GWTF's
paper has them was not found out. Both take a number as the delay of one way, and have 10 ms between two at one
location. So does this. They are more like round trips: in a later table of that author (gensyn-ai/skippipe,
schedulers/communication_costs.py) it is 64 ms from Oregon to London, and not 136. The bandwidths of the table, 326
Mbit/s and more, are above what any volunteer here has up, and are left out.

The schedule has one delay for each line, and half of two lines' delays from one to the other. So each location has a
delay to a middle that all have in common, fitted to the pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import mean
from typing import Final

LOCATIONS: Final = ("Oregon", "Virginia", "Ohio", "Tokyo", "Seoul", "Singapore", "Sydney", "London", "Frankfurt",
                    "Ireland")  # fmt: skip
TABLE_MS: Final = (
    (67, 49, 96, 124, 163, 139, 136, 143, 124),
    (11, 143, 172, 230, 197, 76, 90, 67),
    (130, 159, 197, 185, 86, 99, 77),
    (34, 73, 100, 210, 223, 199),
    (74, 148, 238, 235, 228),
    (92, 169, 155, 179),
    (262, 265, 254),
    (14, 12),
    (24,),
)
"""From each location to each of those that come after it."""
WITHIN_SECONDS: Final = 0.01
"""Between two at one location."""

Pairs = Mapping[tuple[int, int], float]
"""Two numbers of locations, the lower first → seconds of one way."""


def pairs() -> dict[tuple[int, int], float]:
    return {
        (one, one + 1 + place): milliseconds / 1000
        for one, row in enumerate(TABLE_MS)
        for place, milliseconds in enumerate(row)
    }


def to_the_middle(delays: Pairs, count: int) -> list[float]:
    """Seconds for each of `count` locations, more than two, so that the squares of what two of them together are off
    are least. Each sum of a location's pairs is (count - 2) times its own delay and once those of all."""
    of_all = sum(delays.values()) / (count - 1)
    own = [sum(seconds for pair, seconds in delays.items() if number in pair) for number in range(count)]
    return [(one - of_all) / (count - 2) for one in own]


def errors(delays: Pairs, middle: Sequence[float]) -> list[float]:
    """Seconds that each pair has too many by its delays to the middle."""
    return [middle[one] + middle[other] - seconds for (one, other), seconds in delays.items()]


def line_delays() -> tuple[float, ...]:
    """Of a line at each location, as the schedule takes it: twice the way to the middle."""
    return tuple(2 * one for one in to_the_middle(pairs(), len(LOCATIONS)))


def figures() -> dict[str, object]:
    """What is assumed of locations, for planner.json. ms."""
    table = pairs()
    middle = to_the_middle(table, len(LOCATIONS))
    off = errors(table, middle)
    return {
        "pairs_ms": {f"{LOCATIONS[one]} - {LOCATIONS[other]}": round(1e3 * s) for (one, other), s in table.items()},
        "to_the_middle_ms": {name: 1e3 * one for name, one in zip(LOCATIONS, middle)},
        "fit": {
            "pairs_mean_ms": 1e3 * mean(table.values()),
            "error_root_mean_square_ms": 1e3 * sqrt(mean(one * one for one in off)),
            "error_worst_ms": 1e3 * max(map(abs, off)),
        },
    }
