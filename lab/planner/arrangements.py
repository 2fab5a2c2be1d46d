"""How the machines that are there can be arranged, and how long a step takes then: in groups that share stages, as
ReCycle, CheckFree and this project do, or in pipelines side by side, as Oobleck and Bamboo do.

All are timed by the same schedule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from ftnode.lab.planner.setting import Kind, Setting
from ftnode.protocol.planning.schedule import Batch, Layout, Machine, step_timing
from ftnode.protocol.planning.swarm import Holders, Range, Swarm, holders_of

Pipeline = tuple[tuple[Kind, int], ...]
"""What its machines are, one after the other, and how many layers each has."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """`holders`: of each layer, the head's first; `seconds`: of a step; `what`: for people."""

    what: str
    holders: Holders
    seconds: float


def swarm_of(setting: Setting, there: Sequence[str]) -> Swarm:
    kinds = {name: setting.kind(name) for name in there}
    machines = {kind: setting.machine(kind) for kind in {*kinds.values()}}
    return Swarm(
        {name: machines[kind] for name, kind in kinds.items()},
        {name: kind.room for name, kind in kinds.items()},
        (0, *[1] * setting.layers),
        setting.batch,
    )


def layers_of(setting: Setting, parts: int) -> list[Range]:
    """The layers, the first one with the head, in so many parts that are as equal as can be."""
    cuts = [part * setting.layers // parts for part in range(parts + 1)]
    return [(first + 1 if first else 0, last) for first, last in pairwise(cuts)]


def part_layers(setting: Setting, parts: int) -> int:
    """Of the largest of so many parts."""
    return -(-setting.layers // parts)


def rate(setting: Setting, kind: Kind, layers: int) -> float:
    """Microbatches a second of one machine with so many layers: of its device or its line, whichever takes longer."""
    device = layers * kind.slower * (setting.forward_seconds + setting.backward_seconds)
    line = setting.batch.tensors.both / min(kind.line.up, kind.line.down) if layers < setting.layers else 0.0
    return 1 / max(device, line)


def grouped(setting: Setting, what: str, groups: Mapping[str, int], parts: int) -> Arrangement:
    """`groups`: name → the part that it holds, of `parts` equal ones. Each part has somebody."""
    ranges = layers_of(setting, parts)
    holders = holders_of({name: ranges[part] for name, part in groups.items()}, setting.layers + 1)
    members = [sorted((setting.kind(name) for name in groups if groups[name] == part), key=repr)
               for part in range(parts)]  # fmt: skip
    return Arrangement(what, holders, _grouped_seconds(setting.of_steps, tuple(map(tuple, members))))


@lru_cache(maxsize=4096)
def _grouped_seconds(setting: Setting, members: tuple[tuple[Kind, ...], ...]) -> float:
    ranges, held, machines = layers_of(setting, len(members)), dict[str, Range](), dict[str, Machine]()
    for part, kinds in enumerate(members):
        for number, kind in enumerate(kinds):
            name = f"{part}.{number:03}"
            held[name], machines[name] = ranges[part], setting.machine(kind)
    holders = holders_of(held, setting.layers + 1)
    return step_timing(Layout(holders, machines), setting.batch).seconds


@lru_cache(maxsize=4096)
def pipeline_seconds(setting: Setting, pipeline: Pipeline, microbatches: int) -> float:
    """Of one pipeline."""
    if not microbatches:
        return 0.0
    machines, holders = dict[str, Machine](), [("0",)]
    for place, (kind, count) in enumerate(pipeline):
        layers = count * kind.slower
        pace = layers * setting.forward_seconds, layers * setting.backward_seconds
        machines[f"{place}"] = Machine({0: (0.0, 0.0), place + 1: pace}, kind.line)
        holders.append((str(place),))
    batch = Batch(microbatches, microbatches, setting.batch.tensors, fused=True)
    return step_timing(Layout(tuple(holders), machines), batch).seconds


@lru_cache(maxsize=4096)
def pipelines_seconds(setting: Setting, pipelines: tuple[Pipeline, ...]) -> float:
    """Of pipelines side by side: microbatches go one after the other to the pipeline that is done first with one more
    (Odyssey's equation 10, with its batch distribution done well)."""
    given = [0] * len(pipelines)
    slowest = [max(1 / rate(setting, *machine) for machine in pipeline) for pipeline in pipelines]
    for _ in range(setting.microbatches):
        place = min(range(len(pipelines)), key=lambda one: ((len(pipelines[one]) + given[one]) * slowest[one], one))
        given[place] += 1
    return max(pipeline_seconds(setting, layers, count) for layers, count in zip(pipelines, given))


def side_by_side(
    setting: Setting, what: str, pipelines: Sequence[Sequence[tuple[str, int]]], seconds: float
) -> Arrangement:
    """Pipelines by the names of their machines and the layers of each."""
    held: dict[str, Range] = {}
    for pipeline in pipelines:
        done = 0
        for name, count in pipeline:
            held[name] = (done + 1 if done else 0, done + count)
            done += count
    return Arrangement(what, holders_of(held, setting.layers + 1), seconds)


def shared_out(setting: Setting, names: Sequence[str]) -> list[tuple[str, int]] | None:
    """The layers over the machines of one pipeline, so that the slowest takes least; who gets none is left out. None
    where they have no room."""
    kinds = [setting.kind(name) for name in names]
    counts = [0] * len(names)
    for _ in range(setting.layers):
        able = [place for place, kind in enumerate(kinds) if counts[place] < kind.room]
        if not able:
            return None
        counts[min(able, key=lambda place: ((counts[place] + 1) * kinds[place].slower, counts[place], place))] += 1
    return [(name, count) for name, count in zip(names, counts) if count]


def templates(setting: Setting, there: Sequence[str]) -> Arrangement | None:
    """The best pipelines that use every machine: for each number of pipelines, machines and layers divided as equally
    as can be (Oobleck's templates, with its planning done well). Unequal machines are divided so that pipelines are
    equally fast, or so that those of a pipeline are alike, whichever is better. None where memory is too small."""
    names, alike = sorted(there, key=lambda name: setting.kind(name).slower), setting.of_steps
    best: tuple[float, int, list[list[tuple[str, int]]]] | None = None
    for count in range(1, len(there) + 1):
        for teams in _divided(names, count):
            shares = [shared_out(setting, team) for team in teams]
            pipelines = [share for share in shares if share]
            if len(pipelines) < count:
                continue
            shapes = tuple(tuple((setting.kind(name), layers) for name, layers in one) for one in pipelines)
            seconds = pipelines_seconds(alike, shapes)
            if best is None or seconds < best[0]:
                best = seconds, count, pipelines
    if best is None:
        return None
    return side_by_side(setting, f"{best[1]} pipelines", best[2], best[0])


def _divided(names: Sequence[str], count: int) -> list[list[list[str]]]:
    """Neighbours in the order together, and the first ones apart."""
    together, left = list[list[str]](), [*names]
    for place in range(count):
        size = len(names) // count + (place < len(names) % count)
        together.append(left[:size])
        left = left[size:]
    turns = [*range(count), *reversed(range(count))]
    apart: list[list[str]] = [[] for _ in range(count)]
    for place, name in enumerate(names):
        apart[turns[place % len(turns)]].append(name)
    return [together, apart]
