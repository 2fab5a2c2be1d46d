"""Who owes the next move of a step, and for how long it may: the leader's look alone (rule 38)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ftnode.protocol.leader.duty import STALE_BEATS, Duty
from ftnode.protocol.leader.leader_memory import QUIET_TIMES, LeaderMemory
from ftnode.protocol.leader.losses import Losses
from ftnode.protocol.leader.progress import ViewProgress
from ftnode.protocol.situation import Situation
from ftnode.protocol.step.patience import excuse_seconds
from ftnode.protocol.words.messages import Begin, Heartbeat, Plan, Ready, StageReport, Suspect, Wait, Waits
from ftnode.protocol.words.types import Attempt, Direction, Peer, Rung, Version
from ftnode.protocol.words.view import View
from tests.protocol.situations import NOW, SETTINGS, A, B, C, D, alive, report, situation, view_of

E = Peer("e", 1)
ATTEMPT = Attempt(3, 1)
LINE = view_of((B,), (C,), (D,))
"""A leads and holds nothing."""
GROUPS = view_of((A,), (B, C), (D, E))
BEAT, LEASE, TASK = SETTINGS.heartbeat_seconds, SETTINGS.lease_seconds, SETTINGS.task_seconds
FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD
WHOLE = {B: 8}
"""B has accumulated both visits of four microbatches."""


def begun(view: View, **changes: Any) -> Begin:
    head = view.holders[0][0]
    said: dict[str, Any] = {
        "lineage": "lineage", "view": 3, "step": 8, "attempt": ATTEMPT, "base": Version(7, "c", Attempt(3, 0)),
        "skipped": False, "skip": False, "training": True, "evaluate": False, "window": 2,
        "shares": ((head, (0, 1, 2, 3)),), "paths": (), "installs": (), "commits": (), "learners": (),
    }  # fmt: skip
    return Begin(**{**said, **changes})


def wait(microbatch: int, visit: int, peer: Peer, stored: bool = True, direction: Direction = FORWARD) -> Wait:
    return Wait(microbatch, visit, direction, peer, stored)


def reports(view: View, done: dict[Peer, int]) -> dict[Peer, Heartbeat]:
    """What each has accumulated, all of it in the first of its stages."""
    return {
        peer: report(3, step=8, stages=[StageReport(view.stages_of(peer)[0], "works", 7, done.get(peer, 0), 0, 0, 0.0)])
        for peer in view.members()
        if view.stages_of(peer)
    }


def at(now: float, view: View, done: dict[Peer, int] | None = None) -> Situation:
    settings = replace(SETTINGS, evaluation_microbatches=2)
    heard = alive(*view.members(), now=now)
    return situation(view=view, now=now, settings=settings, reports=reports(view, done or {}), liveness=heard)


def duty(view: View, begin: Begin | None = None, usual: float | None = None) -> Duty:
    memory, progress = LeaderMemory(), ViewProgress(begin=begin)
    s = at(NOW, view)
    role = Duty(s, view, memory, progress, Losses(view, memory, progress, s.settings))
    if begin is not None:
        role.on_begin(s, begin)
    if usual is not None and memory.step is not None:
        memory.step.observe(usual)
    return role


def says(role: Duty, s: Situation, peer: Peer, *waits: Wait, step: int = 8) -> None:
    role.on_waits(s, peer, Waits("lineage", 3, step, ATTEMPT, waits))


@pytest.mark.parametrize(
    ("view", "said", "done", "expected"),
    [
        (LINE, {B: [wait(0, 1, C)]}, {}, {C}),
        (LINE, {B: [wait(0, 1, C)], C: [wait(0, 2, D)]}, {}, {D}),
        (LINE, {B: [wait(0, 1, C), wait(1, 1, C)], C: [wait(0, 2, D)]}, {}, {C, D}),
        (LINE, {B: [wait(0, 1, C)], C: [wait(0, 2, D)], D: [wait(0, 3, B)]}, {}, {B}),
        (LINE, {B: [wait(0, 1, C)], C: [wait(0, 2, D, stored=False)]}, {}, set()),
        (LINE, {B: [wait(0, 1, C)], C: [wait(0, 2, D)], D: [wait(0, 1, C, False, BACKWARD)]}, {}, set()),
        (LINE, {C: [wait(0, 2, D)], D: [wait(0, 1, C, False, BACKWARD)], B: [wait(1, 1, C)]}, {}, {C}),
        (LINE, {B: [wait(0, 1, E)]}, {}, {B}),
        (LINE, {E: [wait(0, 1, C)]}, {}, {B}),
        (LINE, {}, {}, {B}),
        (LINE, {}, {B: 7}, {B}),
        (LINE, {}, WHOLE, {A, B, C, D}),
        (LINE, {B: [wait(4, 1, C)]}, WHOLE, {C}),
        (LINE, {B: [wait(4, 1, C)], C: [wait(4, 2, D)]}, WHOLE, {D}),
        (LINE, {C: [wait(4, 2, D)]}, WHOLE, {A, B, C, D}),
        (GROUPS, {B: [wait(-1, 1, C)]}, {}, {A}),
    ],
    ids=[
        "the head waits for C", "who passed it on does not owe", "each microbatch for itself", "back at the head",
        "not acknowledged", "the gradient is not acknowledged", "another microbatch", "a stranger is named",
        "a stranger says it", "nothing is admitted", "one visit is missing", "all is accumulated",
        "a validation", "a validation that was passed on", "a validation that may be over", "work before groups",
    ],
)  # fmt: skip
def test_who_owes(view: View, said: dict[Peer, list[Wait]], done: dict[Peer, int], expected: set[Peer]) -> None:
    role, s = duty(view, begun(view)), at(NOW, view, done)
    for peer, waits in said.items():
        says(role, s, peer, *waits)
    assert role.owing(s).keys() == expected


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({B: [wait(-1, 1, C)]}, {B, C}),
        ({B: [wait(-1, 1, C)], C: [wait(-1, 1, B)]}, {B, C}),
        ({B: [wait(-1, 1, B, stored=False)]}, {A, C, D, E}),
        ({B: [wait(-1, 1, B, stored=False)], C: [wait(-1, 1, C, stored=False)]}, {A, D, E}),
        ({D: [wait(-1, 1, C, stored=False)]}, {A, B, C, D, E}),
    ],
    ids=["C has not told its share", "each says it of the other", "B makes the sum", "both make it", "a stranger"],
)
def test_who_owes_a_group(said: dict[Peer, list[Wait]], expected: set[Peer]) -> None:
    role, s = duty(GROUPS, begun(GROUPS, shares=((A, ()),))), at(NOW, GROUPS)
    for peer, waits in said.items():
        says(role, s, peer, *waits)
    assert role.owing(s).keys() == expected


def share(of: Peer) -> Wait:
    return wait(-1, 1, of)


def part(of: Peer) -> Wait:
    return wait(-1, 1, of, stored=False)


def total(of: Peer) -> Wait:
    return wait(-1, 1, of, stored=False, direction=BACKWARD)


@pytest.mark.parametrize(
    ("said", "marked", "at_odds", "gone"),
    [
        ({B: [part(C)]}, set(), {B, C}, C),
        ({C: [part(B)]}, set(), {B, C}, B),
        ({C: [part(B)]}, {C}, {B, C}, C),
        ({C: [part(B)], B: [part(C)]}, set(), {B, C}, C),
        ({C: [part(B)], B: [part(B)]}, set(), {B, C}, B),
        ({C: [total(B)]}, set(), {B, C}, B),
        ({C: [total(B)], B: [part(C)]}, set(), {B, C}, C),
        ({C: [total(B)], B: [part(D)], D: [total(B)]}, set(), {B, D}, D),
        ({B: [part(C)], D: [part(C)], C: [part(B)]}, set(), {C}, C),
        ({B: [part(C)], D: [part(C)], C: [part(B)]}, {B, D}, {C}, C),
        ({B: [part(C), part(D)]}, set(), {B}, B),
        ({B: [part(A)]}, set(), {A, B}, B),
        ({B: [share(C)], C: [total(B)]}, set(), {B, C}, C),
        ({B: [share(C), share(D)], C: [total(B)], D: [total(B)]}, set(), {B}, B),
        ({B: [part(C)], C: [share(B)]}, set(), {B, C}, B),
        ({B: [share(C)]}, set(), {B, C}, C),
        ({B: [share(C)]}, {B}, {B, C}, B),
        ({B: [share(C)], C: [share(B)]}, set(), {B, C}, C),
        ({B: [share(C)], D: [share(C)], C: [share(B), share(D)]}, set(), {C}, C),
    ],
    ids=[
        "C gives no part", "B gives none", "to whom somebody else gave none, as it said", "each says it of the other",
        "C says it and B makes the sum", "B gives no sum", "and lacks what C did not give", "B lacks a part of D",
        "two say it of C", "whatever there was before", "B says it of both", "of the leader",
        "C sums up, and B says that it has not told its share", "B says it of two that sum up",
        "B sums up and has not told its share", "C has not told its share",
        "C has not, says B, who said so before", "each has not, says the other", "C and all others have not",
    ],
)  # fmt: skip
def test_who_goes_when_a_sum_stands_still(
    said: dict[Peer, list[Wait]], marked: set[Peer], at_odds: set[Peer], gone: Peer
) -> None:
    group = view_of((E,), (A, B, C, D))
    role = duty(group, begun(group, shares=((A, ()),)), usual=1.0)
    role.memory.disputes.marked |= marked
    now = NOW
    while not role.losses.gone and now < NOW + 2 * LEASE:
        s = at(now, group)
        for peer, waits in said.items():
            says(role, s, peer, *waits)
        owing = role.owing(s)
        assert owing.keys() == at_odds
        role.beat(s)
        now += BEAT
    assert role.losses.gone.keys() == {gone} and now - NOW > LEASE
    others = set() if gone in marked else at_odds - {gone}
    assert role.memory.disputes.marked == marked - {gone} | others


def test_a_broken_link_tells_as_much_as_a_word() -> None:
    """B lacks what C gives, it says, and two say that B sums up nothing for them. Two have broken with B."""
    group = view_of((E,), (A, B, C, D))
    role, s = duty(group, begun(group, shares=((A, ()),)), usual=1.0), at(NOW, group)
    for peer, said in ((B, part(C)), (C, total(B)), (D, total(B))):
        says(role, s, peer, said)
    assert role.owing(s).keys() == {B, C}
    for peer in (C, D):
        role.losses.on_suspect(s, peer, Suspect("lineage", 3, B, "broken", "banned"))
    assert role.owing(s).keys() == {B}
    assert role.owing(at(NOW + 4 * BEAT, group)).keys() != {B}, "a report counts as long as it is repeated"


@pytest.mark.parametrize("age", [0.9, 1.1])
def test_an_old_word_counts_no_more(age: float) -> None:
    role, begin = duty(LINE, begun(LINE)), begun(LINE)
    says(role, at(NOW, LINE), B, wait(0, 1, C))
    assert role.owing(at(NOW + age * STALE_BEATS * BEAT, LINE)).keys() == ({C} if age < 1 else {B})
    says(role, at(NOW, LINE), B, wait(0, 1, C), step=9)
    role.on_begin(at(NOW, LINE), begin)
    assert role.owing(at(NOW, LINE)).keys() == {B}, "another attempt"


@pytest.mark.parametrize(
    ("begin", "expected"),
    [
        (begun(LINE, skip=True, shares=()), {A, B, C, D}),
        (begun(LINE, training=False, evaluate=True), {A, B, C, D}),
        (begun(LINE, shares=()), set()),
        (None, {A, B, C, D}),
    ],
    ids=["a skipped step", "the last validation", "a step that is held", "no Begin yet"],
)
def test_who_owes_where_nothing_is_admitted(begin: Begin | None, expected: set[Peer]) -> None:
    assert duty(LINE, begin).owing(at(NOW, LINE)).keys() == expected


def test_nobody_owes_when_all_are_ready() -> None:
    role, s = duty(LINE, begun(LINE)), at(NOW, LINE)
    ready = Ready("lineage", 3, 8, ATTEMPT, (), 0.0, 0, None)
    role.progress.ready = dict.fromkeys(s.members - {C}, ready)
    assert role.owing(s).keys() == {C}
    role.progress.ready[C] = ready
    assert role.owing(s) == {}


def lost_after(
    role: Duty, view: View, seconds: float, said: dict[Peer, list[Wait]], **changes: Any
) -> dict[Peer, float]:
    """Who is lost, and when: all say the same with each heartbeat."""
    found: dict[Peer, float] = {}
    for beat in range(int(seconds / BEAT)):
        s = at(NOW + beat * BEAT, view, changes.get("done"))
        for peer, waits in said.items():
            says(role, s, peer, *waits)
        role.beat(s)
        found |= dict.fromkeys(role.losses.gone.keys() - found.keys(), beat * BEAT)
    return found


PLAN = Plan(1, C, Rung.COPY, (), 1.0, "why", None)


@pytest.mark.parametrize(
    ("usual", "changes", "expected"),
    [
        (None, {}, TASK),
        (1.0, {}, LEASE),
        (8.0, {}, 24.0),
        (500.0, {}, TASK),
        (1.0, {"installs": (PLAN,)}, LEASE + SETTINGS.install_seconds),
        (8.0, {"evaluate": True}, 36.0),
    ],
    ids=["nothing is measured", "a lease", "as usual", "no longer than a task", "a rebuild", "a validation besides"],
)
def test_how_long_it_may_owe(usual: float | None, changes: Any, expected: float) -> None:
    role = duty(LINE, begun(LINE, **changes), usual)
    lost = lost_after(role, LINE, 2 * expected + 10.0, {B: [wait(0, 1, C)]})
    assert list(lost) == [C] and expected < lost[C] <= expected + 2 * BEAT


def test_who_holds_several_stages_may_have_a_task_of_each() -> None:
    view = view_of((B,), (C,), (C,))
    role = duty(view, begun(view))
    assert role.patience(at(NOW, view), C) == 2 * TASK and role.patience(at(NOW, view), B) == TASK


def test_who_has_not_begun_may_not_hear_us() -> None:
    role, s = duty(LINE, begun(LINE), 1.0), at(NOW, LINE)
    deaf = s._replace(reports={**s.reports, C: report(3, step=7)})
    assert role.patience(deaf, C) == role.patience(deaf, B) + 2 * LEASE


def test_whoever_gets_something_done_owes_anew() -> None:
    role = duty(LINE, begun(LINE), 1.0)
    for beat in range(100):
        s = at(NOW + beat * BEAT, LINE)
        if beat % 8 == 0:
            role.on_begin(s, begun(LINE))
        says(role, s, B, *(wait(m, 1, C) for m in range(beat // 2 % 4, 4)))
        role.beat(s)
    assert not role.losses


@pytest.mark.parametrize("gap", [1, 3])
def test_who_owes_by_turns_gains_nothing(gap: int) -> None:
    """It shields one microbatch after the other, or none for a while."""
    role, found = duty(LINE, begun(LINE), 1.0), 0.0
    for beat in range(60):
        s = at(NOW + beat * BEAT, LINE)
        says(role, s, B, wait(0, 1, C), wait(1, 1, C))
        says(role, s, C, *([wait(beat // gap % 2, 2, D, stored=False)]))
        role.beat(s)
        found = found or (s.now - NOW if C in role.losses.gone else 0.0)
    assert 0 < found <= LEASE + 6 * gap * BEAT


@pytest.mark.parametrize("others", [True, False], ids=["others had it", "nobody had it"])
def test_a_gradient_is_owed_anew_when_others_have_had_the_microbatch(others: bool) -> None:
    """C passes it on, and it is away for longer than C may owe. Then B, which waits for all of it, names C again."""
    role, away, lost = duty(LINE, begun(LINE), 1.0), 20, 0.0
    for beat in range(60):
        s = at(NOW + beat * BEAT, LINE)
        says(role, s, B, wait(0, 1, C))
        between = 1 <= beat < away
        says(role, s, C, *([wait(0, 2, D, stored=False)] if between and not others else []))
        says(role, s, D, *([wait(0, 3, B, stored=False)] if between and others else []))
        role.beat(s)
        lost = lost or (s.now - NOW if C in role.losses.gone else 0.0)
    assert 0 < lost <= away * BEAT + LEASE + 2 * BEAT
    assert (lost > away * BEAT + LEASE) == others


def test_time_in_which_it_is_not_heard_does_not_count_and_is_no_way_out() -> None:
    role, found = duty(LINE, begun(LINE), 1.0), 0.0
    for beat in range(60):
        s = at(NOW + beat * BEAT, LINE)
        s.liveness.heard[C] = s.now - (3 * BEAT if beat % 2 else 0)
        says(role, s, B, wait(0, 1, C))
        role.beat(s)
        found = found or (s.now - NOW if C in role.losses.gone else 0.0)
    assert LEASE < found <= 2 * LEASE + 4 * BEAT


EXCUSE, SUM = excuse_seconds(SETTINGS, False), excuse_seconds(SETTINGS, True)


@pytest.mark.parametrize(
    ("after", "moved", "expected"),
    [
        (EXCUSE, {}, set()), (EXCUSE + BEAT, {}, {C}), (EXCUSE + BEAT, {D: 5 * BEAT}, set()),
        (EXCUSE + BEAT, {C: 5 * BEAT}, {C}),
    ],
    ids=["as long as it may be true", "longer", "others move", "it says that it moves itself"],
)  # fmt: skip
def test_what_is_not_acknowledged_excuses_as_long_as_it_may_be_true(
    after: float, moved: dict[Peer, float], expected: set[Peer]
) -> None:
    role, s = duty(LINE, begun(LINE)), at(NOW, LINE)
    for now in (NOW, NOW + after):
        says(role, at(now, LINE), B, wait(0, 1, C))
        says(role, at(now, LINE), C, wait(0, 2, D, stored=False))
    later = at(NOW + after, LINE)._replace(own=s.own)
    for peer, at_once in moved.items():
        s.own.moves.told(peer, 1, NOW)
        s.own.moves.told(peer, 2, NOW + at_once)
    assert role.owing(later).keys() == expected


@pytest.mark.parametrize(("after", "owes"), [(SUM, False), (SUM + BEAT, True)])
def test_a_sum_excuses_as_long_as_it_may_be_made(after: float, owes: bool) -> None:
    role = duty(GROUPS, begun(GROUPS, shares=((A, ()),)))
    for now in (NOW, NOW + after):
        says(role, at(now, GROUPS), B, wait(-1, 1, B, stored=False))
    assert (B in role.owing(at(NOW + after, GROUPS))) is owes


def test_who_is_not_heard_is_a_matter_of_others() -> None:
    role = duty(LINE, begun(LINE), 1.0)
    for beat in range(100):
        s = at(NOW + beat * BEAT, LINE)
        s.liveness.heard[C] = s.now - 3 * BEAT
        says(role, s, B, wait(0, 1, C))
        role.beat(s)
    assert not role.losses


def test_we_never_name_ourselves_nor_while_we_have_just_woken() -> None:
    assert lost_after(duty(GROUPS, begun(GROUPS), 1.0), GROUPS, 50.0, {D: [wait(0, 3, A)]}) == {}
    role = duty(LINE, begun(LINE), 1.0)
    for beat in range(20):
        s = at(NOW + beat * BEAT, LINE)
        s.liveness.grace = s.now - 2 * BEAT
        says(role, s, B, wait(0, 1, C))
        role.beat(s)
    assert not role.losses


def test_of_a_group_that_waits_for_each_other_one_stays() -> None:
    role = duty(GROUPS, begun(GROUPS, shares=((A, ()),)), 1.0)
    lost = lost_after(role, GROUPS, 50.0, {B: [wait(-1, 1, C)], C: [wait(-1, 1, B)]})
    assert list(lost) == [C], "which came last"


@pytest.mark.parametrize(
    ("changes", "measured"),
    [
        ({}, True), ({"installs": (PLAN,)}, False), ({"attempt": Attempt(2, 9)}, False), ({"skip": True}, False),
        ({"shares": ()}, False), ({"paths": ((0, (B, C, D, B)),)}, False),
    ],
    ids=["a usual one", "a rebuild", "it goes on in another view", "skipped", "held", "some had been done"],
)  # fmt: skip
def test_which_steps_are_measured(changes: Any, measured: bool) -> None:
    role = duty(LINE, begun(LINE, **changes))
    role.done(at(NOW + 3.0, LINE))
    role.done(at(NOW + 90.0, LINE))
    step = role.memory.step
    assert step is not None and (step.mean is not None) is measured and step.seconds == LEASE


@pytest.mark.parametrize(
    ("newcomers", "view", "expected"),
    [
        ({C}, GROUPS, 2 * BEAT),
        ({C}, LINE, LEASE),
        ({B, C}, GROUPS, LEASE),
        (set(), GROUPS, LEASE),
    ],
    ids=["others have its stage", "nobody else has", "all are new", "it is known"],
)
def test_a_newcomer_may_owe_a_microbatch_for_less(newcomers: set[Peer], view: View, expected: float) -> None:
    role = duty(view, begun(view), 1.0)
    role.memory.newcomers = newcomers
    lost = lost_after(role, view, 40.0, {view.holders[0][0]: [wait(0, 1, C)]})
    assert list(lost) == [C] and expected < lost[C] <= expected + 2 * BEAT
    on_probation = expected == 2 * BEAT
    assert role.memory.asks_after == (NOW + (1 + QUIET_TIMES) * lost[C] if on_probation else float("-inf"))


def test_newcomers_that_owe_go_together() -> None:
    role = duty(GROUPS, begun(GROUPS), 1.0)
    role.memory.newcomers = {C, E}
    for beat in range(4):
        s = at(NOW + beat * BEAT, GROUPS)
        says(role, s, A, wait(0, 1, C))
        if beat == 3:
            says(role, s, B, wait(1, 2, E))
        role.beat(s)
    assert set(role.losses.gone) == {C, E}


def test_who_has_shown_how_fast_it_is_is_no_newcomer_any_more() -> None:
    role, s = duty(LINE, begun(LINE)), at(NOW, LINE)
    role.memory.newcomers = {B, C}
    reports = {**s.reports, B: report(3, step=8, stages=[StageReport(0, "works", 7, 8, 0, 0, 0.4)])}
    role.done(s._replace(reports=reports))
    assert role.memory.newcomers == {C}


@pytest.mark.parametrize(
    ("sender", "said"),
    [
        (D, wait(0, 1, C)),
        (B, wait(0, 2, D)),
        (B, wait(0, 1, D)),
        (C, wait(-1, 1, C, stored=False)),
        (C, wait(0, 0, B, direction=Direction.BACKWARD)),
        (D, wait(0, 0, B, stored=False, direction=Direction.BACKWARD)),
        (B, wait(0, 9, C)),
        (B, wait(0, 0, B)),
    ],
    ids=["it is not before it", "nor here", "it does not hold that", "it holds it alone", "a gradient that was stored",
         "it is not behind it", "no such visit", "nobody is before the first"],
)  # fmt: skip
def test_what_nobody_can_wait_for_excuses_and_accuses_nobody(sender: Peer, said: Wait) -> None:
    role, s = duty(LINE, begun(LINE)), at(NOW, LINE)
    says(role, s, B, wait(0, 1, C))
    before = role.owing(s)
    says(role, s, sender, *([wait(0, 1, C)] if sender == B else []), said)
    assert role.owing(s) == before and set(before) == {C}


def test_whoever_comes_after_one_that_owed_has_more_time() -> None:
    """The only one that is left may be slow, and would be taken and removed for ever."""
    role = duty(LINE, begun(LINE), 1.0)
    lost = lost_after(role, LINE, 40.0, {B: [wait(0, 1, C)]})
    assert lost[C] <= LEASE + 2 * BEAT
    assert role.patience(at(NOW, LINE), D, frozenset()) == 2 * LEASE
