"""The benchmark of optimisers on a tiny scale: losses of runs that differ in their optimiser alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from ftnode.lab.parts import optimisers
from ftnode.models.data import load_corpus
from ftnode.node.cli.main import cli

LICENSE = str(Path(__file__).parents[3] / "LICENSE")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    threads = torch.get_num_threads()
    for name, value in (("LAYERS", 2), ("CONTEXT", 16), ("MEASURED", 1), ("VALIDATION_MICROBATCHES", 1), ("POINTS", 2)):
        monkeypatch.setattr(optimisers, name, value)
    monkeypatch.setattr(optimisers, "load_corpus", lambda path: load_corpus(LICENSE))
    yield
    assert torch.get_num_threads() == threads


def test_a_small_measurement(capsys: pytest.CaptureFixture[str]) -> None:
    trials = (("adam", 0.004), ("muon", 0.004), ("muon", 0.01))
    result = optimisers.run(False, 32, 10, 2, trials, (32,))
    adam, muon, other = result["losses"]
    assert list(adam["curve"]) == [5, 10] and len(adam["last"]) == 2 and adam["last"][0] != adam["last"][1]
    assert adam["curve"][10] == pytest.approx(sum(adam["last"]) / 2)
    assert all(row["curve"][10] < row["curve"][5] < 5.6 for row in (adam, muon, other))
    assert len({row["curve"][10] for row in (adam, muon, other)}) == 3
    (update,) = result["updates"]
    assert update["dim"] == 32 and update["muon"] > 0 < update["adam"]
    assert "muon" in capsys.readouterr().out


def test_trials_are_read() -> None:
    assert optimisers.parse_trial("muon:0.01") == ("muon", 0.01)
    for wrong in ("sgd:0.01", "muon", "adam:fast", "adam:-1"):
        with pytest.raises(ValueError, match=r"kind must be|learning_rate must be|could not convert"):
            optimisers.parse_trial(wrong)
    told = CliRunner().invoke(cli, ["lab", "optimisers", "--trial", "sgd:0.01"])
    assert told.exit_code != 0 and "kind must be one of adam, muon" in told.output
