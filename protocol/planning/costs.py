"""What a layout costs: seconds of a step, with what losses are expected to take, and a part of what machines are busy.

By the liquid (flow.py), or by the schedule, which takes some twenty times as long. What was scheduled once is known, so
that all questions about one swarm share their answers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from types import MappingProxyType
from typing import Final

from ftnode.protocol.planning.flow import Flow
from ftnode.protocol.planning.schedule import Batch, step_timing
from ftnode.protocol.planning.swarm import Holders, Swarm

LOAD: Final = 0.1
"""Of what machines are busy on average, so much counts beside the step: who relieves somebody that does not limit yet
does some good."""
FLOW_WORK: Final = 3
TASK_WORK: Final = 4
"""About microseconds of one core of 2024: what the liquid takes for each stage and holding, and the schedule for each
task."""
HOLDING_TASKS: Final = 8
"""A schedule begins with as much work for each holding as for so many tasks."""
SCHEDULE_WORK: Final = 3_000
"""About microseconds. What takes longer is not scheduled: the liquid decides alone in a large swarm."""


@dataclass(frozen=True, slots=True)
class Risk:
    """What losses are expected to take. `rate`: of one peer, a second; `seconds`: that a step stands still when the
    last holder of a stage is lost; `steps`: of learning that are lost then, by stage, the head first; `whole`: steps
    that the run has done, which are lost when one loss takes all stages."""

    rate: float = 0.0
    seconds: float = 0.0
    steps: tuple[float, ...] = ()
    whole: float = 0.0


NO_RISK: Final = Risk()
NO_SITES: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Worth:
    """Of one layout: `seconds` of a step, `lasting` with what losses take, and `cost`, by which layouts compare."""

    seconds: float
    lasting: float
    cost: float


class Costs:
    """Of the layouts of one swarm. `sites`: where somebody is, as far as it is known: holders at one site are lost
    together. `speeds`: of devices, as they were told before they worked, in any unit; None: the paces are true."""

    def __init__(
        self, swarm: Swarm, risk: Risk = NO_RISK, sites: Mapping[str, str] = NO_SITES,
        speeds: Mapping[str, float] | None = None,
    ) -> None:  # fmt: skip
        self.swarm, self.risk, self.sites, self.speeds = swarm, risk, sites, speeds
        self._flow = Flow(swarm)
        self._numbers = {name: number for number, name in enumerate(self._flow.names)}
        self._scheduled: dict[Holders, Worth] = {}
        self.work = 0.0
        """About microseconds that were spent on it."""

    def liquid(self, holders: Holders) -> Worth:
        """Every stage must have a holder, and every holder a pace for it."""
        return self._worth(holders, self._flowing(holders)[0])

    def scheduled(self, holders: Holders) -> Worth:
        """By the schedule, which knows of whole microbatches and of queues, unless that takes too long."""
        if holders not in self._scheduled:
            work = schedule_work(holders, self.swarm.batch)
            if work > SCHEDULE_WORK:
                self._scheduled[holders] = self.liquid(holders)
            else:
                self.work += work
                seconds = step_timing(self.swarm.layout(holders), self.swarm.batch).seconds
                self._scheduled[holders] = self._worth(holders, seconds)
        return self._scheduled[holders]

    def busy(self, holders: Holders) -> dict[str, float]:
        """Until each machine is done with a step; 0.0 of those that hold nothing."""
        return dict(zip(self._flow.names, self._flowing(holders)[1]))

    def together(self, group: Collection[str]) -> bool:
        """One loss takes all of them."""
        return len({self.sites.get(name) or name for name in group}) == 1

    def in_one_hand(self, holders: Holders) -> bool:
        """One loss takes all stages."""
        return self.together([name for group in holders for name in group])

    def _flowing(self, holders: Holders) -> tuple[float, list[float]]:
        self.work += FLOW_WORK * (len(holders) + sum(map(len, holders)))
        return self._flow.seconds([tuple(self._numbers[name] for name in group) for group in holders])

    def _worth(self, holders: Holders, seconds: float) -> Worth:
        risk, lost = self.risk, 0.0
        if risk.rate and risk.steps:
            alone = [steps for group, steps in zip(holders, risk.steps) if self.together(group)]
            lost = risk.rate * sum(risk.seconds + steps * seconds for steps in alone)
            if risk.whole and alone and self.in_one_hand(holders):
                lost += min(1.0, risk.rate * risk.whole * seconds)  # between two losses no more is done than that
        lasting = seconds * (1 + lost)
        return Worth(seconds, lasting, lasting + LOAD * self._load(holders))

    def _load(self, holders: Holders) -> float:
        """Seconds for which devices compute in a step: the root of the mean square over all machines."""
        busy, paces = [0.0] * len(self._numbers), self._flow.paces
        for stage, group in enumerate(holders):
            numbers = [self._numbers[name] for name in group]
            share = 1 / sum(1 / max(paces[number][stage], 1e-9) for number in numbers)
            for number in numbers:
                busy[number] += share
        return self.swarm.batch.microbatches * sqrt(sum(one * one for one in busy) / len(busy))


def schedule_work(holders: Holders, batch: Batch) -> float:
    """About microseconds that a schedule takes."""
    hops = 1 + sum(one != other for one, other in pairwise(holders)) if batch.fused else len(holders)
    return TASK_WORK * (2 * hops * batch.microbatches + HOLDING_TASKS * sum(map(len, holders)))
