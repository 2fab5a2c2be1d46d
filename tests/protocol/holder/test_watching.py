"""Whom a holder tells that a tensor is of an unusual size, and whose word on others it hears (rule 42)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from ftnode.protocol.holder.watching import Watching
from ftnode.protocol.liveness.deadlines import Deadlines
from ftnode.protocol.situation import Situation
from ftnode.protocol.step.attempt import StepWork
from ftnode.protocol.step.doubts import Doubts
from ftnode.protocol.step.line_pace import LinePace
from ftnode.protocol.step.task_order import Pace
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words.events import Done
from ftnode.protocol.words.messages import Doubted
from ftnode.protocol.words.types import Attempt, Direction, Peer
from ftnode.protocol.words.view import View
from tests.protocol.beginnings import begun
from tests.protocol.situations import SETTINGS, A, B, C, D, situation, view_of

E: Final = Peer("e", 1)
VIEW: Final = view_of((A,), (B, C, D), (E,))
BEGIN: Final = begun(view=VIEW.number, attempt=Attempt(VIEW.number, 8))
CHECKED: Final = replace(SETTINGS, checks=0.02)
PATH: Final = (A, B, E, A)
FORWARD: Final = fx.Forward(2, BEGIN.step, BEGIN.attempt, 0, 2, 1, True, False)
"""E runs stage 2 on what B has made."""
BACKWARD: Final = fx.Backward(0, BEGIN.step, BEGIN.attempt, 0, 0, 1, None, True)
"""A learns from the gradient that B has handed back."""


def work_of(me: Peer, path: tuple[Peer, ...] = PATH) -> StepWork:
    """On an attempt in which all microbatches take one path."""
    begin = replace(BEGIN, paths=tuple((microbatch, path) for microbatch in range(2 * SETTINGS.microbatches)))
    deadlines = Deadlines(CHECKED.resend_seconds, CHECKED.stall_seconds)
    return StepWork(me, VIEW, begin, CHECKED, Pace(), LinePace(), {}, deadlines)


def here(me: Peer, view: View = VIEW, checks: float = 0.02) -> Situation:
    return situation(me=me, view=view, settings=replace(SETTINGS, checks=checks))


def done(task: fx.Task, received: float, fault: str = "") -> Done:
    return Done(task, None, 0.0, 0, "", fault, received=received)


def after(s: Situation, work: StepWork, usual: fx.Task, odd: Done) -> list[Any]:
    """What comes of a tensor, after twenty of the usual size."""
    watching = Watching(Doubts())
    watching.begin(s, BEGIN)
    for _ in range(20):
        assert watching.on_done(s, work, done(usual, 1.0)) == []
    return watching.on_done(s, work, odd)


@pytest.mark.parametrize(("me", "task", "what"), [(E, FORWARD, "activations"), (A, BACKWARD, "gradients")])
@pytest.mark.parametrize("norm", [1000.0, 0.0])
def test_the_others_of_the_makers_stage_hear_of_it(me: Peer, task: fx.Task, what: str, norm: float) -> None:
    note, *sent = after(here(me), work_of(me), task, done(task, norm))
    doubted = Doubted(BEGIN.lineage, VIEW.number, BEGIN.step, BEGIN.attempt, 1, B)
    assert sent == [fx.Send(other, doubted, None) for other in (C, D)]
    assert isinstance(note, fx.Note) and note.kind == "doubt" and dict(note.fields)["peer"] == B.id
    assert f"what {B} gave to stage {task.stage}" in note.text and what in note.text


def test_once_in_a_step() -> None:
    watching, s, work = Watching(Doubts()), here(E), work_of(E)
    watching.begin(s, BEGIN)
    tasks = [done(FORWARD, 1.0)] * 20 + [done(FORWARD, 1e9), done(FORWARD, 1e-9), done(FORWARD, 1e9)]
    found = [effect for each in tasks for effect in watching.on_done(s, work, each)]
    assert [type(effect) for effect in found] == [fx.Note, fx.Send, fx.Send]


def test_who_tells_others_does_so_in_few_steps() -> None:
    """However often something is far out."""
    watching, s, work, sent = Watching(Doubts()), here(E), work_of(E), 0
    watching.begin(s, BEGIN)
    for step in range(640):
        task = replace(FORWARD, step=step)
        for _ in range(20):
            watching.on_done(s, work, done(task, 1.0))
        sent += sum(isinstance(effect, fx.Send) for effect in watching.on_done(s, work, done(task, 1e9)))
    assert 2 * 4 < sent <= 2 * (4 + 640 / 32 + 1)


SCORED: Final = replace(FORWARD, microbatch=SETTINGS.microbatches, validation=True)


@pytest.mark.parametrize(
    ("s", "work", "odd"),
    [
        (here(E, checks=0.0), work_of(E), done(FORWARD, 1e9)),
        (here(E), work_of(E), done(FORWARD, -1.0)),  # it was not measured
        (here(E), work_of(E), done(FORWARD, 1e9, "not a finite number")),
        (here(E), work_of(E), done(SCORED, 1e9)),
        (here(E), work_of(E, (A, E, E, A)), done(FORWARD, 1e9)),  # it made it itself
        (here(E), work_of(E), done(fx.Reduce(2, BEGIN.step, BEGIN.attempt), 1e9)),
        (here(E), work_of(E), done(replace(FORWARD, attempt=Attempt(VIEW.number - 1, 8)), 1e9)),
        (here(E, view_of((A,), (B,), (E,))), work_of(E), done(replace(FORWARD, attempt=Attempt(0, 1)), 1e9)),
    ],
)
def test_nothing_comes_of_what_says_nothing(s: Situation, work: StepWork, odd: Done) -> None:
    assert after(s, work, FORWARD, odd) == []


def test_where_nobody_else_holds_the_stage_it_is_noted() -> None:
    view = replace(VIEW, holders=((A,), (B,), (E,)))
    (note,) = after(here(E, view), work_of(E), FORWARD, done(FORWARD, 1e9))
    assert isinstance(note, fx.Note)


def test_who_holds_the_makers_stage_as_well_checks_it_itself() -> None:
    doubts, s = Doubts(), here(E, replace(VIEW, holders=((A,), (B, E), (E,))))
    watching = Watching(doubts)
    watching.begin(s, BEGIN)
    for norm in [1.0] * 20 + [1e9]:
        watching.on_done(s, work_of(E), done(FORWARD, norm))
    assert doubts.choose(BEGIN.step + 1, [B], s.chance) == B


# -- whose word is heard

SAID: Final = Doubted(BEGIN.lineage, VIEW.number, BEGIN.step, BEGIN.attempt, 1, B)


@pytest.mark.parametrize("sender", [A, E])
def test_the_word_of_a_holder_beside_is_heard(sender: Peer) -> None:
    doubts, s = Doubts(), here(C)
    out = Watching(doubts).on_doubted(s, sender, SAID, BEGIN)
    assert [type(effect) for effect in out] == [fx.Note]
    assert doubts.choose(BEGIN.step + 1, [B, D], s.chance) == B


LONG: Final = view_of((A,), (B, C), (D,), (E,))
"""Stage 3 feeds the head, and has nothing to do with stage 1."""


@pytest.mark.parametrize(
    ("s", "sender", "said"),
    [
        (here(C), D, SAID),  # of the same stage, where lots decide
        (here(C), Peer("stranger", 1), SAID),
        (here(C), B, SAID),
        (here(C), A, replace(SAID, peer=C)),  # about ourselves
        (here(C), A, replace(SAID, peer=E)),  # it holds another stage
        (here(C), A, replace(SAID, stage=2, peer=E)),  # we do not hold it
        (here(C), A, replace(SAID, view=VIEW.number - 1)),
        (here(C), A, replace(SAID, lineage="another")),
        (here(C, checks=0.0), A, SAID),
        (here(C, LONG), E, SAID),
    ],
)
def test_other_words_are_not(s: Situation, sender: Peer, said: Doubted) -> None:
    doubts = Doubts()
    assert Watching(doubts).on_doubted(s, sender, said, BEGIN) == []
    assert doubts.choose(BEGIN.step + 1, [A, B, D, E], s.chance) is None


def test_budgets_grow_with_our_steps_and_not_with_the_senders() -> None:
    watching, s = Watching(Doubts()), here(C)
    heard = 0
    for number in range(100):
        heard += len(watching.on_doubted(s, A, replace(SAID, step=1000 * number, peer=(B, D)[number % 2]), BEGIN))
        watching._doubts.choose(BEGIN.step, [B, D], s.chance)
    assert heard == 2


def test_directions_are_told_apart() -> None:
    assert work_of(E).source_of(FORWARD) == (B, 1, 1, Direction.FORWARD)
    assert work_of(A).source_of(BACKWARD) == (B, 1, 1, Direction.BACKWARD)
    last = fx.Backward(0, BEGIN.step, BEGIN.attempt, 0, 3, None, 1, False)
    assert work_of(A).source_of(last) == (E, 2, 2, Direction.FORWARD), "the last visit is given an activation"
