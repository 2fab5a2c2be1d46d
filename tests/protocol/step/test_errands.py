"""Tensors that one peer sees for another: whether somebody has to show them, and shows them (rule 52)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from ftnode.protocol.liveness.deadlines import Deadlines
from ftnode.protocol.step.admissions import Admissions
from ftnode.protocol.step.attempt import StepWork
from ftnode.protocol.step.errands import ERRANDS_MAX, KEPT_MAX, WAITED_LEASES, Errands
from ftnode.protocol.step.group import Groups
from ftnode.protocol.step.line_pace import LinePace
from ftnode.protocol.step.task_order import Pace
from ftnode.protocol.step.tensor_holds import Holds
from ftnode.protocol.words.effects import Effect, Release, Send
from ftnode.protocol.words.messages import Boundary, Judge, Seal, Share, Show, Verdict, path_digest
from ftnode.protocol.words.types import Attempt, Direction, Peer
from ftnode.protocol.words.view import View
from tests.protocol.beginnings import begun
from tests.protocol.situations import NOW, SETTINGS, A, B, C, D, view_of
from tests.sim.planted import patched

FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD
SIGNING: Final = replace(SETTINGS, checks=1.0, forward_bytes=1, backward_bytes=1)
PLACE: Final = "lineage", 3, 8, Attempt(3, 8)
E, F = Peer("e", 1), Peer("f", 1)
VIEW: Final = view_of((A,), (B, E), (C, D))
"""B did visit 1 of microbatch 0, and E checks it. C did visit 2, and does not show its tensors to E."""
PATH: Final = (A, B, C, A)
CLAIM: Final = Share(*PLACE, 2, ((0, 2), (2, 2)), "signed")
ABOUT: Final = Judge(*PLACE, 1, 0, E, C, 2, CLAIM)
MADE, GOT = (0, 1, BACKWARD), (0, 2, FORWARD)
BEAT: Final = SIGNING.heartbeat_seconds


def errands(me: Peer = D, view: View = VIEW, **changes: Any) -> Errands:
    begin, holds = begun(**changes), Holds()
    groups, admissions = Groups(me, view, begin, SIGNING), Admissions(me, view, begin, SIGNING)
    return Errands(me, view, begin, SIGNING, groups, holds, admissions)


def tensor(key: Any, path: tuple[Peer, ...] = PATH, **changes: Any) -> Boundary:
    made = Boundary(*PLACE, *key, path, Seal("digest", "signed"), Seal(path_digest(path), "signed"))
    return replace(made, **changes)


def verdicts(effects: list[Effect]) -> list[bool | None]:
    return [e.message.guilty for e in effects if isinstance(e, Send) and isinstance(e.message, Verdict)]


def asked(effects: list[Effect]) -> list[tuple[Peer, Any, Any]]:
    shows = [(e.to, e.message) for e in effects if isinstance(e, Send) and isinstance(e.message, Show)]
    return [(to, show.tensors, show.taken) for to, show in shows]


def test_it_is_asked_for_what_it_made_and_was_given_and_that_is_passed_on() -> None:
    ours = errands()
    assert asked(ours.take(ABOUT, NOW)) == [(C, (MADE,), (GOT,))]
    assert ours.take(ABOUT, NOW) == [], "it is asked about once"
    assert ours.wants(C, tensor(MADE)) and ours.came(C, tensor(MADE), 7) == [Send(E, tensor(MADE), 7)]
    assert not ours.wants(C, tensor(MADE)) and ours.wants(C, tensor(GOT))
    told = ours.came(C, tensor(GOT), 8)
    assert told[0] == Send(E, tensor(GOT), 8) and verdicts(told) == [False]
    assert not ours.wants(C, tensor(GOT)) and ours.beat(NOW + 1e6, [C]) == []


@pytest.mark.parametrize(
    ("sender", "boundary"),
    [
        (B, tensor(MADE)),  # another shows it
        (C, tensor(MADE, seal=None)),  # its maker has not signed it
        (C, tensor(MADE, admitted=None)),  # its path is nobody's
        (C, tensor(MADE, (A, B, D, A))),  # another made it
        (C, tensor((1, 1, BACKWARD))),  # of another microbatch
        (C, tensor((0, 3, FORWARD))),  # of the other side
        (C, tensor(MADE, view=2)),
        (C, tensor(MADE, (A, B, C))),
    ],
)
def test_nothing_else_counts_as_shown(sender: Peer, boundary: Boundary) -> None:
    ours = errands()
    ours.take(ABOUT, NOW)
    assert not ours.wants(sender, boundary)


def beats(ours: Errands, seconds: float, linked: list[Peer], gap: float = BEAT) -> tuple[list[bool | None], float]:
    """What comes of it in so many seconds, and after how many; and nothing is asked too often."""
    now, times = NOW, 1
    while now < NOW + seconds:
        now += gap
        effects = ours.beat(now, linked)
        times += len(asked(effects))
        if said := verdicts(effects):
            return said, now - NOW
    assert times <= seconds / (0.4 * SIGNING.lease_seconds) + 1
    return [], seconds


def test_who_shows_nothing_for_longer_than_a_lease_is_guilty() -> None:
    ours = errands()
    ours.take(ABOUT, NOW)
    ours.came(C, tensor(MADE), 7)
    assert SIGNING.shown_seconds > 1.4 * SIGNING.lease_seconds
    said, seconds = beats(ours, 10 * SIGNING.lease_seconds, [C])
    assert said == [True] and seconds >= SIGNING.shown_seconds


def test_without_a_link_nothing_is_known() -> None:
    """A line is broken, and later nobody is waited for any more."""
    ours = errands()
    ours.take(ABOUT, NOW)
    said, seconds = beats(ours, 10 * SIGNING.lease_seconds, [A, B])
    assert said == [None] and seconds > SIGNING.shown_seconds + WAITED_LEASES * SIGNING.lease_seconds


def test_time_in_which_we_sleep_does_not_count() -> None:
    """What it sent may wait for us."""
    ours = errands()
    ours.take(ABOUT, NOW)
    assert verdicts(ours.beat(NOW + 1.6 * SIGNING.lease_seconds, [C])) == []


@pytest.mark.parametrize(
    "about",
    [
        replace(ABOUT, claim=None),  # it has not said that it did anything
        replace(ABOUT, claim=replace(CLAIM, visits=((1, 2),))),  # nor that visit
        replace(ABOUT, claim=replace(CLAIM, step=7)),
        replace(ABOUT, claim=replace(CLAIM, attempt=Attempt(3, 7))),  # in this attempt
        replace(ABOUT, claim=replace(CLAIM, view=2)),
        replace(ABOUT, claim=replace(CLAIM, stage=1)),
        replace(ABOUT, stage=2),  # that is its own stage
        replace(ABOUT, beside=3),
    ],
)
def test_who_has_not_signed_that_it_did_the_visit_need_not_show_anything(about: Judge) -> None:
    ours = errands()
    effects = ours.take(about, NOW)
    assert verdicts(effects) == [None] and not asked(effects)


def test_nobody_shows_what_passed_when_another_view_began_the_attempt() -> None:
    assert verdicts(errands(attempt=Attempt(2, 8)).take(ABOUT, NOW)) == [None]


def test_what_passes_between_two_visits_of_one_peer_is_nobodys_to_show() -> None:
    """C holds both stages. Who is in no group with it does not know that it did one visit only."""
    both = view_of((A,), (B, C, E), (C, D))
    assert verdicts(errands(D, both).take(ABOUT, NOW)) == [None]
    ours = errands(E, both)
    assert verdicts(ours.take(replace(ABOUT, accuser=F), NOW)) == [None]
    ours.groups.on_share(C, Share(*PLACE, 1, ((0, 1),), "signed"))
    assert verdicts(ours.take(replace(ABOUT, accuser=F), NOW)) == [None]
    ours.groups.on_share(B, Share(*PLACE, 1, ((0, 1), (1, 1)), "signed"))
    assert asked(ours.take(replace(ABOUT, accuser=F), NOW)) == [(C, (MADE,), (GOT,))]


def test_of_the_only_stage_the_head_is_on_both_sides() -> None:
    one = view_of((A, E), (C,))
    ours = errands(E, one)
    ours.settings = replace(SIGNING, stages=1)
    claim = Share(*PLACE, 1, ((0, 1),), "signed")
    effects = ours.take(Judge(*PLACE, 0, 0, D, C, 1, claim), NOW)
    assert asked(effects) == [(C, ((0, 0, BACKWARD), (0, 2, FORWARD)), ((0, 1, BACKWARD), (0, 1, FORWARD)))]


def test_what_is_kept_and_asked_is_bounded() -> None:
    ours, handles = errands(), iter(range(1000))
    visits = tuple((m, 2) for m in range(4))
    effects = list[Effect]()
    for microbatch in range(4):
        for accuser in (E, F, B):
            claim = replace(CLAIM, visits=visits)
            effects += ours.take(replace(ABOUT, microbatch=microbatch, accuser=accuser, claim=claim), NOW)
    assert verdicts(effects) == [None] * (12 - ERRANDS_MAX)
    for microbatch in range(4):
        for visit, way in ((1, BACKWARD), (2, FORWARD)):
            boundary = tensor((microbatch, visit, way))
            if ours.wants(C, boundary):
                ours.came(C, boundary, next(handles))
    assert len(ours._holds.handles) <= KEPT_MAX


def test_another_who_asks_for_the_same_gets_what_is_here() -> None:
    ours = errands()
    ours.take(ABOUT, NOW)
    ours.came(C, tensor(MADE), 7)
    effects = ours.take(replace(ABOUT, accuser=F), NOW)
    assert Send(F, tensor(MADE), 7) in effects


def test_of_two_that_are_to_show_one_tensor_each_is_passed_on_what_it_shows_itself() -> None:
    """C and B did the visits on both sides of it, and each is said to show it to nobody."""
    ours = errands(F)
    ours.take(ABOUT, NOW)
    ours.take(Judge(*PLACE, 2, 0, D, B, 1, Share(*PLACE, 1, ((0, 1),), "signed")), NOW)
    ours.came(C, tensor(MADE), 7)
    assert ours.wants(B, tensor(MADE))
    other = tensor(MADE, seal=Seal("another digest", "signed"))
    assert ours.came(B, other, 9) == [Release((7,)), Send(D, other, 9)]
    assert len(ours._holds.handles) == 1


def test_a_new_view_ends_it() -> None:
    ours = errands()
    ours.take(ABOUT, NOW)
    ours.came(C, tensor(MADE), 7)
    assert ours.continue_in(VIEW, ours.begin, ours.groups) and len(ours._holds.handles) == 0
    assert beats(ours, 5 * SIGNING.lease_seconds, [C])[0] == []


def test_what_was_made_for_us_and_is_shown_again_is_passed_on() -> None:
    """We did the visit beside ourselves. What comes a second time would be dropped, and its maker be in the wrong."""
    work = StepWork(B, VIEW, begun(), SIGNING, Pace(), LinePace(), {}, Deadlines(1.0, 9.0))
    work.installed(dict.fromkeys(work.stages, 0))
    assert Release((7,)) not in work.on_boundary(C, tensor(MADE), 7)
    assert asked(work.judge(ABOUT, NOW)) == [(C, (MADE,), (GOT,))]
    assert Send(E, tensor(MADE), 8) in work.on_boundary(C, tensor(MADE), 8)
    assert verdicts(work.on_boundary(C, tensor(GOT), 9)) == [False]
    assert Release((10,)) in work.on_boundary(C, tensor(MADE), 10), "nobody waits for it any more"


def test_planted_what_comes_again_is_dropped() -> None:
    with patched((Errands, "wants", lambda self, sender, boundary: False)), pytest.raises(AssertionError):
        test_what_was_made_for_us_and_is_shown_again_is_passed_on()
