"""What a machine gives a run, and what limits it: in the first lines of `ftnode join`, and for `ftnode doctor RUN`.

Memory limits how many stages it holds. How fast a stage is, is limited by the device's pace or by the line: whichever
takes longer for one step of one stage, with nothing else on the same device or line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from ftnode.node.home.duration import figure
from ftnode.node.owner.announcements import stage_bytes
from ftnode.node.owner.limits import line_text
from ftnode.protocol.lines.stage_work import traffic
from ftnode.protocol.lines.step_estimate import Line
from ftnode.protocol.manifest.parse import Manifest

MEMORY, LINE, PACE, HOLD, HEAD = "memory", "line", "pace", "hold", "head"
HOME_UP: Final = 20e6 / 8
"""Bytes a second of a home's line (docs/explanation/thin-lines.md), where the owner named no limit."""
MEBIBYTE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class DeviceOffer:
    """Of one device, as its compute process measured it."""

    name: str
    precision: str
    """What its products are computed in."""
    memory_free: int
    stage_bytes: int
    """What one block stage takes, with its activations."""
    stages: int
    tokens_per_second: float
    """Of one stage, if it has the device to itself."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Of a machine. `stages`: that it can hold, of `of` that the run has, the head among them. `stages_limited_by`:
    memory, hold (what the owner gives), head (all but that one fit), or empty, when all do. `pace_limited_by`: line or
    pace."""

    devices: tuple[DeviceOffer, ...]
    stages: int
    of: int
    stages_limited_by: str
    step_seconds: float
    """Of the slowest device, for one stage."""
    line_seconds: float
    """Of the line, for what one stage sends in a step."""
    up: float
    """Bytes a second that are counted with."""
    up_known: bool
    """The owner said so; else a home's line."""

    @property
    def pace_limited_by(self) -> str:
        return LINE if self.line_seconds > self.step_seconds else PACE

    @property
    def fits(self) -> bool:
        """At least one stage."""
        return self.stages > 0

    @property
    def lines(self) -> list[tuple[str, dict[str, str | float]]]:
        """For people, each with what programs read instead."""
        limit = {
            MEMORY: "; memory limits it",
            HOLD: "; --hold limits it",
            HEAD: ", all but the head",
        }.get(self.stages_limited_by, "")
        line = f"a line of {line_text(*self._line)}" if self.up_known else f"a home's line of {line_text(*self._line)}"
        slower = f"{line} limits it" if self.pace_limited_by == LINE else "the device's pace limits it"
        step, sent = figure(self.step_seconds), figure(self.line_seconds)
        return [
            (
                f"room for {self.stages} of the run's {self.of} stages{limit}",
                {"stages": self.stages, "of": self.of, "limited_by": self.stages_limited_by},
            ),
            (
                f"a step of one stage takes the device {step} and {line} {sent}: {slower}",
                {
                    "step_seconds": self.step_seconds, "line_seconds": self.line_seconds,
                    "limited_by": self.pace_limited_by,
                },
            ),
        ]  # fmt: skip

    @property
    def too_small(self) -> str:
        """Why not even one stage fits; empty when one does."""
        if self.fits:
            return ""
        best = max(self.devices, key=lambda device: device.memory_free)
        return (
            f"not even one stage of this run fits: it takes {best.stage_bytes / MEBIBYTE:.0f} MiB with what goes with "
            f"it, and {best.memory_free / MEBIBYTE:.0f} MiB are free on {best.name}"
        )

    def fields(self) -> dict[str, Any]:
        """For programs."""
        return {
            "devices": [asdict(device) for device in self.devices], "stages": self.stages, "of": self.of,
            "stages_limited_by": self.stages_limited_by, "step_seconds": self.step_seconds,
            "line_seconds": self.line_seconds, "up": self.up, "up_known": self.up_known,
            "pace_limited_by": self.pace_limited_by,
        }  # fmt: skip

    @property
    def _line(self) -> tuple[float, float]:
        line = Line.of_home(self.up)
        return line.up, line.down


def offer_of(
    manifest: Manifest, ready: Sequence[Mapping[str, Any]], room: Sequence[int], hold: int, up: float,
    copies_bytes: tuple[int, int] = (0, 0), activations: int = 0, head: bool = True,
) -> Offer:  # fmt: skip
    """`ready`: what the compute process of each device reported. `room`: stages that fit on each. `hold`: that the
    owner gives at most. `up`: bytes a second of the owner's limit, 0 for none. `copies_bytes`: as of capacity_of.
    `activations`: that a stage has memory for; 0 for as many as the manifest says. `head`: whether it can hold the
    head, for which it needs the run's text."""
    live, batch = activations or manifest.pipeline.live_activations, manifest.batch
    every = manifest.pipeline.stages + 1
    devices = tuple(
        DeviceOffer(
            str(each["device"]), str(each["precision"]), int(each["memory_free"]),
            stage_bytes(each, live) + sum(copies_bytes), fitting, float(each["tokens_per_second"]),
        )
        for each, fitting in zip(ready, room, strict=True)
    )  # fmt: skip
    stages = min(hold, sum(room))
    limited = "" if stages >= every else (HOLD if sum(room) >= hold else MEMORY)
    if not head and stages >= every:
        stages, limited = every - 1, HEAD
    tokens = batch.microbatches * batch.sequences * manifest.model.context
    slowest = min(device.tokens_per_second for device in devices)
    rate = up or HOME_UP
    return Offer(
        devices, stages, every, limited, tokens / slowest, traffic(manifest, 1).total / rate, rate, bool(up)
    )  # fmt: skip
