"""What there is to lay out: machines with room and a pace, and the stages of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from ftnode.protocol.lines.step_estimate import Line
from ftnode.protocol.planning.schedule import NO_LINE, Batch, Layout, Machine

Holders = tuple[tuple[str, ...], ...]
"""Of each stage, the head's first, as in a Layout."""
ANY_NUMBER: Final = 1_000_000
Range = tuple[int, int]
"""The first and the last stage that somebody holds. Between them are no gaps."""


@dataclass(frozen=True, slots=True)
class Swarm:
    """`machines`: by name. One that has no pace for a stage cannot hold it. `room`: bytes of each, by the same names;
    `sizes`: bytes that each stage takes there, the head's first. Where memory is counted in stages, `sizes` are ones.
    `replicas`: holders of a stage, at most."""

    machines: Mapping[str, Machine]
    room: Mapping[str, int]
    sizes: tuple[int, ...]
    batch: Batch
    replicas: int = ANY_NUMBER

    def fits(self, name: str, stages: Sequence[int]) -> bool:
        """Whether this machine can hold them all at once."""
        paces = self.machines[name].paces
        return all(stage in paces for stage in stages) and sum(self.sizes[stage] for stage in stages) <= self.room[name]

    def feasible(self, holders: Holders) -> bool:
        """Every stage is held, by machines that are there, and each has room for what it holds."""
        held = stages_of(holders)
        return (
            len(holders) == len(self.sizes)
            and all(0 < len(group) <= self.replicas for group in holders)
            and all(name in self.machines and self.fits(name, stages) for name, stages in held.items())
        )

    def layout(self, holders: Holders) -> Layout:
        return Layout(holders, {name: self.machines[name] for group in holders for name in group})


def alike(block: tuple[float, float], head: tuple[float, float], stages: int, line: Line = NO_LINE) -> Machine:
    """A machine with one pace for each of `stages` block stages, and another one for the head."""
    return Machine(dict.fromkeys(range(1, stages + 1), block) | {0: head}, line)


def stages_of(holders: Holders) -> dict[str, tuple[int, ...]]:
    """Who holds which stages, by name."""
    held: dict[str, tuple[int, ...]] = {}
    for stage, group in enumerate(holders):
        for name in group:
            held[name] = (*held.get(name, ()), stage)
    return held


def holders_of(held: Mapping[str, Range], stages: int, present: Holders = ()) -> Holders:
    """Of each of `stages` stages, the head among them. Who holds one at present comes first, in its order."""
    groups: list[list[str]] = [[] for _ in range(stages)]
    for name, (first, last) in sorted(held.items()):
        for stage in range(first, last + 1):
            groups[stage].append(name)
    return as_before(groups, present) if present else tuple(map(tuple, groups))


def as_before(groups: Sequence[Sequence[str]], present: Holders) -> Holders:
    """In each group whoever holds the stage at present comes first, in its order, and then the others, by name."""
    return tuple(
        (*(name for name in before if name in group), *sorted(name for name in group if name not in before))
        for group, before in zip(groups, present)
    )


def in_words(holders: Holders) -> str:
    """Stages with the same holders are named together."""
    parts = []
    for group, stages in groupby(range(len(holders)), key=lambda stage: holders[stage]):
        numbers = [*stages]
        first, last = ("head" if number == 0 else str(number) for number in (numbers[0], numbers[-1]))
        parts.append(f"{first if first == last else f'{first} to {last}'}: {', '.join(group) or 'nobody'}")
    return "; ".join(parts)
