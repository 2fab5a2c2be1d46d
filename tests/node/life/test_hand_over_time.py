"""An owner hears beforehand that a hand-over does not pass through the limit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftnode.node.life.hand_over_time import states_bytes, too_slow
from ftnode.node.links.bandwidth import OVERHEAD
from ftnode.node.manifests.presets import preset
from ftnode.node.owner.limits import rate_text
from ftnode.protocol.manifest.parse import settings

LARGE = preset("large")
STAGE = 3 * 4 * LARGE.stage_parameters
HEAD = 3 * 4 * LARGE.head_parameters


def test_the_largest_stages_count() -> None:
    sizes = sorted([HEAD, *[STAGE] * LARGE.pipeline.stages], reverse=True)
    for count in range(LARGE.pipeline.stages + 2):
        assert states_bytes(LARGE, count, head=True) == sum(sizes[:count])
    assert states_bytes(LARGE, 99, head=False) == STAGE * LARGE.pipeline.stages
    wide = replace(LARGE, model=replace(LARGE.model, precision="float64"))
    assert states_bytes(wide, 1, head=False) == 2 * STAGE


def test_nothing_is_said_without_a_limit_or_when_it_passes() -> None:
    assert not too_slow(LARGE, 0.0, 9, True, 60.0) and not too_slow(LARGE, 1e3, 0, True, 60.0)
    just = STAGE * OVERHEAD / 60.0
    assert not too_slow(LARGE, just * 1.001, 1, False, 60.0)
    assert too_slow(LARGE, just * 0.999, 1, False, 60.0)


def test_what_to_do_is_said_with_the_numbers() -> None:
    seconds = settings(LARGE).install_seconds * 0.99
    up = STAGE * OVERHEAD / seconds
    said = too_slow(LARGE, up, 1, False, 60.0)
    assert f"({STAGE / 1e6:.0f} MB)" in said and f"--up {rate_text(up)}" in said and "a pause gives it 60 s" in said
    number = int(said.partition("--hand-over ")[2].partition(",")[0])
    assert seconds <= number < seconds + 1 and "--hold" not in said and "leaving" not in said
    assert not too_slow(LARGE, up, 1, False, number), "what it advises helps"
    assert "a lower --hold" in too_slow(LARGE, up, 2, False, 60.0)


@pytest.mark.parametrize("stages", [1, 5])
def test_a_stage_that_nobody_waits_for_needs_a_faster_line(stages: int) -> None:
    """A pause may take as long as its owner wants, Ctrl-C has what the run gives each stage."""
    up = STAGE * OVERHEAD / settings(LARGE).hand_over_seconds * 0.99
    said = too_slow(LARGE, up, stages, False, 1e6)
    assert "leaving gives it" in said and "a pause" not in said and said.endswith("give a higher --up")
    said = too_slow(LARGE, up, stages, False, 60.0)
    assert "a pause" in said and said.endswith("give a higher --up")
