"""A standby's answer to an offer: what it declines, whom it dials, what it says of its weights. The role alone."""

from __future__ import annotations

from typing import Any

import pytest

from ftnode.protocol.holder.candidacy import DIALLED_MAX, Candidacy
from ftnode.protocol.situation import ClearTimer, Outcome, Remember, SetTimer, Situation
from ftnode.protocol.words.effects import Dial, Send
from ftnode.protocol.words.messages import Answer, Contact, Offer
from ftnode.protocol.words.types import Attempt, Peer, Snapshot, Version
from ftnode.protocol.words.view import View
from tests.protocol.situations import NOW, SETTINGS, A, B, C, D, Held, alive, situation, view_of

BASE = Version(7, "c7", Attempt(2, 9))
OLD = Version(6, "c6", Attempt(2, 8))
OPEN = view_of((A,), (), (C,))
SPARE = view_of((A,), (B, C), ())
"""B and C hold stage 1, nobody holds stage 2."""
BEFORE = "I have the weights of stage 1, which nobody holds"
"""Also where the view that the offer is about has not come yet."""
ON_DISK = Snapshot(1, BASE, "digest", 0)


def offer(*stages: int, near: tuple[Peer, ...] = (), **changes: Any) -> Offer:
    said: dict[str, Any] = {"lineage": "lineage", "view": 3, "base": BASE, "learn": False}
    neighbours = tuple(Contact(peer, (f"/at/{peer.id}",)) for peer in near)
    return Offer(stages=stages, neighbours=neighbours, **{**said, **changes})


def standing_by(view: View | None = OPEN, me: Peer = D, up: tuple[Peer, ...] = (), **changes: Any) -> Situation:
    heard = alive(A, C)
    heard.up.update(up)
    return situation(me=me, view=view, liveness=heard, **changes)


def answer(out: Outcome) -> Answer | None:
    said = [each.message for each in out if isinstance(each, Send)]
    assert len(said) <= 1
    return said[0] if said and isinstance(said[0], Answer) else None


def dialled(out: Outcome) -> list[Peer]:
    return [each.peer for each in out if isinstance(each, Dial)]


@pytest.mark.parametrize(
    ("s", "made", "refusal"),
    [
        (standing_by(), offer(1), ""),
        (standing_by(view=None), offer(1), ""),
        (standing_by(hold=2, own=Held(capacity=2)), offer(1, 2), ""),
        (standing_by(hold=2, own=Held(capacity=1)), offer(1, 2), "I have room for 1 more stages"),
        (standing_by(hold=1, own=Held(capacity=2)), offer(1, 2), "I have room for 1 more stages"),
        (standing_by(hold=0), offer(1), "I have room for 0 more stages"),
        (standing_by(leaving="asked"), offer(1), "I am leaving"),
        (standing_by(own=Held(compute_ready=False)), offer(1), "my compute process is not ready"),
        (standing_by(own=Held(may_head=False)), offer(0), "I do not have the run's corpus"),
        (standing_by(own=Held(may_head=False)), offer(1), ""),
        (standing_by(own=Held(refuses={1})), offer(1), "I could not take stage 1 before"),
        (standing_by(own=Held(refuses={2})), offer(1), ""),
        (standing_by(own=Held(learning=(2,))), offer(1, learn=True), "I have room for 0 more stages"),
        (standing_by(own=Held(learning=(2,), capacity=2), hold=2), offer(1, learn=True), ""),
        (standing_by(own=Held(learning=(2,), capacity=2), hold=2), offer(2, learn=True), "I learn it already"),
        (standing_by(own=Held(learning=(2,))), offer(1), ""),
        (standing_by(own=Held(versions={1: BASE})), offer(2), "I have the weights of stage 1, which nobody holds"),
        (standing_by(own=Held(versions={1: BASE})), offer(2, view=5), BEFORE),
        (standing_by(own=Held(versions={1: BASE})), offer(2, lineage="other", view=5), ""),
        (standing_by(own=Held(versions={1: OLD})), offer(2), ""),
        (standing_by(own=Held(versions={1: BASE})), offer(2, learn=True), ""),
        (standing_by(own=Held(versions={1: BASE, 2: BASE})), offer(2), ""),
        (standing_by(own=Held(versions={1: BASE}, capacity=2), hold=2), offer(2), ""),
        (standing_by(me=C), offer(1, lineage="other", view=9), "I am a member of another branch of the run"),
        (standing_by(me=C), offer(1, view=4), "I know of another change of who holds what"),
        (standing_by(me=C, own=Held(capacity=2), hold=2), offer(2), "I hold it and give it up"),
        (standing_by(me=C), offer(1), "I have room for 0 more stages"),
        (standing_by(me=C, view=SPARE), offer(2), ""),
        (standing_by(me=C, view=SPARE), offer(2, learn=True), "I have room for 0 more stages"),
    ],
)  # fmt: skip
def test_an_offer_is_declined_with_a_reason_or_accepted(s: Situation, made: Offer, refusal: str) -> None:
    said = answer(Candidacy().on_offer(s, A, made))
    assert said is not None and (said.lineage, said.view, said.stages) == (made.lineage, made.view, made.stages)
    assert (said.accepted, said.reason) == ((False, refusal) if refusal else (True, "the neighbours answer"))


@pytest.mark.parametrize(
    ("sender", "number", "heard"),
    [(A, 3, True), (A, 2, True), (C, 2, False), (C, 3, False), (C, 4, True), (B, 4, True)],
)
def test_an_offer_by_the_leader_of_a_view_that_is_over_is_not_heard(sender: Peer, number: int, heard: bool) -> None:
    assert (Candidacy().on_offer(standing_by(), sender, offer(1, view=number)) != []) == heard


@pytest.mark.parametrize(
    ("lineage", "quorate_at", "disk", "heard"),
    [
        ("other", NOW - 10.1, (ON_DISK,), True),
        ("other", NOW - 10.0, (ON_DISK,), False),
        ("other", NOW - 10.1, (), False),
        ("lineage", NOW - 10.1, (ON_DISK,), False),
    ],
)
def test_a_peer_that_looks_for_a_swarm_and_has_a_disk_hears_a_lower_view_that_begins_elsewhere(
    lineage: str, quorate_at: float, disk: tuple[Snapshot, ...], heard: bool
) -> None:
    s = standing_by(quorate_at=quorate_at, own=Held(snapshots=disk))
    assert (Candidacy().on_offer(s, B, offer(1, lineage=lineage, view=0)) != []) == heard


@pytest.mark.parametrize(
    ("near", "up", "dials"),
    [
        ((), (), []),
        ((A,), (), []),
        ((D,), (), []),
        ((C,), (C,), []),
        ((C,), (), [C]),
        ((B, C), (C,), [B]),
        ((B, C), (), [B, C]),
    ],
)
def test_it_accepts_when_all_neighbours_answer(near: tuple[Peer, ...], up: tuple[Peer, ...], dials: list[Peer]) -> None:
    role, s = Candidacy(), standing_by(up=up)
    out = role.on_offer(s, A, offer(1, near=near))
    assert dialled(out) == dials and SetTimer("candidacy", NOW + 4.0) in out
    for peer in dials:
        assert answer(out) is None and role.on_link_up(s, Peer("z", 1)) == []
        out = role.on_link_up(s, peer)
    said = answer(out)
    assert said is not None and said.accepted and ClearTimer("candidacy") in out
    assert role.on_link_up(s, C) == role.on_link_down(s, C, "late") == role.expire(s) == []


@pytest.mark.parametrize(
    ("lost", "reason"),
    [(C, "cannot reach c: no route"), (None, "no answer from b, c in time"), (A, None)],
)
def test_it_declines_when_a_neighbour_does_not_answer(lost: Peer | None, reason: str | None) -> None:
    role, s = Candidacy(), standing_by()
    role.on_offer(s, A, offer(1, near=(B, C)))
    out = role.expire(s) if lost is None else role.on_link_down(s, lost, "no route")
    said = answer(out)
    assert (None if said is None else (said.accepted, said.reason)) == (None if reason is None else (False, reason))
    assert (role.expire(s) == []) == (reason is not None)


@pytest.mark.parametrize(
    ("versions", "stages", "exact"),
    [
        ({}, (1,), ()),
        ({1: OLD}, (1,), ()),
        ({1: BASE}, (1,), (1,)),
        ({1: BASE, 2: BASE}, (1,), (1,)),
        ({1: BASE, 2: OLD}, (1, 2), (1,)),
    ],
)
def test_it_says_of_which_offered_stages_it_has_the_weights(
    versions: dict[int, Version], stages: tuple[int, ...], exact: tuple[int, ...]
) -> None:
    s = standing_by(own=Held(versions=versions, capacity=2), hold=2)
    said = answer(Candidacy().on_offer(s, A, offer(*stages)))
    assert said is not None and said.exact == exact


@pytest.mark.parametrize(
    ("sender", "count", "dials"),
    [(A, DIALLED_MAX + 9, DIALLED_MAX + 9), (B, DIALLED_MAX, DIALLED_MAX), (B, DIALLED_MAX + 9, DIALLED_MAX)],
)
def test_a_stranger_makes_us_dial_a_few_only(sender: Peer, count: int, dials: int) -> None:
    many = tuple(Peer(f"n{n:02}", 1) for n in range(count))
    assert dialled(Candidacy().on_offer(standing_by(), sender, offer(1, view=4, near=many))) == list(many[:dials])


@pytest.mark.parametrize(
    ("sender", "known", "remembered"), [(A, False, True), (A, True, True), (B, False, True), (B, True, False)]
)
def test_a_stranger_does_not_change_where_a_peer_is_dialled(sender: Peer, known: bool, remembered: bool) -> None:
    s = standing_by(contacts={C: ("/before",)} if known else {})
    out = Candidacy().on_offer(s, sender, offer(1, view=4, near=(C,)))
    assert (Remember(C, ("/at/c",)) in out) == remembered


@pytest.mark.parametrize(
    ("first", "near", "second", "later", "reason"),
    [
        (A, (B,), C, 0.0, "the neighbours answer"),
        (A, (B,), B, 0.0, "I am a candidate of a, whom I know"),
        (A, (), B, 0.0, "I am a candidate of a, whom I know"),
        (A, (), B, SETTINGS.offer_seconds - 0.1, "I am a candidate of a, whom I know"),
        (A, (), B, SETTINGS.offer_seconds, "the neighbours answer"),
        (B, (C,), A, 0.0, "the neighbours answer"),
        (B, (C,), Peer("e", 1), 0.0, "the neighbours answer"),
    ],
    ids=["a member", "under way", "accepted", "still open", "its time is up", "a stranger's", "of two strangers"],
)
def test_no_stranger_replaces_the_offer_of_a_member(
    first: Peer, near: tuple[Peer, ...], second: Peer, later: float, reason: str
) -> None:
    role = Candidacy()
    role.on_offer(standing_by(), first, offer(1, view=4, near=near))
    out = role.on_offer(standing_by(now=NOW + later), second, offer(2, lineage="other", view=9))
    (sent,) = (each for each in out if isinstance(each, Send))
    said = answer(out)
    assert said is not None and (sent.to, said.lineage, said.reason) == (second, "other", reason)
    assert said.accepted == (reason == "the neighbours answer")
    held = role.on_link_up(standing_by(), near[0]) if near and not said.accepted else Outcome()
    assert [each.to for each in held if isinstance(each, Send)] == ([first] if near and not said.accepted else [])


def test_who_declined_a_member_hears_a_stranger() -> None:
    role = Candidacy()
    role.on_offer(standing_by(own=Held(refuses={1})), A, offer(1))
    said = answer(role.on_offer(standing_by(), B, offer(2, lineage="other", view=9)))
    assert said is not None and said.accepted


def test_a_newer_offer_replaces_the_one_under_way() -> None:
    role, s = Candidacy(), standing_by()
    role.on_offer(s, A, offer(1, near=(B,)))
    role.on_offer(s, A, offer(2, near=(C,)))
    assert role.on_link_up(s, B) == []
    said = answer(role.on_link_up(s, C))
    assert said is not None and said.accepted and said.stages == (2,)
