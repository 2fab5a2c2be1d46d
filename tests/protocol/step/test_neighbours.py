"""Neighbouring stages of one peer in one task: which visits go together, and what is known of each when it is done.

Seven visits: the head, five block stages, and the head again. B holds stages 1 to 3, C stages 4 and 5, A the head. A
task reads `F1-3` where visits 1 to 3 go together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from ftnode.protocol.liveness.deadlines import Deadlines
from ftnode.protocol.step.attempt import StepWork
from ftnode.protocol.step.line_pace import LinePace
from ftnode.protocol.step.task_order import Pace
from ftnode.protocol.words.effects import Backward, Compute, Effect, Forward, Reduce, Release, Send, Task
from ftnode.protocol.words.events import Done
from ftnode.protocol.words.messages import Boundary
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Direction, Handle, Peer
from ftnode.protocol.words.view import View
from tests.protocol.beginnings import begun
from tests.protocol.situations import NOW, SETTINGS, A, B, C, D, view_of

FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD
FIVE = replace(SETTINGS, stages=5, evaluation_microbatches=1)
VIEW = view_of((A,), (B,), (B,), (B,), (C,), (C,))
PATH = (A, B, B, B, C, C, A)
MADE = 1000


def working(
    me: Peer = B, settings: Settings = FIVE, view: View = VIEW, places: Mapping[int, int] | None = None, **begin: Any
) -> StepWork:
    deadlines = Deadlines(settings.resend_seconds, settings.stall_seconds)
    work = StepWork(me, view, begun(**begin), settings, Pace(), LinePace(), {}, deadlines)
    work.installed(dict.fromkeys(work.stages, 0) if places is None else places)
    return work


def arrives(
    work: StepWork, visit: int, direction: Direction = FORWARD, path: tuple[Peer, ...] = PATH, microbatch: int = 0,
    view: int = 3,
) -> list[Effect]:  # fmt: skip
    """From the neighbour on the path."""
    begin = work.begin
    boundary = Boundary("lineage", view, begin.step, begin.attempt, microbatch, visit, direction, path)
    sender = path[visit - 1 if direction is FORWARD else visit + 1]
    return work.on_boundary(sender, boundary, Handle(10 * visit + (direction is BACKWARD)))


def given(effects: list[Effect]) -> list[Task]:
    return [effect.task for effect in effects if isinstance(effect, Compute)]


def result(task: Task, fault: str = "", faulty: int = -1) -> Done:
    nothing = isinstance(task, Reduce) or (isinstance(task, Backward) and task.visits[-1] == 0)
    output = None if isinstance(task, Reduce) or nothing else Handle(MADE + task.visits[-1])
    return Done(task, output, 1.0, 0, "", fault, faulty=faulty)


def spelled(task: Task) -> str:
    if isinstance(task, Reduce):
        return f"S{task.stage}"
    letter = ("F" if task.save else "f") if isinstance(task, Forward) else ("R" if task.recompute else "B")
    first, last = task.visits[0], task.visits[-1]
    return f"{letter}{first}" if first == last else f"{letter}{first}-{last}"


def drain(work: StepWork) -> tuple[str, list[Effect]]:
    """Compute does all that there is."""
    told: list[str] = []
    answers: list[Effect] = []
    waiting = given(work.advance(NOW, False))
    while waiting:
        task = waiting.pop(0)
        told.append(spelled(task))
        answers += work.on_done(result(task), NOW, A)
        waiting += given(work.advance(NOW, False))
    return " ".join(told), answers


def sent(effects: list[Effect]) -> list[tuple[int, Direction, Handle | None]]:
    tensors = [each for each in effects if isinstance(each, Send)]
    return [
        (one.message.visit, one.message.direction, one.handle) for one in tensors if isinstance(one.message, Boundary)
    ]


def test_neighbours_are_one_task_and_only_its_ends_are_tensors() -> None:
    work = working(settings=replace(FIVE, microbatches=1))
    arrives(work, 1)
    told, answers = drain(work)
    assert told == "F1-3" and sent(answers) == [(4, FORWARD, MADE + 3)] and len(work.holds.handles) == 2
    arrives(work, 3, BACKWARD)
    told, answers = drain(work)
    assert told == "B3-1 S1 S2 S3" and sent(answers) == [(0, BACKWARD, MADE + 1)]
    assert work.accumulated == {(0, 1), (0, 2), (0, 3)} and work.complete
    assert sorted(handle for each in answers if isinstance(each, Release) for handle in each.handles) == [10, 31]


@pytest.mark.parametrize(
    ("places", "tasks"),
    [
        ({1: 0, 2: 0, 3: 0}, "F1-3"),
        ({1: 0, 2: 0, 3: 1}, "F1-2 F3"),
        ({1: 0, 2: 1, 3: 0}, "F1 F2 F3"),
        ({1: 0, 2: 1, 3: 1}, "F1 F2-3"),
        ({1: 0, 3: 0}, "F1"),
        ({1: 0, 2: 0}, "F1-2"),
    ],
)
def test_only_what_is_here_and_on_one_device_goes_together(places: Mapping[int, int], tasks: str) -> None:
    work = working(places=places)
    arrives(work, 1)
    assert drain(work)[0] == tasks


@pytest.mark.parametrize(
    ("limit", "tasks"),
    [(8, "F1-3 F1-3 B3-1 B3-1"), (1, "F1-3 f1 f2 f3 B3-1 R3 R2 R1"), (0, "f1 f2 f3 f1 f2 f3 R3 R2 R1 R3 R2 R1")],
)
def test_what_is_not_saved_is_computed_again_one_by_one(limit: int, tasks: str) -> None:
    """Each stage has its own room for activations, and what has none is computed again from a tensor that is here."""
    work, told = working(settings=replace(FIVE, live_activations=limit)), []
    for direction, visit in ((FORWARD, 1), (BACKWARD, 3)):
        for microbatch in (0, 1):
            arrives(work, visit, direction, microbatch=microbatch)
        told.append(drain(work)[0])
    assert sorted(" ".join(told).split()) == sorted(tasks.split())


def test_a_swapped_route_goes_through_the_same_peer_in_its_order() -> None:
    work = working(settings=replace(FIVE, swap=True))
    arrives(work, 1, microbatch=1)
    (task,) = given(work.advance(NOW, False))
    assert isinstance(task, Forward) and task.stages == (2, 1, 3) and list(task.visits) == [1, 2, 3]


def test_the_head_is_a_task_of_its_own() -> None:
    """One peer holds everything: its pace for the head is not that of its blocks."""
    work = working(A, settings=replace(FIVE, microbatches=1), view=view_of(*((A,),) * 6), shares=((A, (0,)),))
    told: list[str] = []
    waiting = given(work.advance(NOW, True))
    while waiting:
        task = waiting.pop(0)
        told.append(spelled(task))
        effects = work.on_done(result(task), NOW, A)
        assert sent(effects) == []
        waiting += given(work.advance(NOW, True))
    assert [each for each in told if each[0] != "S"] == ["F0", "F1-5", "B6", "B5-1", "B0"]
    assert work.complete


def test_a_validation_goes_through_neighbours_and_keeps_nothing() -> None:
    work = working(evaluate=True)
    arrives(work, 1, microbatch=SETTINGS.microbatches)
    told, answers = drain(work)
    assert told == "f1-3" and sent(answers) == [(4, FORWARD, MADE + 3)]


def test_who_takes_over_does_only_what_is_missing() -> None:
    """D had visit 1, and is dead: what it made for visit 2 came before, and has been used."""
    path, then = (A, D, B, B, C, C, A), view_of((A,), (B,), (B,), (B,), (C,), (C,), number=4)
    work = working(view=view_of((A,), (B, D), (B,), (B,), (C,), (C,)))
    arrives(work, 2, path=path)
    assert drain(work)[0] == "F2-3"
    begin = replace(work.begin, view=4, paths=((0, PATH),))
    work.continue_in(then, begin, NOW)
    arrives(work, 1, view=4)
    told, answers = drain(work)
    assert told == "F1" and sent(answers) == []
    arrives(work, 3, BACKWARD, view=4)
    assert drain(work)[0] == "B3-1"


def test_a_gradient_that_was_here_is_not_made_again() -> None:
    """The same, and D had come further: the gradient for its visit has left us, and waits for us now."""
    path, then = (A, D, B, B, C, C, A), view_of((A,), (B,), (B,), (B,), (C,), (C,), number=4)
    work = working(view=view_of((A,), (B, D), (B,), (B,), (C,), (C,)))
    arrives(work, 2, path=path)
    arrives(work, 3, BACKWARD, path=path)
    assert drain(work)[0] == "F2-3 B3-2"
    work.continue_in(then, replace(work.begin, view=4, paths=((0, PATH),)), NOW)
    arrives(work, 1, view=4)
    assert drain(work)[0] == "F1 B1"
    assert work.accumulated == {(0, 1), (0, 2), (0, 3)}


def test_a_visit_that_becomes_anothers_ends_the_attempt() -> None:
    """What passed within a task cannot be sent to anybody."""
    work = working()
    arrives(work, 1)
    drain(work)
    then = view_of((A,), (B,), (D,), (B,), (C,), (C,), number=4)
    work.continue_in(then, replace(work.begin, view=4, paths=((0, (A, B, D, B, C, C, A)),)), NOW)
    assert work.poison is not None and "another's now" in work.poison.reason
    alone = working()
    arrives(alone, 1)
    alone.continue_in(then, replace(work.begin, view=4, paths=((0, (A, B, D, B, C, C, A)),)), NOW)
    assert alone.poison is None


@pytest.mark.parametrize(("faulty", "stage", "giver"), [(-1, 1, A), (1, 1, A), (2, 2, None), (3, 3, None)])
def test_a_fault_is_named_where_it_is(faulty: int, stage: int, giver: Peer | None) -> None:
    """Whoever gave the first stage its tensor has nothing to do with what the second one makes of it."""
    work = working()
    arrives(work, 1)
    (task,) = given(work.advance(NOW, False))
    work.on_done(result(task, "not finite", faulty), NOW, A)
    assert work.poison is not None and (work.poison.stage, work.poison.giver) == (stage, giver)


def test_the_stages_of_a_task_share_its_time() -> None:
    work = working()
    arrives(work, 1)
    for direction, visit, seconds in ((FORWARD, 1, 3.0), (BACKWARD, 3, 6.0)):
        if direction is BACKWARD:
            arrives(work, visit, direction)
        (task,) = given(work.advance(NOW, False))
        assert isinstance(task, Backward) == (direction is BACKWARD)
        work.on_done(result(task), NOW + seconds, A)
    assert [work._pace.seconds(stage) for stage in (1, 2, 3)] == pytest.approx([3.0, 3.0, 3.0])


def test_a_task_of_several_stages_may_take_as_much_longer() -> None:
    work = working()
    assert work.most_at_once == 1
    arrives(work, 1)
    work.advance(NOW, False)
    assert work.most_at_once == 3
