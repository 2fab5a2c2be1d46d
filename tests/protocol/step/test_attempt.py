"""One peer's work on one attempt: which task comes next, what is admitted, and that nothing counts twice.

A play is a string of words: `f2` and `b2` are the activation and the gradient of microbatch 2 that arrive, `.` lets
compute do all that there is. What compute was given reads: `F` forward, `f` forward without saving, `B` backward, `R`
backward that recomputes, with their microbatches, and `S` for the sum.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ftnode.protocol.liveness.deadlines import Deadlines
from ftnode.protocol.step.attempt import StepWork
from ftnode.protocol.step.line_pace import LinePace
from ftnode.protocol.step.task_order import COMPUTE_AHEAD, Pace
from ftnode.protocol.words.effects import Backward, Compute, Effect, Forward, Reduce, Release, Send, Task
from ftnode.protocol.words.events import Done
from ftnode.protocol.words.messages import Boundary, Poisoned, Share, StageResult, Stored, Wait
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import RELAYS_TOLD_MAX, Attempt, Direction, Handle, Peer
from ftnode.protocol.words.view import View
from tests.protocol.beginnings import begun
from tests.protocol.situations import NOW, SETTINGS, VIEW, A, B, C, D, view_of

FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD
ATTEMPT = Attempt(3, 8)
PATH = (A, B, C, A)
MADE = 1000
"""Handles of what compute makes begin here; those that arrive are smaller."""


def working(
    me: Peer = B, view: View = VIEW, settings: Settings = SETTINGS, ready: bool = True, **changes: Any
) -> StepWork:
    deadlines = Deadlines(settings.resend_seconds, settings.stall_seconds)
    work = StepWork(me, view, begun(**changes), settings, Pace(), LinePace(), {}, deadlines)
    if ready:
        work.installed(dict.fromkeys(work.stages, 0))
    return work


def boundary(microbatch: int, visit: int, direction: Direction = FORWARD, **changes: Any) -> Boundary:
    return replace(Boundary("lineage", 3, 8, ATTEMPT, microbatch, visit, direction, PATH), **changes)


def stored(microbatch: int, visit: int, direction: Direction = FORWARD) -> Stored:
    return Stored("lineage", 8, ATTEMPT, microbatch, visit, direction)


def arrives(work: StepWork, microbatch: int, visit: int, direction: Direction = FORWARD) -> list[Effect]:
    """From the neighbour on the path."""
    sender = PATH[visit - 1 if direction is FORWARD else visit + 1]
    handle = 100 * microbatch + 10 * visit + (direction is BACKWARD)
    return work.on_boundary(sender, boundary(microbatch, visit, direction), handle)


def given(effects: list[Effect]) -> list[Task]:
    return [effect.task for effect in effects if isinstance(effect, Compute)]


def released(effects: list[Effect]) -> list[Handle]:
    return [handle for effect in effects if isinstance(effect, Release) for handle in effect.handles]


def result(task: Task, fault: str = "", value: float = 2.0) -> Done:
    """What compute answers; an output has a handle that tells where it is from."""
    if isinstance(task, Reduce):
        return Done(task, None, value, 0, "hash", fault)
    made = MADE + 100 * task.microbatch + 10 * task.visit + isinstance(task, Backward)
    last = isinstance(task, Backward) and task.visit == 3
    return Done(task, None if isinstance(task, Backward) and not task.visit else made, value, 5 * last, "", fault)


def drain(work: StepWork, admits: bool = True) -> tuple[list[Task], list[Effect]]:
    """Compute does all that there is: the tasks in the order given, and everything else that was answered."""
    tasks: list[Task] = []
    answers: list[Effect] = []
    waiting = given(work.advance(NOW, admits))
    while waiting:
        task = waiting.pop(0)
        tasks.append(task)
        effects = work.on_done(result(task), NOW, A)
        answers += effects
        waiting += given(effects) + given(work.advance(NOW, admits))
    return tasks, answers


def spelled(task: Task) -> str:
    if isinstance(task, Reduce):
        return "S"
    letter = ("F" if task.save else "f") if isinstance(task, Forward) else ("R" if task.recompute else "B")
    return f"{letter}{task.microbatch}"


def play(work: StepWork, script: str) -> str:
    told: list[str] = []
    for word in script.split():
        if word == ".":
            told += map(spelled, drain(work)[0])
        else:
            arrives(work, int(word[1:]), work.stages[0], FORWARD if word[0] == "f" else BACKWARD)
    return " ".join(told)


# -- order


@pytest.mark.parametrize(
    ("saved", "script", "order"),
    [
        (8, "f0 f1 f2 f3 .", "F0 F1 F2 F3"),
        (8, "f3 f1 f0 f2 .", "F0 F1 F2 F3"),
        (8, "f0 . f1 f2 b0 .", "F0 B0 F1 F2"),
        (8, "f0 f1 . f2 b1 f3 b0 .", "F0 F1 B0 B1 F2 F3"),
        (8, "b0 . f0 .", "F0 B0"),
        (8, "f0 f1 f2 f3 . b3 b2 b1 b0 .", "F0 F1 F2 F3 B0 B1 B2 B3 S"),
        (1, "f0 f1 . f2 b1 b0 .", "F0 f1 B0 R1 F2"),
        (2, "f0 f1 f2 f3 . b0 b1 b2 b3 .", "F0 F1 f2 f3 B0 B1 R2 R3 S"),
        (1, "f0 . b0 . f1 . b1 .", "F0 B0 F1 B1"),
        (0, "f0 . b0 .", "f0 R0"),
    ],
    ids=[
        "forward alone", "in any order", "backward first", "both backward first", "a gradient that is early",
        "the sum comes last", "recomputing after backward", "beyond what is saved", "what was used makes room",
        "nothing is saved",
    ],
)  # fmt: skip
def test_backward_then_recompute_then_forward(saved: int, script: str, order: str) -> None:
    assert play(working(settings=replace(SETTINGS, live_activations=saved)), script) == order


def test_a_backward_recomputes_from_what_its_forward_was_given() -> None:
    work = working(settings=replace(SETTINGS, live_activations=0))
    play(work, "f2 . b2")
    (task,) = given(work.advance(NOW, True))
    assert task == Backward(1, 8, ATTEMPT, 2, 1, 211, 210, True)


@pytest.mark.parametrize("count", [0, 1, COMPUTE_AHEAD, COMPUTE_AHEAD + 1])
def test_compute_is_given_few_tasks_at_once(count: int) -> None:
    work = working()
    for microbatch in range(count):
        arrives(work, microbatch, 1)
    assert work.can_advance == (count > 0)
    assert len(given(work.advance(NOW, True))) == min(count, COMPUTE_AHEAD)
    assert given(work.advance(NOW, True)) == [] and work.busy == (count > 0)
    assert work.queue_length(1) == count and work.can_advance is False


def test_tasks_wait_for_the_weights_of_their_stage() -> None:
    work = working(ready=False)
    assert play(work, "f1 f0 .") == "" and not work.can_advance
    work.installed({1: 0})
    assert play(work, ".") == "F0 F1"


# -- window


@pytest.mark.parametrize(
    ("window", "admits", "ready", "finished", "admitted"),
    [
        (1, True, True, (), [0]),
        (2, True, True, (), [0, 1]),
        (4, True, True, (), [0, 1, 2, 3]),
        (9, True, True, (), [0, 1, 2, 3]),
        (2, False, True, (), []),
        (2, True, False, (), []),
        (2, True, True, (0,), [0, 1, 2]),
        (2, True, True, (1, 0), [0, 1, 2, 3]),
        (1, True, True, (0, 1, 2, 3), [0, 1, 2, 3]),
    ],
    ids=[
        "one", "two", "all", "more than there are", "the view's Begin is awaited", "without weights", "one came back",
        "two came back", "one after the other",
    ],
)  # fmt: skip
def test_the_head_admits_no_more_than_the_window(
    window: int, admits: bool, ready: bool, finished: tuple[int, ...], admitted: list[int]
) -> None:
    work = working(A, ready=ready, window=window)
    tasks, _ = drain(work, admits)
    for microbatch in finished:
        for visit, direction in ((3, FORWARD), (0, BACKWARD)):
            arrives(work, microbatch, visit, direction)
            tasks += drain(work, admits)[0]
    assert [task.microbatch for task in tasks if isinstance(task, Forward)] == admitted
    ended = [task.microbatch for task in tasks if isinstance(task, Backward) and task.visit == 0]
    assert ended == list(finished)
    assert work.complete == (len(finished) == SETTINGS.microbatches)


@pytest.mark.parametrize(
    ("me", "view", "changes", "admitted"),
    [
        (A, VIEW, {"shares": ((A, (1, 3)), (B, (0, 2)))}, [1, 3]),
        (A, VIEW, {"shares": ((A, ()),)}, []),
        (A, VIEW, {"skip": True}, []),
        (B, VIEW, {"shares": ((B, (0, 1)),)}, []),
        (A, VIEW, {"paths": ((0, PATH),)}, [1, 2, 3]),
    ],
    ids=["a share", "an empty share", "a skipped step", "not the head", "one is under way already"],
)
def test_what_the_head_admits(me: Peer, view: View, changes: dict[str, Any], admitted: list[int]) -> None:
    tasks, _ = drain(working(me, view, window=9, **changes))
    assert [task.microbatch for task in tasks if isinstance(task, Forward)] == admitted


# -- nothing twice


@pytest.mark.parametrize("direction", [FORWARD, BACKWARD])
@pytest.mark.parametrize("computed", [False, True], ids=["before it is used", "after it was used"])
def test_a_tensor_that_comes_twice_is_used_once_and_acknowledged_twice(direction: Direction, computed: bool) -> None:
    work = working()
    play(work, "f0 ." if direction is BACKWARD else "")
    acknowledged = Send(PATH[0 if direction is FORWARD else 2], stored(0, 1, direction), None)
    assert arrives(work, 0, 1, direction) == [acknowledged]
    first = len(drain(work)[0]) if computed else 0
    again = arrives(work, 0, 1, direction)
    assert again == [Release((10 + (direction is BACKWARD),)), acknowledged]
    assert first + len(drain(work)[0]) == 1


@pytest.mark.parametrize(
    ("sender", "changes"),
    [
        (A, {"view": 2}),
        (A, {"view": 4}),
        (A, {"step": 7}),
        (A, {"attempt": Attempt(3, 7)}),
        (C, {}),
        (D, {}),
        (A, {"visit": 2}),
        (A, {"visit": 4}),
        (A, {"visit": -1}),
        (A, {"path": (A, B, C)}),
        (A, {"path": (A, C, B, A)}),
        (A, {"path": (A, B, D, A)}),
        (A, {"microbatch": SETTINGS.microbatches}),
        (A, {"microbatch": -1}),
        (A, {"direction": BACKWARD}),
    ],
    ids=[
        "of the view before", "of the next view", "of another step", "late", "from behind", "from a stranger",
        "for another", "beyond the last visit", "before the first", "a short path", "a path in the wrong order",
        "a path with a stranger", "a microbatch too many", "a microbatch too few", "in the wrong direction",
    ],
)  # fmt: skip
def test_a_tensor_that_does_not_fit_is_released_and_not_acknowledged(sender: Peer, changes: dict[str, Any]) -> None:
    work = working()
    assert work.on_boundary(sender, replace(boundary(0, 1), **changes), 7) == [Release((7,))]
    assert not work.can_advance


def test_a_microbatch_keeps_to_the_path_that_it_began_with() -> None:
    work = working(view=view_of((A,), (B,), (C, D)))
    assert len(work.on_boundary(A, boundary(0, 1), 7)) == 1
    assert work.on_boundary(A, boundary(0, 1, path=(A, B, D, A)), 8) == [Release((8,))]
    assert work.on_boundary(D, boundary(0, 1, BACKWARD, path=(A, B, D, A)), 9) == [Release((9,))]


def test_a_result_that_comes_twice_counts_once() -> None:
    work = working()
    arrives(work, 0, 1)
    (task,) = given(work.advance(NOW, True))
    assert work.on_done(result(task), NOW, A) == [Send(C, boundary(0, 2), MADE + 10)]
    assert work.on_done(result(task), NOW, A) == [Release((MADE + 10,))]
    arrives(work, 0, 1, BACKWARD)
    (task,) = given(work.advance(NOW, True))
    assert work.on_done(result(task), NOW, A) == [
        Release((10,)),
        Release((11,)),
        Send(A, boundary(0, 0, BACKWARD), MADE + 11),
    ]
    assert work.on_done(result(task), NOW, A) == [Release((MADE + 11,))]
    assert work.accumulated == {(0, 1)}


def test_what_is_let_go_of_is_what_was_not_released_before() -> None:
    """One microbatch that went both ways, and one that waits for its gradient."""
    work = working()
    play(work, "f0 f1 . b0 .")
    assert len(work.holds.handles) == 1 + 2 + 1
    assert sorted(released(work.let_go())) == [110, MADE + 10, MADE + 11, MADE + 110]
    assert not work.holds.handles and work.let_go() == []


# -- the end


@pytest.mark.parametrize(
    ("script", "complete"),
    [
        ("f0 f1 f2 f3 . b0 b1 b2 b3 .", True),
        ("f0 f1 f2 f3 . b0 b1 b2 .", False),
        ("f0 f1 f2 f3 . b0 b1 b2 b3", False),
        ("f0 f1 f2 f3 .", False),
        ("", False),
    ],
    ids=["all", "one gradient is missing", "not computed", "forward alone", "nothing"],
)
def test_an_attempt_is_complete_with_the_sum_of_all_that_it_expects(script: str, complete: bool) -> None:
    work = working()
    play(work, script)
    assert work.complete == work.has_reduced(1) == complete
    assert work.ready().results == ((StageResult(1, 2.0, "hash"),) if complete else ())


def test_the_head_says_loss_and_tokens_of_the_whole_step() -> None:
    work = working(A, window=4)
    drain(work)
    for visit, direction in ((3, FORWARD), (0, BACKWARD)):
        for microbatch in range(SETTINGS.microbatches):
            arrives(work, microbatch, visit, direction)
        drain(work)
    ready = work.ready()
    assert work.complete and (ready.loss_sum, ready.tokens) == (4 * 2.0, 4 * 5)
    assert (ready.view, ready.step, ready.attempt) == (3, 8, ATTEMPT)


def test_it_says_what_came_through_relays_and_what_came_again_counts_once() -> None:
    settings = replace(SETTINGS, forward_bytes=70, backward_bytes=30, evaluation_microbatches=1)
    work = working(settings=settings, evaluate=True)
    tensors = [
        (0, 1, FORWARD, "r"),
        (0, 1, FORWARD, "r"),
        (1, 1, FORWARD, "s"),
        (2, 1, FORWARD, ""),
        (4, 1, FORWARD, "r"),
    ]
    for microbatch, visit, direction, relay in [*tensors, (0, 1, BACKWARD, "r"), (1, 1, BACKWARD, "")]:
        sender = PATH[visit - 1 if direction is FORWARD else visit + 1]
        work.on_boundary(
            sender, boundary(microbatch, visit, direction), 10 * microbatch + (direction is BACKWARD), relay
        )
    assert work.ready().relayed == (("r", 100), ("s", 70))


def test_it_names_the_relays_that_carried_most() -> None:
    work = working(settings=replace(SETTINGS, forward_bytes=70, backward_bytes=30))
    for microbatch in range(3):
        work.on_boundary(A, boundary(microbatch, 1), microbatch, f"small{microbatch}")
    work.on_done(replace(result(sum_of(work)), relayed=tuple((f"r{n}", 1000 + n) for n in range(20))), NOW, A)
    told = work.ready().relayed
    assert [relay for relay, _ in told] == [f"r{n}" for n in range(19, 19 - RELAYS_TOLD_MAX, -1)]


def sum_of(work: StepWork) -> Task:
    """The sum that it gives to compute when all of the step is here."""
    for microbatch in range(SETTINGS.microbatches):
        arrives(work, microbatch, 1)
        arrives(work, microbatch, 1, BACKWARD)
    waiting, sums = given(work.advance(NOW, True)), list[Task]()
    while waiting:
        task = waiting.pop(0)
        if isinstance(task, Reduce):
            sums.append(task)
            continue
        waiting += given(work.on_done(result(task), NOW, A)) + given(work.advance(NOW, True))
    (found,) = sums
    return found


@pytest.mark.parametrize(
    ("theirs", "before"),
    [((2, 3), True), ((2, 3), False), ((2,), True), ((), True)],
    ids=["the other was first", "the other is late", "one is missing", "nothing is told"],
)
def test_a_group_adds_up_what_its_members_have(theirs: tuple[int, ...], before: bool) -> None:
    work, tasks = working(view=view_of((A,), (B, D), (C,))), list[Task]()
    share = Share("lineage", 3, 8, ATTEMPT, 1, tuple((microbatch, 1) for microbatch in theirs))
    if before:
        assert work.on_share(D, share, NOW) == []
    play(work, "f0 f1 . b0 b1")
    tasks += drain(work)[0]
    if not before:
        assert not work.complete
        (task,) = given(work.on_share(D, share, NOW))
        work.on_done(result(task), NOW, A)
        tasks.append(task)
    sums = [task for task in tasks if isinstance(task, Reduce)]
    assert sums == ([Reduce(1, 8, ATTEMPT, 3, ((B, 2), (D, 2)))] if len(theirs) == 2 else [])
    assert work.complete == bool(sums)


class Unread(set[Any]):
    """Nobody goes through it."""

    def __iter__(self) -> Any:
        raise AssertionError("all that has come is looked through")


def test_no_backward_pass_looks_through_all_that_has_come() -> None:
    work = working(view=view_of((A,), (B, D), (C,)))
    work._arrived = Unread()
    play(work, "f0 f1 . b0 b1 . f2 . b2 .")
    assert len(work.accumulated) == 3 and not work._unfinished


@pytest.mark.parametrize("computing", [False, True])
def test_a_sum_waits_for_what_is_under_way_here_whoever_says_that_it_has_done_it(computing: bool) -> None:
    """Compute would give more to the sum than the group knows of."""
    work = working(view=view_of((A,), (B, D), (C,)))
    play(work, "f0 f1 . b0 b1 . f2 . b2" if computing else "f0 f1 . b0 b1 . f2")
    started = given(work.advance(NOW, True)) if computing else []
    assert work.on_share(D, Share("lineage", 3, 8, ATTEMPT, 1, ((2, 1), (3, 1))), NOW) == []
    for task in started:
        work.on_done(result(task), NOW, A)
    play(work, "." if computing else ". b2 .")
    assert not work.complete and len(work.accumulated) == 3
    assert Wait(-1, 1, FORWARD, D, True) in work.waits(NOW + 1.0, True)


def test_a_stages_sum_begins_while_another_stage_still_works() -> None:
    """B holds both stages, the second with C, on two devices. When its last share of the second is there, compute has
    still to go back through the first one."""
    work = working(view=view_of((A,), (B,), (B, C)), ready=False)
    work.installed({1: 0, 2: 1})
    assert work.on_share(C, Share("lineage", 3, 8, ATTEMPT, 2, ((2, 2), (3, 2))), NOW) == []
    path = (A, B, B, A)
    for microbatch in (0, 1):
        work.on_boundary(A, boundary(microbatch, 1, path=path), 100 * microbatch + 10)
    drain(work)
    for microbatch in (0, 1):
        work.on_boundary(A, boundary(microbatch, 2, BACKWARD, path=path), 100 * microbatch + 21)
    running = given(work.advance(NOW, True))
    while not (sums := [task for task in running if isinstance(task, Reduce)]):
        running += given(work.on_done(result(running.pop(0)), NOW, A)) + given(work.advance(NOW, True))
    assert sums == [Reduce(2, 8, ATTEMPT, 3, ((B, 2), (C, 2)))]
    assert {(0, 2), (1, 2)} <= work.accumulated and (1, 1) not in work.accumulated


# -- poison


@pytest.mark.parametrize(
    ("script", "task", "microbatch", "giver"),
    [
        ("f2", Forward(1, 8, ATTEMPT, 2, 1, 210, True, False), 2, A),
        ("f2 . b2", Backward(1, 8, ATTEMPT, 2, 1, 211, 210, False), 2, C),
        ("f0 f1 f2 f3 . b0 b1 b2 . b3", Backward(1, 8, ATTEMPT, 3, 1, 311, 310, False), 3, C),
    ],
    ids=["forward", "backward", "the last backward"],
)
def test_a_number_that_is_not_finite_ends_the_attempt_here(
    script: str, task: Task, microbatch: int, giver: Peer
) -> None:
    work = working()
    play(work, script)
    assert given(work.advance(NOW, True)) == [task]
    done = result(task, "nan in stage 1")
    poison = Poisoned("lineage", 3, 8, ATTEMPT, 1, microbatch, "nan in stage 1", giver)
    assert done.output is not None
    assert work.on_done(done, NOW, A) == [Release((done.output,)), Send(A, poison, None)]
    assert work.poison == poison and not work.complete
    arrives(work, 1 if microbatch != 1 else 0, 1)
    assert work.advance(NOW, True) == [] and not work.can_advance, "nothing more is computed"


def test_a_sum_that_is_not_finite_is_of_no_microbatch() -> None:
    work = working()
    play(work, "f0 f1 f2 f3 . b0 b1 b2 . b3")
    work.on_done(result(given(work.advance(NOW, True))[0]), NOW, A)
    (task,) = given(work.advance(NOW, True))
    poison = Poisoned("lineage", 3, 8, ATTEMPT, 1, -1, "inf")
    assert work.on_done(result(task, "inf"), NOW, A) == [Send(A, poison, None)]
    assert not work.results


def test_the_fault_of_a_task_that_nobody_waits_for_is_none_of_ours() -> None:
    work = working()
    done = result(Forward(1, 8, ATTEMPT, 2, 1, 210, True, False), "nan")
    assert done.output is not None
    assert work.on_done(done, NOW, A) == [Release((done.output,))]
    assert work.poison is None


# -- what goes on in another view


def test_a_leader_that_loses_its_only_stage_in_mid_step_is_ready_without_it() -> None:
    """It once waited for itself for ever: its link to another member was broken, and another holder had its stage."""
    work = working(me=A, view=view_of((B,), (A, D), (C,)), shares=((B, (0, 1, 2, 3)),))
    paths = tuple((microbatch, (B, D, C, B)) for microbatch in range(4))
    assert not work.complete
    work.continue_in(view_of((B,), (D,), (C,), number=4), begun(view=4, attempt=ATTEMPT, paths=paths), NOW)
    assert work.complete and work.ready().results == ()


@pytest.mark.parametrize(
    ("acknowledged", "again"),
    [(False, [(D, 0), (D, 1)]), (True, [(D, 0), (D, 1)])],
    ids=["the dead had not acknowledged", "it had"],
)
def test_who_takes_the_place_of_the_dead_is_sent_the_same(acknowledged: bool, again: list[tuple[Peer, int]]) -> None:
    work = working()
    play(work, "f0 f1 .")
    if acknowledged:
        for microbatch in (0, 1):
            work.on_stored(C, stored(microbatch, 2), NOW)
    view = view_of((A,), (B,), (D,), number=4)
    path = (A, B, D, A)
    effects = work.continue_in(view, begun(view=4, attempt=ATTEMPT, paths=((0, path), (1, path))), NOW)
    sent = [(each.to, each.message) for each in effects if isinstance(each, Send)]
    assert [(to, word.microbatch) for to, word in sent if isinstance(word, Boundary)] == again
    assert all(isinstance(word, Boundary) and (word.view, word.path) == (4, path) for _, word in sent)
    assert work.on_boundary(A, boundary(0, 1, view=4, path=path), 5)[0] == Release((5,)), "it is here already"
