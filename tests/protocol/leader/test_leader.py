"""What the leader of a view decides: when a step begins, is committed, tried again or skipped. The role alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from ftnode.protocol.chronicle import Chronicle
from ftnode.protocol.leader.leader import Leader
from ftnode.protocol.leader.leader_memory import LeaderMemory, Learner
from ftnode.protocol.situation import ClearTimer, MakeOffer, Outcome, SetTimer, ShowView
from ftnode.protocol.views.ballot import Balloting
from ftnode.protocol.words.effects import Committed, Note, Send
from ftnode.protocol.words.messages import NOT_LENT, Begin, Donor, Plan, Poisoned, Propose, Ready, Resign, StageResult
from ftnode.protocol.words.types import Attempt, Peer, Rung, Version, initial_version
from ftnode.protocol.words.view import View
from tests.protocol.situations import (
    NOW,
    SETTINGS,
    VIEW,
    A,
    B,
    C,
    D,
    Held,
    Past,
    alive,
    report,
    situation,
    standby,
    status,
    view_of,
)

BASE = Version(7, "c7", Attempt(2, 9))
HOLDS = {A: 0, B: 1, C: 2}
OPEN = view_of((A,), (), (C,))


def leader(view: View = VIEW, memory: LeaderMemory | None = None, **changes: Any) -> Leader:
    s = situation(view=view, **changes)
    return Leader(s, view, memory or LeaderMemory(), Chronicle(), Balloting(A, view))


def told_all(role: Leader, base: Version | None, members: Iterable[Peer] = (A, B, C), **changes: Any) -> Outcome:
    """All members say where they stand."""
    out = Outcome()
    for peer in members:
        said = status({HOLDS[peer]: base}, base)
        out.extend(role.on_status(situation(view=role.view, **changes), peer, said))
    return out


def begun(out: Outcome) -> Begin:
    """The Begin that was sent, the same to all."""
    sent = {each.to: each.message for each in out if isinstance(each, Send) and isinstance(each.message, Begin)}
    (begin,) = set(sent.values())
    assert sent.keys() >= {A, B, C}
    return begin


def training() -> tuple[Leader, Begin]:
    """All hold step 7, and work on step 8."""
    role = leader()
    return role, begun(told_all(role, BASE))


def ready(begin: Begin, peer: Peer, gradient: str = "g", stage: int | None = None) -> Ready:
    result = StageResult(HOLDS[peer] if stage is None else stage, 1.0, gradient)
    loss = (8.0, 4) if peer == A else (0.0, 0)
    return Ready("lineage", 3, begin.step, begin.attempt, (result,), *loss, None)


def notes(out: Outcome) -> list[str]:
    return [each.kind for each in out if isinstance(each, Note)]


# -- where the swarm stands


@pytest.mark.parametrize("base", [None, BASE])
def test_a_step_begins_when_all_members_have_said_where_they_stand(base: Version | None) -> None:
    role = leader()
    assert told_all(role, base, (A, B)) == [] and "word from c of" in role.waiting(situation())
    out = told_all(role, base, (C,))
    begin, start = begun(out), base or initial_version("lineage")
    assert (begin.base, begin.step, begin.attempt, begin.training) == (start, start.step + 1, Attempt(3, 1), True)
    assert [(plan.stage, plan.rung) for plan in begin.installs] == (
        [] if base else [(stage, Rung.INITIAL) for stage in range(3)]
    )
    assert notes(out) == ["stand"] and ClearTimer("join") in out and role.waiting(situation()) == ""


@pytest.mark.parametrize(
    ("view", "members", "past", "kinds", "halted"),
    [
        (OPEN, (A, C), 0, [], False),
        (VIEW, (A, B, C), 5, ["halt"], True),
        (VIEW, (A, B), 5, [], False),
    ],
    ids=["a stage is vacant", "committed steps are gone", "one has said nothing"],
)
def test_nothing_begins(view: View, members: tuple[Peer, ...], past: int, kinds: list[str], halted: bool) -> None:
    role = leader(view)
    out = told_all(role, None, members, history=Past(past))
    assert notes(out) == kinds and bool(role.progress.halted) is halted
    assert not any(isinstance(each, Send) for each in out)


def test_a_stranger_says_nothing_of_it() -> None:
    role = leader()
    assert role.on_status(situation(), D, status({1: BASE}, BASE)) == [] and not role.progress.statuses


@pytest.mark.parametrize(("after", "begins"), [(0.1, False), (2.0, True)], ids=["waited in the inbox", "said since"])
def test_a_leader_that_was_suspended_asks_again_where_the_others_stand(after: float, begins: bool) -> None:
    role, liveness = leader(), alive(B, C)
    told_all(role, BASE, (A, B))
    liveness.woke(NOW - 100.0, NOW - 100.0)
    assert liveness.woke(NOW, NOW - 50.0)
    role.on_blocked()
    assert not role.progress.statuses
    out = told_all(role, BASE, liveness=liveness, now=NOW + after)
    assert any(isinstance(each, Send) for each in out) == begins
    assert set(role.progress.statuses) == ({A, B, C} if begins else {A})


def test_a_leader_that_was_suspended_in_a_step_goes_on_with_it() -> None:
    role, begin = training()
    role.on_blocked()
    assert role.progress.begin == begin


def test_who_says_it_late_gets_the_begin_and_who_dropped_its_work_makes_the_step_be_redone() -> None:
    role, begin = training()
    late = status({1: BASE}, BASE)
    assert role.on_status(situation(), B, late) == [Send(B, begin, None)]
    role.on_heartbeat(situation(), B, report(2, step=8))
    role.on_heartbeat(situation(), B, report(3, step=7))
    assert role.on_status(situation(), B, late) == [Send(B, begin, None)], "it has not said that it works on it"
    role.on_heartbeat(situation(), B, report(3, step=8))
    assert begun(role.on_status(situation(), B, late)).attempt == Attempt(3, 2)


# -- commits


def test_a_step_is_committed_when_all_are_ready_and_the_next_one_begins() -> None:
    role, begin = training()
    assert role.on_ready(situation(), A, ready(begin, A)) == role.on_ready(situation(), B, ready(begin, B)) == []
    out = role.on_ready(situation(), C, ready(begin, C))
    (committed,) = (each for each in out if isinstance(each, Committed))
    assert (committed.version.step, committed.skipped, committed.commit.loss) == (8, False, 2.0)
    assert begun(out).base == committed.version and role.chronicle.newest_step == 8


@pytest.mark.parametrize(
    ("sender", "changes", "why"),
    [
        (D, {}, "it is no member"),
        (C, {"stage": 1}, "it does not hold the stage"),
    ],
)
def test_a_ready_that_does_not_count(sender: Peer, changes: dict[str, Any], why: str) -> None:
    role, begin = training()
    role.on_ready(situation(), A, ready(begin, A))
    role.on_ready(situation(), B, ready(begin, B))
    said = ready(begin, C, **changes)
    assert role.on_ready(situation(), sender, said) == [] and sender not in role.progress.ready, why


def test_a_ready_of_another_attempt_does_not_count() -> None:
    role, _ = training()
    other = Ready("lineage", 3, 8, Attempt(3, 9), (), 0.0, 0, None)
    assert role.on_ready(situation(), C, other) == [] and not role.progress.ready


def test_replicas_at_odds_have_the_step_tried_once_more_and_then_skipped() -> None:
    view = view_of((A,), (B,), (C, D))
    role = leader(view)
    HOLDS_TOO = {**HOLDS, D: 2}
    for peer, stage in HOLDS_TOO.items():
        out = role.on_status(situation(view=view), peer, status({stage: BASE}, BASE))
    for skipped in (False, True):
        begin = begun(out)
        assert begin.skip is False
        for peer, stage in HOLDS_TOO.items():
            said = Ready("lineage", 3, 8, begin.attempt, (StageResult(stage, 1.0, peer.id),), 1.0, 1, None)
            out = role.on_ready(situation(view=view), peer, said)
        assert notes(out) == ["poisoned"] and begun(out).skip is skipped
        assert begun(out).attempt.n == begin.attempt.n + 1


@pytest.mark.parametrize(
    ("microbatch", "times", "skip", "unscored"),
    [(0, 1, False, -1), (0, 2, True, -1), (0, 4, True, -1), (SETTINGS.microbatches, 1, False, 7)],
    ids=["once more", "and skipped", "and somebody cannot finish that", "of a validation"],
)
def test_a_poisoned_step(microbatch: int, times: int, skip: bool, unscored: int) -> None:
    role, begin = training()
    begin = role.progress.begin = replace(begin, evaluate=unscored > 0)
    for _ in range(times):
        said = Poisoned("lineage", 3, 8, begin.attempt, 1, microbatch, "it is no number")
        assert role.on_poisoned(situation(), D, said) == [], "a stranger says it"
        begin = begun(role.on_poisoned(situation(), B, said))
    assert (begin.skip, role.chronicle.unscored) == (skip, unscored)
    if times == 4 or unscored > 0:
        said = Poisoned("lineage", 3, 8, begin.attempt, 1, microbatch, "it is no number")
        assert role.on_poisoned(situation(), B, said) == [], "it names poison without end"


def test_the_end_is_reached_once() -> None:
    role, last = leader(), Version(SETTINGS.steps, "c100", Attempt(2, 9))
    begin = begun(told_all(role, last))
    assert not begin.training and not role.finished
    out = Outcome()
    for _ in range(2):
        for peer in HOLDS:
            out.extend(role.on_ready(situation(), peer, ready(begin, peer)))
    assert notes(out) == ["finished"] and role.finished
    assert role.on_resign(situation(), B, Resign("lineage", 3, (1,), True, False, "leaves")) == []


def test_members_that_were_ready_vote_in_a_view_of_its_own_before_the_commit() -> None:
    view = view_of((A,), (B,), (C,), voters=(A, B))
    role = leader(view)
    begin = begun(told_all(role, BASE))
    for peer in HOLDS:
        out = role.on_ready(situation(view=view), peer, ready(begin, peer))
    views = {each.message.view for each in out if isinstance(each, Send) and isinstance(each.message, Propose)}
    assert [(each.number, each.voters) for each in views] == [(4, (A, B, C))]
    assert not any(isinstance(each, Committed) for each in out)


def test_a_step_waits_for_a_learner_until_its_time_is_up() -> None:
    memory = LeaderMemory(led=("lineage", 2))
    memory.learners[2, D] = Learner(C, NOW + 100.0, True, applied=7)
    role = leader(memory=memory)
    out = told_all(role, BASE)
    begin = begun(out)
    assert begin.learners == ((2, D),) and ShowView(D) in out
    for peer in HOLDS:
        out = role.on_ready(situation(), peer, ready(begin, peer))
    assert out == [SetTimer("join", NOW + SETTINGS.join_seconds)]
    out = role.join_due(situation(now=NOW + SETTINGS.join_seconds))
    assert [type(each) for each in out].count(Committed) == 1


# -- who goes and who comes


@pytest.mark.parametrize(
    ("resign", "gone", "vacated", "leaving"),
    [
        (Resign("lineage", 3, (1,), False, False, NOT_LENT), set(), {(1, B)}, False),
        (Resign("lineage", 3, (1,), True, False, "leaves"), {B}, set(), False),
        (Resign("lineage", 3, (1,), True, True, "leaves"), set(), set(), True),
        (Resign("lineage", 3, (2,), False, False, "it is not mine"), set(), set(), False),
    ],
    ids=["it gives a stage up", "it leaves at once", "it hands over", "a stage that it does not hold"],
)
def test_a_member_resigns(resign: Resign, gone: set[Peer], vacated: set[tuple[int, Peer]], leaving: bool) -> None:
    role, _ = training()
    role.on_resign(situation(), B, resign)
    assert (set(role.losses.gone), set(role.losses.vacated), B in role.leavers) == (gone, vacated, leaving)
    assert role.on_resign(situation(), D, resign) == [], "a stranger cannot"


@pytest.mark.parametrize(("leaving", "listed"), [("pauses", True), ("", False)])
def test_our_own_word_counts_while_we_still_want_to_go(leaving: str, listed: bool) -> None:
    role, _ = training()
    role.on_resign(situation(leaving=leaving), A, Resign("lineage", 3, (0,), True, True, "leaves"))
    assert (A in role.leavers) is listed


def test_before_a_stage_goes_with_who_leaves_a_step_begins_that_nobody_has_a_share_of() -> None:
    """Every later Begin of this view is one, and none goes on in the next."""
    role, begin = training()
    kept = replace(SETTINGS, snapshot_every=3)
    role.on_resign(situation(), B, Resign("lineage", 3, (1,), True, True, "leaves"))
    later = NOW + 2 * SETTINGS.lease_seconds + 0.1
    role.beat(situation(settings=kept, now=later))
    held = role.progress.begin
    assert held is not None and (held.step, held.base, held.shares, held.learners) == (begin.step, BASE, (), ())
    assert held.attempt.n == begin.attempt.n + 1
    for peer in HOLDS:
        role.on_ready(situation(settings=kept), peer, ready(begin, peer))
    assert not role.progress.ready, "the attempt before is over"
    out = role.on_poisoned(situation(settings=kept), C, Poisoned("lineage", 3, held.step, held.attempt, 2, 1, "nan"))
    assert begun(out).shares == () and not begun(out).skip


def test_a_vacancy_is_offered_and_a_view_with_it_is_proposed() -> None:
    role = leader(OPEN)
    assert role.unsettled
    s = situation(view=OPEN, presences=standby(D))
    assert role.advance(s) == [], "not before we have said where we stand ourselves"
    told_all(role, BASE, (A, C))
    assert [each.to for each in role.advance(s) if isinstance(each, MakeOffer)] == [D]
    assert role.advance(s) == [], "it has time left"
    role.recruiting.offerings[1].settle(D, False)
    (proposed,) = {
        each.message.view for each in role.advance(s) if isinstance(each, Send) and isinstance(each.message, Propose)
    }
    assert proposed.holders == ((A,), (D,), (C,)) and "d takes stage 1" in proposed.reason
    assert role.advance(s) == [], "a ballot is under way"


# -- questions


@pytest.mark.parametrize(
    ("base", "halted", "stuck", "past", "told", "worth"),
    [
        (None, "", None, 45, 0, 45),
        (BASE, "", None, 45, 45, 45),
        (BASE, "halted: no head", None, 45, 0, 45),
        (BASE, "halted: no head", SETTINGS.restart_wait_seconds, 45, 0, 0),
        (Version(0, "", Attempt(-1, 0)), "halted: all are gone", None, 45, 0, 0),
    ],
    ids=["it does not know yet", "it trains", "it has just halted", "it halted long ago", "nobody has anything"],
)
def test_what_it_says_and_what_it_goes_by(
    base: Version | None, halted: str, stuck: float | None, past: int, told: int, worth: int
) -> None:
    role = leader()
    role.progress.base, role.progress.halted = base, halted
    role.memory.stuck_since = NOW - stuck if stuck is not None else None
    s = situation(history=Past(past))
    before = (role.memory.stuck_since, role.memory.disks_heard, role.progress.halted)
    assert (role.told_step(s), role.worth(s)) == (told, worth)
    assert (role.memory.stuck_since, role.memory.disks_heard, role.progress.halted) == before


@pytest.mark.parametrize(
    ("changes", "waits"),
    [
        ({}, "word from a, b, c of how far they are"),
        ({"halted": "halted: no head"}, "halted: no head"),
        ({"finished": True}, ""),
        ({"view": OPEN}, "a volunteer for stage 1"),
    ],
)
def test_what_it_waits_for(changes: Mapping[str, Any], waits: str) -> None:
    role = leader(changes.get("view", VIEW))
    role.progress.halted, role.progress.finished = changes.get("halted", ""), changes.get("finished", False)
    assert role.waiting(situation(view=role.view)) == waits
    assert role.wanting(situation(view=role.view)) is ("view" in changes)


def test_it_hopes_for_a_standby() -> None:
    role = leader()
    assert not role.hopeful(situation()) and role.hopeful(situation(presences=standby(D)))
    assert not role.hopeful(situation(presences=standby(D, 0))) and not role.hopeful(situation(own=Held()))


def test_only_the_first_holder_of_the_head_says_what_a_validation_gave() -> None:
    role, begin = training()

    def ready(peer: Peer, validation: float) -> Ready:
        result = StageResult(HOLDS[peer], 1.0, "g", ())
        return Ready(begin.lineage, begin.view, begin.step, begin.attempt, (result,), 0.0, 0, validation, ())

    role.on_ready(situation(view=role.view), C, ready(C, 1e-6))
    assert role.chronicle.validation == {}
    role.on_ready(situation(view=role.view), A, ready(A, 2.5))
    role.on_ready(situation(view=role.view), C, ready(C, 1e-6))
    assert role.chronicle.validation == {BASE.step: 2.5}


def test_what_a_validation_gave_is_not_changed_by_a_status() -> None:
    role = leader()
    role.chronicle.evaluate(6, 2.5)
    said = replace(status({HOLDS[C]: BASE}, BASE), evaluated=((6, 1e-6), (5, 2.75)))
    role.on_status(situation(view=role.view), C, said)
    assert role.chronicle.validation == {6: 2.5, 5: 2.75}


@pytest.mark.parametrize("asked", [True, False])
def test_a_donor_is_refuted_by_those_alone_who_were_to_make_a_stage_of_its_weights(asked: bool) -> None:
    role, begin = training()
    if asked:
        donor = Donor(HOLDS[B], B, ())
        role.memory.name_lenders([Plan(HOLDS[C], C, Rung.COPY, (donor,), 1.0, "", None)])
    what = Poisoned(begin.lineage, begin.view, begin.step, begin.attempt, HOLDS[B], -1, "other weights", B, 9.0)
    role.on_poisoned(situation(view=role.view), C, what)
    assert role.memory.not_believed() == (frozenset({(HOLDS[B], B)}) if asked else frozenset())
