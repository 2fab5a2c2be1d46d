"""Who is alive, and who stands behind a view: not the same."""

from __future__ import annotations

from random import Random

from ftnode.protocol import effects as fx
from ftnode.protocol import events as ev
from ftnode.protocol import messages as ms
from ftnode.protocol.liveness import Liveness
from ftnode.protocol.participant import Participant
from ftnode.protocol.settings import Settings
from ftnode.protocol.succession import fork, genesis, next_view
from ftnode.protocol.types import Peer
from ftnode.protocol.view import View

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
    core.leader.losses.on_suspect(C, ms.Suspect(VIEW.lineage.id, VIEW.number, B, "silent", "silent"))
    reply = ms.PollReply(VIEW.lineage.id, VIEW.number, 1, B, False, False)
    core.handle(heard(B, VIEW, False), 6.7)
    for voter in (A, C):
        core.leader.losses.on_poll_reply(voter, reply)
    assert B not in core.leader.losses.gone


def test_a_peer_that_nobody_hears_is_lost() -> None:
    core = Participant(A, SETTINGS, Random(1))
    core.install(VIEW)
    core.handle(heard(C, VIEW, False), 6.0)
    assert core.leader is not None
    core.leader.losses.on_suspect(C, ms.Suspect(VIEW.lineage.id, VIEW.number, B, "silent", "silent"))
    for voter in (A, C):
        core.leader.losses.on_poll_reply(voter, ms.PollReply(VIEW.lineage.id, VIEW.number, 1, B, False, False))
    assert B in core.leader.losses.gone
