"""Who is asked to learn which stage, how long a step waits for it, and when it is given up (rule 26)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from ftnode.protocol.leader import learners
from ftnode.protocol.leader.leader_memory import QUIET_TIMES, LeaderMemory, Learner
from ftnode.protocol.leader.learners import Learners
from ftnode.protocol.leader.losses import Losses
from ftnode.protocol.leader.progress import ViewProgress
from ftnode.protocol.leader.replica_moves import ReplicaMoves
from ftnode.protocol.liveness.deadlines import Deadline
from ftnode.protocol.planning.changes import Changes
from ftnode.protocol.situation import ClearTimer, MakeOffer, Outcome, Remember, SetTimer
from ftnode.protocol.wire import admission
from ftnode.protocol.wire.admission import GROUP_MAX
from ftnode.protocol.words.effects import Note
from ftnode.protocol.words.messages import Answer, Begin, Commit, Ready, StageReport, StageResult
from ftnode.protocol.words.types import Attempt, Peer, Version
from ftnode.protocol.words.view import View
from tests.protocol.situations import NOW, SETTINGS, VIEW, A, B, C, D, Past, Vote, report, situation, standby, view_of

BASE, ATTEMPT = Version(7, "c7", Attempt(2, 9)), Attempt(3, 1)
CROWDED = view_of((A,), (B,), (B,))
"""B holds two stages, so that somebody is to learn one of them."""
BEAT = SETTINGS.heartbeat_seconds
E = Peer("e", 1)


def begun(training: bool = True) -> Begin:
    return Begin("lineage", 3, 8, ATTEMPT, BASE, False, False, training, False, 2, (), (), (), (), ())


def learning(view: View = CROWDED, training: bool = True, memory: LeaderMemory | None = None) -> Learners:
    memory, progress = memory or LeaderMemory(), ViewProgress(base=BASE, begin=begun(training))
    losses = Losses(view, memory, progress, SETTINGS)
    return Learners(situation(view=view), view, memory, progress, losses, ReplicaMoves(view, memory, losses, NOW))


def ready(stage: int) -> Ready:
    return Ready("lineage", 3, 8, ATTEMPT, (StageResult(stage, 1.0, "g"),), 0.0, 0, None)


def test_a_standby_is_asked_a_heartbeat_after_it_was_seen() -> None:
    role = learning()
    for now in (NOW, NOW + BEAT - 0.1):
        assert role.beat(situation(view=CROWDED, presences=standby(D), now=now)) == []
    told = role.beat(situation(view=CROWDED, presences=standby(D), now=NOW + BEAT))
    assert [each for each in told if not isinstance(each, Note | MakeOffer)] == [
        Remember(D, ("/at/d",))
    ]  # fmt: skip
    (made,) = (each for each in told if isinstance(each, MakeOffer))
    assert (made.to, made.offer.stages, made.offer.base, made.offer.learn) == (D, (2,), BASE, True)
    learner = role.learners[2, D]
    assert (learner.giver, learner.until) == (B, NOW + BEAT + SETTINGS.offer_seconds)


@pytest.mark.parametrize(
    ("capacity", "why", "changes"),
    [
        (0, "it has no room", {}),
        (1, "a ballot is under way", {"ballots": Vote(True)}),
        (1, "the steps are all committed", {"training": False}),
        (1, "somebody is lost", {"lost": True}),
        (1, "a stage is vacant", {"view": view_of((A,), (B,), ())}),
        (1, "it failed a moment ago", {"failed": True}),
        (1, "there are enough", {"crowd": GROUP_MAX - 2}),
        (1, "it is a member, with another life", {"life": 2}),
        (1, "a record of it is all that we have", {"unheard": True}),
    ],
)
def test_nobody_is_asked(capacity: int, why: str, changes: dict[str, Any]) -> None:
    view = changes.get("view", CROWDED)
    role = learning(view, changes.get("training", True))
    if "lost" in changes:
        role.losses.gone[C] = "gone"
    if "failed" in changes:
        role.memory.failed(D, 0, NOW)
    for index in range(changes.get("crowd", 0)):
        role.learners[1, Peer(f"x{index}", 1)] = Learner(None, NOW + 100.0, True)
    presences = standby(Peer("b", 2) if "life" in changes else D, capacity)
    for now in (NOW, NOW + BEAT):
        s = situation(view=view, presences=presences, now=now, ballots=changes.get("ballots", Vote()))
        s.liveness.heard.update(dict.fromkeys(role.memory.pupils(), now))
        if "unheard" in changes:
            del s.liveness.heard[D]
        assert not any(isinstance(each, MakeOffer) for each in role.beat(s)), why


@pytest.mark.parametrize("bug", [False, True])
def test_nobody_is_asked_whose_places_would_make_a_view_that_is_refused(
    bug: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With bounds of any size. The planted bug: members are counted, and places are not."""
    if bug:
        monkeypatch.setattr(Learners, "_full", lambda self, s: False)
    asked, refused = 0, 0
    for bound in range(6, 30):
        for module in (learners, admission):
            monkeypatch.setattr(module, "HOLDINGS_MAX", bound)
        role, presences = learning(CROWDED), standby(D, 1) | standby(E, 1)
        for now in (NOW, NOW + BEAT):
            s = situation(view=CROWDED, presences=presences, now=now)
            if any(isinstance(each, MakeOffer) for each in role.beat(s)):
                asked += 1
                holders = tuple(
                    group + tuple(peer for learnt, peer in role.learners if learnt == stage)
                    for stage, group in enumerate(CROWDED.holders)
                )
                joined = replace(CROWDED, holders=holders)
                everybody = replace(joined, voters=joined.members())
                refused += not admission.well_formed(everybody, SETTINGS)
    assert asked and bool(refused) is bug


def test_who_is_worth_nothing_anywhere_is_looked_at_again_soon_and_then_ever_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Six volunteers on two busy cores: in one slow moment two got no place, and were not looked at for the rest of the
    run."""
    role, looks = learning(), list[float]()
    for now in (NOW + number * BEAT for number in range(round(25 * SETTINGS.lease_seconds / BEAT))):

        def found(self: Changes, name: str, *rest: object, now: float = now) -> None:
            looks.append(now)

        monkeypatch.setattr(Changes, "best_place", found)
        role.moves.since = now
        role.beat(situation(view=CROWDED, presences=standby(D), now=now))
    leases = [round((after - before) / SETTINGS.lease_seconds) for before, after in pairwise(looks)]
    assert leases == [1, 2, 4, 6, 6], "never later than after the time between two moves"


@pytest.mark.parametrize(
    ("said", "accepted", "ours", "learns"),
    [((1,), True, True, True), ((1,), False, True, False), ((2,), True, False, True)],
    ids=["yes", "no", "of another stage"],
)
def test_the_answer(said: tuple[int, ...], accepted: bool, ours: bool, learns: bool) -> None:
    role = learning()
    role.learners[1, D] = Learner(None, NOW + 5.0)
    assert bool(role.on_answer(situation(), D, Answer("lineage", 3, said, accepted, (), "why", True))) is ours
    assert ((1, D) in role.learners) is learns
    assert role.named() == (((1, D),) if ours and learns else ())
    assert (role.memory.asks_again_at(D, 10.0) > NOW) is (not learns)
    if ours and learns:
        assert role.learners[1, D].until == NOW + SETTINGS.install_seconds


def test_who_has_not_answered_yet_is_asked_again_in_the_next_view() -> None:
    """Its answer would be about the view before."""
    role = learning()
    role.learners |= {(1, D): Learner(None, NOW + 5.0), (1, E): Learner(None, NOW + 5.0, True)}
    role.memory.led = role.view.lineage.id, role.view.number
    after = learning(replace(role.view, number=role.view.number + 1), memory=role.memory)
    assert {*after.learners} == {(1, E)} and role.memory.asks_again_at(D, 10.0) <= NOW


def test_of_several_stages_it_may_take_those_that_it_has_room_for() -> None:
    role, out = learning(), Outcome()
    role.ask(situation(), out, standby(D)[D], {2: B, 1: B}, "B leaves")
    (made,) = (each for each in out if isinstance(each, MakeOffer))
    assert made.offer.stages == (1, 2) and role.room(situation(), standby(D, 3)[D]) == 0, "it has not answered"
    assert role.on_answer(situation(), D, Answer("lineage", 3, (1,), True, (), "why", True))
    assert role.named() == ((1, D),) and set(role.learners) == {(1, D)}
    s = situation(presences=standby(D, 3))
    assert role.room(s, s.presences[D]) == 2 and not role.stands_by(s, s.presences[D])
    s.liveness.heard.pop(D)
    assert role.room(s, s.presences[D]) == 0, "it is not heard any more"


@pytest.mark.parametrize(("member", "waits"), [(True, True), (False, False)])
def test_who_is_no_member_is_waited_for_when_it_has_all_that_it_learns(member: bool, waits: bool) -> None:
    """A member says Ready for each stage, and a step waits for those whose weights are there."""
    role, pupil = learning(), C if member else D
    role.learners[1, pupil] = Learner(B, NOW + 100.0, True, applied=7)
    role.learners[2, pupil] = Learner(B, NOW + 100.0, True)
    assert role.wait(situation(), Outcome(), BASE.step) is waits
    role.learners[2, pupil].applied = 7
    assert role.wait(situation(), Outcome(), BASE.step)


@pytest.mark.parametrize(
    ("applied", "said", "waits"),
    [(7, None, True), (6, None, False), (-1, None, False), (7, 1, False), (7, 0, True)],
    ids=["it has the base", "it is a step behind", "it has nothing", "it is Ready", "Ready for what it holds"],
)
def test_a_step_waits_for_a_learner_that_has_its_base(applied: int, said: int | None, waits: bool) -> None:
    role, out = learning(), Outcome()
    role.learners[1, D] = Learner(None, NOW + 100.0, True)
    stage = StageReport(1, "training", applied, 0, 0, 0, 0.1)
    role.on_heartbeat(D, report(stages=(stage,)))
    if said is not None:
        role.progress.ready[D] = ready(said)
    assert role.wait(situation(), out, BASE.step) is waits
    assert out == ([SetTimer("join", NOW + SETTINGS.join_seconds)] if waits else [])
    assert role.ready() == (((1, D),) if said == 1 else ())


def test_a_step_that_waited_in_vain_waits_longer_for_the_next_one() -> None:
    role, out = learning(), Outcome()
    role.learners[1, D] = Learner(None, NOW + 100.0, True, applied=7)
    assert role.wait(situation(), out, 7) and role.wait(situation(), out, 7) and len(out) == 1, "one timer"
    role.late(situation(), out, BASE.step)
    assert role.wait(situation(), out, 7)
    assert out[1:] == [ClearTimer("join"), SetTimer("join", NOW + 2 * SETTINGS.join_seconds)]


@pytest.mark.parametrize(
    ("until", "heard", "kept"),
    [(1.0, 0.1, True), (-0.1, 0.1, False), (1.0, 3 * SETTINGS.lease_seconds, False), (1.0, None, False)],
    ids=["it learns", "it takes too long", "it is gone", "it was never heard"],
)
def test_a_learner_is_given_up(until: float, heard: float | None, kept: bool) -> None:
    role, s = learning(), situation(view=CROWDED)
    role.learners[1, D] = Learner(None, NOW + until, True)
    if heard is not None:
        s.liveness.heard[D] = NOW - heard
    told = role.beat(s)
    assert ((1, D) in role.learners) is kept and bool(told) is not kept


def test_a_leader_that_learns_does_not_hear_itself() -> None:
    role = learning()
    role.learners[1, A] = Learner(None, NOW + 1.0, True)
    s = situation(view=CROWDED)
    s.liveness.heard.pop(A)
    role.beat(s)
    assert (1, A) in role.learners


def test_who_led_the_view_before_goes_on_with_its_learners_and_another_leader_with_those_that_were_begun() -> None:
    for led, kept in ((("lineage", 2), {C}), (("lineage", 1), set[Peer]())):
        memory, progress = LeaderMemory(led=led), ViewProgress()
        memory.learners[1, C] = Learner(None, NOW + 1.0, True)
        losses = Losses(CROWDED, memory, progress, SETTINGS)
        moves = ReplicaMoves(CROWDED, memory, losses, NOW)
        role = Learners(situation(view=CROWDED), CROWDED, memory, progress, losses, moves)
        assert role.memory.pupils() == kept


@pytest.mark.parametrize(
    ("waits", "dropped"),
    [([3.0], False), ([3.0, 3.0], False), ([11.0], False), ([3.0, 8.0], True)],
    ids=["once", "twice, for a moment", "once for long", "twice, for a lease"],
)
def test_who_is_waited_for_in_vain_is_asked_again_later(waits: list[float], dropped: bool) -> None:
    role, out = learning(), Outcome()
    role.learners[1, D] = Learner(None, NOW + 100.0, True, applied=7)
    now = NOW
    for seconds in waits:
        assert role.wait(situation(now=now), out, 7)
        now += seconds
        role.late(situation(now=now), out, 7)
    assert ((1, D) not in role.learners) is dropped
    quiet = sum(waits) * QUIET_TIMES if dropped else 0.0
    assert (role.memory.asks_after == now + quiet) is dropped
    assert (role.memory.asks_again_at(D, 1.0) > now) is dropped


@pytest.mark.parametrize(
    ("usual", "speed", "asked"),
    [(1.0, 100.0, True), (1.0, 20.0, True), (1.0, 10.0, False), (30.0, 1.0, True), (None, 0.1, True), (1.0, 0.0, True)],
    ids=["fast", "four usual steps", "slower", "where all are slow", "nothing is measured", "it says nothing"],
)
def test_who_says_that_it_is_slow_is_not_asked_to_learn(usual: float | None, speed: float, asked: bool) -> None:
    role = learning()
    if usual is not None:
        role.memory.step = Deadline(SETTINGS.lease_seconds, SETTINGS.task_seconds)
        role.memory.step.observe(usual)
    tokens = 80 * SETTINGS.microbatches
    s = situation(history=Steps(tokens), presences=standby(D, tokens_per_second=speed))
    assert role.stands_by(s, s.presences[D]) is asked


class Steps(Past):
    """One step is committed, of so many tokens."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.tokens = tokens

    def newest_commits(self, count: int = 2) -> tuple[Commit, ...]:
        return (Commit(7, 1.0, self.tokens, 1.0, False, ()),)


def test_nobody_new_is_asked_after_newcomers_that_failed() -> None:
    role = learning(CROWDED)
    role.memory.failed_newcomers(NOW, 3.0)
    role.memory.failed_newcomers(NOW, 2.0)
    quiet = 5.0 * QUIET_TIMES
    for now in (NOW, NOW + BEAT, NOW + quiet - 1.0):
        assert MakeOffer not in map(type, role.beat(situation(view=CROWDED, presences=standby(D), now=now)))
    told = role.beat(situation(view=CROWDED, presences=standby(D), now=NOW + quiet))
    assert MakeOffer in map(type, told)


@pytest.mark.parametrize(("site", "stage"), [("", 1), ("x", 1), ("y", 0), ("z", 1)])
def test_of_stages_that_are_equally_slow_it_learns_one_that_is_at_another_site(site: str, stage: int) -> None:
    """A, with the head, is at x, B at y, and C, of whom no pace is known either, at y. The first stage costs most."""
    role = learning(VIEW)
    others = {peer: replace(standby(peer, 0)[peer], site="y") for peer in (B, C)}
    newcomer = {D: replace(standby(D)[D], site=site)}
    settings = replace(SETTINGS, replicas=2, microbatches=32, window=32)
    for now in (NOW, NOW + BEAT):
        s = situation(view=VIEW, settings=settings, presences=others | newcomer, now=now, here="x")
        told = role.beat(s)
    assert [each.offer.stages for each in told if isinstance(each, MakeOffer)] == [(stage,)]
