"""What a person is told at once: which stages are in danger, what is lost with them, and what is not made good yet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ftnode.node.watch.alarms import STEPS_ALARMED, alarms, head_wanted, only_here, own_waiting, what_would_be_lost
from ftnode.protocol.chronicle import Chronicle, Rebuild
from ftnode.protocol.liveness.liveness import SignsShown
from ftnode.protocol.picture import Picture
from ftnode.protocol.words.messages import Commit, Plan
from ftnode.protocol.words.types import Attempt, Copied, Peer, Rung, Version
from tests.protocol.beginnings import begun
from tests.protocol.pictures import picture, signs
from tests.protocol.situations import NOW, A, B, C, report, standby, view_of

STEP = 7
HEAD_AND_LAST, SHARED = ((A,), (B,), (A,)), ((A, B), (B,), (A, C))


def shown(
    holders: tuple[tuple[Peer, ...], ...] = HEAD_AND_LAST, heard: SignsShown | None = None, **changes: Any
) -> Picture:
    """By A, who has weights of what it holds."""
    made = view_of(*holders)
    mine = {stage: Version(STEP, "c", Attempt(1, 1)) for stage in made.stages_of(A)}
    base = picture(view=made, signs=heard or signs(), versions=mine, highest_step=STEP)
    return base._replace(**changes)


def keeps(peer: Peer, *copies: Copied) -> dict[str, Any]:
    return {"reports": {A: report(), peer: replace(report(), copies=copies)}}


def test_stages_of_one_holder() -> None:
    assert only_here(shown(), (A,), NOW) == (0, 2) and only_here(shown(), (B,), NOW) == (1,)
    assert only_here(shown(SHARED), (A,), NOW) == () and only_here(shown(SHARED), (A, B), NOW) == (0, 1)
    assert only_here(shown(SHARED, signs(B)), (A,), NOW) == (0,), "B has it, too, and is not heard"


@pytest.mark.parametrize(
    ("picture", "stored", "says"),
    [
        (shown(SHARED), {}, ""),
        (shown(versions={}), {}, ""),
        (shown(finished=True), {}, ""),
        (
            shown(), {},
            "nobody else holds the head and stage 2; without this node the head would be lost, and the run would stop: "
            "the head is lost and nobody keeps a copy of it; stage 2 would start again from a neighbour's weights, "
            "without what was learnt",
        ),
        (
            shown(**keeps(B, Copied(0, 3, 9), Copied(0, 6, 9))), {0: 5, 2: 4},
            "nobody else holds the head and stage 2; without this node the head would go back to b's copy of step 6; "
            "stage 2 would start again from a neighbour's weights, without what was learnt; this disk has the head and "
            "stage 2 as of step 4",
        ),
        (
            shown(((B,), (A,), (A,))), {},
            "nobody else holds stage 1 and stage 2; without this node stage 1 and stage 2 would be lost, and the run "
            "would stop: all block stages are lost together",
        ),
    ],
    ids=["others have all", "nothing is trained", "all is trained", "no copy", "a copy and a snapshot", "all blocks"],
)  # fmt: skip
def test_what_an_end_at_once_costs(picture: Picture, stored: dict[int, int], says: str) -> None:
    assert what_would_be_lost(picture, stored, NOW) == says


def test_a_head_that_nobody_holds_and_this_node_cannot() -> None:
    """It can be had where it is missing: with the run's text."""
    why, vacant = "pass --data with the run's text", shown(((), (A,), (B,)))
    assert head_wanted(vacant, why) == f"somebody to hold the head, which this node cannot: {why}"
    assert head_wanted(vacant, "") == head_wanted(shown(), why) == head_wanted(vacant._replace(view=None), why) == ""


def test_who_learns_a_stage_does_not_wait_for_one() -> None:
    vacancy = "a stage that needs a holder"
    stands_by = shown(((B,), (B,), (B,)), reports={A: replace(report(), waiting=vacancy)}, members=frozenset((B,)))
    assert own_waiting(stands_by) == own_waiting(stands_by._replace(learners=((1, C),))) == vacancy
    assert own_waiting(stands_by._replace(learners=((1, A),))) == "stage 1, which it learns, to be its own"
    assert own_waiting(shown(learners=((1, A),), reports={A: replace(report(), waiting="")})) == ""


def test_own_copies_go_with_us() -> None:
    assert "no copy" not in what_would_be_lost(shown(**keeps(B, Copied(0, 6, 9))), {}, NOW)
    ours = {"reports": {A: replace(report(), copies=(Copied(0, 6, 9),)), B: report()}}
    assert "nobody keeps a copy" in what_would_be_lost(shown(**ours), {}, NOW)


def test_who_leaves_with_what_nobody_else_has_is_a_danger() -> None:
    assert alarms(shown(), NOW) == ()
    ours = "a leaves, and nobody else has the head and stage 2 yet: lost if a ends before somebody has"
    assert alarms(shown(leaving=True), NOW) == (ours,)
    assert alarms(shown(other_leavers=frozenset({B})), NOW) == (
        "b leaves, and nobody else has stage 1 yet: lost if b ends before somebody has",
    )
    assert alarms(shown(SHARED, leaving=True), NOW) == ()
    both = alarms(shown(SHARED, leaving=True, other_leavers=frozenset({B})), NOW)
    assert [text.split()[0] for text in both] == ["a", "b"] and "the head" in both[0] and "the head" in both[1]
    assert alarms(shown(leaving=True, finished=True), NOW) == (), "the model is what counts then"


def test_who_leaves_alone_says_itself_what_becomes_of_its_stages() -> None:
    """Nobody is there to have them before it ends: the alarm stood beside `this disk has …`, and said the contrary."""
    assert alarms(shown(((A,), (A,), (A,)), leaving=True), NOW) == ()
    assert alarms(shown(((A,), (A, B), (A,)), leaving=True), NOW) != (), "B may learn them"


def test_who_is_silent_with_what_nobody_else_has_is_a_danger() -> None:
    says = ("stage 1 may be lost: no word from b, and nobody else has it",)
    assert alarms(shown(heard=signs(B)), NOW) == says
    assert alarms(shown(((A,), (B, C), (A,)), signs(B)), NOW) == (), "C has it, too"
    assert alarms(shown(((C,), (B,), (C,)), signs(B), me=Peer("d", 1)), NOW) == (), (
        "who stands by hears its leader alone"
    )


def lost(rung: Rung = Rung.BLEND, at: int = 10, newest: int = 20, **validation: float) -> tuple[str, ...]:
    """The alarms of a run that lost the head and stage 1 at step `at`. `validation`: s9=2.0 for step 9."""
    history = Chronicle()
    for step in range(1, newest + 1):
        history.commit(Commit(step, 2.0, 1, 1.0, False, (), ()), 0.0)
    for stage in (0, 1):
        history.rebuilds[at, stage] = Rebuild(stage, at, rung, 3, B, C, "why", 0.0, 1.0)
    for name, loss in validation.items():
        history.evaluate(int(name[1:]), loss)
    return alarms(shown(history=history), NOW)


LOST = "the head and stage 1 were lost at step 10, with what had been learnt there"


def test_a_loss_is_told_of_until_it_is_made_good() -> None:
    assert lost(s9=2.22, s10=7.27) == (f"{LOST}; validation was 2.220 before, and is 7.270 now",)
    assert lost(s9=2.22, s10=7.27, s20=4.5) == (f"{LOST}; validation was 2.220 before, 7.270 after, and is 4.500 now",)
    assert lost(s9=2.22, s10=7.27, s20=2.23) == ()


def test_a_loss_without_validations_is_told_of_for_some_steps() -> None:
    assert lost() == lost(s9=2.22) == (LOST,)
    assert lost(newest=10 + STEPS_ALARMED) == ()


@pytest.mark.parametrize("rung", [Rung.HEAD, Rung.SHADOW])
def test_a_stage_that_goes_on_from_a_copy_is_told_of_when_it_costs_something(rung: Rung) -> None:
    """The copy is some steps old, so that not all that was learnt is gone."""
    assert lost(rung) == lost(rung, s9=2.22) == lost(rung, s9=2.22, s10=2.23) == ()
    says = "the head and stage 1 were lost at step 10, with what had been learnt there since the last copy"
    assert lost(rung, s9=2.22, s10=2.5) == (f"{says}; validation was 2.220 before, and is 2.500 now",)


@pytest.mark.parametrize("rung", [Rung.REPLICA, Rung.SNAPSHOT, Rung.KEPT, Rung.INITIAL])
def test_what_came_back_whole_is_no_loss(rung: Rung) -> None:
    assert lost(rung, s9=2.2, s10=9.0) == ()


VOTES = "site x has 2 of 3 votes"


@pytest.mark.parametrize(
    ("holders", "sites", "says"),
    [
        (HEAD_AND_LAST, {A: "x", B: "x"}, ("site x alone holds the head, stage 1 and stage 2",)),
        (((A,), (B,), (C,)), {A: "x", B: "x", C: "y"}, ("site x alone holds the head and stage 1", VOTES)),
        (((A,), (B,), (C,)), {A: "y", B: "x", C: "x"}, ("site x alone holds stage 1 and stage 2", VOTES)),
        (((A,), (B,), (C,)), {A: "x", B: "y", C: "z"}, ()),
        (HEAD_AND_LAST, {A: "x", B: "y"}, ()),
        (HEAD_AND_LAST, {A: "", B: ""}, ()),
        (SHARED, {A: "x", B: "x", C: "y"}, ("site x alone holds the head and stage 1", VOTES)),
    ],
)
def test_stages_that_one_site_holds_alone(
    holders: tuple[tuple[Peer, ...], ...], sites: dict[Peer, str], says: tuple[str, ...]
) -> None:
    others = {peer: replace(standby(peer, 0)[peer], site=site) for peer, site in sites.items() if peer != A}
    told = alarms(shown(holders, presences=others, here=sites[A]), NOW)
    assert tuple(text.partition(":")[0] for text in told) == says


def test_a_stage_that_is_left_out_is_told_of_until_it_is_back() -> None:
    history, without = Chronicle(), replace(view_of((A,), (B,), (), (C,), (C,)), omitted=(2,))
    begin = begun(step=12)
    history.begin(begin, without, NOW)
    history.begin(replace(begin, step=13, base=replace(begin.base, step=12)), without, NOW)
    assert history.left_out_since(2) == 12
    (told,) = alarms(shown(view=without, history=history), NOW)
    assert told.startswith("stage 2 is left out since step 12: nobody holds it")
    back = replace(without, omitted=(), holders=((A,), (B,), (B,), (C,), (C,)))
    plan = Plan(2, B, Rung.BLEND, (), 1.1, "both neighbours are there", None)
    history.begin(replace(begin, step=30, installs=(plan,)), back, NOW)
    assert history.left_out_since(2) is None
