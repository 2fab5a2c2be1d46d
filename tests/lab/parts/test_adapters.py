"""`ftnode lab adapters`, with a few steps."""

from __future__ import annotations

import json

import pytest

from ftnode.lab.parts import adapters


def test_every_part_is_trained_and_every_loss_is_filled_where_it_can_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(adapters, "AFTER", 1)
    monkeypatch.setattr(adapters, "LOSSES", ((3,), (1, 2)))
    found = adapters.run(True, steps=6, more=6, seeds=1)
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(found))
    rows = found["rows"]
    assert {row["part"] for row in rows} == {part.name for part in adapters.PARTS}
    assert all(row["learnt"] < row["before"] for row in rows)
    ways = {(row["part"], row["way"]) for row in rows}
    assert len(ways) == 2 * len(adapters.PARTS) - 1, "stages of different sizes are not blended"
    untouched = [row for row in rows if row["part"] == "last 2 layers" and row["lost"] == [3]]
    assert [(row["at_once"], row["later"]) for row in untouched] == [(0.0, 0.0)], "nothing of it is trained"
    assert any(row["at_once"] != 0 for row in rows)


def test_adapters_have_the_least_state_and_the_same_tensors() -> None:
    rows = adapters.shares()
    for model in adapters.SHAPES:
        of_model = {row["part"]: row for row in rows if row["model"] == model}
        assert len({row["tensors"] for row in of_model.values()}) == 1
        least = min(of_model.values(), key=lambda row: row["state"])
        assert least["part"].startswith("adapters") and least["state"] < of_model["all"]["state"] / 30
        assert all(row["memory"] <= of_model["all"]["memory"] for row in of_model.values())
