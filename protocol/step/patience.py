"""How long one move of a step may take: for the member that owes it, and for the leader that watches (rule 38)."""

from __future__ import annotations

from ftnode.protocol.words.messages import Begin
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import View

TASKS_OF_A_VISIT = 4
"""Forward, recompute, backward, and the stage's sum."""
LEADER_LEASES = 8
"""Two for an excuse (below), two for somebody who may not hear the leader, and four for offers and votes."""


def most_tasks(settings: Settings) -> int:
    """Nobody has more to do in one attempt."""
    return TASKS_OF_A_VISIT * (settings.stages + 2) * (settings.microbatches + settings.evaluation_microbatches)


def of_several(settings: Settings, view: View, peer: Peer, seconds: float) -> float:
    """Who holds several stages may have a task of each before anybody sees something of it."""
    return seconds * max(1, len(view.stages_of(peer))) if seconds >= settings.task_seconds else seconds


def with_other_work(settings: Settings, begin: Begin, peer: Peer, seconds: float) -> float:
    """Who rebuilds a stage has the time for that, and a validation is work besides."""
    if begin.evaluate:
        seconds *= 1 + settings.evaluation_microbatches / settings.microbatches
    return seconds + settings.install_seconds * any(plan.peer == peer for plan in begin.installs)


def excuse_seconds(settings: Settings, of_sum: bool) -> float:
    """How long it can be true that a tensor is not acknowledged, or that a sum is being made: then rules 9 and 23 have
    settled it."""
    return (settings.sum_seconds if of_sum else settings.stall_seconds) + 2 * settings.lease_seconds


def leader_seconds(settings: Settings, view: View, begin: Begin | None) -> float:
    """Under a leader that does its duty somebody gets something done in this time, or another view comes. No measured
    time makes a leader wait for longer."""
    debts = []
    for peer in view.members():
        seconds = of_several(settings, view, peer, settings.task_seconds)
        debts.append(seconds if begin is None else with_other_work(settings, begin, peer, seconds))
    return max(debts) + leader_seconds_min(settings)


def leader_seconds_min(settings: Settings) -> float:
    """Under any leader, whatever its members owe."""
    sums = max(settings.sum_seconds, settings.shown_seconds if settings.checks else 0.0)
    return sums + LEADER_LEASES * settings.lease_seconds
