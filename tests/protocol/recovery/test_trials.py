"""Which lent weights are tried on whom, and what comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from ftnode.protocol.recovery.trials import LENT_OTHERS, STEPS_MAX, Trials
from ftnode.protocol.situation import Outcome, Situation
from ftnode.protocol.words.effects import Note
from ftnode.protocol.words.types import Peer
from tests.protocol.beginnings import begun
from tests.protocol.situations import SETTINGS, A, B, C, D, situation, view_of

STAGE = 1
PAIR = view_of((A,), (B, D), (C,))
"""B and D hold stage 1, which somebody else learns."""
ME = Peer("e", 1)
CHECKED = replace(SETTINGS, checks=0.02)


def here(view: Any = PAIR, **changes: Any) -> Situation:
    return situation(me=ME, view=view, settings=CHECKED, **changes)


@dataclass
class Ended:
    """A trial that is over."""

    of: Peer = B
    stages: tuple[int, ...] = (STAGE,)
    agreed: bool = False
    given_up: bool = False
    refuted: str = ""
    deceived: bool = False
    begin: Any = field(default_factory=lambda: begun(view=PAIR.number))


def lent(by: Peer = B) -> Trials:
    trials = Trials()
    trials.lent(STAGE, by)
    return trials


def draws(trials: Trials, count: int, view: Any = PAIR, usable: Sequence[int] = (STAGE,)) -> list[Peer | None]:
    begin = begun(view=view.number)
    drawn = [trials.draw(here(view), begin, usable) for _ in range(count)]
    assert all(lot is None or lot.learnt == (STAGE,) for lot in drawn)
    return [lot.of if lot is not None else None for lot in drawn]


def test_the_lender_is_tried_first_and_then_another_holder() -> None:
    assert draws(lent(), 3) == [B, D, B]


def test_a_lender_that_holds_the_stage_no_more_is_tried_on_another() -> None:
    assert draws(lent(C), 1) in ([B], [D])


def test_after_some_trials_that_came_to_nothing_the_weights_count() -> None:
    trials = lent()
    assert None not in draws(trials, STEPS_MAX) and [*trials.stages] == [STAGE]
    assert draws(trials, 1) == [None] and [*trials.stages] == []


def test_weights_that_are_not_those_of_the_base_wait() -> None:
    trials = lent()
    assert draws(trials, 9, usable=()) == [None] * 9 and [*trials.stages] == [STAGE]
    assert draws(trials, 1) == [B]


def test_what_nobody_can_show_counts_at_once() -> None:
    """B holds the stages beside as well."""
    trials, all_of_them = lent(), view_of((A,), (B,), (B,), (B,))
    assert draws(trials, 1, all_of_them) == [None] and [*trials.stages] == []


@pytest.mark.parametrize("ended", [Ended(agreed=True), Ended(given_up=True)], ids=["agreed", "given up"])
def test_what_agrees_or_cannot_be_tried_counts(ended: Any) -> None:
    trials, out = lent(), Outcome()
    assert trials.judge(here(), ended, out) == () and [*trials.stages] == [] and [*out] == []
    assert trials.believed(STAGE, (B, D)) == [B, D]


def test_a_trial_that_has_compared_nothing_yet_says_nothing() -> None:
    trials, out = lent(), Outcome()
    assert trials.judge(here(), Ended(), out) == () and [*trials.stages] == [STAGE]


def test_who_lent_something_else_is_asked_no_more() -> None:
    trials, out = lent(), Outcome()
    refuted = Ended(given_up=True, refuted="it is 1.3 of its size away")
    assert trials.judge(here(), refuted, out) == (STAGE,)
    assert trials.believed(STAGE, (B, D)) == [D] and trials.refused == frozenset()
    (note,) = out
    assert (
        isinstance(note, Note) and note.kind == "doubt" and f"{B} {LENT_OTHERS} stage 1 than it works with" in note.text
    )
    trials.lent(STAGE, D)
    assert trials.judge(here(), Ended(of=B, refuted="away"), Outcome()) == (STAGE,)
    assert trials.refused == {STAGE} and trials.believed(STAGE, (B, D)) == []


def test_a_stage_is_refused_until_somebody_else_holds_it() -> None:
    trials = lent()
    trials.judge(here(), Ended(refuted="away"), Outcome())
    trials.on_view(view_of((A,), (B,), (C,)))
    assert trials.refused == {STAGE}
    trials.on_view(view_of((A,), (C,), (C,)))
    assert trials.refused == frozenset() and trials.believed(STAGE, (B, C)) == [B, C]


def test_what_we_hold_or_lose_is_tried_no_more() -> None:
    trials = lent()
    trials.keep_only((2,))
    assert [*trials.stages] == []
    trials.lent(STAGE, B)
    trials.forget(STAGE)
    assert [*trials.stages] == []
