"""What the leader takes others to be, by their word, and how much it looks at."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from ftnode.protocol.leader.leader_memory import LeaderMemory
from ftnode.protocol.leader.outlook import Outlook, name_of, paces_of
from ftnode.protocol.lines.step_estimate import Line
from ftnode.protocol.liveness.deadlines import Deadline
from ftnode.protocol.planning.changes import Changes
from ftnode.protocol.planning.costs import Costs
from ftnode.protocol.planning.schedule import Batch
from ftnode.protocol.planning.search import WORK_MAX
from ftnode.protocol.planning.swarm import Swarm, alike
from ftnode.protocol.words.messages import Commit, StageReport
from ftnode.protocol.words.types import Peer
from tests.protocol.situations import SETTINGS, A, B, C, D, Held, Past, report, situation, standby, view_of

E = Peer("e", 1)
VIEW = view_of((A,), (B,), (C,))
TOLD = {
    B: report(stages=(StageReport(1, "training", 7, 0, 0, 0, 0.4),)),
    C: report(stages=(StageReport(2, "training", 7, 0, 0, 0, 0.1, 0.5),)),
}


class Steps(Past):
    def newest_commits(self, count: int = 2) -> tuple[Commit, ...]:
        return (Commit(7, 1.0, 10 * SETTINGS.microbatches, 1.0, False, ()),)


@pytest.mark.parametrize(
    ("speed", "seconds"),
    [(20.0, 0.5), (1e9, 0.1), (0.0, 0.25)],
    ids=["what it says", "no more than the fastest that was measured", "it says nothing: as fast as the others"],
)
def test_a_newcomer_is_as_fast_as_it_says_within_bounds(speed: float, seconds: float) -> None:
    """Ten tokens a microbatch."""
    presences = standby(D, 3, tokens_per_second=speed)
    settings = replace(SETTINGS, forward_bytes=1000)
    s = situation(view=VIEW, reports=TOLD, presences=presences, history=Steps(), settings=settings)
    block, head = paces_of(s, {A: (0,), B: (1,), C: (2,)}, presences)[D]
    assert block == pytest.approx(seconds) and head == pytest.approx(seconds)


class Measured(Held):
    def pace_of(self, stage: int) -> float:
        return 0.4


NONSENSE = (5e-324, 1e-310, 1e-9, 0.4, 9.9e8)


@pytest.mark.parametrize("speed", [5e-324, 1e-310, 1.0, 1.7e308])
@pytest.mark.parametrize("seconds", NONSENSE)
@pytest.mark.parametrize("line", [0.0, *NONSENSE])
def test_whatever_a_peer_says_of_its_pace_the_leader_can_compute_with_it(
    speed: float, seconds: float, line: float
) -> None:
    """A member without a measured pace is taken by its word, too, and so is the head's ratio to other stages."""
    settings = replace(SETTINGS, forward_bytes=1000, replicas=2)
    mine = (StageReport(0, "training", 7, 0, 0, 0, 9.9e8 if seconds < 1 else 5e-324), StageReport(1, "", 7, 0, 0, 0, 0))
    reports = {B: report(stages=mine), C: report(stages=(StageReport(2, "training", 7, 0, 0, 0, seconds, line),))}
    everybody = standby(D, 3, tokens_per_second=speed) | standby(B, 3, tokens_per_second=speed) | standby(C, 3)
    for reported in (reports, {C: reports[C]}, {}):
        view = view_of((B,), (B,), (C,))
        s = situation(view=view, reports=reported, presences=everybody, history=Steps(), settings=settings)
        outlook = Outlook(s, LeaderMemory(), view.holders, [everybody[D]])
        for found in (outlook.changes.best_place(name_of(D)), outlook.changes.best_wider([name_of(B), name_of(C)])):
            assert found is None or 0 < found.worth.seconds < float("inf")


def test_of_a_run_that_one_peer_holds_nobody_takes_more_than_half_by_its_word() -> None:
    """Somebody says that it is a million times as fast; before anything is measured, that counts."""
    view = view_of(*[(A,)] * 9)
    presences = standby(D, 9, tokens_per_second=1e9)

    def taken(measured: bool) -> int:
        own = Measured() if measured else Held()
        s = situation(view=view, own=own, presences=presences, history=Steps(), settings=MANY)
        found = Outlook(s, LeaderMemory(), view.holders, presences.values()).changes.best_place(name_of(D))
        assert found is not None
        return len(found.place.stages)

    assert taken(measured=True) <= 5 < taken(measured=False)


MANY = replace(SETTINGS, stages=8)


def test_a_line_is_known_where_tensors_have_waited_for_it() -> None:
    settings = replace(SETTINGS, forward_bytes=1000, backward_bytes=1000)
    s = situation(view=VIEW, reports=TOLD, presences=standby(B, 2), settings=settings)
    swarm = Outlook(s, LeaderMemory(), VIEW.holders).costs.swarm
    assert swarm.machines[name_of(C)].line.up == 4000 and swarm.machines[name_of(B)].line.up == float("inf")
    assert swarm.room == {name_of(A): 1, name_of(B): 3, name_of(C): 1}


@pytest.mark.parametrize(("step", "full"), [(None, True), (5.0, True), (20.0, False)])
def test_a_line_that_all_microbatches_of_a_step_hardly_use_is_not_full(step: float | None, full: bool) -> None:
    """Half a second for each of two microbatches: tensors waited for it, since the node was busy."""
    settings = replace(SETTINGS, forward_bytes=1000, backward_bytes=1000, microbatches=2)
    s, memory = situation(view=VIEW, reports=TOLD, settings=settings), LeaderMemory()
    if step is not None:
        memory.step = Deadline(0.1, 60.0)
        memory.step.observe(step)
    line = Outlook(s, memory, VIEW.holders).costs.swarm.machines[name_of(C)].line
    assert line.up == (4000 if full else inf)


def test_a_line_that_is_not_known_is_free_but_in_the_search_for_a_goal() -> None:
    """Where newcomers were taken to have the fastest line that looked full, none came into a run on thick lines for
    minutes: its sums seemed to take long."""
    settings = replace(SETTINGS, forward_bytes=1000, backward_bytes=1000)
    idle = {**standby(D), **standby(E)}
    s, memory = situation(view=VIEW, reports=TOLD, presences=idle, settings=settings), LeaderMemory()
    memory.measure({}, {E: Line.of_home(500.0)})
    up = {
        careful: [machines[name_of(peer)].line.up for peer in (B, C, D, E)]
        for careful in (False, True)
        for machines in (Outlook(s, memory, VIEW.holders, idle.values(), careful).costs.swarm.machines,)
    }
    assert up[False] == [inf, 4000, inf, inf], "who stands by, too"
    assert up[True] == [4000, 4000, 4000, 500], "who worked before has the line that it had"


def test_a_large_swarm_is_looked_at_within_the_time_of_a_search() -> None:
    """64 machines, 32 stages, two holders of each: where one more goes, who moves, who takes more."""
    names = [f"p{number:02}" for number in range(65)]
    machines = {name: alike((0.1 + number % 7 / 50, 0.2), (0.1, 0.2), 32) for number, name in enumerate(names)}
    swarm = Swarm(machines, dict.fromkeys(names, 4), (1,) * 33, Batch(32, 32), 3)
    present = tuple((names[stage], names[stage + 31]) for stage in range(33))
    changes = Changes(Costs(swarm), present)
    assert changes.best_place(names[-1]) is not None and changes.costs.work <= WORK_MAX
    movable = {name: stages for name, stages in changes.held.items() if len(stages) == 1}
    for look in (lambda: changes.best_move(movable, 1e6), lambda: changes.best_wider(names[:64])):
        changes.costs.work = 0
        look()
        assert changes.costs.work <= WORK_MAX
