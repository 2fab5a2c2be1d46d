"""Questions that are asked of a picture."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ftnode.protocol.words.types import Attempt, Version
from tests.protocol.pictures import picture, signs
from tests.protocol.situations import NOW, A, B, C, D, Held, report, view_of

TRAINED = Held(versions={0: Version(7, "c7", Attempt(2, 9)), 1: Version(0, "lineage", Attempt(-1, 0))})
OVER = Held(versions=TRAINED.versions, finished=True)
ALONE = view_of((A,), (A,), (A,))
SHARED = view_of((A, B), (A,), (C,))


@pytest.mark.parametrize(
    ("changes", "lost"),
    [
        ({"view": ALONE, "own": TRAINED}, (0,)),
        ({"view": ALONE, "own": TRAINED, "alone": False}, ()),
        ({"view": SHARED, "own": TRAINED}, ()),
        ({"view": None, "own": TRAINED}, ()),
        ({"view": SHARED, "own": OVER}, (1,)),
        ({"view": SHARED, "own": OVER, "signs": signs(B)}, (0, 1)),
        ({"view": SHARED, "own": OVER, "me": D}, ()),
    ],
    ids=["alone", "somebody learns", "others hold", "no view", "the end", "the other is gone", "standby"],
)
def test_what_goes_with_us(changes: dict[str, Any], lost: tuple[int, ...]) -> None:
    assert picture(**{"signs": signs(), **changes}).goes_with_us(NOW) == lost


def test_the_run_waits_for_what_its_leader_says() -> None:
    ours, told = replace(report(), waiting="the leader a"), replace(report(), waiting="a volunteer for stage 1")
    assert picture(me=B, reports={A: told, B: ours}).run_waiting == told.waiting
    assert picture(me=B, reports={B: ours}).run_waiting == ours.waiting, "nothing was heard of it"
    assert picture(me=A, reports={A: ours, B: told}).run_waiting == ours.waiting
    assert picture(me=D, view=None, reports={D: ours}).run_waiting == ours.waiting


def test_who_is_watched() -> None:
    assert picture(me=A).watched == {B, C}
    assert picture(me=D).watched == picture(view=None).watched == frozenset()
