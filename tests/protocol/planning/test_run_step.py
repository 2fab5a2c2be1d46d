"""What `ftnode run show` says of a step, against steps of real swarms and against the bound."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import pytest

from ftnode.node.manifests.presets import PRESETS
from ftnode.protocol.lines.stage_work import operations
from ftnode.protocol.lines.step_estimate import WINDOW, Line, estimate
from ftnode.protocol.manifest.boundary import BoundaryBytes
from ftnode.protocol.manifest.parse import Manifest
from ftnode.protocol.planning.run_step import FULL, HEADERS, on_the_wire, timed, whole
from ftnode.protocol.planning.schedule import Batch, Layout, Machine, step_timing

SMALL = PRESETS["small"]
HOME = Line(20e6 / 8, 100e6 / 8, 0.03)
MBIT = 1e6 / 8


def with_pipeline(**changes: object) -> Manifest:
    return replace(SMALL, pipeline=replace(SMALL.pipeline, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("volunteers", "line", "tensor", "microbatches", "pace", "taken"),
    [
        (5, Line(20 * MBIT, 100 * MBIT, 0.03), 983_040, 16, (0.02, 0.04), (18.9, 20.5)),
        (5, Line(5 * MBIT, 25 * MBIT, 0.03), 245_760, 16, (0.02, 0.04), (21.1, 21.1)),
        (4, Line(10 * MBIT, 50 * MBIT, 0.1), 250_000, 32, (0.02, 0.04), (19.9, 19.9)),
        (4, Line(200 * MBIT, 1000 * MBIT, 0.01), 100_000, 24, (0.1, 0.25), (9.28, 9.28)),
    ],
)
def test_it_is_near_what_real_swarms_take(
    volunteers: int, line: Line, tensor: int, microbatches: int, pace: tuple[float, float], taken: tuple[float, float]
) -> None:
    """Those of docs/explanation/thin-lines.md#lines-in-the-virtual-world. Two others keep copies of their head, that of
    the preset tiny, as each step has left it. The nodes had a pace then that was too low after pauses."""
    names = [f"p{number}" for number in range(volunteers)]
    machines = {name: Machine({stage: pace}, line) for stage, name in enumerate(names)}
    tensors = on_the_wire(BoundaryBytes(tensor, tensor))
    head = ceil(HEADERS / FULL * PRESETS["tiny"].head_state_bytes)
    batch = Batch(microbatches, microbatches, tensors, copies=(head, *[0] * (volunteers - 1)))
    seconds = step_timing(Layout(tuple((name,) for name in names), machines), batch).seconds
    assert 0.9 * taken[0] < seconds < 1.1 * taken[1]


def test_where_lines_limit_it_is_the_bound_with_what_lines_lose() -> None:
    """The delay of the way stays as it is."""
    bound, found = estimate(SMALL, HOME), timed(SMALL, HOME)
    lost = HEADERS / FULL
    assert 0.98 * lost * bound.seconds < found.seconds < 1.05 * lost * bound.seconds
    assert (found.limiting, found.way) == (bound.limiting, bound.way)
    assert [one.traffic for one in found.stages] == [one.traffic for one in bound.stages]


def test_where_devices_limit_lines_lose_nothing() -> None:
    device = 2e10
    found = timed(SMALL, Line(1e9, 1e9, 0.0), device)
    microbatches, stages = SMALL.batch.microbatches, SMALL.pipeline.stages
    slowest = max(sum(operations(SMALL, stage)) for stage in range(stages + 1)) / device
    assert microbatches * slowest < found.seconds < (microbatches + stages) * slowest * 1.01
    assert found.stages[1].busy is not None and found.stages[1].compute_seconds is not None
    assert found.stages[1].busy == pytest.approx(found.stages[1].compute_seconds / found.seconds)


def test_with_too_small_a_window_microbatches_take_turns() -> None:
    one = timed(with_pipeline(window=1), HOME)
    hop = on_the_wire(SMALL.boundary_bytes).forward / HOME.up + HOME.delay_seconds
    assert one.way == WINDOW and one.seconds == pytest.approx(16 * 10 * hop, rel=0.01)


def test_holders_share_the_tensors_and_pay_for_a_sum() -> None:
    thin = with_pipeline(boundary="int8", sums="int4")
    four = timed(thin, HOME, holders=4)
    sums = four.stages[1].traffic.sums
    assert whole(sums, 4) * 2 * 3 / 4 == pytest.approx(sums)
    tensors = four.stages[1].traffic.tensors
    assert four.seconds > HEADERS / FULL * (sums + tensors) / HOME.up
