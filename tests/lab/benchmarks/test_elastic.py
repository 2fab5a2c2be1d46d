"""Joins, killed replicas and loss curves: what is made of traces, with numbers worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ftnode.lab.benchmarks import elastic
from ftnode.lab.benchmarks import elastic_times as times
from ftnode.lab.benchmarks.elastic_picture import draw_curves
from ftnode.lab.demo.report import SURVIVORS, Kill, Recovery
from ftnode.lab.traces.story import Told
from ftnode.protocol.words.codec import to_plain
from ftnode.protocol.words.errors import UserError
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import Lineage, View

NEWCOMER, LEADER = Peer("12D3KooWnewcomer", 3), Peer("12D3KooWleader", 1)


def told(node: str, time: float, record: str, /, **fields: Any) -> Told:
    return Told(node, {"k": record, "t": time, **fields})


def note(node: str, time: float, kind: str, **fields: str) -> Told:
    return told(node, time, "note", kind=kind, text="because", fields=fields)


def view(node: str, time: float, number: int, holders: tuple[Peer, ...]) -> Told:
    made = View("r" * 32, Lineage("l", 0, 0), number, "", LEADER, ((LEADER,), holders), (LEADER,), (0, 0), "why")
    return told(node, time, "view", view=to_plain(made))


def commit(step: int, time: float, tokens: int = 100, loss: float = 1.0) -> Told:
    return told("leader", time, "commit", step=step, tokens=tokens, loss=loss)


def a_join() -> list[Told]:
    """Asked for at 10: a first fetch fails, the second is done; and a replica of before has worked all along."""
    return [
        note("leader", 5.0, "learner", peer="12D3KooWother"),
        told("other", 6.0, "accumulated", stage=1),
        told("newcomer", 11.0, "start", peer=list(NEWCOMER)),
        view("newcomer", 12.0, 4, (LEADER,)),
        note("leader", 13.5, "learner", peer=NEWCOMER.id),
        note("leader", 13.6, "learner", peer=NEWCOMER.id),
        note("newcomer", 14.0, "rebuild", stages="1", rung="replica"),
        note("newcomer", 14.5, "rebuild", stages="1"),
        note("newcomer", 15.0, "rebuild", stages="1", rung="replica"),
        told("newcomer", 17.0, "installed", stage=1, bytes_fetched=30_000_000, fetch_seconds=1.5),
        view("leader", 17.9, 5, (LEADER, NEWCOMER)),
        view("newcomer", 18.0, 5, (LEADER, NEWCOMER)),
        told("newcomer", 18.25, "accumulated", stage=1),
        told("newcomer", 18.5, "accumulated", stage=1),
    ]


def test_a_join_has_six_parts_that_add_up() -> None:
    join = times.find_join(reversed(a_join()), "newcomer", 10.0)
    assert (join.stage, join.bytes_fetched) == (1, 30_000_000)
    assert join.parts() == {
        "start": 1.0, "found": 2.5, "offer": 1.5, "fetch": 2.0, "catch_up": 1.0, "first_microbatch": 0.25,
    }  # fmt: skip
    assert sum(join.parts().values()) == 8.25
    assert join.megabytes_per_second == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("kind", "what"),
    [("start", "its trace"), ("view", "a view"), ("accumulated", "a microbatch"), ("installed", "its weights")],
)
def test_a_join_of_which_something_is_missing(kind: str, what: str) -> None:
    left = [one for one in a_join() if one.node != "newcomer" or one.record["k"] != kind]
    with pytest.raises(UserError, match=what):
        times.find_join(left, "newcomer", 10.0)


STEADY = [commit(step, float(step)) for step in range(1, 11)]
"""A step a second, from 1 to 10."""


def test_a_stall_is_the_longest_step_that_touches_the_join() -> None:
    commits = [*STEADY, commit(11, 12.5), commit(11, 13.0), commit(12, 13.25), commit(13, 20.0)]
    assert times.median_step(commits, 10.5) == 1.0
    assert times.longest_step(commits, 10.5, 11.0) == 2.5
    assert times.longest_step(commits, 12.5, 13.0) == 0.75
    assert times.longest_step(commits, 9.5, 13.5) == 6.75
    assert times.longest_step(commits, 30.0, 31.0) == 0.0


def test_only_the_last_steps_count_as_those_before() -> None:
    commits = [commit(1, 0.0), commit(2, 9.0), commit(3, 10.0), commit(4, 12.0)]
    assert times.median_step(commits, 12.0, 2) == 1.5
    with pytest.raises(ValueError, match="no step"):
        times.median_step(commits, 5.0)


def test_a_join_is_told_with_its_stall() -> None:
    commits = [commit(0, -0.5), *STEADY, commit(11, 13.0), commit(12, 14.0), commit(13, 15.25), commit(14, 19.0)]
    join = times.Join("newcomer", 1, 10.0, 11.0, 13.5, 14.0, 14.5, 14.75, 15.0, 30_000_000, 0.5)
    figures = times.tell_join(join, commits)
    assert (figures["seconds"], figures["step_seconds"]) == (5.0, 1.0)
    assert figures["longest_before_seconds"] == 1.5
    assert (figures["longest_starting_seconds"], figures["longest_joining_seconds"]) == (3.0, 1.25)
    assert figures["stall"] == pytest.approx(0.25)
    assert figures["megabytes_per_second"] == pytest.approx(60.0)


def test_tokens_count_by_the_part_of_a_step_that_lies_in_the_window() -> None:
    commits = [commit(1, 0.0), commit(2, 2.0), commit(3, 4.0), commit(4, 8.0)]
    assert times.tokens_per_second(commits, 0.0, 4.0) == 50.0
    assert times.tokens_per_second(commits, 1.0, 6.0) == pytest.approx((50 + 100 + 50) / 5)
    with pytest.raises(ValueError, match="do not cover"):
        times.tokens_per_second(commits, 1.0, 8.5)


def test_a_killed_replica_is_told_with_the_tokens_around_it() -> None:
    """100 tokens a second before, 50 after: the dead had done half of the work."""
    commits = [commit(step, float(step)) for step in range(41)]
    commits += [commit(40 + number, 40.0 + 2 * number) for number in range(1, 21)]
    kill = Kill(stage=1, step=41, node="victim", time=40.0, accumulated=3, holders=2, survivors=True)
    recovery = Recovery(1, 41, SURVIVORS, "", 0, "", "", 0.25, 0.5, 0.0, 0.0, 1.25, 2.0, 0, None, None)
    figures = times.tell_kill(kill, recovery, commits)
    assert figures["tokens_per_second_before"] == pytest.approx(100.0)
    assert figures["tokens_per_second_after"] == pytest.approx(50.0)
    assert figures["kept"] == pytest.approx(0.5)
    assert (figures["visits"], figures["outage_seconds"], figures["step_seconds"]) == (3, 2.0, 1.0)


def test_curves_are_compared_where_both_have_a_step() -> None:
    plain, other = [(1, 5.0), (2, 4.0), (3, 3.0)], [(1, 5.0), (2, 4.25), (3, 2.875), (4, 2.0)]
    assert times.differences(other, plain) == [(1, 0.0), (2, 0.25), (3, -0.125)]
    assert times.compare_curves(other, plain) == {"largest": 0.25, "at": 2, "final": 0.125}


def test_a_curve_has_a_repeated_commit_once() -> None:
    assert times.loss_curve([commit(2, 3.0, loss=4.0), commit(1, 1.0, loss=5.0), commit(2, 4.0, loss=9.0)]) == [
        (1, 5.0),
        (2, 4.0),
    ]


def a_run(factor: float, audit: str = "passed") -> dict[str, Any]:
    join = {f"{name}_seconds": factor for name in times.PARTS} | {
        "stage": 1, "seconds": 6 * factor, "step_seconds": 1.0, "longest_before_seconds": 1.1,
        "longest_starting_seconds": 1.5, "longest_joining_seconds": 1.0 + factor / 10, "stall": factor / 10,
        "bytes_fetched": 40_000_000, "megabytes_per_second": 80.0,
    }  # fmt: skip
    kill = {"stage": 1, "holders": 2, "outage_seconds": factor, "detect_seconds": 0.1, "elect_seconds": 0.1,
            "step_seconds": 1.0, "tokens_per_second_before": 100.0, "tokens_per_second_after": 60.0, "kept": 0.6,
            "visits": 2}  # fmt: skip
    trained = {"curve": [(1, 5.0), (2, 4.0)], "seconds": 10.0, "killed": [], "visits": [], "joined": [], "audit": audit}
    other = trained | {"curve": [(1, 5.0), (2, 4.0 + factor)], "killed": [1, 2], "visits": [2, 3], "joined": [2]}
    both = {compute: {"join": join, "kill": kill, "audit": "passed"} for compute in ("torch", "paced")}
    return {"tensor_path_megabytes_per_second": 500.0 * factor, "elastic": both, "undisturbed": trained,
            "again": trained, "disturbed": other}  # fmt: skip


def test_figures_are_medians_and_the_worst() -> None:
    found = elastic.summarise([a_run(1.0), a_run(4.0), a_run(2.0)])
    assert found["tensor_path_megabytes_per_second"] == 1000.0
    assert (found["joins"]["paced"]["stall"], found["joins"]["paced"]["worst"]) == (0.2, 0.4)
    assert (found["kills"]["torch"]["outage_seconds"], found["kills"]["torch"]["worst"]) == (2.0, 4.0)
    assert found["curves"]["drawn"] == 1
    assert found["curves"]["with_losses"] == {"largest": 4.0, "at": 2, "final": 4.0}
    assert found["curves"]["undisturbed"]["largest"] == 0.0
    assert (found["curves"]["killed"], found["curves"]["joined"], found["curves"]["visits"]) == (2, 1, 5)
    assert found["passed"]


def test_one_finding_of_an_audit_fails_it_all() -> None:
    found = elastic.summarise([a_run(1.0), a_run(1.0, "a step twice")])
    assert (found["passed"], found["audit"]) == (False, ["a step twice", "passed"])


def test_the_table_names_budgets_and_audit() -> None:
    lines = elastic.table(elastic.summarise([a_run(1.0)])).splitlines()
    assert lines[-1] == "audit: passed"
    assert any(line.split() == ["joining", "torch", "paced"] for line in lines)
    assert any("stall" in line and line.endswith("10%         10%   at most 10%") for line in lines)
    assert any("next commit" in line and line.endswith("1.000 s     1.000 s   at most 2 s") for line in lines)
    assert any(line.startswith("2 replicas killed, 1 newcomers joined") for line in lines)


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("here")
    with pytest.raises(UserError, match="not empty"):
        elastic.run(out=tmp_path)


def test_the_picture_is_drawn_even_where_curves_are_equal(tmp_path: Path) -> None:
    curve = [(step, 5.0 / step) for step in range(1, 9)]
    draw_curves(
        tmp_path / "curves.png", undisturbed=curve, again=curve, disturbed=[*curve[:-1], (8, 1.0)], killed=[3],
        joined=[5],
    )  # fmt: skip
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
