"""How the machines that are there can be arranged, and how long a step takes then: in groups that share stages, as
ReCycle, CheckFree and this project do, or in pipelines side by side, as Oobleck and Bamboo do.

All are timed by the same schedule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from ftnode.lab.planner.setting import Setting
from ftnode.protocol.planning.schedule import Batch, Layout, Machine, step_timing
from ftnode.protocol.planning.swarm import Holders, Range, Swarm, holders_of


@dataclass(frozen=True, slots=True)
class Arrangement:
    """`holders`: of each layer, the head's first; `seconds`: of a step; `what`: for people."""

    what: str
    holders: Holders
    seconds: float


def swarm_of(setting: Setting, there: Sequence[str]) -> Swarm:
    machine = setting.machine
    return Swarm(
        dict.fromkeys(there, machine), dict.fromkeys(there, setting.room), (0, *[1] * setting.layers), setting.batch
    )


def layers_of(setting: Setting, parts: int) -> list[Range]:
    """The layers, the first one with the head, in so many parts that are as equal as can be."""
    cuts = [part * setting.layers // parts for part in range(parts + 1)]
    return [(first + 1 if first else 0, last) for first, last in pairwise(cuts)]


def grouped(setting: Setting, what: str, groups: Mapping[str, int], parts: int) -> Arrangement:
    """`groups`: name → the part that it holds, of `parts` equal ones. Each part has somebody."""
    ranges = layers_of(setting, parts)
    holders = holders_of({name: ranges[part] for name, part in groups.items()}, setting.layers + 1)
    sizes = tuple(sum(1 for part in groups.values() if part == one) for one in range(parts))
    return Arrangement(what, holders, _grouped_seconds(setting, sizes))


@lru_cache(maxsize=4096)
def _grouped_seconds(setting: Setting, sizes: tuple[int, ...]) -> float:
    ranges = layers_of(setting, len(sizes))
    held = {f"{part}.{number:03}": ranges[part] for part, size in enumerate(sizes) for number in range(size)}
    holders = holders_of(held, setting.layers + 1)
    return step_timing(Layout(holders, dict.fromkeys(held, setting.machine)), setting.batch).seconds


@lru_cache(maxsize=4096)
def pipeline_seconds(setting: Setting, layers: tuple[int, ...], microbatches: int) -> float:
    """Of one pipeline whose machines have so many layers each."""
    if not microbatches:
        return 0.0
    machines, holders = dict[str, Machine](), [("0",)]
    for place, count in enumerate(layers):
        pace = count * setting.forward_seconds, count * setting.backward_seconds
        machines[f"{place}"] = Machine({0: (0.0, 0.0), place + 1: pace}, setting.line)
        holders.append((str(place),))
    batch = Batch(microbatches, microbatches, setting.batch.tensors, fused=True)
    return step_timing(Layout(tuple(holders), machines), batch).seconds


@lru_cache(maxsize=4096)
def pipelines_seconds(setting: Setting, pipelines: tuple[tuple[int, ...], ...]) -> float:
    """Of pipelines side by side: microbatches go one after the other to the pipeline that is done first with one more
    (Odyssey's equation 10, with its batch distribution done well)."""
    given = [0] * len(pipelines)
    slowest = [max(layers) for layers in pipelines]
    for _ in range(setting.microbatches):
        place = min(range(len(pipelines)), key=lambda one: ((len(pipelines[one]) + given[one]) * slowest[one], one))
        given[place] += 1
    return max(pipeline_seconds(setting, layers, count) for layers, count in zip(pipelines, given))


def side_by_side(setting: Setting, what: str, pipelines: Sequence[Sequence[str]], seconds: float) -> Arrangement:
    """Pipelines by the names of their machines."""
    held = {name: one for names in pipelines for name, one in zip(names, layers_of(setting, len(names)))}
    return Arrangement(what, holders_of(held, setting.layers + 1), seconds)


def templates(setting: Setting, there: Sequence[str]) -> Arrangement | None:
    """The best pipelines that use every machine: for each number of pipelines, machines and layers divided as equally
    as can be (Oobleck's templates, with its planning done well). None where memory is too small for even one."""
    shortest = -(-setting.layers // setting.room)
    found: list[tuple[float, int]] = []
    for count in range(1, len(there) // shortest + 1):
        sizes = _sizes(len(there), count)
        if sizes[0] <= setting.layers:
            pipelines = tuple(tuple(last - max(first, 1) + 1 for first, last in layers_of(setting, n)) for n in sizes)
            found.append((pipelines_seconds(setting, pipelines), count))
    if not found:
        return None
    seconds, count = min(found)
    names, pipelines_of = [*there], []
    for size in _sizes(len(there), count):
        pipelines_of.append(names[:size])
        names = names[size:]
    return side_by_side(setting, f"{count} pipelines", pipelines_of, seconds)


def _sizes(machines: int, pipelines: int) -> list[int]:
    return [machines // pipelines + (place < machines % pipelines) for place in range(pipelines)]
