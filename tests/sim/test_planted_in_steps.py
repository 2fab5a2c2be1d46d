"""Bugs that few seeds meet: deaths at many events of a step must show them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from ftnode.protocol.leader.duty import Duty
from ftnode.protocol.situation import Outcome
from ftnode.protocol.words.messages import Boundary, Message
from ftnode.protocol.words.types import Direction
from tests.sim.host import Host
from tests.sim.planted import (
    admitted_between_status_and_begin,
    forks_go_on,
    kept_tensors_stay,
    patched,
    sums_of_an_earlier_view,
)  # fmt: skip
from tests.sim.test_every_moment import QUIET, begun, trace, traces, undisturbed, view_of
from tests.tiers import at_night

pytestmark = pytest.mark.timeout(600)


def three(every: int, *, one: bool = False) -> dict[str, str]:
    """Two survivors of a group, of whom one has the sum and the other waits for it."""
    return traces("first of 1", every, replace(QUIET, replicas=3, steps=14), sum_seconds=0.3, one=one)


WHERE: dict[str, tuple[Callable[[], Any], Callable[[], dict[str, str]]]] = {
    "sums of an earlier view": (sums_of_an_earlier_view, lambda: three(4, one=True)),
    "kept tensors stay": (kept_tensors_stay, lambda: traces("leader", 12, one=True)),
    "forks go on": (forks_go_on, lambda: traces("several", 24, one=True)),
}
"""Name → the bug, and the deaths that show it."""


@pytest.mark.parametrize("name", WHERE)
def test_a_planted_bug_is_found(name: str) -> None:
    plant, deaths = WHERE[name]
    with plant():
        assert deaths()


def test_three_holders_and_slow_sums_leave_no_trace_either() -> None:
    assert three(8 if at_night() else 24) == {}


def last_task_during_an_election(seconds: float) -> str:
    """A holder of the head has one more microbatch to admit. While it works on the one before, somebody on that one's
    path dies; its task ends when it has told the leader of its paths, and the Begin is on its way to it."""
    one_at_a_time = replace(QUIET, window=1)
    wanted, world = undisturbed(one_at_a_time), begun(one_at_a_time)
    view = view_of(world)

    def strike(host: Host, message: Message) -> None:
        begin = host.participant.holder.begin
        if type(message) is not Boundary or message.direction is not Direction.BACKWARD or message.visit:
            return
        if begin is None or len(dict(begin.shares)[host.peer]) < 2:
            return
        world.on_receive = None
        host.forward_seconds = seconds
        for other in world.live():
            for link in (host.links.get(other.peer), other.links.get(host.peer)):
                if link is not None:
                    link.delay = 0.5
        victim = next(peer for peer in message.path[1:-1] if peer != view.leader)
        world.kill(world.by_id[victim.id], "kill", silently=False)

    world.on_receive = strike
    found = trace(world, wanted)
    assert world.on_receive is None
    return found


@pytest.mark.parametrize("planted", [True, False], ids=["planted", "as it is"])
def test_nothing_is_admitted_between_status_and_begin(planted: bool) -> None:
    nobody_is_lost_for_it = patched((Duty, "beat", lambda self, s: Outcome()))
    with admitted_between_status_and_begin() if planted else nullcontext(), nobody_is_lost_for_it:
        found = any(last_task_during_an_election(tenths / 10) for tenths in range(10, 20))
    assert found == planted
