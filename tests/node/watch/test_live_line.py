"""The line at the bottom of a terminal: what it says, and what it leaves out where there is no room."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.cells import cell_len

from ftnode.node.watch.live_line import Part, fitted, own_parts, run_parts
from ftnode.node.watch.own_work import OwnWork
from ftnode.node.watch.status import PeerRow, Speaker, SwarmStatus

ME = PeerRow("me", "holder", (0, 1), (), "self", None, "1", 0.0, 0.64, 0.12, 0.3, 0.0)
STATUS = SwarmStatus(
    Speaker("me", "1", "cpu", "volunteer"), run="r", name="tiny", step=1212, steps=4000, loss=1.83006,
    tokens_per_second=11432.4, state="training", eta_seconds=7500.0, peers=(ME,),
)  # fmt: skip
WORK = OwnWork(visits=3210, steps=40, held_seconds=3720.0, stages={0, 1}, share=0.314)
WHOLE = (
    "step 1,212 of 4,000; loss 1.8301; 11,432 tokens/s; 2 h 5 min to go | holds head, stage 1; 3,210 microbatches; "
    "31% of all; in 62 min; device 64% busy, line 12%"
)


def line(width: int, status: SwarmStatus = STATUS, work: OwnWork = WORK, state: str = "") -> str:
    return fitted([run_parts(status), own_parts(status, work, sorted(work.stages), state)], width, cell_len)


def test_all_of_it_where_there_is_room() -> None:
    assert line(200) == line(len(WHOLE)) == WHOLE


def test_a_narrow_terminal_gets_what_matters_most() -> None:
    assert line(80) == "step 1,212 of 4,000; loss 1.8301; 2 h 5 min to go | holds head, stage 1"
    assert line(40) == "step 1,212 of 4,000; 2 h 5 min to go"
    assert line(20) == line(1) == "step 1,212 of 4,000"
    for width in range(20, 200):
        assert len(line(width)) <= width and not line(width).endswith(("|", ";", " "))


def test_wide_letters_take_two_cells() -> None:
    assert fitted([[Part(0, "step 1"), Part(1, "等待" * 4)]], 20, cell_len) == "step 1"
    assert fitted([[Part(0, "step 1"), Part(1, "等待" * 4)]], 24, cell_len) == "step 1; " + "等待" * 4


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"state": "waiting", "waiting": "a volunteer for stage 2"}, "; waits for a volunteer for stage 2 |"),
        ({"state": "halted", "waiting": "halted: no copy"}, "; halted: no copy |"),
        ({"state": "finished", "eta_seconds": None}, "; loss 1.8301; all steps are done |"),
        ({"loss": None, "tokens_per_second": None, "eta_seconds": None}, "step 1,212 of 4,000 |"),
        ({"waiting": "\x1b[2J"}, "; waits for ?[2J |"),
    ],
)
def test_what_the_run_is_about(changes: dict[str, object], says: str) -> None:
    assert says in line(300, replace(STATUS, **changes))  # type: ignore[arg-type]


def test_what_this_node_is_about() -> None:
    nothing = OwnWork()
    assert line(300, replace(STATUS, peers=()), nothing).endswith("| holds no stage yet")
    learner = replace(STATUS, peers=(replace(ME, role="learner", stages=(2,), computed=None),))
    assert line(300, learner, nothing).endswith("| learns stage 2")
    assert " | hands over; holds head, stage 1; " in line(300, state="hands over")
    many = replace(STATUS, peers=()), OwnWork(stages={0, 1, 2, 3, 5, 6})
    assert line(300, *many).endswith("| holds head, stages 1-3, 5, 6")
    assert line(300, replace(STATUS, peers=()), OwnWork(stages={0})).endswith("| holds head")
