"""Which lineage goes on when two meet (rule 16), and what founders call what they found."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random

import pytest

from ftnode.protocol.participant import Participant
from ftnode.protocol.situation import Outcome, Situation
from ftnode.protocol.views.lineage_rank import ABOUT, behind, own_step, wins
from ftnode.protocol.views.succession import fork, genesis
from ftnode.protocol.words.effects import Forget, Install, Send
from ftnode.protocol.words.events import ComputeReady, Directory, Received
from ftnode.protocol.words.messages import Begin, Certificate, Contact, Heartbeat
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Attempt, Peer, Version
from ftnode.protocol.words.view import View
from tests.protocol.situations import NOW, Held, Past, alive, situation

A, B = Peer("a", 1), Peer("b", 1)
SETTINGS = Settings("r", stages=2, steps=100, microbatches=2, window=1, listed=True)
LATER = SETTINGS.look_for_seconds + 1.0
"""What a founder has done alone counts by then."""


def leading(step: int, view: View) -> Participant:
    """Its leader knows of a commit."""
    core = Participant(view.leader, SETTINGS, Random(1), hold=3)
    core.handle(ComputeReady(3, True, 1.0), 0.0)
    core.install(view)
    assert core.leader is not None
    core.chronicle.newest_step = step
    core.leader.progress.base = Version(step, "c", Attempt(0, 1))
    core.now += LATER
    return core


def now(core: Participant) -> Situation:
    core.changed()
    return core.situation


def told_step(core: Participant) -> int:
    """What its certificate says."""
    return core.leader.told_step(now(core)) if core.leader is not None else 0


def give_up(core: Participant) -> None:
    """Nobody stands behind its view."""
    assert core.view is not None
    out = Outcome()
    core.following._give_up_view(out, core.view)
    core.carry_out(out)


OURS = genesis("r", A, (0, 1, 2), 3)
THEIRS = genesis("r", B, (0, 1, 2), 3)
FORK = fork(OURS, A, 1, (A,), "why")
WITH_ANOTHER = replace(OURS, holders=((A,), (A, B), (A,)))
BETTER, WORSE = sorted((OURS, THEIRS), key=lambda view: view.lineage.id)


@pytest.mark.parametrize(("ours", "worth"), [(OURS, 0), (WITH_ANOTHER, 45), (FORK, 45)])
def test_what_somebody_has_done_alone_since_it_found_nobody_is_worth_nothing_for_a_while(
    ours: View, worth: int
) -> None:
    """Else who does eight steps before it sees the others in the directory never comes to them."""
    core = leading(45, ours)
    core.now -= LATER
    assert told_step(core) == own_step(now(core)) == worth
    core.now += LATER
    assert told_step(core) == own_step(now(core)) == 45


@pytest.mark.parametrize("theirs", [0, 5 * ABOUT - 1, 5 * ABOUT, 6 * ABOUT - 1, 6 * ABOUT, 99])
@pytest.mark.parametrize(("ours", "other"), [(OURS, THEIRS), (OURS, FORK), (FORK, OURS)])
def test_steps_decide_and_the_static_rank_where_they_are_about_the_same(ours: View, other: View, theirs: int) -> None:
    core = leading(5 * ABOUT + 3, ours)
    farther = theirs // ABOUT - 5
    better = other.lineage.beats(ours.lineage)
    assert wins(now(core), other, theirs) == (farther > 0 or (farther == 0 and better))
    assert behind(now(core), other, theirs) == (farther < 0)


@pytest.mark.parametrize("step", [0, 1, ABOUT, ABOUT + 1, 45])
def test_a_lineage_that_waits_for_a_volunteer_counts_less_than_one_that_trains_and_is_as_far(step: int) -> None:
    waiting = replace(OURS, holders=((A,), (A,), ()))
    core, fork = leading(step, waiting), leading(step, FORK)
    assert core.leader is not None
    assert told_step(core) == own_step(now(core)) == max(step - ABOUT, min(step, 1))
    assert wins(now(core), FORK, told_step(fork)) == (step >= ABOUT)
    assert not wins(now(fork), waiting, told_step(core)) or step < ABOUT


def test_both_sides_never_yield_at_once() -> None:
    for mine, other, theirs in product(range(0, 40, 3), range(0, 40, 3), (THEIRS, FORK)):
        here, there = leading(mine, OURS), leading(other, theirs)
        assert wins(now(here), theirs, told_step(there)) + wins(now(there), OURS, told_step(here)) == 1


def test_nobody_says_more_of_itself_than_it_goes_by() -> None:
    core = leading(45, OURS)
    assert core.leader is not None
    assert told_step(core) == own_step(now(core)) == 45
    core.leader.progress.base = None  # it does not know yet where the swarm stands
    assert (told_step(core), own_step(now(core))) == (0, 45)
    progress = core.leader.progress
    progress.base, progress.halted = Version(45, "c", Attempt(0, 1)), "halted: no head"
    core.memory.stuck_since = core.now
    assert (told_step(core), own_step(now(core))) == (0, 45), "somebody may bring the head"
    core.now += SETTINGS.restart_wait_seconds
    assert told_step(core) == own_step(now(core)) == 0, "nobody does"


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
        give_up(core)
    assert len(set(names)) == 2


def test_a_view_that_was_given_up_is_taken_up_again_on_a_leaders_word_alone() -> None:
    """Records of it stand for a while, and others who still follow it tell of it, too."""
    core = Participant(A, SETTINGS, Random(1), hold=3)
    core.handle(ComputeReady(3, True, 1.0), 0.0)
    core.handle(Directory((), (THEIRS,)), 0.1)
    assert core.view == THEIRS
    give_up(core)
    core.handle(Directory((), (THEIRS,)), 0.2)
    core.handle(Received(B, Certificate(THEIRS, False, ()), None), 0.3)
    assert core.view is None
    core.handle(Received(B, Certificate(THEIRS, True, ()), None), 0.4)
    assert core.view == THEIRS


def test_a_certificate_speaks_of_steps_that_the_run_has() -> None:
    core = leading(0, OURS)
    core.handle(Received(B, Certificate(THEIRS, True, (), 10**9), None), 1.0)
    assert core.view == OURS


def test_of_any_lineages_that_meet_one_is_the_best() -> None:
    views = [genesis("r", Peer(name, 1), (0, 1, 2), 3) for name in "xyz"]
    for steps in product(range(0, 30, 3), repeat=3):
        cores = [leading(step, view) for step, view in zip(steps, views)]
        losers = [
            any(wins(now(core), other.view, told_step(other)) for other in cores if other is not core and other.view)
            for core in cores
        ]
        assert losers.count(False) == 1


def test_leaders_that_both_stay_do_not_answer_each_other_without_end() -> None:
    """One does not know yet where its swarm stands, so that it says nothing and yields to nobody."""
    silent = Peer("silent", 1)
    ours, theirs = (replace(v, holders=((v.leader,), (v.leader,), (silent,))) for v in (OURS, THEIRS))
    here, there = leading(90, ours), leading(50, theirs)
    assert here.leader is not None
    here.leader.progress.base = None
    cores, said, now = {A: here, B: there}, 0, 1.0
    pending = [(A, B, there.certificate())]
    while pending and said < 100:
        to, sender, message = pending.pop()
        said, now = said + 1, now + 0.001
        for effect in cores[to].handle(Received(sender, message, None), now):
            if isinstance(effect, Send) and isinstance(effect.message, Certificate) and effect.to in cores:
                pending += [(effect.to, to, effect.message)]
    assert said < 5 and here.view == ours and there.view == theirs


def test_a_standby_goes_by_the_steps_of_the_lineage_that_it_hears() -> None:
    me = Peer("me", 1)
    core = Participant(me, SETTINGS, Random(1), hold=3)
    core.handle(ComputeReady(3, True, 1.0), 0.0)
    core.install(OURS)
    core.chronicle.newest_step = 90
    beat = Heartbeat(OURS.lineage.id, 0, True, 91, (), 0.0, False, (), (), "", ())
    core.handle(Received(A, beat, None), 1.0)
    core.handle(Received(B, Certificate(THEIRS, True, (), 20), None), 1.1)
    assert core.view == OURS
    core.handle(Received(B, Certificate(THEIRS, True, (), 99), None), 1.2)
    assert core.view == THEIRS


def member(waiting: str) -> Participant:
    """B holds a stage in the view that A leads, and A has told what the run waits for."""
    view = View("r", OURS.lineage, 1, "x", A, ((A,), (A,), (B,)), (A, B), (0, 0, 1), "why")
    core = Participant(B, SETTINGS, Random(1), hold=3)
    core.handle(ComputeReady(3, True, 1.0), 0.0)
    core.install(view)
    core.handle(Received(A, Heartbeat(OURS.lineage.id, 1, True, 1, (), 0.0, False, (), (), waiting, ()), None), 1.0)
    return core


def test_a_member_whose_leader_waits_leaves_it_to_the_leader() -> None:
    """Disks may make more possible than it knows of."""
    far = Certificate(genesis("r", Peer("c", 1), (0, 1, 2), 3), True, (), 50)
    for waiting, yields in (("", True), ("others who were there", False), ("halted: no head", False)):
        core = member(waiting)
        core.handle(Received(Peer("c", 1), far, None), 1.1)
        assert (core.view == far.view) == yields, waiting


def test_strangers_do_not_fill_the_book_of_addresses() -> None:
    core = leading(50, OURS)
    for index in range(1000):
        other = Peer(f"x{index}", 1)
        view = genesis("r", other, (0, 1, 2), 3)
        contact = Contact(other, ("/ip4/10.0.0.1/tcp/1",))
        core.handle(Received(B, Certificate(view, True, (contact,)), None), 1.0 + index)
    assert len(core.peers.contacts) < 5


def test_who_comes_back_to_a_lineage_has_what_it_made_there() -> None:
    core = Participant(B, SETTINGS, Random(1), hold=3)
    core.handle(ComputeReady(3, True, 1.0), 0.0)
    core.install(OURS)
    core.holder.versions[1] = Version(30, "c", Attempt(0, 1))
    core.holder.weights.made_in[1] = OURS.lineage.id, OURS.lineage.origin
    assert core.situation.highest_step == 30
    give_up(core)
    core.install(genesis("r", Peer("c", 1), (0, 1, 2), 3))
    assert core.situation.highest_step == 0 and core.holder.versions
    give_up(core)
    core.install(OURS)
    assert core.situation.highest_step == 30


def test_a_wait_for_disks_is_over_with_the_view_that_it_was_in() -> None:
    core = leading(50, OURS)
    core.memory.stuck_since = 0.0
    core.install(replace(OURS, number=1))
    assert core.memory.stuck_since == 0.0, "the same lineage, and still its leader"
    core.install(THEIRS)
    assert core.memory.stuck_since is None


def test_a_fetch_for_a_lineage_that_is_left_is_broken_off() -> None:
    """What comes of it, and the past that comes with it, must not get into the other one."""
    core = Participant(B, SETTINGS, Random(1), hold=3)
    core.handle(ComputeReady(3, True, 1.0), 0.0)
    core.install(OURS)
    base = Version(90, "c", Attempt(0, 4))
    begin = Begin(OURS.lineage.id, 0, 91, Attempt(0, 5), base, False, False, True, False, 1, ((A, (0, 1)),),
                  (), (), (), ((1, B),))  # fmt: skip
    assert any(isinstance(effect, Install) for effect in core.handle(Received(A, begin, None), 1.0))
    theirs = genesis("r", Peer("c", 1), (0, 1, 2), 3)
    effects = core.handle(Received(Peer("c", 1), Certificate(theirs, True, (), 99), None), 1.2)
    assert core.view == theirs and Forget(1) in effects


def test_who_has_nothing_to_go_on_with_is_behind_whoever_trains() -> None:
    training, halted = leading(5, OURS), leading(0, OURS)
    for theirs in (genesis("r", Peer(name, 1), (0, 1, 2), 3) for name in "cdefgh"):
        assert not wins(now(training), theirs, 0) and behind(now(training), theirs, 0)
        assert wins(now(halted), theirs, 5)


PATIENCE = SETTINGS.minority_wait_seconds + 4 * SETTINGS.lease_seconds


@pytest.mark.parametrize(
    ("held", "silent", "worth"),
    [((), 0.0, 0), ((45,), 0.0, 45), ((40,), 0.0, 40), ((40, 37), PATIENCE - 1, 40), ((40,), PATIENCE + 1, 0)],
    ids=["no weights", "the newest", "older ones", "of two stages", "nobody has come"],
)
def test_what_members_without_a_quorum_would_lose_is_what_they_have(
    held: tuple[int, ...], silent: float, worth: int
) -> None:
    """Steps that another lineage made of the same past are known here, too; this one cannot go on from them."""
    leader_gone = replace(OURS, leader=Peer("c", 1), voters=(Peer("c", 1), A))
    own = Held(versions={stage: Version(step, "c", Attempt(0, 1)) for stage, step in enumerate(held)})
    quorate_at = NOW - max(silent, SETTINGS.lease_seconds + 0.1)
    s = situation(view=leader_gone, own=own, history=Past(45), quorate_at=quorate_at, liveness=alive())
    assert not s.quorate and own_step(s) == worth


def test_weights_of_another_past_found_no_lineage() -> None:
    """Nor are they told of as what a stage has in this one."""
    core = Participant(B, SETTINGS, Random(1), hold=1)
    core.handle(ComputeReady(1, True, 1.0), 0.0)
    core.holder.versions[2] = Version(100, "p", Attempt(0, 9))
    core.holder.weights.made_in[2] = OURS.lineage.id, OURS.lineage.origin
    lead, other = Peer("c", 1), genesis("r", Peer("c", 1), (0,), 3)
    core.install(replace(other, number=1, previous=other.digest(), holders=((lead,), (Peer("x", 1),), (B,))))
    assert core.view is not None and [stage.version for stage in core.status().stages] == [None]
