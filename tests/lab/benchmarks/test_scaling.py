"""Step times with replicas: the formulas, and what is made of the measurements."""

from __future__ import annotations

from typing import Any

import pytest

from ftnode.lab.benchmarks import scaling
from ftnode.lab.traces.story import Told


def commit(step: int, time: float) -> Told:
    return Told("leader", {"k": "commit", "step": step, "t": time})


def test_one_holder_is_one_pipeline() -> None:
    """The slow stage works all the time but for the first and the last passage through the others."""
    slow, fast = sum(scaling.SLOW_SECONDS), sum(scaling.FAST_SECONDS)
    assert scaling.ideal_seconds(1) == pytest.approx(scaling.MICROBATCHES * slow + 2 * fast)


def test_equal_stages_give_the_published_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """(N_pp + N_m - 1 + N_m F / (N_dp - F)) (T_f + T_b), with N_m microbatches for each of N_dp pipelines."""
    monkeypatch.setattr(scaling, "FAST_SECONDS", scaling.SLOW_SECONDS)
    both, per_pipeline = sum(scaling.SLOW_SECONDS), scaling.MICROBATCHES / 4
    healthy = (scaling.STAGES + per_pipeline - 1) * both
    assert scaling.ideal_seconds(4) == pytest.approx(healthy)
    assert scaling.ideal_seconds(4, 2) == pytest.approx(healthy + per_pipeline * 2 / (4 - 2) * both)


@pytest.mark.parametrize("failed", [1, 2, 3])
def test_rerouting_is_as_good_as_having_had_fewer(failed: int) -> None:
    assert scaling.ideal_seconds(4, failed) == pytest.approx(scaling.ideal_seconds(4 - failed))


def test_nobody_left_is_no_rerouting() -> None:
    with pytest.raises(ValueError, match="nobody is left"):
        scaling.ideal_seconds(2, 2)


def test_a_step_lasts_from_commit_to_commit_and_a_repeated_commit_counts_once() -> None:
    commits = [commit(1, 10.0), commit(2, 11.0), commit(3, 13.0), commit(2, 12.5), commit(4, 14.5)]
    assert scaling.step_seconds(commits, 2, 4) == [1.0, 2.0, 1.5]
    assert scaling.step_seconds(commits, 3, 3) == [2.0]


def a_run(factor: float) -> dict[str, Any]:
    kill = {"undisturbed_seconds": 0.8, "interrupted_seconds": 1.1 * factor, "afterwards_seconds": 1.0,
            "into_seconds": 0.2, "agreed_seconds": 0.1, "visits": 1}  # fmt: skip
    steady = {str(held): factor * scaling.ideal_seconds(held) for held in scaling.HOLDERS}
    return {"steady": steady, "kills": [{"killed": 1, **kill}, {"killed": 2, **kill}],
            "newcomers": {"2": 4}, "audit": "passed"}  # fmt: skip


def test_figures_are_medians_over_the_runs() -> None:
    found = scaling.summarise([a_run(1.0), a_run(1.2), a_run(2.0)])
    assert [one["ratio"] for one in found["scaling"]] == pytest.approx([1.2, 1.2, 1.2])
    assert found["scaling"][0]["speed_up"] == 1.0
    one, two = found["kills"]
    assert one["interrupted_ratio"] == pytest.approx(1.1 * 1.2 / scaling.ideal_seconds(4, 1))
    assert one["interrupted_worst_seconds"] == pytest.approx(2.2)
    assert two["odyssey_seconds"] == pytest.approx(scaling.ideal_seconds(2))
    assert found["audit"] == ["passed"]


def test_the_table_has_a_line_for_everything() -> None:
    lines = scaling.table(scaling.summarise([a_run(1.0)])).splitlines()
    assert [line.split()[0] for line in lines[1:5]] == ["holders", *map(str, scaling.HOLDERS)]
    assert [line[:6] for line in lines[6:8]] == ["1 of 4", "2 of 4"]
    assert lines[-1] == "run 1: newcomers went 4 to stage 2; audit: passed"
