"""Volunteers of unequal devices and lines: the layout that the search finds against equal stages by the fixed rules, by
the same schedule.

The run: a model of 1.4 billion parameters, as a person would choose it for such volunteers. 24 layers of 50 million
parameters, dim 2048, and a head of 200 million (embedding and LM head, 50,000 tokens). 128 microbatches of 2,048
tokens. Tensors have 4 bits for each of a quarter of the coordinates, as `ftnode run init --line 20/100Mbit` chooses.
Sums of gradients have 8 bits.

Devices are drawn with equal chances from DEVICES, lines log-uniformly from 10 to 200 Mbit/s up, with three times as
much down, and 30 ms from one home to another, or what locations.py says.

Peak rates are dense FP16 with FP32 sums as NVIDIA publishes them, two times FP32 on these cards; those of laptops are
at 110 W, by https://hmc-tech.com/gpu/nvidia-geforce-rtx-4060-laptop-110w-vs-nvidia-geforce-rtx-3060-laptop-80w and the
page of the 3060 Laptop 110W beside it. REACHED of it is what training reaches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from random import Random
from statistics import mean
from typing import Any, Final

from ftnode.lab.planner import locations
from ftnode.lab.planner.arrangements import Arrangement
from ftnode.lab.planner.growing import grown
from ftnode.lab.planner.own import Planner
from ftnode.lab.planner.policies import Answer, Ladder, from_checkpoint, left_of
from ftnode.lab.planner.setting import GAIN_MIN, HOUR, Change, Kind, Setting, changes
from ftnode.lab.planner.simulation import simulated
from ftnode.protocol.lines.step_estimate import Line
from ftnode.protocol.manifest.boundary import BoundaryBytes
from ftnode.protocol.planning.costs import Risk
from ftnode.protocol.planning.schedule import Batch, Layout, Machine, step_timing
from ftnode.protocol.planning.search import BestLayout, best_layout
from ftnode.protocol.planning.swarm import Swarm, in_words

LAYERS: Final = 24
LAYER_PARAMETERS: Final = 50_000_000
HEAD_LAYERS: Final = 4
"""What the head takes, in layers: 200 million parameters. Only the LM head computes, half of it."""
TOKENS: Final = 2048
MICROBATCHES: Final = 128
WINDOW: Final = 64
TENSOR: Final = BoundaryBytes(TOKENS * 512 // 2, TOKENS * 512 // 2)
REACHED: Final = 0.4
LAYER_GB: Final = 0.9
"""Of memory: 16 bytes a parameter, and activations."""
SPARE_GB: Final = 1.0
"""Of memory, which the screen and the libraries take."""
STAGES: Final = (2, 3, 4, 6, 8, 12, 24)
REPLICAS: Final = (1, 2, 4, 16)
"""What the author of a run may have chosen. The rival has the best of both together."""


ASKED: Final = 4
"""Times at most, after the first one."""
SWARM_STAGES: Final = (2, 3, 4, 6)
LOST_SECONDS, LOSS_SECONDS, LOSS_STEPS = 36_000.0, 4.0, 30.0
"""Where they come one after the other: each is lost once in so long, and the loss of a layer's only holder costs so
many seconds, and so many steps of learning."""


@dataclass(frozen=True, slots=True)
class Device:
    """`tflops`: peak, of FP16 with FP32 sums; `memory`: GB."""

    name: str
    tflops: float
    memory: float

    @property
    def layers(self) -> int:
        return int((self.memory - SPARE_GB) / LAYER_GB)

    @property
    def layer_seconds(self) -> float:
        """Of one layer for a microbatch, forward and backward: 6 operations for each parameter and token."""
        return 6 * LAYER_PARAMETERS * TOKENS / (REACHED * self.tflops * 1e12)


DEVICES: Final = (
    Device("RTX 3060", 25.5, 12), Device("RTX 3070", 40.6, 8), Device("RTX 3080", 59.5, 10),
    Device("RTX 3090", 71.2, 24), Device("RTX 4060", 30.2, 8), Device("RTX 4070", 58.3, 12),
    Device("RTX 4080", 97.5, 16), Device("RTX 4090", 165.2, 24), Device("RTX 3060 Laptop", 25.8, 6),
    Device("RTX 4060 Laptop", 28.3, 8),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Volunteer:
    device: Device
    line: Line


def drawn(count: int, chance: Random) -> list[Volunteer]:
    found = []
    for _ in range(count):
        up = 10 * 20 ** chance.random() * 1e6 / 8
        found.append(Volunteer(chance.choice(DEVICES), Line(up, 3 * up, 0.03)))
    return found


def tokens_a_second(seconds: float) -> float:
    return MICROBATCHES * TOKENS / seconds


def _machine(one: Volunteer, stages: int) -> Machine:
    """With so many equal block stages."""
    layer = one.device.layer_seconds
    block = layer * LAYERS / stages
    head = layer * HEAD_LAYERS / 2
    paces = dict.fromkeys(range(1, stages + 1), (block / 3, 2 * block / 3))
    return Machine(paces | {0: (head / 3, 2 * head / 3)}, one.line)


def swarm(volunteers: Sequence[Volunteer]) -> Swarm:
    """A stage for each layer, which who holds neighbours computes as one."""
    names = [f"v{number:02}" for number in range(len(volunteers))]
    batch = Batch(MICROBATCHES, WINDOW, TENSOR, (HEAD_LAYERS * LAYER_PARAMETERS, *[LAYER_PARAMETERS] * LAYERS),
                  fused=True)  # fmt: skip
    return Swarm(
        {name: _machine(one, LAYERS) for name, one in zip(names, volunteers)},
        {name: one.device.layers for name, one in zip(names, volunteers)},
        (HEAD_LAYERS, *[1] * LAYERS),
        batch,
    )


def equal_stages(volunteers: Sequence[Volunteer], stages: int, replicas: int) -> float | None:
    """Seconds of a step by the fixed rules, in which volunteers come in this order: each takes a stage that nobody has,
    the head first, else joins the slowest that has fewer than `replicas`; who has no room for it stands by. Then
    replicas move as long as that makes the slowest stage GAIN_MIN times as fast. None: not everything is held."""
    machines = [_machine(one, stages) for one in volunteers]
    size = [HEAD_LAYERS] + [-(-LAYERS // stages)] * stages
    groups: list[list[int]] = [[] for _ in size]

    def rate(number: int, stage: int) -> float:
        machine = machines[number]
        return 1 / max(sum(machine.paces[stage]), TENSOR.both / machine.line.up)

    def rates() -> list[float]:
        return [sum(rate(number, stage) for number in group) for stage, group in enumerate(groups)]

    for number, one in enumerate(volunteers):
        able = [stage for stage, group in enumerate(groups) if one.device.layers >= size[stage]
                and len(group) < replicas]  # fmt: skip
        if able:
            now = rates()
            groups[min(able, key=lambda stage: (now[stage], stage))].append(number)
    if not all(groups):
        return None
    while max(map(len, groups)) > 1:
        now = rates()
        slowest = min(range(len(now)), key=now.__getitem__)
        gains = [
            (min(now[slowest] + rate(number, slowest), now[stage] - rate(number, stage)) / now[slowest], number, stage)
            for stage, group in enumerate(groups)
            if stage != slowest and len(group) > 1 and len(groups[slowest]) < replicas
            for number in group if volunteers[number].device.layers >= size[slowest]
        ]  # fmt: skip
        gain, number, stage = max(gains, default=(0.0, 0, 0))
        if gain < GAIN_MIN:
            break
        groups[stage].remove(number)
        groups[slowest].append(number)
    holders = tuple(tuple(f"v{number:02}" for number in group) for group in groups)
    sums = (HEAD_LAYERS * LAYER_PARAMETERS, *[LAYER_PARAMETERS * LAYERS // stages] * stages)
    names = {name for group in holders for name in group}
    layout = Layout(holders, {name: machines[int(name[1:])] for name in names})
    return step_timing(layout, Batch(MICROBATCHES, WINDOW, TENSOR, sums)).seconds


def best_equal(volunteers: Sequence[Volunteer]) -> tuple[float, int, int] | None:
    """(seconds, stages, replicas), with the numbers that are best."""
    found = [(equal_stages(volunteers, *both), both) for both in product(STAGES, REPLICAS)]
    return min(((seconds, *both) for seconds, both in found if seconds is not None), default=None)


def asked_again(asked: Swarm) -> BestLayout | None:
    """A search that begins with what the last one found, until nothing is better."""
    found = best_layout(asked)
    for _ in range(ASKED):
        better = None if found is None else best_layout(asked, found.holders)
        if found is None or better is None or better.seconds >= found.seconds:
            break
        found = better
    return found


def of_draw(count: int, seed: int) -> dict[str, Any]:
    """One draw. `equal`: in the order in which they come, by chance; `fastest_first`: the same, if the fastest ones
    come first."""
    volunteers = drawn(count, Random(seed))
    found = asked_again(swarm(volunteers))
    equal = best_equal(volunteers)
    first = best_equal(sorted(volunteers, key=lambda one: one.device.layer_seconds))
    once = best_layout(swarm(volunteers))
    if found is None or equal is None or first is None or once is None:
        return {"tokens_a_second": None}
    return {
        "tokens_a_second": tokens_a_second(found.seconds),
        "asked_once": tokens_a_second(once.seconds),
        "equal": tokens_a_second(equal[0]),
        "equal_stages": equal[1],
        "equal_replicas": equal[2],
        "fastest_first": tokens_a_second(first[0]),
        "devices": [one.device.name for one in volunteers],
        "mbits_up": [round(one.line.up * 8 / 1e6, 1) for one in volunteers],
        "layout": in_words(found.holders),
        "what": found.what,
    }


def of_growth(count: int, seed: int) -> dict[str, float]:
    """The same draw where volunteers come one after the other, and a leader makes one change at a time, as a node does:
    tokens a second of what they come to, and of what they would without going to layouts that only several changes make
    faster."""
    asked = replace(swarm(drawn(count, Random(seed))), replicas=max(REPLICAS))
    risk = Risk(1 / LOST_SECONDS, LOSS_SECONDS, (1.0, *[LOSS_STEPS] * LAYERS))

    def reached(goals: bool) -> float:
        return tokens_a_second(step_timing(asked.layout(grown(asked, risk, goals)), asked.batch).seconds)

    return {"tokens_a_second": reached(True), "without_goals": reached(False)}


class Rebalanced(Ladder):
    """SWARM (Ryabinin et al. 2023), as far as this simulation has it: equal stages, microbatches by pace, newcomers to
    the slowest stage, and one replica at a time that moves there. A stage that nobody has is read from a checkpoint."""

    def answer(
        self, setting: Setting, before: Arrangement | None, change: Change, there: Sequence[str], until: float
    ) -> Answer:
        if before is not None and not all(left_of(before.holders, there)):
            return from_checkpoint(setting, self.begin(setting, there))
        return super().answer(setting, before, change, there, until)


def spread(volunteers: Sequence[Volunteer], delays: Sequence[float]) -> list[Volunteer]:
    """Their lines have these delays in turn, in seconds; as they are, where there are none."""
    if not delays:
        return [*volunteers]
    return [
        replace(one, line=replace(one.line, delay_seconds=delays[number % len(delays)]))
        for number, one in enumerate(volunteers)
    ]


def churning(seed: int, hours: float, sums: bool, delays: Sequence[float] = ()) -> Setting:
    """20 volunteers who leave 50 % an hour and are back after twelve minutes. The head is left out. `sums`: of
    gradients, with each step; `delays`: as in spread()."""
    volunteers = spread(drawn(20, Random(seed)), delays)
    fastest = min(one.device.layer_seconds for one in volunteers)
    kinds = tuple(Kind(one.device.layer_seconds / fastest, one.device.layers, one.line) for one in volunteers)
    return Setting(
        machines=20, hours=hours, failures_an_hour=0.5, away_hours=0.2, layers=LAYERS, microbatches=MICROBATCHES,
        forward_seconds=fastest / 3, backward_seconds=2 * fastest / 3, layer_bytes=4 * LAYER_PARAMETERS,
        tensor_bytes=TENSOR.forward, sum_bytes=LAYER_PARAMETERS if sums else 0, kinds=kinds,
    )  # fmt: skip


def of_churn(seed: int, hours: float, sums: bool, delays: Sequence[float] = ()) -> dict[str, float]:
    """Microbatches of the planner and of SWARM's rules, all as in churning(). SWARM has the number of stages that does
    most in the whole course."""
    setting = churning(seed, hours, sums, delays)
    events = changes(setting, Random(seed))
    rivals = {
        f"swarm, {stages} stages": simulated(replace(setting, pipeline=stages), Rebalanced(), events).microbatches
        for stages in SWARM_STAGES
    }
    return {"planner": simulated(setting, Planner(), events).microbatches, "swarm": max(rivals.values())} | rivals


def figures(
    draws: Sequence[dict[str, Any]], growths: Sequence[Mapping[str, float]],
    churn: Mapping[str, Sequence[dict[str, float]]],
    located: Mapping[str, Sequence[dict[str, float]]], hours: float,
) -> dict[str, Any]:  # fmt: skip
    """`over_equal_stages`: the mean of the draws' ratios; `one_at_a_time`: as of_growth(); `churn`: by what was
    counted; `located`: the same, at ten locations."""
    at_locations = locations.figures() | {what: _churned(seeds, hours) for what, seeds in located.items()}
    good = [one for one in draws if one["tokens_a_second"]]
    ratios = [one["tokens_a_second"] / one["equal"] for one in good]
    return {
        "over_equal_stages": mean(ratios),
        "worst_draw": min(ratios),
        "over_equal_stages_asked_once": mean(one["asked_once"] / one["equal"] for one in good),
        "over_fastest_first": mean(one["tokens_a_second"] / one["fastest_first"] for one in good),
        "one_at_a_time": _grown(draws, growths),
        "churn": {what: _churned(seeds, hours) for what, seeds in churn.items()} | {"locations": at_locations},
        "draws": list(draws),
    }


def _grown(draws: Sequence[dict[str, Any]], growths: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    ratios = {
        what: [one[what] / draw["equal"] for draw, one in zip(draws, growths) if draw["tokens_a_second"]]
        for what in ("tokens_a_second", "without_goals")
    }
    return {
        "over_equal_stages": mean(ratios["tokens_a_second"]),
        "worst_draw": min(ratios["tokens_a_second"]),
        "over_equal_stages_without_goals": mean(ratios["without_goals"]),
        "worst_draw_without_goals": min(ratios["without_goals"]),
        "draws": [dict(one) for one in growths],
    }


def _churned(seeds: Sequence[dict[str, float]], hours: float) -> dict[str, Any]:
    work = {name: mean(one[name] for one in seeds) for name in ("planner", "swarm")}
    return {
        "less_time_than_swarm": 1 - work["swarm"] / work["planner"],
        "by_seed": [1 - one["swarm"] / one["planner"] for one in seeds],
        "microbatches_a_second": {name: one / hours / HOUR for name, one in work.items()},
    }
