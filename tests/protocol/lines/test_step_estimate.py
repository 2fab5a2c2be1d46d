"""What a step asks of a volunteer, against counts by hand and against what others count with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftnode.models.config import ModelConfig
from ftnode.node.manifests.presets import PRESETS
from ftnode.node.reduction.encoding import encoding_of
from ftnode.protocol.lines.line_bound import bound
from ftnode.protocol.lines.stage_work import operations, recomputed, traffic
from ftnode.protocol.lines.step_estimate import WINDOW, Line, estimate
from ftnode.protocol.manifest.parse import Manifest

SMALL = PRESETS["small"]
HOME = Line(20e6 / 8, 100e6 / 8, 0.03)


def with_pipeline(manifest: Manifest = SMALL, **changes: object) -> Manifest:
    return replace(manifest, pipeline=replace(manifest.pipeline, **changes))  # type: ignore[arg-type]


def test_a_step_of_small_sends_what_was_counted_on_the_lines() -> None:
    """268 MB up from each volunteer, 107 s at 20 Mbit/s: counted in network namespaces."""
    assert traffic(SMALL, 1).total == pytest.approx(268e6, rel=0.01)
    found = estimate(SMALL, HOME)
    assert traffic(SMALL, 1).total / HOME.up == pytest.approx(107, rel=0.01)
    assert 107 < found.seconds < 150 and found.way == "up"


def test_encoded_boundaries_count_with_their_scales() -> None:
    int8 = with_pipeline(boundary="int8", boundary_gradients="int4")
    numbers = 8 * 512 * 512
    assert traffic(int8, 1).tensors == 16 * (numbers + numbers // 2 + 2 * 2 * numbers // 128)


@pytest.mark.parametrize("sums", ["exact", "int8", "int4"])
def test_a_sum_sends_each_piece_there_and_back(sums: str) -> None:
    manifest = with_pipeline(sums=sums)
    piece = -(-manifest.stage_parameters // 4)
    encoding = encoding_of(sums, 4)
    assert traffic(manifest, 1).sums == 0
    assert traffic(manifest, 1, holders=4).sums == pytest.approx(2 * 3 * encoding.size(piece), rel=1e-3)
    assert traffic(manifest, 1, holders=4).tensors * 4 == traffic(manifest, 1).tensors


def test_arithmetic_is_six_for_each_weight_and_token_and_attention() -> None:
    """The whole model's, as `12 L H Q T + 6 N` of PaLM, appendix B, without the embedding, which is looked up."""
    kept = with_pipeline(live_activations=16)
    config = ModelConfig.of(SMALL.model)
    tokens = SMALL.batch.sequences * config.context
    counted = config.total_parameters() - config.vocabulary * config.dim - config.dim
    expected = tokens * (6 * counted + 12 * config.layers * config.context * config.dim)
    assert sum(sum(operations(kept, stage)) for stage in range(5)) == pytest.approx(expected)


def test_what_is_not_kept_is_computed_again() -> None:
    """Sixteen are on their way. At stage 1, four fifths of them wait for their way back, at the last one a fifth."""
    none = with_pipeline(live_activations=16)
    some = with_pipeline(live_activations=1)
    assert [recomputed(none, stage) for stage in range(5)] == [0.0] * 5
    assert recomputed(some, 1) == pytest.approx(1 - 1 / 12.8)
    assert recomputed(some, 4) == pytest.approx(1 - 1 / 3.2)
    forward, backward = operations(some, 1)
    assert backward == pytest.approx((2 + recomputed(some, 1)) * forward)


def test_a_device_is_busy_for_its_share_of_the_step() -> None:
    slow, fast = (estimate(SMALL, HOME, device) for device in (2e10, 1e13))
    assert slow.stages[1].busy and fast.stages[1].busy and slow.stages[1].compute_seconds
    assert slow.way == "compute" and 0.5 < slow.stages[1].busy <= 1
    assert fast.way == "up" and fast.stages[1].busy < 0.02
    assert slow.stages[1].compute_seconds == pytest.approx(16 * sum(operations(SMALL, 1)) / 2e10)
    assert slow.seconds > fast.seconds > estimate(SMALL, HOME).seconds
    assert estimate(SMALL, HOME).stages[1].busy is None


def test_with_too_small_a_window_microbatches_take_turns() -> None:
    one = estimate(with_pipeline(window=1), HOME)
    assert one.way == WINDOW
    hop = SMALL.boundary_bytes.forward / HOME.up + HOME.delay_seconds
    assert one.seconds == pytest.approx(16 * 10 * hop)
    assert estimate(with_pipeline(window=16), HOME).way == "up"


def test_more_holders_share_the_tensors_and_pay_for_a_sum() -> None:
    thin = with_pipeline(boundary="int8", sums="int4")
    alone, four = (estimate(thin, HOME, holders=holders) for holders in (1, 4))
    assert four.stages[1].traffic.tensors * 4 == alone.stages[1].traffic.tensors
    sums = four.stages[1].traffic.sums
    assert sums and four.seconds > sums / HOME.up
    assert alone.limiting == 4


def test_without_sums_and_compute_it_is_the_bound() -> None:
    from ftnode.protocol.lines.line_bound import Work

    work = Work(16, SMALL.boundary_bytes, (HOME.up, HOME.down), HOME.delay_seconds, ((0.0, 0.0),) * 5)
    assert estimate(SMALL, HOME).seconds == pytest.approx(bound(("0", "1", "2", "3", "4"), work).seconds)
