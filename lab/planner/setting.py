"""What is simulated, and when machines fail and come back.

Odyssey (its section V) simulates 32 accelerators that fail at 10 % an hour, for 9 hours, training a Llama 2 of 7
billion parameters. Its text says neither how the pipeline is cut there nor when machines come back; a figure that is no
part of the text shows how many are active. So these are assumptions:

- `pipeline` 4 and eight replicas, as its measured (4, 4, 1) on 16 accelerators.
- A machine is back after an hour on average, exponentially distributed.
- 64 microbatches of one sequence of 4,096 tokens, the largest batch that it measures.
- A layer takes 13 ms forward: 202 million parameters, 2 operations for each and token, at 0.4 of 320 TFLOP/s. Backward
  takes twice that.
- A layer's state is 3.2 GB, 16 bytes a parameter. With activations, 64 GB hold twelve layers.
- Lines of 25 GB/s, 200 Gbit/s of RoCE.
- A restart takes 1.9 s. Odyssey's figure 10 says that transfers shorter by 32.35 % make a recovery of 11.2 s one of
  8.2 s. So transfers took 9.3 s of it, and the rest 1.9 s.
- Sums of gradients are left out, as in its equations 9 to 13.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from random import Random
from typing import Final

from ftnode.protocol.lines.step_estimate import Line
from ftnode.protocol.manifest.boundary import BoundaryBytes
from ftnode.protocol.planning.schedule import Batch, Machine

HOUR: Final = 3600.0
LINE: Final = Line(25e9, 25e9, 1e-4)
REBUILT_STEPS: Final = 200
"""Steps of learning that a stage costs whose last holder is lost, for all policies alike."""
GAIN_MIN: Final = 1.3
"""By this factor a move must make the slowest stage faster, by the fixed rules that the swarm had before decision 0042.
"""


@dataclass(frozen=True, slots=True)
class Kind:
    """Of a machine. `slower`: times the setting's seconds for a layer; `room`: layers that it can hold; `failures`:
    times as often as the setting says."""

    slower: float = 1.0
    room: int = 12
    line: Line = LINE
    failures: float = 1.0


@dataclass(frozen=True, slots=True)
class Setting:
    """`failures_an_hour`: of each machine that is there; `away_hours`: on average; `room`: layers that one machine can
    hold; `pipeline`: stages that rivals with fixed stages have; `kinds`: of the machines, one after the other and again
    from the first; empty: all are alike, with `room` and `line`; `sites`: the machines lie at so many places in turn,
    of which each is cut off `site_failures_an_hour`."""

    machines: int = 32
    hours: float = 9.0
    failures_an_hour: float = 0.1
    away_hours: float = 1.0
    layers: int = 32
    pipeline: int = 4
    microbatches: int = 64
    room: int = 12
    forward_seconds: float = 0.013
    backward_seconds: float = 0.026
    layer_bytes: int = 3_200_000_000
    tensor_bytes: int = 33_500_000
    line: Line = LINE
    restart_seconds: float = 1.9
    checkpoint_seconds: float = 1800.0
    """How often rivals that need checkpoints make one. What it takes is not counted."""
    sum_bytes: int = 0
    """Of a layer's gradient, as it travels among those who share it. Where it is counted, pipelines are not: their
    schedule has no sums."""
    kinds: tuple[Kind, ...] = ()
    sites: int = 0
    site_failures_an_hour: float = 0.0

    @property
    def batch(self) -> Batch:
        size = BoundaryBytes(self.tensor_bytes, self.tensor_bytes)
        sums = (0, *[self.sum_bytes] * self.layers) if self.sum_bytes else ()
        return Batch(self.microbatches, self.microbatches, size, sums, fused=True)

    def kind(self, name: str) -> Kind:
        """Of a machine, by its name."""
        if not self.kinds:
            return Kind(1.0, self.room, self.line)
        return self.kinds[int(name[1:]) % len(self.kinds)]

    def machine(self, kind: Kind) -> Machine:
        """The head, stage 0, takes no time and no memory here: embedding and LM head are less than 4 % of the model."""
        pace = kind.slower * self.forward_seconds, kind.slower * self.backward_seconds
        return Machine(dict.fromkeys(range(1, self.layers + 1), pace) | {0: (0.0, 0.0)}, kind.line)

    @property
    def of_steps(self) -> Setting:
        """What a step depends on is as here, and the rest as in any other setting."""
        return replace(
            self, hours=0.0, failures_an_hour=0.0, away_hours=0.0, restart_seconds=0.0, checkpoint_seconds=0.0,
            sites=0, site_failures_an_hour=0.0, machines=0,
        )  # fmt: skip

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"n{number:03}" for number in range(self.machines))

    def causes(self, there: Sequence[str]) -> list[tuple[float, frozenset[str]]]:
        """What may take machines away: how often a second, and which of those that are there."""
        found = [(self.failures_an_hour * self.kind(name).failures / HOUR, frozenset([name])) for name in there]
        for site in range(self.sites):
            lost = frozenset(name for name in there if int(name[1:]) % self.sites == site)
            if lost:
                found.append((self.site_failures_an_hour / HOUR, lost))
        return [one for one in found if one[0]]

    def seconds_to_change(self, there: Sequence[str]) -> float:
        """Until the next machine fails or comes back, on average, with these there."""
        a_second = sum(rate for rate, _ in self.causes(there))
        if self.away_hours:
            a_second += (self.machines - len(there)) / self.away_hours / HOUR
        return 1 / a_second if a_second else self.hours * HOUR


@dataclass(frozen=True, slots=True)
class Change:
    """Machines fail, or are `back`, all at once. `at`: seconds."""

    at: float
    names: tuple[str, ...]
    back: bool


def changes(setting: Setting, chance: Random) -> list[Change]:
    """In order, within the hours. With `away_hours` 0, nobody comes back."""
    outages = [_outages(setting, setting.site_failures_an_hour, chance) for _ in range(setting.sites)]
    moments: dict[tuple[float, bool], list[str]] = {}
    for number, name in enumerate(setting.names):
        own = _outages(setting, setting.failures_an_hour * setting.kind(name).failures, chance)
        if setting.sites:
            own = _together([*own, *outages[number % setting.sites]])
        for failed, back in own:
            moments.setdefault((failed, False), []).append(name)
            moments.setdefault((back, True), []).append(name)
    end = setting.hours * HOUR
    return [Change(at, tuple(names), back) for (at, back), names in sorted(moments.items()) if at < end]


def _outages(setting: Setting, an_hour: float, chance: Random) -> list[tuple[float, float]]:
    """When one machine or site fails, and when it is back."""
    found, at = list[tuple[float, float]](), 0.0
    while an_hour:
        at += chance.expovariate(an_hour) * HOUR
        back = at + (chance.expovariate(1 / setting.away_hours) * HOUR if setting.away_hours else inf)
        if at >= setting.hours * HOUR:
            break
        found.append((at, back))
        at = back
    return found


def _together(outages: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those that overlap are one."""
    found: list[tuple[float, float]] = []
    for failed, back in sorted(outages):
        if found and failed <= found[-1][1]:
            found[-1] = found[-1][0], max(back, found[-1][1])
        else:
            found.append((failed, back))
    return found
