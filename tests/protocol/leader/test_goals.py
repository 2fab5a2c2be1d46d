"""The leader goes to a layout change by change, and gives it up when things are different (leader/goals.py)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest

from ftnode.protocol.leader import goals
from ftnode.protocol.leader.leader_memory import LeaderMemory
from ftnode.protocol.leader.learners import Learners
from ftnode.protocol.leader.outlook import name_of
from ftnode.protocol.planning.goal import Goal
from ftnode.protocol.situation import MakeOffer, Situation
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import View
from tests.protocol.leader.test_learners import BEAT, CROWDED, E, learning
from tests.protocol.situations import NOW, SETTINGS, A, B, C, D, situation, standby, view_of

LATER = NOW + SETTINGS.move_seconds
COSTLY = 1e9
"""No layout on the way costs more."""
TWICE = view_of((A,), (B, C), (B,))


def goal(*groups: tuple[Peer, ...], known: tuple[Peer, ...] = (A, B, C, D)) -> Goal:
    return Goal(tuple(tuple(map(name_of, group)) for group in groups), COSTLY, frozenset(map(name_of, known)))


def asked(role: Learners, s: Situation) -> list[tuple[Peer, tuple[int, ...]]]:
    return [(each.to, each.offer.stages) for each in role.beat(s) if isinstance(each, MakeOffer)]


def at(now: float, presences: Mapping[Peer, Presence], view: View = CROWDED) -> Situation:
    return situation(view=view, presences=presences, now=now)


@pytest.fixture
def no_single_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has a place, and nobody moves."""
    monkeypatch.setattr("ftnode.protocol.planning.changes.Changes.best_place", lambda *given: None)
    monkeypatch.setattr(Learners, "_single_change", lambda *given: False)


@pytest.mark.usefixtures("no_single_change")
def test_who_stands_by_is_asked_for_what_it_has_there_and_not_soon_after_the_last_change() -> None:
    role = learning(CROWDED)
    role.memory.goal = goal((A,), (B,), (D,))
    assert asked(role, at(LATER - 0.1, standby(D))) == []
    assert asked(role, at(LATER, standby(D))) == [(D, (2,))]
    assert role.learners[2, D].giver == B
    assert "on the way to" in role.memory.plan and "head: a; 1: b; 2: d" in role.memory.plan
    assert asked(role, at(LATER + SETTINGS.move_seconds, standby(D))) == [], "one change at a time"


@pytest.mark.usefixtures("no_single_change")
def test_a_member_gives_up_what_others_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftnode.protocol.planning.goal.GAIN", -1.0)  # by these paces it gains little
    role = learning(TWICE)
    role.memory.goal = goal((A,), (C,), (B,))
    assert asked(role, at(LATER, standby(D), TWICE)) == []
    assert role.losses.vacated.keys() == {(1, B)}


@pytest.mark.parametrize("here", [(C,), (D,), ()], ids=["somebody else", "it is there", "nobody"])
@pytest.mark.usefixtures("no_single_change")
def test_it_is_given_up_when_somebody_is_gone_who_is_to_hold_something(here: tuple[Peer, ...]) -> None:
    role = learning(CROWDED)
    role.memory.goal = goal((A,), (B,), (D,))
    presences = {peer: standby(peer)[peer] for peer in here}
    found = asked(role, at(LATER, presences))
    assert (role.memory.goal is not None) is (D in here) and bool(found) is (D in here)


def test_who_had_no_place_when_it_was_set_is_not_asked_for_one_on_the_way() -> None:
    """It would be in the way. Somebody new has a place, and the goal is none any more."""
    wanted = goal((A,), (B,), (D,))
    for who, stands in ((C, True), (E, False)):
        role = learning(CROWDED)
        role.memory.goal = wanted
        for now in (NOW, NOW + BEAT):
            found = asked(role, at(now, standby(D) | standby(who)))
        assert (role.memory.goal is wanted) is stands
        assert bool(found) is not stands


@pytest.mark.usefixtures("no_single_change")
def test_while_nobody_new_is_asked_who_stands_by_is_not_asked_on_the_way_either() -> None:
    role = learning(CROWDED)
    role.memory.goal = goal((A,), (B,), (D,))
    role.memory.asks_after = LATER + 1.0
    assert asked(role, at(LATER, standby(D))) == [] and role.memory.goal is None


@pytest.mark.usefixtures("no_single_change")
def test_with_the_same_peers_it_is_looked_for_again_after_twice_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[float] = []
    monkeypatch.setattr(goals, "find_goal", lambda *given: looked.append(now))
    memory, now, moves = LeaderMemory(), NOW, SETTINGS.move_seconds
    role = learning(CROWDED, memory=memory)

    def watch(presences: Mapping[Peer, Presence], seconds: float) -> None:
        nonlocal now
        until = now + seconds
        while now < until:
            now += BEAT
            role.beat(at(now, presences))

    watch(standby(D), 17 * moves)
    waits = [(after - before) / moves for before, after in pairwise(looked)]
    assert [round(one) for one in waits] == [2, 4, 8]
    looked.clear()
    watch(standby(D) | standby(E), 2 * moves)
    assert len(looked) == 1, "somebody has come, so that it is looked for at once"
    watch(standby(D) | standby(E), 14 * moves)
    looked.clear()
    while now < NOW + 40 * moves:
        watch(standby(D), 2 * BEAT)
        watch(standby(D) | standby(E), 5 * BEAT)
    assert looked == [], "who only stands by comes and goes"


@pytest.mark.usefixtures("no_single_change")
def test_when_a_member_is_lost_it_is_looked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something else is best without it, however often it was looked for with it. A new view has a new role, and the
    same memory."""
    looked: list[float] = []
    monkeypatch.setattr(goals, "find_goal", lambda *given: looked.append(now))
    memory, now, moves = LeaderMemory(), NOW, SETTINGS.move_seconds
    for view, seconds in ((view_of((A,), (B, C), (B,)), 40 * moves), (view_of((A,), (B,), (B,)), 2 * moves)):
        role, until = learning(view, memory=memory), now + seconds
        role.moves.since = now
        while now < until:
            now += BEAT
            role.beat(at(now, standby(D), view))
    assert [round((one - NOW) / moves) for one in looked] == [1, 3, 7, 15, 31, 41]
