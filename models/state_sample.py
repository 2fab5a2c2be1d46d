"""Some numbers of a stage's state, drawn by a key: weights, and what the optimiser remembers of them.

Whoever keeps a copy of a stage that one peer holds alone asks for the same numbers before and after a step, and sees
from them how the stage was trained (models/retrace.py). Which these are is the same on every machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from ftnode.models.state_plan import MOMENTS, StatePlan, rule_of

PREFIX: Final = "sample-"
BLOCKS: Final = 16
BLOCK_NUMBERS: Final = 256
"""16 blocks of 256 numbers with two moments are 48 KiB as float32, whatever the size of the stage. Noise of so many
numbers has a cosine of 0.016 with anything on the average, and four times as many tell hardly more (decision 0072)."""
KEYS: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class Piece:
    """Numbers of one tensor, in a row. `begins`: where they lie in the state: the weights, and then each moment."""

    rule: str
    """Of MOMENTS."""
    decays: bool
    numbers: int
    begins: tuple[int, ...]


def parts_of(key: int) -> str:
    """What a request for the sample of this key names as parts."""
    return f"{PREFIX}{key}"


def key_of(parts: str) -> int | None:
    """None: these parts are no sample."""
    digits = parts.removeprefix(PREFIX)
    proper = digits != parts and digits.isascii() and digits.isdecimal() and len(digits) <= 10
    return int(digits) if proper and int(digits) < KEYS else None


def pieces(plan: StatePlan, stage: int, key: int) -> list[Piece]:
    """Blocks here and there in the weights; all of them where there are no more."""
    weights, moments = plan.entries(stage, "weights"), plan.entries(stage, "optimiser")
    size, found = plan.numbers(stage, "weights"), list[Piece]()
    drawn = _blocks(key, -(-size // BLOCK_NUMBERS))
    for name, (offset, shape) in weights.items():
        rule, end = rule_of(plan.optimiser, name, shape), offset + prod(shape)
        rows = [offset, *(size + moments[f"{name}.{moment}"][0] for moment in MOMENTS[rule])]
        for block in drawn:
            begin = max(offset, block * BLOCK_NUMBERS)
            numbers = min(end, (block + 1) * BLOCK_NUMBERS) - begin
            if numbers > 0:
                found.append(Piece(rule, len(shape) == 2, numbers, tuple(row + begin - offset for row in rows)))
    return found


def sample_numbers(drawn: Sequence[Piece]) -> int:
    """How many the sample has."""
    return sum(piece.numbers * len(piece.begins) for piece in drawn)


def _blocks(key: int, count: int) -> list[int]:
    if count <= BLOCKS:
        return [*range(count)]
    found, turn = set[int](), 0
    while len(found) < BLOCKS:
        drawn = hashlib.blake2b(f"{key}/{turn}".encode(), digest_size=8).digest()
        found.add(int.from_bytes(drawn, "big") % count)
        turn += 1
    return sorted(found)
