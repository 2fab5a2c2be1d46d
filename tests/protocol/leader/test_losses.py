"""Who is taken for lost, and who is not: the leader's list of losses alone (rules 8, 9)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftnode.protocol.leader.leader_memory import LeaderMemory
from ftnode.protocol.leader.losses import Losses
from ftnode.protocol.leader.progress import ViewProgress
from ftnode.protocol.situation import Outcome, SetTimer
from ftnode.protocol.words.effects import Note, Send
from ftnode.protocol.words.errors import LocalError
from ftnode.protocol.words.messages import Poll, PollReply, Suspect
from ftnode.protocol.words.types import Attempt, Peer, Version
from ftnode.protocol.words.view import View
from tests.protocol.situations import NOW, SETTINGS, VIEW, A, B, C, D, Vote, alive, report, situation, status

POLL_DUE = NOW + 1.5 * SETTINGS.poll_seconds


def losses(finished: bool = False, view: View = VIEW) -> Losses:
    return Losses(view, LeaderMemory(), ViewProgress(finished=finished), SETTINGS)


def suspect(peer: Peer, kind: str = "silent") -> Suspect:
    return Suspect("lineage", 3, peer, kind, "it is silent")


def reply(peer: Peer, heard: bool, number: int = 1) -> PollReply:
    return PollReply("lineage", 3, number, peer, heard, False)


def test_a_silent_member_is_asked_about_first() -> None:
    told = losses().on_suspect(situation(), C, suspect(B))
    poll = Poll("lineage", 3, 1, B)
    assert told == [SetTimer("poll", POLL_DUE, keep=True), Send(A, poll, None), Send(C, poll, None)]


@pytest.mark.parametrize(
    ("sender", "peer", "why"),
    [(C, A, "it is the leader"), (C, D, "it is no member"), (D, B, "a stranger says it"), (C, C, "it is lost")],
)
def test_nobody_is_asked_about(sender: Peer, peer: Peer, why: str) -> None:
    lost = losses()
    lost.gone[C] = "gone"
    assert lost.on_suspect(situation(), sender, suspect(peer)) == [], why


@pytest.mark.parametrize(
    ("replies", "heard_by_us", "kinds", "gone"),
    [
        ([(A, reply(B, False)), (C, reply(B, False))], False, ["lost"], {B}),
        ([(A, reply(B, False)), (C, reply(B, True))], False, ["void"], set()),
        ([(A, reply(B, False)), (C, reply(B, False))], True, ["void"], set()),
        ([(A, reply(B, False))], False, [], set()),
        ([(A, reply(B, False)), (C, reply(B, False, number=2))], False, [], set()),
        ([(A, reply(B, False)), (D, reply(B, False))], False, [], set()),
    ],
    ids=["nobody hears it", "a voter does", "the leader does", "one is missing", "of another poll", "of no voter"],
)
def test_what_the_voters_say(
    replies: list[tuple[Peer, PollReply]], heard_by_us: bool, kinds: list[str], gone: set[Peer]
) -> None:
    lost, told, s = losses(), Outcome(), situation()
    lost.on_suspect(s, C, suspect(B))
    if heard_by_us:
        s.liveness.heard[B] = NOW + 0.1
    for voter, said in replies:
        told.extend(lost.on_poll_reply(s, voter, said))
    assert [note.kind for note in told if isinstance(note, Note)] == kinds and set(lost.gone) == gone


def stalled(lost: Losses, sender: Peer, peer: Peer) -> None:
    """Said by this one for a lease."""
    beats = int(SETTINGS.lease_seconds / SETTINGS.heartbeat_seconds) + 1
    for beat in range(beats + 1):
        lost.on_suspect(situation(now=NOW + beat * SETTINGS.heartbeat_seconds), sender, suspect(peer, "stalled"))


def test_who_alone_says_for_a_lease_that_others_make_no_progress_takes_one_along() -> None:
    memory = LeaderMemory()
    for gone, marked in ((B, {C}), (C, set[Peer]())):
        lost = Losses(VIEW, memory, ViewProgress(), SETTINGS)
        stalled(lost, C, B)
        assert (set(lost.gone), memory.disputes.marked) == ({gone}, marked)


def test_the_leaders_own_word_is_no_dispute() -> None:
    memory = LeaderMemory()
    for _ in range(2):
        lost = Losses(VIEW, memory, ViewProgress(), SETTINGS)
        stalled(lost, A, B)
        assert set(lost.gone) == {B} and not memory.disputes.marked


def test_a_poll_that_somebody_answers_is_over_when_its_time_is() -> None:
    lost = losses()
    lost.on_suspect(situation(), C, suspect(B))
    lost.on_poll_reply(situation(), C, reply(B, False))
    assert lost.conclude_inquiries(situation(now=POLL_DUE - 0.1)) == [SetTimer("poll", POLL_DUE)] and not lost.gone
    lost.conclude_inquiries(situation(now=POLL_DUE, liveness=alive()))
    assert set(lost.gone) == {B}


@pytest.mark.parametrize(
    ("seconds", "gap", "gone"),
    [
        (0.0, 1.0, False),
        (SETTINGS.lease_seconds - 1, 2.0, False),
        (SETTINGS.lease_seconds, 2.0, True),
        (40.0, 8.0, False),
    ],
)
def test_a_peer_that_does_not_get_on_is_lost_after_a_lease_of_reports(seconds: float, gap: float, gone: bool) -> None:
    lost, at = losses(), 0.0
    while at <= seconds:
        lost.on_suspect(situation(now=NOW + at), C, suspect(B, "stalled"))
        at += gap
    lost.on_suspect(situation(now=NOW + max(seconds, at - gap)), C, suspect(B, "stalled"))
    assert (B in lost.gone) == gone


def test_while_somebody_is_awaited_for_a_stage_nobody_can_get_on() -> None:
    for vacant, lost_already, gone in ((False, False, True), (True, False, False), (False, True, False)):
        lost = losses(view=replace(VIEW, holders=(*VIEW.holders[:-1], ())) if vacant else VIEW)
        if lost_already:
            lost.give_up(situation(), Outcome(), 2, C, "it cannot keep it")
        for at in range(0, int(SETTINGS.lease_seconds) + 2, 2):
            lost.on_suspect(situation(now=NOW + at), A, suspect(B, "stalled"))
        assert (B in lost.gone) is gone


@pytest.mark.parametrize(
    ("busy", "number", "gone"),
    [(1.0, 3, False), (1.5, 3, False), (1.51, 3, True), (9.0, 2, False)],
    ids=["it works", "at the limit", "it hangs", "told in another view"],
)
def test_a_compute_that_hangs(busy: float, number: int, gone: bool) -> None:
    lost = losses()
    told = lost.beat(situation(reports={B: report(number, busy * SETTINGS.task_seconds)}))
    assert (B in lost.gone) == gone == any(isinstance(note, Note) and note.kind == "lost" for note in told)


def test_nobody_is_lost_when_all_steps_are_committed_or_twice() -> None:
    for lost in (losses(finished=True), losses()):
        told = Outcome()
        lost.lose(situation(), told, B, "once")
        lost.lose(situation(), told, B, "twice")
        assert [note.text for note in told if isinstance(note, Note)] == ["b with stage 1 is lost (once)"] * len(
            lost.gone
        )
        assert bool(lost.gone) is not lost.progress.finished


@pytest.mark.parametrize(("proposing", "gone"), [(False, set()), (True, {B})])
def test_a_lost_peer_that_is_heard_again_stays_unless_a_view_without_it_is_proposed(
    proposing: bool, gone: set[Peer]
) -> None:
    lost = losses()
    lost.on_suspect(situation(liveness=alive()), C, suspect(B))
    for voter in (A, C):
        lost.on_poll_reply(situation(liveness=alive()), voter, reply(B, False))
    assert not lost.may_settle() or set(lost.gone) == {B}
    heard = alive(B, C, now=NOW + 1.0)
    lost.beat(situation(now=NOW + 1.0, liveness=heard, ballots=Vote(proposing)))
    assert set(lost.gone) == gone


def test_who_is_lost_for_something_else_is_not_back_when_it_is_heard() -> None:
    lost = losses()
    lost.on_suspect(situation(liveness=alive()), C, suspect(B))
    lost.lose(situation(), Outcome(), B, "it lies")
    for voter in (A, C):
        lost.on_poll_reply(situation(liveness=alive()), voter, reply(B, False))
    lost.beat(situation(now=NOW + 1.0, liveness=alive(B, C, now=NOW + 1.0)))
    assert lost.gone == {B: "it lies"}


def test_voters_that_nobody_hears_do_not_choose_a_view() -> None:
    lost, s = losses(), situation(liveness=alive())
    for peer in (B, C):
        assert lost.may_settle()
        lost.on_suspect(s, A, suspect(peer))
        for voter in (A, B, C):
            for number in (1, 2):
                lost.on_poll_reply(s, voter, reply(peer, False, number))
    assert set(lost.gone) == {B, C} and not lost.may_settle()


def test_a_leader_that_was_cut_off_asks_again_for_those_that_it_does_not_hear_yet() -> None:
    """But not for one at whose address nobody listens."""
    for refused in (set[Peer](), {B}):
        lost, s = losses(), situation(liveness=alive())
        for peer in (B, C):
            lost.on_suspect(s, A, suspect(peer))
            for number in (1, 2):
                lost.on_poll_reply(s, A, reply(peer, False, number))
            lost.conclude_inquiries(situation(now=NOW + 100.0, liveness=alive()))
        assert set(lost.gone) == {B, C} and not lost.may_settle()
        heard = alive(C, now=NOW + 101.0)
        heard.refused |= refused
        lost.beat(situation(now=NOW + 101.0, liveness=heard))
        assert set(lost.gone) == refused and lost.may_settle()


BASE = Version(7, "c", Attempt(3, 1))


def test_weights_behind_a_commit_that_needed_them() -> None:
    told = {B: status({1: BASE}, BASE), C: status({2: None})}
    for ours, behind, gone in ((status({0: None}), (C,), {C}), (status({0: None}), (A,), {B})):
        lost = losses()
        lost.progress.statuses = {A: ours, **told}
        lost.expel(situation(), Outcome(), behind, BASE)
        assert set(lost.gone) == gone
    lost = losses()
    lost.progress.statuses = {A: status({0: BASE}, BASE), **told}
    with pytest.raises(LocalError):
        lost.expel(situation(), Outcome(), (A,), BASE)


def test_a_member_of_another_lineage_is_lost_after_two_leases_while_we_hear_a_quorum() -> None:
    for heard, gone in (((A, B), {C}), ((A,), set[Peer]())):
        lost = losses()
        for at in (0.0, 2 * SETTINGS.lease_seconds + 0.1):
            liveness = alive(*heard, now=NOW + at)
            liveness.heard[C], liveness.lineages[C] = NOW + at - 0.1, "another"
            lost.beat(situation(now=NOW + at, liveness=liveness))
        assert set(lost.gone) == gone


def test_of_two_whose_link_stays_broken_the_one_goes_that_was_at_odds_before() -> None:
    """Else the holder of the higher stage, and never the leader for a link alone."""
    for ends, marked, gone in (
        ((B, C), set[Peer](), C),
        ((B, C), {B}, B),
        ((A, C), {A}, C),
    ):  # fmt: skip
        lost = losses()
        lost.memory.disputes.marked |= marked
        for beat in range(2 + int(SETTINGS.broken_link_seconds / SETTINGS.heartbeat_seconds)):
            s = situation(now=NOW + beat * SETTINGS.heartbeat_seconds, liveness=alive(A, B, C))
            lost.on_suspect(s, ends[0], suspect(ends[1], "broken"))
            lost.beat(s)
        assert set(lost.gone) == {gone}
        left = {*ends} - {gone, VIEW.leader} if gone not in marked else set()
        assert lost.memory.disputes.marked == (marked - {gone}) | left


@pytest.mark.parametrize("kind", ["silent", "broken", "stalled"])
def test_what_a_member_suspects_of_itself_costs_nobody_anything(kind: str) -> None:
    """The link to itself once ended the leader's node: it has one end, and another one was looked for."""
    lost = losses()
    for beat in range(2 + int(SETTINGS.broken_link_seconds / SETTINGS.heartbeat_seconds)):
        s = situation(now=NOW + beat * SETTINGS.heartbeat_seconds, liveness=alive(A, B, C))
        lost.on_suspect(s, B, suspect(B, kind))
        lost.on_poll_reply(s, C, reply(B, True))
        lost.beat(s)
    assert not lost and lost.broken_links(s.now) == []
