"""A layout that the leader goes to, change by change, where no single change is worth it (protocol/planning/goal.py).

It is the leader's, and goes with it. It is given up when somebody is lost who is concerned, when somebody new comes, or
when the next change is not worth it any more. With the same peers the search is asked again after twice as long each
time; when somebody new has come, or a member is lost, at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import inf

from ftnode.protocol.leader.leader_memory import DOUBLINGS_MAX, LeaderMemory, Searched
from ftnode.protocol.leader.outlook import Outlook, name_of
from ftnode.protocol.leader.replica_moves import expected_steps
from ftnode.protocol.planning.changes import Choice
from ftnode.protocol.planning.goal import Goal, Limits, find_goal, next_change
from ftnode.protocol.planning.swarm import in_words
from ftnode.protocol.situation import Outcome, Situation
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.types import Peer


def going_to(memory: LeaderMemory, expected: Iterable[Iterable[Peer]], idle: Iterable[Presence]) -> Goal | None:
    """The goal, unless it is reached or nobody can go there any more: it is forgotten then. `idle`: who stands by, and
    may work without others beside it."""
    if memory.goal is None:
        return None
    present = tuple(tuple(map(name_of, group)) for group in expected)
    known = {*(name for group in present for name in group), *(name_of(one.peer) for one in idle)}
    if not memory.goal.stands(present, known):
        memory.goal = None
    return memory.goal


def set_goal(s: Situation, out: Outcome, memory: LeaderMemory, outlook: Outlook, limits: Limits) -> None:
    """Where one is worth it."""
    members = frozenset(map(name_of, s.members))
    names = members | {*map(name_of, s.presences)}
    last = memory.searched
    count = last.count if last is not None and last.same(names) else 0
    if last is not None and count and s.now < last.at + s.settings.move_seconds * (1 << min(count, DOUBLINGS_MAX)):
        return
    memory.searched = Searched(names, members, count + 1, s.now)
    usual = memory.usual_step or inf
    goal = find_goal(outlook.changes, expected_steps(s, memory), limits, s.settings.checks > 0, usual)
    if goal is None:
        return
    memory.goal = replace(goal, names=goal.names | names)
    now = outlook.costs.scheduled(outlook.changes.present).seconds
    out.note("goal", f"a step takes about {now:.3g} s; change by change, the swarm goes to {spoken(outlook, goal)}")


def spoken(outlook: Outlook, goal: Goal) -> str:
    holders = tuple(tuple(str(outlook.peers[name]) for name in group) for group in goal.holders)
    return f"{outlook.costs.scheduled(goal.holders).seconds:.3g} s with {in_words(holders)}"


def next_on_the_way(memory: LeaderMemory, outlook: Outlook, limits: Limits) -> Choice | None:
    """None: there is no goal any more."""
    found = next_change(outlook.changes, memory.goal, limits) if memory.goal is not None else None
    if found is None:
        memory.goal = None
    return found


def gives_up(outlook: Outlook, choice: Choice) -> bool:
    """The change is that the giver gives up what others hold, and nobody learns anything."""
    return {*choice.place.stages} <= {*outlook.changes.held.get(choice.place.name, ())}
