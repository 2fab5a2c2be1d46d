"""How this peer goes when its owner wants it to: it hands over, stops, or stays. The role alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from ftnode.protocol.holder.own_departure import HandedOver, OwnDeparture, WayOut
from ftnode.protocol.situation import ClearTimer, Outcome, SetTimer, Situation
from ftnode.protocol.words.effects import Note, Save, Send, Stop
from ftnode.protocol.words.events import Leave
from ftnode.protocol.words.messages import Begin, Resign
from ftnode.protocol.words.types import Attempt, Peer, Version
from ftnode.protocol.words.view import View
from tests.protocol.situations import NOW, SETTINGS, VIEW, A, B, C, D, Held, Past, alive, situation, view_of

TRAINED = Held(versions={0: Version(7, "c7", Attempt(2, 9))}, capacity=3)
INITIAL = Held(versions={0: Version(0, "lineage", Attempt(-1, 0))}, capacity=3)
OVER = Held(versions=TRAINED.versions, finished=True)
ALONE = view_of((A,), (A,), ())
BOTH = view_of((A,), (B,), (B,))
NOBODY = Peer("nobody", 1)
STOPPED, LEFT, STAYED, NOTHING = "stopped", "leaves", "stays", "nothing"


@dataclass
class Leads:
    """A leader that hopes for a newcomer, or does not."""

    hope: bool

    def hopeful(self, s: Situation) -> bool:
        return self.hope

    def wanting(self, s: Situation) -> bool:
        return False

    def waiting(self, s: Situation) -> str:
        return ""

    def told_step(self, s: Situation) -> int:
        return 0

    def worth(self, s: Situation) -> int:
        return 0


def departing(pauses: bool = False, wished: bool = True) -> OwnDeparture:
    role = OwnDeparture()
    if wished:
        role.wish(Leave("asked", pauses))
    return role


def came(out: Outcome) -> str:
    """What came of it."""
    kinds = {type(each) for each in out}
    if Stop in kinds:
        assert out == [Stop("asked")]
        return STOPPED
    if ClearTimer in kinds:
        assert out[0] == ClearTimer("leave") and isinstance(out[1], Note)
        return STAYED
    return LEFT if kinds else NOTHING


def at(view: View | None = VIEW, me: Peer = A, led: bool | None = None, **changes: Any) -> Situation:
    return situation(view=view, me=me, led=None if led is None else Leads(led), **changes)


@pytest.mark.parametrize(
    ("reasons", "leaving", "pauses"),
    [
        ([("one", False)], "one", False),
        ([("one", True)], "one", True),
        ([("one", True), ("two", True)], "one", True),
        ([("one", True), ("two", False)], "one", False),
        ([("one", False), ("two", True)], "one", False),
    ],
)
def test_a_wish_to_go_counts_more_than_a_pause_and_the_first_reason_stays(
    reasons: list[tuple[str, bool]], leaving: str, pauses: bool
) -> None:
    role = departing(wished=False)
    for reason, pause in reasons:
        role.wish(Leave(reason, pause))
    assert (role.leaving, role.pauses) == (leaving, pauses)


@pytest.mark.parametrize(
    ("pauses", "s", "result"),
    [
        (False, at(view=None), STOPPED),
        (False, at(me=D), STOPPED),
        (False, at(me=B), LEFT),
        (True, at(me=B), LEFT),
        (False, at(own=OVER), STOPPED),
        (False, at(view=ALONE, own=TRAINED), STOPPED),
        (False, at(view=ALONE, own=TRAINED, led=False), STOPPED),
        (False, at(view=ALONE, own=TRAINED, led=True), LEFT),
        (True, at(view=ALONE, own=TRAINED, led=False), STAYED),
        (True, at(view=ALONE, own=TRAINED, led=True), LEFT),
        (True, at(view=ALONE, own=INITIAL, led=False), STOPPED),
        (True, at(view=ALONE, own=OVER, led=False), STOPPED),
        (False, at(view=view_of((B,), (B,), (C,)), led=True), LEFT),
        (False, at(view=view_of((B,), (B,), (C,))), STOPPED),
    ],
)
def test_it_hands_over_where_somebody_may_take_over(pauses: bool, s: Situation, result: str) -> None:
    assert came(departing(pauses).leave(s, Leave("asked", pauses))) == result


@pytest.mark.parametrize(("view", "seconds"), [(VIEW, 140.0), (ALONE, 280.0), (view_of((B,), (B,), (C,)), 140.0)])
def test_it_gives_others_time_for_each_stage(view: View, seconds: float) -> None:
    s = at(view=view, led=True)
    out = departing().leave(s, Leave("asked"))
    said = Resign("lineage", 3, s.mine, True, True, "leaves: asked")
    assert out == [Send(A, said, None), SetTimer("leave", NOW + seconds)]


@pytest.mark.parametrize(
    ("wished", "pauses", "s", "led", "result"),
    [
        (False, False, at(me=D), False, NOTHING),
        (True, False, at(), True, NOTHING),
        (True, False, at(me=D), False, STOPPED),
        (True, False, at(me=D), True, LEFT),
        (True, False, at(view=ALONE, own=TRAINED), False, STOPPED),
        (True, True, at(view=ALONE, own=TRAINED), False, STAYED),
        (True, True, at(view=ALONE, own=TRAINED), True, STAYED),
        (True, True, at(view=ALONE, own=INITIAL), True, LEFT),
    ],
)
def test_a_view_without_us_or_without_others_is_the_end_and_a_leader_stays_a_heartbeat(
    wished: bool, pauses: bool, s: Situation, led: bool, result: str
) -> None:
    out = departing(pauses, wished).on_view(s, (), replace(VIEW, leader=s.me if led else NOBODY))
    assert came(out) == result
    assert (out == [SetTimer("leave", NOW + 2.0)]) == (result == LEFT)


@pytest.mark.parametrize(
    ("pauses", "hands_over", "s", "result"),
    [
        (False, True, at(me=B), LEFT),
        (True, True, at(me=B), LEFT),
        (False, False, at(me=B), STOPPED),
        (False, True, at(view=ALONE, own=TRAINED), LEFT),
        (True, True, at(view=ALONE, own=TRAINED), STAYED),
        (True, True, at(view=ALONE, own=INITIAL), LEFT),
        (False, True, at(view=BOTH, own=OVER, liveness=alive()), NOTHING),
        (False, False, at(view=view_of((A, B), (B,), (B,)), own=OVER), STOPPED),
        (False, False, at(view=view_of((A, B), (B,), (B,)), own=OVER, liveness=alive()), NOTHING),
    ],
)
def test_when_it_takes_too_long_it_goes_without_but_for_the_last_copies(
    pauses: bool, hands_over: bool, s: Situation, result: str
) -> None:
    role = departing(pauses)
    if hands_over:
        began = at(view=s.view, me=s.me, led=True)
        assert came(role.leave(began, Leave("asked", pauses))) == LEFT
    out = role.due(s)
    assert came(out) == result
    if result == LEFT:
        assert out[-1] == SetTimer("leave", NOW + 20.0)
        said = [each.message for each in out if isinstance(each, Send)]
        assert [isinstance(each, Resign) and each.hand_over for each in said] == [False]
        assert came(role.due(s)) == STOPPED


@pytest.mark.parametrize(
    ("pauses", "s", "result"),
    [
        (True, at(), NOTHING),
        (False, at(view=ALONE, own=TRAINED), NOTHING),
        (True, at(view=ALONE, own=TRAINED), STAYED),
        (True, at(view=ALONE, own=INITIAL), NOTHING),
        (True, at(view=BOTH, own=OVER, liveness=alive()), STAYED),
        (True, at(view=view_of((A, B), (B,), (B,)), own=OVER), NOTHING),
        (False, at(view=BOTH, own=OVER, liveness=alive()), NOTHING),
    ],
)
def test_a_pause_that_nobody_learnt_in_stays(pauses: bool, s: Situation, result: str) -> None:
    assert came(departing(pauses).waited_enough(s)) == result


def test_a_peer_that_stays_forgets_the_wish_and_says_no_more_that_it_goes() -> None:
    role, s = departing(pauses=True), at(led=True)
    role.leave(s, Leave("asked", True))
    assert role.way is WayOut.HANDS_OVER and role.say(s)
    assert came(role.let_go(s, everybody=True)) == STAYED
    assert (role.leaving, role.pauses, role.stayed) == ("", False, 1)
    assert role.way is WayOut.STAYS and role.say(s) == []


@pytest.mark.parametrize(
    ("pauses", "s", "everybody", "result"),
    [
        (False, at(led=False), True, LEFT),
        (False, at(led=False), False, LEFT),
        (True, at(led=False), False, LEFT),
        (True, at(led=False), True, STAYED),
        (False, at(view=ALONE, own=TRAINED, led=False), True, STOPPED),
        (True, at(view=ALONE, own=TRAINED, led=False), True, STAYED),
        (True, at(view=ALONE, own=TRAINED, led=False), False, STAYED),
        (True, at(view=ALONE, own=INITIAL, led=False), True, STOPPED),
    ],
)
def test_a_leader_that_nobody_takes_over_from(pauses: bool, s: Situation, everybody: bool, result: str) -> None:
    assert came(departing(pauses).let_go(s, everybody)) == result


KEPT = replace(SETTINGS, snapshot_every=3)
OTHERS = view_of((B,), (B,), (C,))
"""A leads, holds nothing any more, and still has what it held."""


@pytest.mark.parametrize(
    ("s", "saved"),
    [
        (at(view=view_of((), (B,), (C,)), own=TRAINED, settings=KEPT), (0,)),
        (at(view=ALONE, own=TRAINED, settings=KEPT), (0,)),
        (at(view=OTHERS, own=TRAINED, settings=KEPT), ()),
        (at(view=ALONE, own=TRAINED), ()),
        (at(view=ALONE, own=INITIAL, settings=KEPT), ()),
        (at(view=view_of((), (B,), (C,)), own=OVER, settings=KEPT), ()),
        (at(view=ALONE, own=TRAINED, settings=KEPT, history=Past(newest_step=9)), ()),
        (at(view=None, own=TRAINED, settings=KEPT), ()),
    ],
    ids=[
        "nobody took it over", "it is alone", "another one has it", "the run keeps no snapshots", "nothing is trained",
        "the run has ended", "others are further", "it knows no view",
    ],
)  # fmt: skip
def test_what_nobody_has_taken_over_is_saved_before_it_stops(s: Situation, saved: tuple[int, ...]) -> None:
    role = departing()
    role.way = WayOut.GOES
    assert role.due(s) == ([Save(saved)] if saved else []) + [Stop("asked")]


def test_a_stage_that_was_lost_is_given_up_until_a_view_without_us_in_it_comes() -> None:
    role, s = OwnDeparture(), at(me=B)
    said = Resign("lineage", 3, (1,), False, False, "gone")
    assert role.give_up(s, (1,), "gone") == role.say(s) == [Send(A, said, None)]
    role.on_view(s, (1,), None)
    assert role.say(s)
    role.on_view(at(view=view_of((A,), (C,), (B,)), me=B), (1,), None)
    assert role.say(s) == []
    assert role.give_up(at(me=D), (1,), "gone") == [], "who is no member has nobody to tell"


def test_who_loses_a_stage_on_its_way_out_goes_at_once() -> None:
    role, s = departing(), at(me=B)
    role.leave(s, Leave("asked"))
    (said,) = role.give_up(s, (1,), "gone")
    assert said == Send(A, Resign("lineage", 3, (1,), True, False, "gone"), None) and role.way is WayOut.GOES


def test_a_run_that_ended_lets_a_leaver_go_after_two_leases_but_not_with_a_last_copy() -> None:
    role, last = departing(), at(view=BOTH, own=OVER, liveness=alive(now=NOW + 30.0), now=NOW + 30.0)
    assert role.beat(at(view=BOTH, own=TRAINED)) == []
    assert role.beat(at(view=BOTH, me=B, own=OVER, now=NOW + 19.0, liveness=alive(B, now=NOW + 19.0))) == []
    assert role.beat(last) == []
    both = {"view": view_of((A, B), (B,), (B,)), "own": OVER}
    assert role.beat(at(**both, now=NOW + 49.0)) == []
    assert role.beat(at(**both, now=NOW + 51.0)) == [Stop("asked")]
    assert departing(wished=False).beat(at(**both, now=NOW + 99.0)) == []


def hurried(within: float = 30.0, s: Situation | None = None) -> tuple[OwnDeparture, Outcome]:
    role, word = OwnDeparture(), Leave("asked", within=within, bytes_per_second=500.0)
    role.wish(word)
    return role, role.leave(s or at(me=B), word)


def test_one_that_ends_says_when_and_what_its_line_takes() -> None:
    role, out = hurried()
    said = Resign("lineage", 3, (1,), True, True, "leaves: asked", 30.0, 500.0)
    assert out == [Send(A, said, None), SetTimer("leave", NOW + 30.0)]
    (later,) = role.say(at(me=B, now=NOW + 12.0))
    assert isinstance(later, Send) and later.message == replace(said, seconds=18.0)
    (late,) = role.say(at(me=B, now=NOW + 99.0))
    assert isinstance(late, Send) and late.message == replace(said, seconds=0.0)


@pytest.mark.parametrize(
    "s",
    [
        at(me=B, now=NOW + 30.0),
        at(view=ALONE, own=TRAINED, now=NOW + 30.0),
        at(view=BOTH, own=OVER, liveness=alive(), now=NOW + 30.0),
    ],
    ids=["others are there", "it is alone", "it has the last copy"],
)
def test_at_its_time_it_stops_whatever_is_unfinished(s: Situation) -> None:
    role, _ = hurried()
    *told, stop = role.due(s)
    assert stop == Stop("asked") and role.way is WayOut.GOES
    assert all(isinstance(each, Send) and not each.message.hand_over for each in told)  # type: ignore[union-attr]


@pytest.mark.parametrize(("second", "until"), [(10.0, NOW + 15.0), (60.0, NOW + 30.0), (-1.0, NOW + 30.0)])
def test_a_second_word_can_only_shorten_its_time(second: float, until: float) -> None:
    role, _ = hurried()
    word = Leave("again", within=second)
    role.wish(word)
    out = role.leave(at(me=B, now=NOW + 5.0), word)
    assert out[-1] == SetTimer("leave", until) and role.until == until


def test_who_has_time_and_is_told_that_it_has_not() -> None:
    role = departing()
    role.leave(at(me=B), Leave("asked"))
    out = role.leave(at(me=B, now=NOW + 5.0), Leave("asked", within=3.0))
    assert out[-1] == SetTimer("leave", NOW + 8.0)


def test_a_leader_does_not_stay_beyond_its_time() -> None:
    role, _ = hurried(within=1.0, s=at())
    assert role.on_view(at(me=D), (), replace(VIEW, leader=D)) == [SetTimer("leave", NOW + 1.0)]


THREE = view_of((A,), (B,), (B,), (B, C))


def begun(*learners: tuple[int, Peer]) -> Begin:
    base = Version(7, "c7", Attempt(2, 9))
    return Begin("lineage", 3, 8, Attempt(3, 1), base, False, False, True, False, 2, (), (), (), (), learners)


def test_what_becomes_of_its_stages_is_known_at_any_time() -> None:
    """Stage 1 is learnt and joins, stage 2 is rebuilt by somebody, and another one holds stage 3, too."""
    s = at(view=THREE, me=B, own=Held(begin=begun((1, D))))
    role, _ = hurried(s=s)
    assert role.fate(s) == HandedOver((3,), (1,), (2,))
    joined = at(view=view_of((A,), (D,), (B,), (B, C), number=4), me=B, own=Held(begin=begun((1, D))))
    role.on_view(joined, THREE.stages_of(B), THREE)
    assert role.fate(joined) == HandedOver((1, 3), (), (2,))
    gone = at(view=view_of((A,), (D,), (A,), (C,), number=5), me=B, own=Held(begin=begun()))
    role.on_view(gone, (2, 3), joined.view)
    assert role.fate(gone) == HandedOver((1, 3), (), (2,))


def test_who_was_not_asked_to_go_would_leave_what_nobody_else_has() -> None:
    s = at(view=THREE, me=B, own=Held(begin=begun((2, D))))
    assert OwnDeparture().fate(s) == HandedOver((3,), (2,), (1,))
    assert OwnDeparture().fate(at(view=None)) == HandedOver()


def test_what_the_only_member_holds_goes_with_it() -> None:
    """Nobody is left to bring it back. Who began to learn some of it in this step is gone, too."""
    s = at(view=view_of((A,), (A,)), me=A, own=Held(begin=begun((1, D))))
    assert OwnDeparture().fate(s) == HandedOver(gone=(0, 1))
    assert OwnDeparture().fate(s._replace(led=Leads(hope=True))) == HandedOver((), (1,), (0,))
