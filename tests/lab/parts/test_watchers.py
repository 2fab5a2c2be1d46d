"""The bench of many watchers of a public page, at its smallest."""

from __future__ import annotations

import json

import pytest

from ftnode.lab.parts import watchers


def test_all_figures_are_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(watchers, "SETTLE_SECONDS", 1.0)
    figures = watchers.run(True, watchers=40, peers=2, seconds=4.0)
    assert json.loads(capsys.readouterr().out) == figures
    one, many, plain = (figures[name] for name in ("one", "many", "plain"))
    assert many["answers_per_second"] > 5 * one["answers_per_second"] > 0
    assert 0 < many["asked_per_second"] < 3, "members are asked once a second, and not by each watcher"
    assert many["refused"] == 0 and plain["core_share"] > 0
    assert "40 watchers" in watchers.table(figures)
