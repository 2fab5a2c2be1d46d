"""Who is alive, and who stands behind a view: not the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from ftnode.protocol.liveness.liveness import Liveness
from ftnode.protocol.participant import Participant
from ftnode.protocol.views.succession import fork, genesis, next_view
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words import events as ev
from ftnode.protocol.words import messages as ms
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import View

A, B, C = (Peer(name, 1) for name in "abc")
SETTINGS = Settings(run="r", stages=3, steps=9, microbatches=2, window=2, evaluation_microbatches=1, lease_seconds=5.0)
FOUNDED = genesis("r", A, (0, 1, 2, 3), 4)
VIEW = next_view(FOUNDED, A, (), (), {1: B, 2: C}, (A, B, C), "all vote")
ELSEWHERE = fork(VIEW, B, 1, (B, C), "no quorum").lineage.id


def test_a_voter_that_follows_another_lineage_is_alive_but_stands_behind_that_one() -> None:
    """Seed 22064: a leader that woke up counted the peers that had founded a lineage without it."""
    liveness = Liveness(5.0, 0.0)
    liveness.on_message(B, VIEW.lineage.id, 1.0)
    assert liveness.quorate(VIEW, A, 2.0)
    liveness.on_message(B, ELSEWHERE, 3.0)
    liveness.on_message(C, ELSEWHERE, 3.0)
    assert liveness.alive((B, C), 4.0) == {B, C}
    assert not liveness.quorate(VIEW, A, 4.0)
    liveness.on_message(C, None, 4.0)
    assert not liveness.quorate(VIEW, A, 4.0), "a message of no lineage is a sign of life only"


def heard(sender: Peer, view: View, quorate: bool) -> ev.Received:
    heartbeat = ms.Heartbeat(view.lineage.id, view.number, quorate, 0, (), 0.0, False, (), (), "", ())
    return ev.Received(sender, heartbeat, None)


def vouched(core: Participant, now: float) -> bool:
    """Whether it says that its lineage has a quorum, to somebody of another."""
    other = View("r", fork(VIEW, C, 1, (C,), "alone").lineage, 9, "", C, ((C,), (), (), ()), (C,), (0, 0, 0, 0), "")
    effects = core.handle(heard(C, other, False), now)
    answers = [e.message for e in effects if isinstance(e, fx.Send) and isinstance(e.message, ms.Certificate)]
    assert answers
    return answers[0].quorate


def test_taking_up_a_view_is_no_evidence_of_a_quorum() -> None:
    """Seed 1111: two peers that came back to a dead lineage vouched for it to each other, for ever."""
    core = Participant(B, SETTINGS, Random(1))
    core.handle(ev.Received(A, ms.Certificate(VIEW, True, ()), None), 0.0)
    assert core.view == VIEW
    assert not vouched(core, 0.1)
    core.handle(heard(A, VIEW, True), 0.2)
    assert vouched(core, 0.3)


def test_a_peer_that_the_leader_hears_by_now_is_not_lost() -> None:
    """Seed 30242: when everybody's links came back at once, the poll was still about who had been silent before."""
    core = Participant(A, SETTINGS, Random(1))
    core.install(VIEW)
    core.handle(heard(B, VIEW, False), 0.1)
    core.handle(heard(C, VIEW, False), 6.0)
    assert core.leader is not None
    core.leader.on_suspect(core.situation, C, ms.Suspect(VIEW.lineage.id, VIEW.number, B, "silent", "silent"))
    reply = ms.PollReply(VIEW.lineage.id, VIEW.number, 1, B, False, False)
    core.handle(heard(B, VIEW, False), 6.7)
    for voter in (A, C):
        core.leader.on_poll_reply(core.situation, voter, reply)
    assert B not in core.leader.losses.gone


def test_a_peer_that_nobody_hears_is_lost() -> None:
    core = Participant(A, SETTINGS, Random(1))
    core.install(VIEW)
    core.handle(heard(C, VIEW, False), 6.0)
    assert core.leader is not None
    core.leader.on_suspect(core.situation, C, ms.Suspect(VIEW.lineage.id, VIEW.number, B, "silent", "silent"))
    for voter in (A, C):
        core.leader.on_poll_reply(core.situation, voter, ms.PollReply(VIEW.lineage.id, VIEW.number, 1, B, False, False))
    assert B in core.leader.losses.gone


def led_while_heard(elsewhere: Callable[[float], bool], seconds: float) -> Participant:
    """A leads B and C. Both are heard each second, and C at times as a member of another lineage."""
    core = Participant(A, SETTINGS, Random(1))
    core.install(VIEW)
    fork_of_b = replace(VIEW, lineage=fork(VIEW, B, 1, (B, C), "no quorum").lineage)
    for now in range(1, int(seconds)):
        core.handle(heard(B, VIEW, False), now)
        core.handle(heard(C, fork_of_b if elsewhere(now) else VIEW, False), now)
        core.handle(ev.Wake(), now + 0.5)
    assert core.leader is not None and core.liveness.alive((B, C), seconds) == {B, C}
    return core


def test_who_follows_another_lineage_for_two_leases_is_lost_alive_or_not() -> None:
    """Two leaders' offers were accepted by one; it took up one of the views, and the other leader waited for its Status
    for ever, without a word of its own steps by which the first would have yielded."""
    lease = SETTINGS.lease_seconds
    core = led_while_heard(lambda now: True, 2 * lease)
    assert core.leader is not None and not core.leader.losses.gone
    core = led_while_heard(lambda now: True, 3 * lease)
    assert core.leader is not None and C in core.leader.losses.gone and B not in core.leader.losses.gone


def test_who_is_late_or_comes_back_is_not() -> None:
    core = led_while_heard(lambda now: now % 9 != 0, 60.0)
    assert core.leader is not None and not core.leader.losses.gone


def test_nobody_is_lost_for_it_while_the_leader_itself_has_no_quorum() -> None:
    """It is the leader that is out of it then: those that it would remove would have to vote for that."""
    core = Participant(A, SETTINGS, Random(1))
    core.install(VIEW)
    fork_of_b = replace(VIEW, lineage=fork(VIEW, B, 1, (B, C), "no quorum").lineage)
    for now in range(1, 30):
        for peer in (B, C):
            core.handle(heard(peer, fork_of_b, False), now)
        core.handle(ev.Wake(), now + 0.5)
        assert core.leader is None or not core.leader.losses.gone


def test_signs_that_are_shown_say_the_same_and_stay_as_they_are() -> None:
    liveness, unheard = Liveness(5.0, 0.0), Peer("d", 1)
    for when in (1.0, 4.0, 9.0):
        liveness.on_message(A, None, when)  # not often enough for a patience of one lease
    liveness.on_message(B, None, 9.0)
    liveness.on_link_down(C, True, 9.0)
    shown = liveness.shown()
    moments = [0.1 * tenth for tenth in range(90, 250)]

    def silent() -> list[tuple[bool, ...]]:
        return [tuple(shown.silent(peer, now) for peer in (A, B, C, unheard)) for now in moments]

    before = silent()
    assert before == [tuple(liveness.silent(peer, now) for peer in (A, B, C, unheard)) for now in moments]
    assert len({*before}) == 3, "B is silent before A, which is irregular; C and who was never heard are so at once"
    liveness.on_link_up(C, 20.0)
    liveness.on_message(B, None, 20.0)
    assert silent() == before
