"""What follows from which roll, and what is signed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ftnode.protocol.leader.roll_call import RollCall
from ftnode.protocol.recovery.rolls import (
    ROLLS_KEPT,
    OwnRolls,
    agreed,
    believed,
    complete,
    speak_for,
    trusted,
    with_roll,
)
from ftnode.protocol.situation import Situation
from ftnode.protocol.words.effects import KeepRoll, Send
from ftnode.protocol.words.messages import Roll, Rolled, Saved, Signed
from ftnode.protocol.words.types import Attempt, Peer, Snapshot, Version
from ftnode.protocol.words.view import Lineage, View
from tests.protocol.situations import NOW, SETTINGS, A, B, C, D, situation, view_of

VIEW = view_of((A,), (B,), (C,))
SAVES = replace(SETTINGS, snapshot_every=10)


def version(step: int, name: str = "") -> Version:
    return Version(step, f"{name}{step}", Attempt(3, step))


def roll(step: int, *signers: Peer, view: View = VIEW, name: str = "") -> Roll:
    signed = tuple(Signed(peer, "x") for peer in signers)
    return Roll(view, version(step, name), ("d0", "d1", "d2"), signed)


def kept(stage: int, step: int, digest: str = "", name: str = "") -> Snapshot:
    return Snapshot(stage, version(step, name), digest or f"d{stage}", 0)


def again(peer: Peer) -> Peer:
    """Another life."""
    return Peer(peer.id, 99)


LATER = replace(view_of((again(A),), (again(B),), (D,), number=9), leader=again(A), voters=(again(A), again(B), D))


def test_a_roll_counts_with_a_quorum_and_a_stage_with_most_of_its_holders() -> None:
    assert not complete(roll(10, B)) and complete(roll(10, A, B))
    assert agreed(roll(10, A, B), 1) == "d1" and agreed(roll(10, A, B), 2) == ""
    two = view_of((A,), (B, C), (D,))
    assert agreed(roll(10, A, B, D, view=two), 1) == "" and agreed(roll(10, A, B, C, view=two), 1) == "d1"


def test_voters_are_known_by_their_ids_and_a_half_of_two_is_enough() -> None:
    four = view_of((A,), (B,), (C,), (D,))
    assert speak_for(four, {"b", "c"}) and speak_for(four, {"a", "b"}) and not speak_for(four, {"b"})
    assert not speak_for(view_of((A,), (B,)), {"b"}) and speak_for(view_of((A,), (B,)), {"a"})


def test_what_others_show_follows_from_our_newest_one_after_the_other() -> None:
    ours = roll(10, A, B, C)
    then, last = roll(20, again(A), again(B), view=LATER), roll(30, *LATER.voters[1:], view=LATER)
    assert trusted([ours], [last, then]) == [ours, then, last]
    alone = view_of((D,), (D,), (D,))
    false = roll(40, D, view=replace(alone, leader=D, voters=(D,)))
    assert complete(false) and trusted([ours], [false]) == [ours]
    assert trusted([ours], [roll(40, B)]) == [ours], "no quorum has signed it"
    assert trusted([], [ours]) == []


def test_what_is_in_no_roll_counts_when_as_many_tell_of_it_as_could_have_signed() -> None:
    rolls, liar = [roll(10, A, B, C)], Peer("liar", 1)
    honest = {again(peer): (kept(stage, 10), kept(stage, 12)) for stage, peer in enumerate((A, B, C))}
    lies = (kept(0, 90, name="lie"), kept(1, 10, "other"))
    known, doubtful = believed({**honest, liar: lies}, rolls)
    assert known == honest and doubtful == {liar}
    few, _ = believed({again(C): (kept(2, 10), kept(2, 12)), liar: (kept(0, 12),)}, rolls)
    assert few == {again(C): (kept(2, 10),)}
    assert believed({liar: lies}, []) == ({liar: lies}, set())


def test_a_disk_keeps_the_newest_and_nothing_of_a_history_that_was_left() -> None:
    held: tuple[Roll, ...] = ()
    for step in range(1, ROLLS_KEPT + 4):
        held = with_roll(held, roll(step, A, B))
    assert [each.version.step for each in held] == [*range(4, ROLLS_KEPT + 4)]
    assert [each.version.step for each in with_roll(held, roll(6, A, name="anew"))] == [4, 5, 6]


def member(me: Peer = B) -> tuple[OwnRolls, Situation]:
    own = OwnRolls()
    own.committed(version(10), 10)
    return own, situation(me=me, view=VIEW, members=frozenset(VIEW.members()), mine=(1,), settings=SAVES)


def test_a_member_signs_what_it_knows_and_keeps_what_a_quorum_has_signed() -> None:
    own, s = member()
    disk = (kept(1, 10),)
    assert own.say(s, disk) == [Send(A, Saved("lineage", 3, disk), None)]
    asked = Rolled("lineage", 3, roll(10), False)
    (answer,) = own.on_rolled(s, asked, disk)
    assert answer == Send(A, replace(asked, roll=replace(asked.roll, signed=(Signed(B, ""),))), None)
    assert own.on_rolled(s, asked, (kept(1, 10, "other"),)) == []
    assert own.on_rolled(s, replace(asked, roll=roll(20)), disk) == []
    whole = roll(10, A, B)
    assert own.on_rolled(s, Rolled("lineage", 3, roll(10, B), True), disk) == []
    assert own.on_rolled(s, Rolled("lineage", 3, whole, True), disk) == [KeepRoll(whole)]
    own.replace((whole,))
    assert own.say(s, disk) == []
    assert own.contradict(1, version(10), "other") and not own.contradict(1, version(10), "d1")


def test_a_save_may_take_longer_than_many_steps() -> None:
    own, s = member()
    for step in range(11, 35):
        own.committed(version(step), 10)
    assert own.say(s, (kept(1, 10),)) and own.say(s, (kept(1, 34),)) and not own.say(s, (kept(1, 29),))
    own.committed(version(15, "anew"), 10)
    assert own.say(s, (kept(1, 10),)) and not own.say(s, (kept(1, 20),)), "it was left for another history"


def test_a_start_is_doubted_while_those_are_about_who_would_know() -> None:
    own, _ = member()
    about = {"a", "b", "x"}

    def doubts(step: int, shown: Roll | None = None, disk: Any = (), about: Any = about, tellers: Any = ()) -> bool:
        return own.doubts(Lineage("l", 0, 3, start=version(step)), shown, disk, about, tellers)

    assert not doubts(90), "without a roll nothing is"
    own.replace((roll(10, A, B, C),))
    assert doubts(90) and not doubts(90, about={"b", "x"})
    assert not doubts(10) and not doubts(4)
    assert not doubts(90, disk=(kept(0, 90),))
    assert not doubts(20, roll(20, again(A), again(B), view=LATER))
    assert doubts(90, roll(20, again(A), again(B), view=LATER))
    assert doubts(20, roll(20, again(A), view=LATER))
    assert doubts(90, tellers={"x", "a"}) and not doubts(90, tellers={"a", "b"}), "so many could have signed it"


def test_a_roll_that_was_made_in_a_lineage_speaks_for_its_start() -> None:
    """That of its start was never made, or is forgotten."""
    own, _ = member()
    own.replace((roll(10, A, B, C),))
    lineage = Lineage("l", 0, 3, start=version(20))
    made_in = replace(LATER, lineage=lineage)
    shown = roll(30, again(A), again(B), view=made_in)
    assert not own.doubts(lineage, shown, (), {"a", "b"}, ())
    assert own.doubts(lineage, roll(30, again(A), view=made_in), (), {"a", "b"}, ()), "too few have signed it"
    assert own.doubts(replace(lineage, start=version(25)), shown, (), {"a", "b"}, ()), "it is of another one"
    theirs, _ = member()
    theirs.replace((roll(10, A, B, C), shown))
    assert theirs.speaks_for(lineage) == shown and theirs.speaks_for(Lineage("m", 0, 3)) is None
    assert theirs.speaks_for(replace(lineage, start=version(10))) == theirs.kept[0]


def saved(peer: Peer, stage: int, digest: str = "") -> tuple[Peer, Saved]:
    return peer, Saved("lineage", 3, (kept(stage, 10, digest),))


def test_the_leader_shows_a_roll_when_all_have_told_and_closes_it_when_all_have_signed() -> None:
    s = situation(view=VIEW, members=frozenset(VIEW.members()), settings=SAVES)
    calls = RollCall(VIEW)
    assert calls.on_saved(s, *saved(A, 0), version(12)) == calls.on_saved(s, *saved(B, 1), version(12)) == []
    shown = calls.on_saved(s, *saved(C, 2), version(12))
    asked = Rolled("lineage", 3, roll(10), False)
    assert shown == [Send(peer, asked, None) for peer in (A, B, C)]
    signed = {peer: replace(asked.roll, signed=(Signed(peer, "x"),)) for peer in (A, B, C)}
    assert calls.on_rolled(s, B, signed[C]) == [], "nobody signs for others"
    assert calls.on_rolled(s, A, signed[A]) == calls.on_rolled(s, B, signed[B]) == []
    told = calls.on_rolled(s, C, signed[C])
    assert told == [Send(peer, Rolled("lineage", 3, roll(10, A, B, C), True), None) for peer in (A, B, C)]
    assert calls.on_saved(s, *saved(C, 2), version(12)) == [told[2]], "who asks again is told again"


def test_it_waits_a_lease_for_those_who_do_not_tell_and_those_who_do_not_sign() -> None:
    members = frozenset(VIEW.members())
    s = situation(view=VIEW, members=members, settings=SAVES)
    later = situation(view=VIEW, members=members, settings=SAVES, now=NOW + SAVES.lease_seconds + 0.1)
    last = situation(view=VIEW, members=members, settings=SAVES, now=NOW + 2 * SAVES.lease_seconds + 0.2)
    calls = RollCall(VIEW)
    assert calls.on_saved(s, *saved(A, 0), version(8)) == [], "nobody has committed that"
    assert calls.on_saved(s, *saved(A, 0), version(12)) == [] == calls.beat(s)
    shown = calls.beat(later)
    asked = replace(roll(10), digests=("d0", "", ""))
    assert shown == [Send(peer, Rolled("lineage", 3, asked, False), None) for peer in (A, B, C)]
    for peer in (A, B):
        calls.on_rolled(later, peer, replace(asked, signed=(Signed(peer, "x"),)))
    assert calls.beat(later) == [Send(C, Rolled("lineage", 3, asked, False), None)]
    closed = calls.beat(last)
    assert [each.message.whole for each in closed if isinstance(each, Send) and isinstance(each.message, Rolled)] == [
        True, True, True,
    ]  # fmt: skip


def test_holders_that_do_not_agree_leave_their_stage_out() -> None:
    two = view_of((A,), (B, C), (D,))
    s = situation(view=two, members=frozenset(two.members()), settings=SAVES)
    calls = RollCall(two)
    for peer, stage, digest in ((A, 0, ""), (B, 1, ""), (C, 1, "other")):
        calls.on_saved(s, *saved(peer, stage, digest), version(12))
    (first, *_) = calls.on_saved(s, *saved(D, 2), version(12))
    assert isinstance(first, Send) and isinstance(first.message, Rolled)
    assert first.message.roll.digests == ("d0", "", "d2")
