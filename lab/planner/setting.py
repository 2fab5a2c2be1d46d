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

from dataclasses import dataclass
from random import Random
from typing import Final

from ftnode.protocol.lines.step_estimate import Line
from ftnode.protocol.manifest.boundary import BoundaryBytes
from ftnode.protocol.planning.schedule import Batch, Machine

HOUR: Final = 3600.0
LINE: Final = Line(25e9, 25e9, 1e-4)


@dataclass(frozen=True, slots=True)
class Setting:
    """`failures_an_hour`: of each machine that is there; `away_hours`: on average; `room`: layers that one machine can
    hold; `pipeline`: stages that rivals with fixed stages have."""

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

    @property
    def batch(self) -> Batch:
        size = BoundaryBytes(self.tensor_bytes, self.tensor_bytes)
        return Batch(self.microbatches, self.microbatches, size, fused=True)

    @property
    def machine(self) -> Machine:
        """The head, stage 0, takes no time and no memory here: embedding and LM head are less than 4 % of the model."""
        pace = self.forward_seconds, self.backward_seconds
        return Machine(dict.fromkeys(range(1, self.layers + 1), pace) | {0: (0.0, 0.0)}, self.line)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"n{number:03}" for number in range(self.machines))

    def seconds_to_change(self, there: int) -> float:
        """Until the next machine fails or comes back, on average, with so many there."""
        away = self.machines - there
        an_hour = self.failures_an_hour * there + (away / self.away_hours if self.away_hours else 0.0)
        return HOUR / an_hour if an_hour else self.hours * HOUR


@dataclass(frozen=True, slots=True)
class Change:
    """One machine fails, or is `back`. `at`: seconds."""

    at: float
    name: str
    back: bool


def changes(setting: Setting, chance: Random) -> list[Change]:
    """In order, within the hours. With `away_hours` 0, nobody comes back."""
    found: list[Change] = []
    for name in setting.names:
        at, there = 0.0, True
        while True:
            if there:
                at += chance.expovariate(setting.failures_an_hour) * HOUR if setting.failures_an_hour else float("inf")
            else:
                at += chance.expovariate(1 / setting.away_hours) * HOUR if setting.away_hours else float("inf")
            if at >= setting.hours * HOUR:
                break
            there = not there
            found.append(Change(at, name, there))
    return sorted(found, key=lambda change: (change.at, change.name))
