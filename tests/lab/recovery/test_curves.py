"""Curves, schedules and texts of the recovery lab, with numbers worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftnode.lab.recovery import failures
from ftnode.lab.recovery.curves import excess_iterations, first_below, iteration_of, level, reached
from ftnode.lab.recovery.texts import KINDS, held_out_texts, split_prose
from ftnode.models.data import load_corpus

LINE = [(10 * i, 5.0 - 0.1 * i) for i in range(21)]
"""From 5 down to 3 in 200 iterations."""


def test_a_curve_that_lags_is_behind_by_its_lag() -> None:
    late = [(iteration, 5.0 - 0.01 * max(0, iteration - 30)) for iteration, _ in LINE]
    assert excess_iterations(late, LINE) == pytest.approx(30)
    assert excess_iterations(LINE, LINE) == pytest.approx(0)


def test_a_curve_that_leads_is_ahead_when_the_reference_is_longer() -> None:
    early = [(iteration, loss - 0.2) for iteration, loss in LINE[:17]]
    assert excess_iterations(early, LINE) == pytest.approx(-20)


def test_where_a_loss_is_reached() -> None:
    assert iteration_of(LINE, 4.05) == pytest.approx(95)
    assert iteration_of(LINE, 6.0) == 0
    assert iteration_of(LINE, 1.0) == 200
    assert reached(LINE, 95) == pytest.approx(4.05)
    assert first_below(LINE, 4.05) == 100
    assert first_below(LINE, 1.0) is None
    assert level(LINE, 200) == pytest.approx(3.2)


def test_schedules_show_enough_failures_and_none_are_adjacent(tmp_path: Path) -> None:
    scale = failures.scale_for(("16%",), 6, 800)
    assert scale == pytest.approx(24 / (0.004 * 6 * 800))
    for seed in range(20):
        drawn = failures.draw("16%", seed, 6, 800, scale, first=51)
        assert len(drawn.failures) >= failures.FAILURES_MIN
        assert all(51 <= iteration <= 800 and 1 <= stage <= 6 for iteration, stage in drawn.failures)
        at_once = [set(drawn.lost_before(iteration)) for iteration, _ in drawn.failures]
        assert not any(stage + 1 in lost for lost in at_once for stage in lost)
        failures.write(drawn, tmp_path / "schedule.json")
        assert failures.read(tmp_path / "schedule.json") == drawn


def test_only_middle_stages_fail_when_asked() -> None:
    drawn = failures.draw("16%", 0, 6, 800, 2.0, losing="middle")
    assert {stage for _, stage in drawn.failures} <= {2, 3, 4, 5}


def test_rates_keep_their_proportions() -> None:
    scale = failures.scale_for(("5%", "10%", "16%"), 6, 800)
    counts = [len(failures.draw(rate, 1, 6, 800, scale).failures) for rate in ("5%", "10%", "16%")]
    assert scale == pytest.approx(24 / (0.0009 * 6 * 800))
    assert counts[0] < counts[1] < counts[2]


def test_too_few_failures_are_said() -> None:
    with pytest.raises(ValueError, match="do not show"):
        failures.draw("5%", 0, 6, 100, 1.0)


def test_prose_is_taken_out_of_code() -> None:
    source = b'"""What it is."""\nx = 1  # one\n# why\ny = "text"\n\ndef f():\n    """Doc\n    more."""\n    return x\n'
    code, prose = split_prose(source)
    assert prose == b'"""What it is."""\n# why\n    """Doc\n    more."""\n'
    assert code == b'x = 1  # one\ny = "text"\n\ndef f():\n    return x\n'
    assert split_prose(b"def (:\n") == (b"def (:\n", b"")


def test_held_out_texts_were_not_trained_on() -> None:
    corpus = load_corpus("")
    texts, missing = held_out_texts(2, 2, 32)
    assert {text.kind for text in texts} | {line.split(":")[0] for line in missing} == set(KINDS)
    unseen = corpus.validation.tobytes()
    for text in texts:
        assert len(text.windows) == 2 and text.windows[0].shape == (2, 33)
        if text.kind == "tests":
            assert all(part in unseen for part in bytes(text.windows[0][0]).split(b"\0"))
