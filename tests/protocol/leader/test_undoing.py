"""Rolling back by the author's order: the leader's part, and what of an order others believe (rule 47)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ftnode.protocol.chronicle import Chronicle
from ftnode.protocol.leader.undoing import Undoing
from ftnode.protocol.recovery.disk_versions import OwnDisk
from ftnode.protocol.recovery.rolls import undone
from ftnode.protocol.situation import GoOnFromDisks, ShowView, TakeUp
from ftnode.protocol.views.following import Following
from ftnode.protocol.views.lineage_rank import behind, wins
from ftnode.protocol.words.effects import AskOrder, Note, ShowOrder
from ftnode.protocol.words.messages import Certificate, Roll, founding_proof
from ftnode.protocol.words.records import TOLD_MAX
from ftnode.protocol.words.types import Attempt, Peer, RollbackOrder, Snapshot, Version
from ftnode.protocol.words.view import Lineage
from tests.protocol.leader.test_restart import KEEPING, TEN, WAIT, disks, kept
from tests.protocol.situations import NOW, VIEW, A, B, C, Held, Past, situation, view_of

FIVE = Version(5, "c5", Attempt(2, 5))
ORDER = RollbackOrder(4, 9)
BASE = Version(12, "c12", Attempt(3, 12))
OLD = {B: kept(1, version=FIVE), C: kept(2, version=FIVE)}


def at(seconds: float, *ours: Snapshot, order: RollbackOrder = ORDER, **changes: Any) -> Any:
    said = {"settings": KEEPING, "now": NOW + seconds, "own": Held(snapshots=ours), "order": order, **changes}
    return situation(history=Past(12), **said)


def undoing(of: dict[Peer, tuple[Snapshot, ...]], *told: Peer) -> Undoing:
    role = Undoing(VIEW, disks(of, BASE))
    role.told |= {*told}
    return role


def went(role: Undoing, *times: float, ours: tuple[Snapshot, ...] = kept(0, version=FIVE), **changes: Any) -> list[Any]:
    out = [each for seconds in times for each in role.beat(at(seconds, *ours, **changes))]
    return [(each.start, each.order) for each in out if isinstance(each, GoOnFromDisks)]


def test_it_goes_back_at_once_when_all_have_told_of_their_disks_and_else_after_a_lease() -> None:
    assert went(undoing(OLD, B, C), 0.0) == [(FIVE, 4)]
    assert went(undoing(OLD, B), 0.0, KEEPING.lease_seconds - 0.1) == []
    assert went(undoing(OLD, B), 0.0, KEEPING.lease_seconds) == [(FIVE, 4)]


def test_members_that_have_not_told_are_shown_the_order() -> None:
    assert [each for each in undoing(OLD, B).beat(at(0.0)) if isinstance(each, ShowOrder)] == [ShowOrder(C)]


@pytest.mark.parametrize(
    ("of", "changes"),
    [
        (OLD, {"order": RollbackOrder()}),
        (OLD, {"order": RollbackOrder(4, 4)}),
        ({B: kept(1), C: kept(2)}, {"ours": kept(0)}),
        ({B: kept(1, version=FIVE)}, {}),
        (OLD, {"view": replace(VIEW, lineage=replace(VIEW.lineage, order=4))}),
    ],
    ids=["no order", "too old an order", "later ones only", "a stage is missing", "followed already"],
)
def test_and_nothing_is_undone(of: dict[Peer, tuple[Snapshot, ...]], changes: dict[str, Any]) -> None:
    assert went(undoing(of, B, C), 0.0, WAIT, **changes) == []


def test_where_there_is_nothing_to_go_back_to_it_says_so_and_goes_on_looking() -> None:
    role = undoing({}, B, C)
    assert not role.beat(at(0.0)) and "no disk here has all stages" in role.trouble, "a status may say so at once"
    (note,) = role.beat(at(WAIT))
    assert isinstance(note, Note) and note.text.endswith(f"changes nothing: {role.trouble}")
    assert "changes nothing: no disk here has all stages of step 9" in note.text
    for peer, told in OLD.items():
        role.restart.told_again(peer, told)
    assert went(role, WAIT + 1.0) == [(FIVE, 4)]


def test_other_views_do_not_put_that_off() -> None:
    first = undoing({}, B, C)
    assert not first.beat(at(0.0))
    second = Undoing(VIEW, first.restart)
    assert {*second.beat(at(WAIT))} == {ShowOrder(B), ShowOrder(C)}, "it looks at their disks first"
    second.told |= {B, C}
    (note,) = second.beat(at(WAIT))
    assert isinstance(note, Note) and note.text.endswith(f"changes nothing: {second.trouble}")
    third = Undoing(VIEW, first.restart)
    third.told |= {B, C}
    assert not third.beat(at(WAIT, order=RollbackOrder(5, 8))), "another order"


def test_what_lies_on_the_disk_of_before_the_order_is_told_too() -> None:
    disk = OwnDisk()
    every = [Snapshot(1, Version(step, f"c{step}", Attempt(1, step)), "d", 1) for step in range(1, 200)]
    disk.replace(every)
    assert min(told.version.step for told in disk.told()) > ORDER.step
    disk.on_order(ORDER)
    told = [each.version.step for each in disk.told()]
    assert told[0] == 199 and told[-9:] == list(range(9, 0, -1)) and len(told) == TOLD_MAX


def test_a_later_version_stands_by_a_roll_of_who_has_followed_the_order() -> None:
    followed = replace(VIEW, lineage=replace(VIEW.lineage, order=4))
    before, after = (Roll(view, TEN, ("",) * 3, ()) for view in (VIEW, followed))
    assert undone(ORDER, TEN, ()) and undone(ORDER, TEN, (before,))
    assert not undone(ORDER, TEN, (before, after)) and not undone(ORDER, FIVE, ())
    assert not undone(RollbackOrder(), TEN, ())


def test_of_two_lineages_the_one_that_has_followed_the_order_wins_whatever_its_step() -> None:
    s = situation(me=B, order=ORDER, history=Past(90))
    theirs = view_of((A,), (C,), (C,), lineage=Lineage("z", 3, 1, order=4))
    assert wins(s, theirs, 1) and not behind(s, theirs, 1)
    back = situation(me=B, order=ORDER, history=Past(1), view=theirs)
    assert not wins(back, VIEW, 90) and behind(back, VIEW, 90)


def certificate(start: Version, order: int) -> Certificate:
    lineage = Lineage("restarted", 0, 3, "", start, order)
    view = view_of((A,), (B,), (C,), lineage=lineage, number=4)
    return Certificate(replace(view, previous=VIEW.digest()), True, (), 0, founding_proof(A), (), None)


@pytest.mark.parametrize(
    ("start", "order", "known", "answer"),
    [
        (FIVE, 4, ORDER, TakeUp),
        (FIVE, 4, RollbackOrder(), AskOrder),
        (FIVE, 9, ORDER, AskOrder),
        (TEN, 4, ORDER, Note),
    ],
    ids=["it follows the order", "the order is not known", "nor that one", "it goes on from a later step"],
)
def test_what_the_leader_founds_is_taken_up_if_the_author_has_ordered_it(
    start: Version, order: int, known: RollbackOrder, answer: type
) -> None:
    role, told = Following(Chronicle()), certificate(start, order)
    role.proofs.keep(VIEW, founding_proof(A))
    s = situation(me=B, order=known, settings=KEEPING)
    out = role.on_certificate(s, A, told, told.view)
    assert [type(each) for each in out if not isinstance(each, ShowView)] == [answer]


def test_a_lineage_that_has_not_followed_the_order_is_not_taken_up_any_more() -> None:
    role, told = Following(Chronicle()), certificate(FIVE, 4)
    s = situation(me=B, order=ORDER, view=told.view, settings=KEEPING)
    past = Certificate(replace(VIEW, number=9), True, (), 900, None, (), None)
    assert all(isinstance(each, ShowView) for each in role.on_certificate(s, A, past, past.view))
