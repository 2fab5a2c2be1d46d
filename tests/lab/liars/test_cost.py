"""What checks cost, from the seconds of steps with and without one."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from ftnode.lab.liars import cost
from ftnode.lab.liars.cost import Step
from ftnode.lab.liars.ground import Ground

GROUND = Ground()


def test_steps_with_a_check_take_longer_and_so_many_have_one() -> None:
    found = cost.figures([Step(1.0, 0, 0)] * 80 + [Step(1.5, 1, 4)] * 20, GROUND)
    assert found["longer"] == 0.5 and found["tokens"] == pytest.approx(1 - 1 / (1 + 0.5 * 0.2), abs=1e-4)
    assert (found["steps"], found["checked"]) == (100, 20)
    assert 0 < found["bytes"] < 0.1 and "20 of 100 steps had one" in cost.text(found)


def test_checks_that_take_no_time_cost_none_and_what_is_sent_again_counts() -> None:
    once, twice = ([Step(1.0, 0, 0)] * 80 + [Step(1.0, 1, shown)] * 20 for shown in (8, 16))
    found = cost.figures(once, GROUND)
    assert found["tokens"] == 0.0
    assert cost.figures(twice, GROUND)["bytes"] == pytest.approx(2 * found["bytes"], abs=2e-4)


def test_a_step_in_which_the_machine_stood_still_changes_little() -> None:
    steps = [Step(1.0, 0, 0)] * 20 + [Step(1.0, 1, 0)] * 20
    assert cost.figures([*steps, Step(90.0, 1, 0)], GROUND)["longer"] == 0.0


@pytest.mark.parametrize("seal", [(), (["digest", "signature"],)], ids=["as without checks", "signed"])
def test_what_was_shown_is_what_came_and_was_for_somebody_else(seal: tuple[list[str]], tmp_path: Path) -> None:
    me, other = ["me", 1], ["other", 2]

    def came(step: int, visit: int, path: list[list[object]]) -> dict[str, object]:
        boundary = ["Boundary", "lineage", 1, step, [1, step], 0, visit, "forward", path, *seal]
        return {"k": "event", "e": ["Received", other, boundary, 7, ""]}

    done = {"k": "event", "e": ["Done", ["Recount", 1, 5, [1, 5]], None]}
    records = [
        {"k": "start", "peer": me},
        came(5, 0, [me, other]),
        came(5, 1, [me, other]),
        came(6, 1, [me, other]),
        done,
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join([*map(json.dumps, records), '{"k": "event", "e": ["Done", ["Recount"']))
    did, shown = dict[int, set[str]](), Counter[int]()
    cost._read("v1", path, did, shown)
    assert did == {5: {"v1"}} and shown == {5: 1, 6: 1}
