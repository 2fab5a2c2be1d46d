"""A stage's line says how it does, and why it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftnode.node.watch.progress import Progress
from ftnode.node.watch.stage_summary import Circumstances, summarize
from ftnode.node.watch.status import StageRow

ROW = StageRow(1, "peer-of-one", "training", 2, 7, 3, 0, 0.5, 100.0)
OTHER = replace(ROW, stage=2, peer="peer-of-two")
CALM = Circumstances(step_seconds=1.0, silence_seconds=5.0, heard=frozenset({ROW.peer, OTHER.peer}))


def reason(*rows: StageRow, age: float = 0.1, around: Circumstances = CALM) -> str:
    return summarize(rows, lambda stage: age, around)[0].reason


def test_holders_count_together() -> None:
    rows = (ROW, replace(ROW, peer="second", step=8, queue=4, tokens_per_second=50.0), OTHER)
    first, second = summarize(rows, lambda stage: 0.1, CALM)
    assert (first.stage, first.holders, first.epoch, first.step, first.queue) == (1, 2, 2, 8, 4)
    assert (first.tokens_per_second, first.step_age, first.state, first.reason) == (150.0, 0.1, "training", "")
    assert second.holders == 1


@pytest.mark.parametrize(
    ("states", "whole"),
    [
        (("training", "ready"), "training"),
        (("ready", "ready"), "ready"),
        (("training", "rebuilding"), "rebuilding"),
        (("training", "unknown"), "unknown"),
        (("finished",), "finished"),
        (("asleep", "awake"), "asleep"),
        ((), "vacant"),
    ],
)
def test_one_word_for_all_holders(states: tuple[str, ...], whole: str) -> None:
    rows = [replace(ROW, peer=f"p{number}", state=state) for number, state in enumerate(states)]
    assert summarize(rows or [replace(ROW, peer="", state="vacant")])[0].state == whole


@pytest.mark.parametrize(
    ("rows", "age", "change", "says"),
    [
        ([replace(ROW, peer="")], 0.1, {}, "nobody holds it"),
        ([replace(ROW, peer="")], 0.1, {"waiting": "a volunteer for stage 1"}, "waits for a volunteer for stage 1"),
        ([replace(ROW, state="rebuilding")], 0.1, {"rebuilds": {1: "rebuilt by blend: why"}}, "rebuilt by blend: why"),
        ([ROW], 0.1, {"rebuilds": {1: "rebuilt by blend: why"}}, ""),
        ([replace(ROW, age=6.0)], 0.1, {}, "no word from of-one for 6 s"),
        ([replace(ROW, age=6.0)], 0.1, {"heard": frozenset()}, ""),
        ([ROW], 0.1, {"waiting": "a volunteer for stage 2"}, "waits for a volunteer for stage 2"),
        ([ROW], 2.9, {}, ""),
        ([ROW], 3.1, {}, "no step for 3 s, where one takes 1.0 s"),
        ([replace(ROW, queue=5), OTHER], 3.1, {}, "5 microbatches wait here, where a step takes 1.0 s"),
        ([ROW, replace(OTHER, queue=5)], 3.1, {}, "waits for stage 2"),
        ([ROW, replace(OTHER, stage=0, queue=5)], 3.1, {}, "waits for the head"),
        ([ROW], 1.9, {"step_seconds": 0.1}, ""),
        ([ROW], 99.0, {"step_seconds": None}, ""),
        ([ROW], 99.0, {"finished": True}, ""),
        ([replace(ROW, age=99.0)], 99.0, {"finished": True, "heard": frozenset()}, ""),
        ([replace(ROW, age=99.0)], 99.0, {"finished": True}, "can no longer be had: no word from of-one for 99 s"),
        (
            [ROW],
            1.0,
            {"finished": True, "refused": frozenset({ROW.peer})},
            "can no longer be had: no word from of-one for 0 s",
        ),
        ([replace(ROW, age=9.0), replace(ROW, peer="b")], 9.0, {"finished": True}, "no word from of-one for 9 s"),
    ],
)
def test_why_a_stage_stalls(rows: list[StageRow], age: float, change: dict[str, object], says: str) -> None:
    around = replace(CALM, **change)  # type: ignore[arg-type]
    found = {stage.stage: stage.reason for stage in summarize(rows, lambda stage: age, around)}
    assert found[1] == says


def test_at_the_end_only_those_who_are_heard_hold_a_stage() -> None:
    over = replace(CALM, finished=True)
    gone = replace(ROW, age=9.0, state="finished")
    (lost,) = summarize([gone], lambda stage: 9.0, over)
    assert (lost.holders, lost.state) == (0, "vacant")
    (kept,) = summarize([gone, replace(OTHER, stage=1, state="finished")], lambda stage: 9.0, over)
    assert (kept.holders, kept.state) == (1, "finished")


def test_ages_count_from_the_last_move() -> None:
    progress = Progress()
    assert progress.commit_age(5.0) is None and progress.stage_age(1, 5.0) is None
    progress.look(0, {}, 5.0)
    assert progress.commit_age(6.0) is None
    progress.look(3, {1: 3}, 10.0)
    progress.look(3, {1: 4}, 12.0)
    assert progress.commit_age(13.0) == 3.0 and progress.stage_age(1, 13.0) == 1.0
    progress.look(1, {1: 1}, 14.0)
    assert progress.commit_age(14.0) == 0.0 and progress.stage_age(1, 14.0) == 0.0


def test_a_stage_that_routes_leave_out_is_not_waited_for() -> None:
    row = replace(ROW, peer="", state="left out")
    (told,) = summarize([row], lambda stage: 0.1, CALM)
    assert (told.holders, told.state, told.reason) == (
        0,
        "left out",
        "nobody holds it, and the others train without it",
    )
    (over,) = summarize([row], lambda stage: 0.1, replace(CALM, finished=True))
    assert over.reason == "can no longer be had"
