"""Which lineage goes on when two meet (rule 16), and what founders call what they found."""

from __future__ import annotations

from random import Random

import pytest

from ftnode.protocol.events import ComputeReady, Directory, Received
from ftnode.protocol.messages import Certificate
from ftnode.protocol.participant import Participant
from ftnode.protocol.rank import ABOUT, behind, own_step, told_step, wins
from ftnode.protocol.settings import Settings
from ftnode.protocol.succession import fork, genesis
from ftnode.protocol.types import Attempt, Peer, Version
from ftnode.protocol.view import View

A, B = Peer("a", 1), Peer("b", 1)
SETTINGS = Settings("r", stages=2, steps=100, microbatches=2, window=1)


def leading(step: int, view: View) -> Participant:
    """Its leader knows of a commit."""
    core = Participant(view.leader, SETTINGS, Random(1), hold=3)
    core.handle(ComputeReady(3, True, 1.0), 0.0)
    core.install(view)
    assert core.leader is not None
    core.chronicle.newest_step = step
    core.leader.base = Version(step, "c", Attempt(0, 1))
    return core


OURS = genesis("r", A, (0, 1, 2), 3)
THEIRS = genesis("r", B, (0, 1, 2), 3)
FORK = fork(OURS, A, 1, (A,), "why")
BETTER, WORSE = sorted((OURS, THEIRS), key=lambda view: view.lineage.id)


@pytest.mark.parametrize("ahead", [-90, -ABOUT - 1, -ABOUT, 0, ABOUT, ABOUT + 1, 90])
def test_without_a_common_past_steps_decide_unless_they_are_about_the_same(ahead: int) -> None:
    core = leading(45, OURS)
    theirs = 45 + ahead
    assert wins(core, THEIRS, theirs) == (ahead > ABOUT or (abs(ahead) <= ABOUT and BETTER is THEIRS))
    assert behind(core, THEIRS, theirs) == (ahead < -ABOUT)


@pytest.mark.parametrize("ahead", [-90, 0, 90])
def test_with_a_common_past_the_rank_alone_decides(ahead: int) -> None:
    assert wins(leading(45, FORK), OURS, 45 + ahead)
    assert not wins(leading(45, OURS), FORK, 45 + ahead)
    assert not behind(leading(45, OURS), FORK, 0)


def test_both_sides_never_yield_at_once() -> None:
    for mine in range(0, 40, 3):
        for other in range(0, 40, 3):
            here, there = leading(mine, OURS), leading(other, THEIRS)
            assert wins(here, THEIRS, told_step(there)) + wins(there, OURS, told_step(here)) == 1


def test_nobody_says_more_of_itself_than_it_goes_by() -> None:
    core = leading(45, OURS)
    assert core.leader is not None
    assert told_step(core) == own_step(core) == 45
    core.leader.base = None  # it does not know yet where the swarm stands
    assert (told_step(core), own_step(core)) == (0, 45)
    core.leader.base, core.leader.halted = Version(45, "c", Attempt(0, 1)), "halted: no head"
    assert told_step(core) == own_step(core) == 0, "nobody can go on with it"


def test_one_life_never_gives_two_lineages_one_name() -> None:
    assert genesis("r", A, (0,), 3).lineage.id != genesis("r", A, (0,), 3, 1).lineage.id
    core = Participant(A, SETTINGS, Random(1), hold=3)
    core.handle(ComputeReady(3, True, 1.0), 0.0)
    names = []
    for now in (0.1, 100.0):
        core.handle(Directory((), ()), now)
        core.handle(Directory((), ()), now + 10.0)
        assert core.view is not None
        names.append(core.view.lineage.id)
        core.follow._give_up_view()
    assert len(set(names)) == 2


def test_a_view_that_was_given_up_is_taken_up_again_on_a_leaders_word_alone() -> None:
    """Records of it stand for a while, and others who still follow it tell of it, too."""
    core = Participant(A, SETTINGS, Random(1), hold=3)
    core.handle(ComputeReady(3, True, 1.0), 0.0)
    core.handle(Directory((), (THEIRS,)), 0.1)
    assert core.view == THEIRS
    core.follow._give_up_view()
    core.handle(Directory((), (THEIRS,)), 0.2)
    core.handle(Received(B, Certificate(THEIRS, False, ()), None), 0.3)
    assert core.view is None
    core.handle(Received(B, Certificate(THEIRS, True, ()), None), 0.4)
    assert core.view == THEIRS


def test_a_certificate_speaks_of_steps_that_the_run_has() -> None:
    core = leading(0, OURS)
    core.handle(Received(B, Certificate(THEIRS, True, (), 10**9), None), 1.0)
    assert core.view == OURS
