"""The benchmark of data build on a little text: figures are of builds that ended, and budgets decide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ftnode.lab.parts import data


def test_a_small_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "BYTE_MEGABYTES", (1,))
    monkeypatch.setattr(data, "VOCABULARY", 600)
    monkeypatch.setattr(data, "TRAINED_ON", 100_000)
    result = data.measure(tmp_path, rounds=1, megabytes=1)
    small, large, of_bytes = result["builds"]
    assert 3.5 * small["tokens"] < large["tokens"] < 4.5 * small["tokens"]
    assert of_bytes["tokens"] > 1_000_000 and of_bytes["tokenizer"] == "bytes"
    assert all(10 < built["peak_mib"] <= result["peak_mib"] for built in result["builds"])
    assert result["ratio"] > 0


@pytest.mark.parametrize(("ratio", "peak", "passed"), [(0.9, 500, True), (0.7, 500, False), (0.9, 1100, False)])
def test_budgets_decide(
    ratio: float, peak: float, passed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Untrained:
        def save(self, path: str) -> None: ...

    def built(source: Path, tokenizer: str, out: Path) -> dict[str, Any]:
        return {"tokenizer": "x", "megabytes": 1.0, "seconds": 10.0, "cpu_seconds": 2.0, "tokens": 5, "peak_mib": peak}

    monkeypatch.setattr(data, "BYTE_MEGABYTES", ())
    monkeypatch.setattr(data, "train", lambda texts: Untrained())
    monkeypatch.setattr(data, "encode", lambda tokenizer, texts: (10 * ratio, 1.0))
    monkeypatch.setattr(data, "build", built)
    result = data.measure(tmp_path, rounds=2, megabytes=1)
    assert result["passed"] is passed and result["ratio"] == pytest.approx(ratio)
    assert result["cpu_ratio"] == 0.5
    assert data.table(result).row_count == 3
