"""Some numbers of a stage's state, drawn by a key: weights, and what the optimiser remembers of them.

Whoever keeps a copy of a stage that one peer holds alone asks for the same numbers before and after a step, and sees
from them how the stage was trained (models/retrace.py). Which these are is the same on every machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ftnode.models.state_plan import MOMENTS, StatePlan, rule_of

PREFIX: Final = "sample-"
SIDE: Final = 64
NUMBERS: Final = SIDE * SIDE
"""So many numbers with two moments are 48 KiB as float32, whatever the size of the stage. They are tiles of matrices,
so that all of their directions can count alike (models/course.py)."""
KEYS: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class Piece:
    """Numbers of one matrix, in a row. `begins`: where they lie in the state: the weights, and then each moment.
    `tile`: its number; the pieces of a tile follow each other."""

    rule: str
    """Of MOMENTS."""
    numbers: int
    begins: tuple[int, ...]
    tile: int


def parts_of(key: int) -> str:
    """What a request for the sample of this key names as parts."""
    return f"{PREFIX}{key}"


def key_of(parts: str) -> int | None:
    """None: these parts are no sample."""
    digits = parts.removeprefix(PREFIX)
    proper = digits != parts and digits.isascii() and digits.isdecimal() and len(digits) <= 10
    return int(digits) if proper and int(digits) < KEYS else None


def pieces(plan: StatePlan, stage: int, key: int) -> list[Piece]:
    """The rows of tiles of some matrices, until there are NUMBERS of them; one tile of each at most."""
    weights, moments = plan.entries(stage, "weights"), plan.entries(stage, "optimiser")
    size, found, numbers = plan.numbers(stage, "weights"), list[Piece](), 0
    matrices = sorted((_drawn(key, name), name) for name, (_, shape) in weights.items() if len(shape) == 2)
    for tile, (_, name) in enumerate(matrices):
        if numbers >= NUMBERS:
            break
        offset, (rows, columns) = weights[name]
        height, width = min(rows, SIDE), min(columns, SIDE)
        top = _drawn(key, f"{name}/top") % (rows - height + 1)
        left = _drawn(key, f"{name}/left") % (columns - width + 1)
        rule = rule_of(plan.optimiser, name, (rows, columns))
        starts = [0, *(size + moments[f"{name}.{moment}"][0] - offset for moment in MOMENTS[rule])]
        for row in range(top, top + height):
            begin = offset + row * columns + left
            found.append(Piece(rule, width, tuple(begin + start for start in starts), tile))
        numbers += height * width
    return found


def sample_numbers(drawn: Sequence[Piece]) -> int:
    """How many the sample has."""
    return sum(piece.numbers * len(piece.begins) for piece in drawn)


def _drawn(key: int, what: str) -> int:
    """The same on every machine."""
    return int.from_bytes(hashlib.blake2b(f"{key}/{what}".encode(), digest_size=8).digest(), "big")
