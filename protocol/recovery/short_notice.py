"""What a peer that ends at a certain time hands over before it does, in order of worth (rule 33).

A stage is worth what its loss would cost the run: the rise of the loss after the rung that would bring it back, in
nats. Stages that others hold, too, cost nothing. What does not pass through the line in the time that is left, is left
out in favour of what does. It comes back as if its holder had been killed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import inf
from typing import Final, NamedTuple

from ftnode.protocol.recovery.rungs import Available, filled_from, partner_of
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Rung

HALT_NATS: Final = 1000.0
"""Of a stage that nothing brings back: the run stands still. More than all others together."""
FIRST_NATS, LAST_NATS, FAR_NATS = 0.592, 0.113, 0.592
"""Of the first and the last block stage, when they are copied from the block stage beside them, and of any stage that
is copied from one that is not beside it (docs/explanation/recovery.md, the table of rises at once, second half)."""
RUNG_NATS: Final[Mapping[Rung, float]] = {
    Rung.INITIAL: 0.0, Rung.REPLICA: 0.0, Rung.KEPT: 0.0, Rung.SNAPSHOT: 0.0,
    Rung.HEAD: 0.001, Rung.SHADOW: 0.002, Rung.FIRST: 0.02, Rung.BLEND: 0.035, Rung.INTERPOLATE: 0.05, Rung.COPY: 0.04,
}  # fmt: skip
"""Of all others. A blend is from the same table, a copy of the partner on swapped routes the worst that it has there.
The order of what was too small to be measured is that of the bytes that are lost: an old copy's steps and moments."""
NATS_DIGITS: Final = 6
"""Smaller differences are those of sums of floats."""
LINE_OVERHEAD: Final = 1.03
"""Bytes on the line for each of a state."""
LINE_SHARE_MIN: Final = 0.5
"""Of the line that a state has beside the tensors of steps, which take turns with it."""


class Notice(NamedTuple):
    """Of one peer: it ends at `until`, and its line takes so much; 0.0: not known."""

    until: float
    bytes_per_second: float


class HandOver(NamedTuple):
    """Stages that are handed over, the most valuable first, and those that are not; and why."""

    order: tuple[int, ...]
    left_out: tuple[int, ...]
    reason: str


def cost_of_losing(lost: Collection[int], copied: Mapping[int, int], step: int, settings: Settings) -> float:
    """Nats by which the loss rises when these stages are lost together at `step`. `copied`: stage → step of a copy that
    somebody keeps."""
    held = frozenset(range(settings.stage_count)) - frozenset(lost)
    available = Available(step, held, copied, ())
    return sum(_nats(stage, available, settings) for stage in lost)


def _nats(stage: int, available: Available, settings: Settings) -> float:
    rung, lenders, _ = filled_from(stage, available, settings)
    if rung is None:
        return HALT_NATS
    if rung is not Rung.COPY or lenders == (partner_of(stage, settings),):
        return RUNG_NATS[rung]
    if abs(lenders[0] - stage) > 1:
        return FAR_NATS
    return FIRST_NATS if stage == 1 else LAST_NATS


def state_seconds(stage: int, bytes_per_second: float, settings: Settings, step_seconds: float = 0.0) -> float:
    """How long it takes over a line until another peer has the stage: its state, and the sum of each step that ends
    meanwhile, without which the state is one of long ago. 0.0 for a line that was never full, infinite for one that the
    sums fill. `step_seconds`: of a step; 0.0: not known."""
    if bytes_per_second <= 0:
        return 0.0
    state = settings.state_bytes_of(stage)
    gradient = min(settings.sum_bytes, state)
    left = bytes_per_second / LINE_OVERHEAD - (gradient / step_seconds if step_seconds > 0 else 0.0)
    return (state + gradient) / left if left > 0 else inf


def what_to_hand_over(
    alone: Collection[int], seconds: float, bytes_per_second: float, copied: Mapping[int, int], step: int,
    settings: Settings, step_seconds: float = 0.0,
) -> HandOver:  # fmt: skip
    """Of the stages that the leaver holds `alone`, those that pass in `seconds`: again and again the one whose loss,
    together with all that is still left, costs most; of equals the smallest."""
    rest, order, left = set(alone), list[int](), max(0.0, seconds)

    def worth(stage: int) -> float:
        with_it = cost_of_losing(rest, copied, step, settings)
        return round(with_it - cost_of_losing(rest - {stage}, copied, step, settings), NATS_DIGITS)

    needed = {stage: state_seconds(stage, bytes_per_second, settings, step_seconds) for stage in alone}
    while able := [stage for stage in rest if needed[stage] <= left]:
        best = min(able, key=lambda stage: (-worth(stage), settings.state_bytes_of(stage), stage))
        rest.remove(best)
        order.append(best)
        left -= needed[best]
    named = ", ".join(map(str, order)) or "nothing"
    reason = f"{max(0.0, seconds):.1f} s are left, in which {named} can be handed over, in this order"
    if rest:
        reason += f"; {', '.join(map(str, sorted(rest)))} cannot, at {bytes_per_second / 1e6:.3g} MB/s"
    return HandOver(tuple(order), tuple(sorted(rest)), reason)


def line_beside_steps(bytes_per_second: float, stages: int, step_seconds: float, settings: Settings) -> float:
    """What a state has of the line of a peer with so many stages, of which its steps' tensors take their part: half at
    least. `step_seconds`: of a step; 0.0: not known."""
    tensors = stages * settings.microbatches * (settings.forward_bytes + settings.backward_bytes)
    taken = tensors / step_seconds if step_seconds > 0 else 0.0
    return max(LINE_SHARE_MIN * bytes_per_second, bytes_per_second - taken)
