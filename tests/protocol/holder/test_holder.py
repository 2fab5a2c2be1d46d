"""What a peer does with the stages that it holds, from a view and a Begin to the commit, and in trouble.

B holds stage 1 of three; A leads and has the head, C has stage 2, D stands by.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ftnode.protocol.holder.holder import Holder
from ftnode.protocol.recovery.standing import fallen_behind
from ftnode.protocol.situation import Beat, Situation
from ftnode.protocol.words.effects import (
    Apply,
    Compute,
    Discard,
    Forget,
    Install,
    Note,
    PublishView,
    Reduce,
    Release,
    RestartCompute,
    Send,
)
from ftnode.protocol.words.events import ComputeReady, Done, Installed, InstallFailed, StageLost
from ftnode.protocol.words.messages import (
    NOT_LENT,
    Begin,
    Boundary,
    Donor,
    Plan,
    Poisoned,
    Ready,
    Resign,
    Share,
    StageStatus,
    Status,
    Stored,
    Suspect,
    Waits,
)
from ftnode.protocol.words.types import Attempt, Direction, PartSeen, Peer, Rung, Version, initial_version
from ftnode.protocol.words.view import Lineage, View
from tests.protocol.beginnings import BASE, begun
from tests.protocol.situations import NOW, SETTINGS, VIEW, A, B, C, D, alive, situation, view_of
from tests.sim.planted import missed_sums_do_not_matter

STEP = 0.5
LEASE, INSTALL, TASK, STALL = (
    SETTINGS.lease_seconds, SETTINGS.install_seconds, SETTINGS.task_seconds, SETTINGS.stall_seconds
)  # fmt: skip
MINE, OTHER = 1, 2
PATH = (A, B, C, A)
COMMITTED = Version(8, "c8", Attempt(3, 8))
"""What the attempt of `begun()` makes of BASE."""
PLAN = Plan(MINE, B, Rung.BLEND, (Donor(2, C, ()),), 1.1, "its holder is gone", None)
NEXT = replace(VIEW, number=4)
"""The same holders in the next view."""
SKIPS = begun(skip=True)
"""A step that is skipped: its attempt is complete as soon as it begins."""


def at_b(role: Holder, after: float = 0.0, view: View | None = VIEW, **changes: Any) -> Situation:
    return situation(me=B, now=NOW + after, view=view, own=role, **changes)


def holder(*stages: int, version: Version = BASE, view: View = VIEW) -> Holder:
    """It has these stages, made in the lineage of the view, and follows the view."""
    role = Holder(SETTINGS)
    role.on_compute_ready(ComputeReady(2, True, 1.0))
    role.on_view(at_b(role, view=view), view, (), False)
    for stage in stages:
        role.versions[stage], role.weights.made_in[stage] = version, (view.lineage.id, view.lineage.origin)
    return role


def at_work(begin: Begin | None = None, *stages: int) -> Holder:
    role = holder(*(stages or (MINE,)))
    role.on_begin(at_b(role), begin or begun())
    return role


def sent(out: Any, kind: type) -> list[tuple[Peer, Any]]:
    return [(each.to, each.message) for each in out if isinstance(each, Send) and isinstance(each.message, kind)]


def of(out: Any, *kinds: type) -> list[Any]:
    return [each for each in out if isinstance(each, kinds)]


def activation(microbatch: int, **changes: Any) -> Boundary:
    """For stage 1, from A."""
    return replace(Boundary("lineage", 3, 8, Attempt(3, 8), microbatch, 1, Direction.FORWARD, PATH), **changes)


# -- views


@pytest.mark.parametrize(
    ("held", "was", "holders", "forgotten", "reports"),
    [
        ((MINE,), (MINE,), ((A,), (B,), (C,)), [], True),
        ((MINE, OTHER), (MINE,), ((A,), (B,), (C,)), [OTHER], True),
        ((MINE, OTHER), (MINE, OTHER), ((A,), (B,), (C,)), [], True),
        ((MINE, OTHER), (MINE,), ((A,), (B,), ()), [], True),
        ((MINE,), (MINE,), ((A,), (C,), (C,)), [], False),
        ((MINE, OTHER), (), ((A,), (C,), (C,)), [], False),
    ],
    ids=[
        "as before", "another holds it", "handed over just now", "nobody holds it", "we are out", "we were out before",
    ],
)  # fmt: skip
def test_a_view_says_what_is_kept_and_who_reports(
    held: tuple[int, ...], was: tuple[int, ...], holders: tuple[tuple[Peer, ...], ...], forgotten: list[int],
    reports: bool,
) -> None:  # fmt: skip
    role, view = holder(*held), view_of(*holders, number=4)
    out = role.on_view(at_b(role, view=view), view, was, False)
    assert of(out, Forget) == [Forget(stage) for stage in forgotten]
    assert sorted(role.versions) == sorted(set(held) - set(forgotten))
    stages = (StageStatus(MINE, BASE, None, False),)
    statuses = sent(out, Status)
    assert [(to, word.view, word.stages, word.base) for to, word in statuses] == (
        [(A, 4, stages, None)] if reports else []
    )


@pytest.mark.parametrize(
    ("begin", "holders", "works", "kept"),
    [
        (begun(), ((A,), (B,), (C,)), True, False),
        (SKIPS, ((A,), (B,), (C,)), True, False),
        (begun(), ((A,), (C,), (C,)), False, False),
        (SKIPS, ((A,), (C,), (C,)), False, True),
    ],
    ids=["a member", "a member, complete", "out of it", "out of it, complete"],
)
def test_work_that_is_complete_is_kept_for_those_who_may_commit_it(
    begin: Begin, holders: tuple[tuple[Peer, ...], ...], works: bool, kept: bool
) -> None:
    role, view = at_work(begin), view_of(*holders, number=4)
    role.on_view(at_b(role, view=view), view, (MINE,), False)
    assert (role.work is not None, bool(role.completed)) == (works, kept)
    promised = [version.step for _, version in role.exact("lineage")]
    assert promised == ([7, 8] if begin.skip else [7])


def test_nobody_promises_the_weights_of_another_founding_where_its_status_is_silent_on_them() -> None:
    """A leader that was alone offered itself such stages, gave them up for its own Status, and offered them again
    without end (lies of seed 100297)."""
    role = holder(MINE)
    role.weights.made_in[MINE] = ("elsewhere", "elsewhere")
    assert role.exact("lineage") == () and role.exact("elsewhere") == ((MINE, BASE),)
    role.weights.made_in[MINE] = ("before", VIEW.lineage.origin)
    assert role.exact("lineage") == ((MINE, BASE),)


@pytest.mark.parametrize(("leader", "works"), [(B, True), (A, False)], ids=["it goes on leading", "another leads"])
def test_a_leader_without_stages_works_while_it_is_a_member(leader: Peer, works: bool) -> None:
    led = replace(view_of((A,), (C,), (C,)), leader=B)
    role = holder(view=led)
    role.on_begin(at_b(role, view=led), begun())
    view = replace(led, number=4, leader=leader)
    role.on_view(at_b(role, view=view), view, (), False)
    assert (role.work is not None) == works


def test_a_lineage_of_another_origin_from_disks_takes_nothing_of_our_memory() -> None:
    role = holder(MINE)
    view = view_of((A,), (B,), (C,), lineage=Lineage("other", 0, 3, "", Version(4, "c4", Attempt(1, 4))))
    out = role.on_view(at_b(role, view=view), view, (MINE,), False)
    assert of(out, Forget) == [Forget(MINE)] and not role.versions


# -- a Begin


@pytest.mark.parametrize(
    ("begin", "taken"),
    [
        (begun(), False),
        (begun(step=7), False),
        (begun(attempt=Attempt(3, 7)), False),
        (begun(attempt=Attempt(3, 9)), True),
        (begun(COMMITTED), True),
        (begun(view=4, base=Version(6, "c6", Attempt(3, 6))), False),
        (begun(view=4), True),
    ],
    ids=[
        "the same", "an older step", "an older attempt", "the step anew", "the next step", "an older base",
        "another view",
    ],
)  # fmt: skip
def test_an_old_begin_changes_nothing(begin: Begin, taken: bool) -> None:
    role = at_work()
    before = role.begin
    view = NEXT if begin.view == 4 else VIEW
    out = role.on_begin(at_b(role, view=view), begin)
    assert role.begin is (begin if taken else before)
    assert taken or not out


@pytest.mark.parametrize(
    ("worked", "committed", "installs", "applied", "installed", "resigned"),
    [
        (SKIPS, COMMITTED, (), [Apply(MINE, COMMITTED, Attempt(3, 8), True)], [], []),
        (begun(), COMMITTED, (PLAN,), [], [Install(PLAN, COMMITTED)], []),
        (begun(), COMMITTED, (), [], [], [(MINE,)]),
        (begun(), COMMITTED, (replace(PLAN, peer=C), replace(PLAN, stage=2)), [], [], [(MINE,)]),
        (SKIPS, replace(COMMITTED, attempt=Attempt(3, 9)), (), [], [], [(MINE,)]),
        (SKIPS, Version(9, "c9", Attempt(3, 8)), (PLAN,), [], [Install(PLAN, Version(9, "c9", Attempt(3, 8)))], []),
        (SKIPS, COMMITTED, (PLAN,), [Apply(MINE, COMMITTED, Attempt(3, 8), True)], [], []),
    ],
    ids=[
        "what we reduced is applied", "a plan", "no plan", "plans of others", "another attempt made it", "a step later",
        "a plan that is not needed",
    ],
)  # fmt: skip
def test_a_begin_commits_its_base(
    worked: Begin, committed: Version, installs: tuple[Plan, ...], applied: list[Apply], installed: list[Install],
    resigned: list[tuple[int, ...]],
) -> None:  # fmt: skip
    role = at_work(worked)
    out = role.on_begin(at_b(role), begun(committed, attempt=Attempt(3, 20), installs=installs))
    assert of(out, Apply) == applied and of(out, Install) == installed
    assert [(to, word.stages) for to, word in sent(out, Resign)] == [(A, stages) for stages in resigned]
    assert role.versions == ({MINE: BASE} if resigned else {MINE: committed} if applied else {})
    assert role.work is not None and role.work.has_reduced(MINE) is False
    assert bool(applied) == (role.status(at_b(role), VIEW).stages[0].version == committed)


@pytest.mark.parametrize(
    ("base", "installs", "working"),
    [
        (BASE, (), True),
        (COMMITTED, (), False),
        (COMMITTED, (PLAN,), True),
        (Version(7, "odd", Attempt(3, 7)), (), False),
    ],
    ids=["at its base", "no plan to get there", "on its way", "another one of the same step"],
)
def test_a_stage_that_a_begin_left_behind_works_on_nothing(
    base: Version, installs: tuple[Plan, ...], working: bool
) -> None:
    """A leader that lies about the base leaves nobody who says that it is behind a commit that needed its Ready."""
    role = holder(MINE)
    role.on_begin(at_b(role), begun(base, installs=installs))
    told = role.status(at_b(role), VIEW)
    assert told.base == base and [stage.working for stage in told.stages] == [working]
    assert fallen_behind(VIEW, {B: told}, base) == ()


def test_weights_that_come_let_the_work_begin() -> None:
    role = holder()
    role.on_begin(at_b(role), begun(installs=(PLAN,)))
    role.on_boundary(at_b(role), A, activation(0), 7)
    assert of(role.advance(at_b(role)), Compute) == []
    role.on_installed(at_b(role), Installed(MINE, initial_version("lineage"), 9, 1.0, 0.0, ""))
    assert role.versions == {} and of(role.advance(at_b(role)), Compute) == [], "of another version"
    role.on_installed(at_b(role), Installed(MINE, BASE, 9, 1.0, 0.0, ""))
    assert role.ours == {MINE: BASE} and len(of(role.advance(at_b(role)), Compute)) == 1


@pytest.mark.parametrize(
    ("donor", "after", "resigns"),
    [(C, LEASE + STEP, False), (C, INSTALL + STEP, True), (D, LEASE + STEP, True)],
    ids=["a member may yet give", "a member for too long", "an outsider after a lease"],
)
def test_a_stage_that_no_donor_gives_is_given_up(donor: Peer, after: float, resigns: bool) -> None:
    role = holder()
    role.on_begin(at_b(role), begun(installs=(PLAN,)))
    assert not sent(role.on_install_failed(at_b(role), InstallFailed(MINE, BASE, donor, "none")), Resign)
    out = role.on_install_failed(at_b(role, after), InstallFailed(MINE, BASE, donor, "none"))
    words = [(to, word.stages, word.reason) for to, word in sent(out, Resign)]
    assert words == ([(A, (MINE,), f"{NOT_LENT}: none")] if resigns else [])


# -- learning


LEARNS = begun(learners=((OTHER, B),))
NEXT_STEP = begun(COMMITTED, learners=((OTHER, D),))
THE_SUM = Reduce(OTHER, 8, Attempt(3, 8), 3, ((C, 4), (D, 0)))


@pytest.mark.parametrize(
    ("after", "learns", "orders", "forgotten"),
    [
        (begun(COMMITTED, learners=((OTHER, B),)), True, 1, [OTHER]),
        (begun(COMMITTED), False, 0, [OTHER]),
        (begun(COMMITTED, learners=((OTHER, D),)), False, 0, [OTHER]),
        (begun(attempt=Attempt(3, 9), learners=((OTHER, B),)), True, 0, []),
    ],
    ids=["a gradient is missed", "named no longer", "another is named", "the step is done again"],
)
def test_what_is_learnt(after: Begin, learns: bool, orders: int, forgotten: list[int]) -> None:
    role = at_work(LEARNS)
    assert role.learning == (OTHER,) and OTHER in role.installs and role.versions == {MINE: BASE}
    out = role.on_begin(at_b(role, STEP), after)
    assert role.learning == ((OTHER,) if learns else ()) and (OTHER in role.installs) == learns
    assert len(of(out, Install)) == orders
    assert of(out, Forget) == [Forget(stage) for stage in forgotten]


def test_a_learner_carries_on_what_its_group_reduces() -> None:
    role = at_work(begun(skip=True, learners=((OTHER, B),)))
    role.on_installed(at_b(role), Installed(OTHER, BASE, 9, 1.0, 0.0, ""))
    assert role.versions == {MINE: BASE, OTHER: BASE}
    out = role.on_begin(at_b(role, STEP), begun(COMMITTED, learners=((OTHER, B),)))
    assert of(out, Apply, Install) == [Apply(stage, COMMITTED, Attempt(3, 8), True) for stage in (MINE, OTHER)]


def test_planted_missed_sums_do_not_matter() -> None:
    with missed_sums_do_not_matter(), pytest.raises(AssertionError):
        test_what_is_learnt(begun(COMMITTED, learners=((OTHER, B),)), True, 1, [OTHER])


@pytest.mark.parametrize(
    ("again", "after", "reduced", "applies", "fetches"),
    [
        (NEXT_STEP, STEP, False, 0, 0),
        (NEXT_STEP, STEP, True, 1, 0),
        (NEXT_STEP, SETTINGS.join_seconds_max + STEP, False, 0, 1),
        (begun(COMMITTED), STEP, False, 0, 0),
        (begun(Version(9, "c9", Attempt(3, 9)), learners=((OTHER, D),)), STEP, False, 0, 1),
    ],
    ids=["the sum is on its way", "the sum is here", "it does not come", "named no longer", "two steps later"],
)
def test_a_learner_keeps_a_begin_until_it_has_the_sum(
    again: Begin, after: float, reduced: bool, applies: int, fetches: int
) -> None:
    role = learner_at_work()
    assert not of(role.on_begin(at_d(role), NEXT_STEP), Apply, Install) and role.begin == begun(learners=((OTHER, D),))
    if again != NEXT_STEP:
        out = role.on_begin(at_d(role, STEP), again)
    elif reduced:
        out = role.on_done(at_d(role, STEP), Done(THE_SUM, None, 1.0, 0, "hash", ""))
    else:
        out = role.beat(at_d(role, after))
    assert (len(of(out, Apply)), len(of(out, Install))) == (applies, fetches)
    assert (role.begin == again) == (again != NEXT_STEP or bool(applies or fetches))


@pytest.mark.parametrize(("what", "did"), [("parts", "gave to"), ("sums", "made of its piece of")])
def test_it_says_whose_part_looks_unusual_and_whose_sum(what: str, did: str) -> None:
    role, told = learner_at_work(), list[str]()
    for cosine in (*[0.7] * 20, -0.7, -0.7):
        seen: Any = {what: (PartSeen(C, 1.0, cosine, 1.0),)}
        done = Done(THE_SUM, None, 1.0, 0, "hash", "", **seen)
        told += [note.text for note in of(role.on_done(at_d(role), done), Note) if note.kind == "doubt"]
    less = "less like what others give than before (cosine -0.70, 0.70 on average)"
    assert told == [f"what {C} {did} the sum of stage {OTHER} in step 8 is {less}"]


def test_a_begin_that_is_kept_is_forgotten_with_its_view() -> None:
    role = learner_at_work()
    role.on_begin(at_d(role), NEXT_STEP)
    later = view_of((A,), (C,), (C,), number=4)
    assert not of(role.beat(at_d(role, SETTINGS.join_seconds_max + STEP, later)), Apply, Install)


@pytest.mark.parametrize("step", ["is skipped", "is this peer's, too"])
def test_who_waits_for_no_sum_begins_at_once(step: str) -> None:
    if step == "is skipped":
        role = learner_at_work(begun(skip=True, learners=((OTHER, D),)))
        assert len(of(role.on_begin(at_d(role), NEXT_STEP), Install)) == 1
    else:
        role = at_work(LEARNS)
        assert len(of(role.on_begin(at_b(role), begun(COMMITTED, learners=((OTHER, B),))), Install)) == 1


def at_d(role: Holder, after: float = 0.0, view: View | None = None) -> Situation:
    return situation(me=D, now=NOW + after, view=view or view_of((A,), (C,), (C,)), own=role)


def learner_at_work(begin: Begin | None = None) -> Holder:
    """D fetches stage 2, and C has finished the step's sum."""
    role = Holder(SETTINGS)
    role.on_compute_ready(ComputeReady(2, True, 1.0))
    begin = begin or begun(learners=((OTHER, D),))
    role.on_begin(at_d(role), begin)
    role.on_share(at_d(role), C, Share("lineage", 3, 8, begin.attempt, OTHER, tuple((m, OTHER) for m in range(4))))
    return role


@pytest.mark.parametrize(
    ("after", "named", "learns"),
    [
        (2 * LEASE, None, True),
        (2 * LEASE + STEP, None, False),
        (2 * LEASE + STEP, 8, True),
        (2 * LEASE + STEP, 9, False),
    ],
    ids=["two leases", "longer", "the leader is at the step", "the leader is at another"],
)
def test_a_learner_that_is_named_no_longer_stops(after: float, named: int | None, learns: bool) -> None:
    view = view_of((A,), (C,), (C,))
    role = holder(view=view)
    role.on_begin(at_b(role, view=view), LEARNS)
    role.on_installed(at_b(role, view=view), Installed(OTHER, BASE, 9, 1.0, 0.0, ""))
    if named is not None:
        role.on_leader_at(named, NOW + 1.0)
    out = role.beat(at_b(role, after, view))
    assert (role.learning == (OTHER,), OTHER in role.versions, role.work is not None) == (learns,) * 3
    assert of(out, Forget) == ([] if learns else [Forget(OTHER)])


def test_who_has_learnt_a_stage_says_so_at_once() -> None:
    role = at_work(LEARNS)
    out = role.on_installed(at_b(role), Installed(OTHER, BASE, 9, 1.0, 0.0, ""))
    assert [each for each in out if isinstance(each, Beat)] == [Beat((A,), False)]


# -- tensors: early, in time, late


@pytest.mark.parametrize(
    ("tensor", "sender", "fate"),
    [
        (activation(0), A, "used"),
        (activation(0, step=9, attempt=Attempt(3, 9)), A, "kept"),
        (activation(0, view=4, attempt=Attempt(4, 1)), A, "kept"),
        (activation(0, attempt=Attempt(3, 7)), A, "dropped"),
        (activation(0, view=2), A, "dropped"),
        (activation(0), D, "dropped"),
        (activation(0, lineage="other"), A, "dropped"),
    ],
    ids=[
        "in time",
        "of the next step",
        "of the next view",
        "late",
        "of the view before",
        "a stranger's",
        "another lineage",
    ],
)
def test_a_tensor_is_used_kept_or_dropped(tensor: Boundary, sender: Peer, fate: str) -> None:
    role = at_work()
    out = role.on_boundary(at_b(role), sender, tensor, 7)
    assert list(out) == ([Release((7,))] if fate == "dropped" else of(out, Send))
    assert len(of(role.advance(at_b(role)), Compute)) == len(of(out, Send)) == (fate == "used")


@pytest.mark.parametrize(
    ("begin", "released", "tasks"),
    [
        (begun(), [], 2),
        (begun(attempt=Attempt(3, 9)), [(7, 8)], 0),
        (begun(attempt=Attempt(3, 8), training=False), [(7,), (8,)], 0),
    ],
    ids=["theirs", "of another attempt", "one that does not train"],
)
def test_tensors_that_overtook_their_begin_wait_for_it(
    begin: Begin, released: list[tuple[int, ...]], tasks: int
) -> None:
    role = holder(MINE)
    for microbatch, handle in ((0, 7), (1, 8)):
        assert role.on_boundary(at_b(role), A, activation(microbatch), handle) == []
    out = role.on_begin(at_b(role), begin)
    assert of(out, Release) == [Release(handles) for handles in released]
    assert len(of(role.advance(at_b(role)), Compute)) == len(of(out, Send)) == tasks


def test_early_tensors_are_bounded() -> None:
    role = holder(MINE)
    answers = [role.on_boundary(at_b(role), A, activation(number), number) for number in range(2 * SETTINGS.window + 1)]
    assert answers == [[]] * 2 * SETTINGS.window + [[Release((2 * SETTINGS.window,))]]


@pytest.mark.parametrize(
    ("share", "sums"),
    [
        (Share("lineage", 3, 8, Attempt(3, 8), MINE, tuple((m, 1) for m in range(4))), 1),
        (Share("lineage", 3, 8, Attempt(3, 8), MINE, ((0, 1),)), 0),
        (Share("lineage", 3, 7, Attempt(3, 7), MINE, tuple((m, 1) for m in range(4))), 0),
        (Share("other", 3, 8, Attempt(3, 8), MINE, tuple((m, 1) for m in range(4))), 0),
    ],
    ids=["all of it", "one visit", "of the step before", "of another lineage"],
)
@pytest.mark.parametrize("early", [True, False], ids=["early", "in time"])
def test_the_word_of_the_group_may_come_before_the_begin(share: Share, sums: int, early: bool) -> None:
    view = view_of((A,), (B, C), (C,))
    role = holder(MINE, view=view)
    out: list[Any] = list(role.on_share(at_b(role, view=view), C, share)) if early else []
    assert not out
    out = role.on_begin(at_b(role, view=view), begun())
    if not early:
        out.extend(role.on_share(at_b(role, view=view), C, share))
    assert len(of(out, Compute)) == sums


# -- advance


@pytest.mark.parametrize(
    ("begin", "ready", "view", "words"),
    [
        (SKIPS, True, VIEW, 1),
        (SKIPS, False, VIEW, 0),
        (SKIPS, True, NEXT, 0),
        (begun(), True, VIEW, 0),
        (begun(training=False), True, VIEW, 1),
        (begun(installs=(PLAN,)), True, VIEW, 0),
    ],
    ids=["complete", "compute is not up", "another view", "not complete", "the run is over", "still at work"],
)
def test_the_leader_is_told_once_that_all_is_done(begin: Begin, ready: bool, view: View, words: int) -> None:
    role = at_work(begin)
    role.compute_ready = ready
    told = sent(role.advance(at_b(role, view=view)), Ready)
    assert [(to, word.step, word.attempt) for to, word in told] == [(A, 8, Attempt(3, 8))] * words
    if words and begin.training:
        assert not sent(role.advance(at_b(role, view=view)), Ready)
        early, late = SETTINGS.resend_seconds - STEP, SETTINGS.resend_seconds
        assert [len(sent(role.beat(at_b(role, after, view)), Ready)) for after in (early, late, late + STEP)] == [
            0,
            1,
            0,
        ]


@pytest.mark.parametrize(("begun_at", "view"), [(None, VIEW), (begun(), NEXT), (begun(), VIEW)])
def test_status_is_said_until_a_begin_of_the_view_comes(begun_at: Begin | None, view: View) -> None:
    role = holder(MINE) if begun_at is None else at_work(begun_at)
    told = sent(role.beat(at_b(role, view=view)), Status)
    assert [(to, word.view) for to, word in told] == ([] if begun_at and view == VIEW else [(A, view.number)])


# -- trouble


@pytest.mark.parametrize(
    ("view", "resigned"),
    [
        (VIEW, [(MINE,)]),
        (view_of((A,), (B,), (B,)), [(MINE, OTHER)]),
        (view_of((A,), (C,), (C,)), []),
    ],
    ids=["one stage", "two stages", "a standby"],
)
def test_with_compute_all_is_lost(view: View, resigned: list[tuple[int, ...]]) -> None:
    role = holder(*view.stages_of(B), view=view)
    role.on_begin(at_b(role, view=view), begun())
    out = role.on_compute_lost(at_b(role, view=view), "it died")
    assert [(to, word.stages, word.reason) for to, word in sent(out, Resign)] == [
        (A, stages, "compute is lost") for stages in resigned
    ]
    assert (role.compute_ready, role.versions, role.work, role.begin, role.refuses) == (False, {}, None, None, set())
    assert of(out, Discard, PublishView) == [Discard(None), PublishView(None)]
    assert role.status(at_b(role, view=view), view).base == (BASE if resigned else None), "what it was told stays"
    assert role.on_boundary(at_b(role, view=view), A, activation(0), 7) == ([] if resigned else [Release((7,))])


@pytest.mark.parametrize("begun_when", ["before", "after"])
def test_without_compute_a_learner_begins_nothing(begun_when: str) -> None:
    """Not what it kept until it had a sum, and not what it is told of meanwhile."""
    role = learner_at_work()
    if begun_when == "before":
        role.on_begin(at_d(role), NEXT_STEP)
    role.on_compute_lost(at_d(role, STEP), "it died")
    out = [*role.beat(at_d(role, 2 * STEP))]
    if begun_when == "after":
        out += role.on_begin(at_d(role, 2 * STEP), NEXT_STEP)
    out += role.beat(at_d(role, 3 * STEP))
    assert not of(out, Install, Apply) and (role.work, role.begin, role.learning) == (None, None, ())


def test_without_compute_a_member_begins_nothing() -> None:
    role = at_work()
    role.on_compute_lost(at_b(role), "it died")
    out = role.on_begin(at_b(role, STEP), begun(COMMITTED, installs=(PLAN,)))
    assert not of(out, Install) and role.work is None


def test_an_attempt_whose_work_went_with_compute_cannot_go_on_here() -> None:
    role = at_work()
    role.on_compute_lost(at_b(role), "it died")
    role.on_compute_ready(ComputeReady(2, True, 1.0))
    role.on_begin(at_b(role, STEP), begun())
    assert role.work is not None and role.work.poison is not None
    assert role.work.poison.reason == "its work on this attempt was dropped"


@pytest.mark.parametrize("out_of_memory", [True, False])
def test_a_lost_stage_is_given_up_and_the_other_kept(out_of_memory: bool) -> None:
    view = view_of((A,), (B,), (B,))
    role = holder(MINE, OTHER, view=view)
    role.on_begin(at_b(role, view=view), begun())
    out = role.on_stage_lost(at_b(role, view=view), StageLost(OTHER, "no memory", out_of_memory))
    assert [(to, word.stages, word.leaving) for to, word in sent(out, Resign)] == [(A, (OTHER,), False)]
    assert role.versions == {MINE: BASE} and role.compute_ready and role.work is None
    assert of(out, Discard, Forget) == [Discard(None), Forget(OTHER)]
    role.on_compute_ready(ComputeReady(2, True, 1.0))
    assert (role.capacity, role.refuses) == ((1, {OTHER}) if out_of_memory else (2, set()))
    told = role.status(at_b(role, view=view), view).stages
    assert [(each.stage, each.version) for each in told] == [(MINE, BASE), (OTHER, None)]


def test_what_a_complete_attempt_made_of_a_lost_stage_is_promised_no_more() -> None:
    """And what it made of the other may be committed yet."""
    view = view_of((A,), (B,), (B,))
    role = holder(MINE, OTHER, view=view)
    skip = begun(skip=True)
    role.on_begin(at_b(role, view=view), skip)
    assert role.work is not None and role.work.complete
    role.on_stage_lost(at_b(role, view=view), StageLost(OTHER, "no memory", True))
    assert [role.reduced(stage, "lineage") for stage in (MINE, OTHER)] == [skip.attempt, None]
    assert {stage for stage, _ in role.exact("lineage")} == {MINE}


@pytest.mark.parametrize("memory", [-1, 0, 1, 99])
def test_no_more_activations_are_kept_than_there_is_memory_for(memory: int) -> None:
    role = holder(MINE)
    role.on_compute_ready(ComputeReady(2, True, 1.0, memory))
    role.on_begin(at_b(role), begun())
    assert role.work is not None
    most = SETTINGS.live_activations
    assert role.work._saved.limit == (min(most, memory) if memory >= 0 else most)


def test_a_learner_does_not_learn_what_it_has_no_memory_for() -> None:
    view = view_of((A,), (C,), (C,))
    role = holder(view=view)
    begin = begun(learners=((OTHER, B),))
    role.on_begin(at_b(role, view=view), begin)
    assert role.learning == (OTHER,)
    out = role.on_stage_lost(at_b(role, view=view), StageLost(OTHER, "no memory", True))
    assert role.learning == () and OTHER not in role.installs and not sent(out, Resign)
    role.on_begin(at_b(role, view=view), replace(begin, step=begin.step + 1, attempt=Attempt(3, 9)))
    assert role.learning == ()


@pytest.mark.parametrize(
    ("after", "woke", "restarts"),
    [(INSTALL, 0.0, False), (INSTALL + STEP, 0.0, True), (INSTALL + STEP, 1.0, False), (INSTALL + 2.0, 1.0, True)],
    ids=["in time", "too long", "we were suspended", "and still"],
)
def test_an_install_that_hangs(after: float, woke: float, restarts: bool) -> None:
    role = holder()
    role.on_begin(at_b(role), begun(installs=(PLAN,)))
    liveness = alive(A, C, now=NOW + after)
    liveness.grace = NOW + woke
    out = role.beat(at_b(role, after, liveness=liveness))
    reason = f"the rebuild of stage {MINE} takes longer than {INSTALL:.0f} s"
    assert of(out, RestartCompute) == ([RestartCompute(reason)] if restarts else [])
    assert role.compute_ready != restarts and len(sent(out, Resign)) == restarts and (MINE in role.installs) != restarts


@pytest.mark.parametrize(
    ("given", "after", "woke", "restarts"),
    [
        (True, TASK, 0.0, False),
        (True, TASK + STEP, 0.0, True),
        (True, TASK + STEP, 1.0, False),
        (True, TASK + 2.0, 1.0, True),
        (False, TASK + STEP, 0.0, False),
    ],
    ids=["in time", "too long", "we were suspended", "and still", "nothing was given"],
)
def test_a_task_that_takes_too_long(given: bool, after: float, woke: float, restarts: bool) -> None:
    role = at_work()
    if given:
        role.on_boundary(at_b(role), A, activation(0), 7)
        role.advance(at_b(role))
    liveness = alive(A, C, now=NOW + after)
    liveness.grace = NOW + woke
    out = role.beat(at_b(role, after, liveness=liveness))
    assert len(of(out, RestartCompute)) == restarts == len(sent(out, Resign))
    assert role.compute_ready != restarts


def test_a_task_that_ends_starts_the_clock_of_the_next() -> None:
    role = at_work()
    for microbatch in (0, 1):
        role.on_boundary(at_b(role), A, activation(microbatch), 7 + microbatch)
    first, _ = of(role.advance(at_b(role)), Compute)
    role.on_done(at_b(role, TASK), Done(first.task, 99, 0.0, 0, "", ""))
    assert role.busy_seconds(at_b(role, TASK + STEP)) == STEP
    assert of(role.beat(at_b(role, TASK + STEP)), RestartCompute) == []


@pytest.mark.parametrize(
    ("acknowledged", "after", "suspected"),
    [(False, STALL, False), (False, STALL + STEP, True), (True, STALL + STEP, False)],
    ids=["for as long as a line may take", "for longer", "it was taken"],
)
def test_who_takes_no_tensor_is_suspected(acknowledged: bool, after: float, suspected: bool) -> None:
    role = at_work()
    role.on_boundary(at_b(role), A, activation(0), 7)
    (task,) = of(role.advance(at_b(role)), Compute)
    (send,) = role.on_done(at_b(role), Done(task.task, 99, 0.0, 0, "", ""))
    assert isinstance(send, Send) and isinstance(send.message, Boundary) and send.to == C
    if acknowledged:
        role.on_stored(at_b(role, 1.0), C, Stored("lineage", 8, Attempt(3, 8), 0, 2, Direction.FORWARD))
    told = [(word.peer, word.kind) for _, word in sent(role.beat(at_b(role, after)), Suspect)]
    assert told == ([(C, "stalled")] if suspected else [])


def test_the_leader_is_told_whom_it_waits_for_and_once_that_it_does_no_longer() -> None:
    """An old word counts for three heartbeats, in which who has done its part would be taken for late."""
    role, later = at_work(), 3 * SETTINGS.heartbeat_seconds
    role.on_boundary(at_b(role), A, activation(0), 7)
    (task,) = of(role.advance(at_b(role)), Compute)
    role.on_done(at_b(role), Done(task.task, 99, 0.0, 0, "", ""))
    role.on_stored(at_b(role, 1.0), C, Stored("lineage", 8, Attempt(3, 8), 0, 2, Direction.FORWARD))
    assert [[wait.peer for wait in said.on] for _, said in sent(role.beat(at_b(role, later)), Waits)] == [[C]]
    role.on_boundary(at_b(role, later), C, activation(0, direction=Direction.BACKWARD), 8)
    assert [said.on for _, said in sent(role.beat(at_b(role, later + STEP)), Waits)] == [()]
    assert sent(role.beat(at_b(role, later + 2 * STEP)), Waits) == []


def test_finished_work_is_counted_and_so_is_an_install() -> None:
    role = at_work()
    role.on_boundary(at_b(role), A, activation(0), 7)
    (task,) = of(role.advance(at_b(role)), Compute)
    role.on_done(at_b(role, STEP), Done(task.task, 99, 0.0, 0, "", ""))
    assert role.done == 1 and role.moves.last() == NOW
    role.advance(at_b(role, STEP))
    role.on_boundary(at_b(role, STEP), A, activation(1), 9)
    (task,) = of(role.advance(at_b(role, STEP)), Compute)
    role.on_done(at_b(role, 2 * STEP), Done(task.task, 99, 0.0, 0, "", ""))
    assert role.done == 2 and role.moves.last() == NOW + 2 * STEP


def test_a_poisoned_attempt_is_said_again_and_goes_on_no_more() -> None:
    role = at_work()
    role.on_boundary(at_b(role), A, activation(0), 7)
    (task,) = of(role.advance(at_b(role)), Compute)
    role.on_done(at_b(role), Done(task.task, None, 0.0, 0, "", "nan"))
    assert [(to, word.reason) for to, word in sent(role.beat(at_b(role, STEP)), Poisoned)] == [(A, "nan")]


@pytest.mark.parametrize("others", range(3))
def test_an_attempt_whose_work_was_dropped_cannot_be_finished_here(others: int) -> None:
    """Whatever we worked on in another lineage, until ours came back with it."""
    role = at_work()
    for n in range(others):
        role.on_begin(at_b(role), begun(attempt=Attempt(3, 9 + n)))
    out_of_it = view_of((A,), (C,), (C,), number=4)
    role.on_view(at_b(role, view=out_of_it), out_of_it, (MINE,), False)
    back = replace(VIEW, number=5)
    role.on_view(at_b(role, view=back), back, (), False)
    role.on_begin(at_b(role, view=back), begun(view=5))
    assert len(sent(role.beat(at_b(role, STEP, view=back)), Poisoned)) == 1


# -- when our lineage loses


@pytest.mark.parametrize(
    ("lineages", "made_in", "winner", "kept"),
    [
        (("old", "lineage"), "old", Lineage("old", 0, 3), [OTHER]),
        (("old", "lineage"), "old", Lineage("new", 0, 3, "old"), [OTHER]),
        (("old", "middle", "lineage"), "middle", Lineage("middle", 0, 3, "old"), [OTHER]),
        (("old", "middle", "lineage"), "middle", Lineage("old", 0, 3), []),
        (("old", "middle", "lineage"), "old", Lineage("old", 0, 3), [OTHER]),
        (("lineage",), "lineage", Lineage("new", 0, 3), []),
        (("old", "lineage"), "old", Lineage("stranger", 0, 3), []),
    ],
    ids=[
        "to the parent", "to another child", "to one between", "it was made in between", "two lose", "to another run",
        "to another origin",
    ],
)  # fmt: skip
def test_what_is_older_than_the_fork_is_the_winners_too(
    lineages: tuple[str, ...], made_in: str, winner: Lineage, kept: list[int]
) -> None:
    """Stage 1 was made in the last lineage, stage 2 in `made_in`."""
    role, origin = Holder(SETTINGS), lineages[0]
    for number, name in enumerate(lineages):
        root = origin if number else ""
        view = view_of((A,), (B,), (B,), number=3 + number, lineage=Lineage(name, number, 3, root))
        role.on_view(at_b(role, view=view), view, (MINE, OTHER) if number else (), number > 0)
    for stage, name in ((MINE, "lineage"), (OTHER, made_in)):
        role.versions[stage], role.weights.made_in[stage] = BASE, (name, origin)
    role.on_begin(at_b(role, view=view), begun())
    out = role.yield_to(at_b(role, view=view), winner)
    assert sorted(role.versions) == kept and role.given_up == view
    assert not [each for each in out if isinstance(each, Forget)], "memory is not needed yet"
    assert (role.work, role.begin, role.told) == (None, None, None)
    role.weights.go_back()
    assert sorted(role.versions) == sorted(role.ours) == [MINE, OTHER] and role.given_up is None


def loser() -> Holder:
    """Our lineage, which made the weights of stage 1, lost to another one."""
    role = at_work()
    role.versions[MINE], role.weights.made_in[MINE] = BASE, (VIEW.lineage.id, VIEW.lineage.id)
    role.yield_to(at_b(role), WINS.lineage)
    assert role.given_up == VIEW and not role.versions
    return role


WINS = view_of((A,), (C,), (C,), lineage=Lineage("winner", 0, 3))


def test_a_stage_that_is_being_fetched_is_not_given_up_with_a_lineage() -> None:
    role = holder(MINE)
    role.on_begin(at_b(role), begun(COMMITTED, installs=(PLAN,)))
    assert MINE in role.installs and not role.versions and MINE in role.weights.made_in
    role.yield_to(at_b(role), WINS.lineage)
    assert role.given_up is None and not role.weights.made_in


@pytest.mark.parametrize(
    ("holders", "forgets"), [(((A,), (C,), (C,)), []), (((A,), (C,), (B,)), [MINE]), (((A,), (B,), (C,)), [MINE])]
)
def test_weights_of_a_lineage_that_lost_go_when_memory_is_needed(
    holders: tuple[tuple[Peer, ...], ...], forgets: list[int]
) -> None:
    role, view = loser(), replace(WINS, holders=holders)
    out = role.on_view(at_b(role, view=view), view, (), False)
    assert [each.stage for each in out if isinstance(each, Forget)] == forgets
    assert (role.given_up is None) == bool(forgets)


def test_weights_of_a_lineage_that_lost_go_when_another_loses_a_new_run_begins_or_compute_is_lost() -> None:
    role = loser()
    role.versions[OTHER], role.weights.made_in[OTHER] = BASE, ("winner", "winner")
    role.on_view(at_b(role, view=WINS), WINS, (), False)
    out = role.yield_to(at_b(role, view=WINS), Lineage("third", 0, 3))
    assert [each.stage for each in out if isinstance(each, Forget)] == [MINE] and role.given_up == WINS
    assert Forget(OTHER) in role.forget_all(at_b(role, view=WINS)) and role.given_up is None
    role = loser()
    role.on_compute_lost(at_b(role), "crashed")
    assert role.given_up is None


@pytest.mark.parametrize("stage", [MINE, OTHER])
def test_a_view_that_is_given_up_leaves_what_we_held(stage: int) -> None:
    role = at_work(LEARNS)
    role.on_installed(at_b(role), Installed(OTHER, BASE, 9, 1.0, 0.0, ""))
    role.abandon(at_b(role))
    assert (stage in role.versions) == (stage == MINE) and role.work is None and not role.learning


def test_a_new_run_begins_with_nothing() -> None:
    role = at_work(None, MINE, OTHER)
    out = role.forget_all(at_b(role), but=(OTHER,))
    assert role.versions == {OTHER: BASE} and of(out, Forget) == [Forget(MINE)]
    assert role.work is None and not of(out, Note)
