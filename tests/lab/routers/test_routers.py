"""What the parts say, and which of their targets they miss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ftnode.lab.routers import matrix, routers
from ftnode.lab.routers.relay_killed import Killed
from ftnode.lab.routers.routers import Asked, killed_figures, run, table, trains_figures, watch_figures
from ftnode.lab.routers.swarm import Swarm, figures_of
from ftnode.lab.routers.trains import Trained
from ftnode.lab.routers.watch import Watched
from ftnode.protocol.words.errors import UserError


def swarm(router: str, relays: int, tokens: float) -> Swarm:
    return Swarm(router, relays, 1000 / tokens, 9, tokens, {"meeting point": 2.5e5})


def test_swarms_are_held_against_the_one_without_routers() -> None:
    figures = figures_of([swarm("none", 0, 200), swarm("port-restricted", 0, 182), swarm("symmetric", 3, 90)])
    assert [one["ratio"] for one in figures["swarms"]] == [1.0, 0.91, 0.45]
    assert figures["missed"] == ["behind symmetric routers there are 0.45 of the tokens, not 0.5"]
    assert "0.91           0.25 MB/s" in table("swarm", figures)


def test_a_pair_that_does_not_train_is_missed_with_its_reason() -> None:
    figures = trains_figures([Trained("none", "two", True, 4.0, ""), Trained("two", "two", False, 90.0, "no step")])
    assert figures["missed"] == ["no training between two and two: no step"]
    assert "trains          4.0 s" in table("trains", figures)


def test_the_median_of_the_looks_counts() -> None:
    figures = watch_figures(
        [Watched("full-cone", (1.0, 9.0, 2.0), (1, 2, 3)), Watched("two", (1.0, 4.0, 5.0), (1, 2, 3))]
    )
    assert figures["missed"] == ["a status behind two routers took more than 3 s"]
    assert "1.00, 9.00, 2.00 s (median 2.00 s)" in table("watch", figures)


def test_a_relay_whose_end_costs_too_much_is_missed() -> None:
    figures = killed_figures([Killed("bootstrap", 5_000_000, 1.5, 1.0), Killed("relay-1", 5_000_000, 5.5, 1.0)])
    assert figures["missed"] == ["after relay-1 the next commit took more than 5 s"]
    assert "bootstrap, which carried 5.0 MB in 10 steps" in table("relay-killed", figures)


def test_each_part_is_written_when_it_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So what was measured stays when a later part fails; and a place that takes nothing is told before all of them."""

    def measure(part: str, asked: Asked, folder: Path) -> dict[str, Any]:
        if part == "watch":
            raise UserError("status told no step", 70)
        return trains_figures([Trained("none", "two", True, 4.0, "")])

    monkeypatch.setattr(routers, "measure", measure)
    pairs = matrix.Asked(("none",), (1.0, 1.0), (1.0, 1.0), 0.0)
    asked, out = Asked(("trains", "watch"), pairs, 1.0), tmp_path / "new" / "routers.json"
    with pytest.raises(UserError, match="told no step"):
        run(asked, True, out)
    assert json.loads(out.read_text())["trains"]["missed"] == []
    monkeypatch.setattr(routers, "measure", None)
    with pytest.raises(UserError, match="cannot write to"):
        run(asked, True, tmp_path)
