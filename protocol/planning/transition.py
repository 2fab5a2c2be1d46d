"""From one layout to another: machines that are alike change places so that little is moved, and what moving takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isclose
from typing import Final

from ftnode.protocol.planning.matching import least_cost
from ftnode.protocol.planning.schedule import Machine
from ftnode.protocol.planning.swarm import Holders, Swarm, as_before, stages_of

ALIKE: Final = 0.05
"""Machines whose paces and lines differ by no more than this share may change places. A schedule is not more exact."""
_near: Final = partial(isclose, rel_tol=ALIKE, abs_tol=1e-12)


@dataclass(frozen=True, slots=True)
class Move:
    """A stage's state on its way. `donor`: who sends it; of a stage that nobody has, one of its neighbours."""

    stage: int
    donor: str
    receiver: str
    size: int


@dataclass(frozen=True, slots=True)
class Transition:
    """`seconds`: until all have what they need, all moves at the same time. `limiting`: whose line they wait for."""

    seconds: float
    limiting: str
    moves: tuple[Move, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(move.size for move in self.moves)


def placed(swarm: Swarm, present: Holders, wanted: Holders, states: Sequence[int]) -> Holders:
    """The wanted layout with machines that are alike in other places, so that the fewest bytes are moved: a cost for
    each machine in each place, and the least sum (Odyssey, section IV-B). `states`: bytes of each stage's state. As
    many bytes, and the machine that is wanted in a place has it."""
    had = {name: {*stages} for name, stages in stages_of(present).items()}
    places = stages_of(wanted)
    names = sorted(swarm.machines)
    most = 1 + (len(names) + 1) * sum(states) * len(names)

    kinds = {name: _kind(machine) for name, machine in swarm.machines.items()}

    def cost(name: str, place: str) -> int:
        stages = places.get(place, ())
        if name != place and not (_alike(kinds[name], kinds[place]) and swarm.fits(name, stages)):
            return most
        missing = sum(states[stage] for stage in stages if stage not in had.get(name, ()))
        return missing * (len(names) + 1) + (name != place)

    chosen = least_cost([[cost(name, place) for place in names] for name in names])
    taken = {names[column]: name for name, column in zip(names, chosen)}
    return as_before([[taken[place] for place in group] for group in wanted], present)


def transition(
    machines: Mapping[str, Machine], present: Holders, wanted: Holders, states: Sequence[int]
) -> Transition | None:
    """What it takes. Donors are those of the present holders that are among `machines`, each with as little to do as
    can be. A stage that none of them has is blended from both neighbours that are nearest, of which each sends its own
    state. None: nobody has anything.

    All moves at once take as long as the busiest line: each gets so much of a line as lets all of them end together.
    """
    alive = [tuple(name for name in group if name in machines) for group in present]
    held = {name: {*stages} for name, stages in stages_of(tuple(alive)).items()}
    if not held:
        return None
    needs: list[tuple[int, int, str]] = []
    for receiver, stages in sorted(stages_of(wanted).items()):
        for stage in stages:
            if stage not in held.get(receiver, ()):
                needs += [(states[source], source, receiver) for source in _sources(stage, alive)]
    up, down = dict.fromkeys(machines, 0.0), dict.fromkeys(machines, 0.0)
    moves: list[Move] = []
    for size, source, receiver in sorted(needs, key=lambda need: (-need[0], need[1:])):
        if receiver in alive[source]:
            continue
        lines = {name: machines[name].line for name in alive[source]}
        donor = min(alive[source], key=lambda name: (up[name] + size / lines[name].up, name))
        moves.append(Move(source, donor, receiver, size))
        up[donor] += size / lines[donor].up
        down[receiver] += size / machines[receiver].line.down
    if not moves:
        return Transition(0.0, "", ())
    limiting = max(machines, key=lambda name: (max(up[name], down[name]), name))
    delay = max(machines[name].line.delay_seconds for move in moves for name in (move.donor, move.receiver))
    return Transition(max(up[limiting], down[limiting]) + 2 * delay, limiting, tuple(moves))


def _sources(stage: int, alive: Sequence[tuple[str, ...]]) -> list[int]:
    """The stages whose states are needed for this one."""
    if alive[stage]:
        return [stage]
    before = [other for other in range(stage) if alive[other]][-1:]
    after = [other for other in range(stage + 1, len(alive)) if alive[other]][:1]
    return before + after


Kind = tuple[frozenset[int], tuple[float, ...]]
"""The stages that a machine can hold, and its numbers: of its line, and of each stage."""


def _kind(machine: Machine) -> Kind:
    line, paces = machine.line, machine.paces
    seconds = (sum(paces[stage]) for stage in sorted(paces))
    return frozenset(paces), (line.up, line.down, line.delay_seconds, *seconds)


def _alike(one: Kind, other: Kind) -> bool:
    return one[0] == other[0] and all(map(_near, one[1], other[1]))
