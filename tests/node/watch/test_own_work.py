"""What a node counts as its own work: visits of committed steps, each once."""

from __future__ import annotations

from ftnode.node.watch.own_work import OwnWork, summary
from ftnode.protocol.chronicle import Chronicle
from ftnode.protocol.picture import Picture
from ftnode.protocol.words.messages import Commit
from ftnode.protocol.words.types import Attempt, Rung, Version
from tests.protocol.pictures import picture
from tests.protocol.situations import SETTINGS

VISITS = SETTINGS.microbatches * (SETTINGS.stages + 2)
"""Of a step: the head has two of each microbatch."""


def version(step: int, attempt: Attempt) -> Version:
    return Version(step, "c", attempt)


def shown(step: int, *stages: int) -> Picture:
    """A member's view of a run that has come so far, with these stages in its memory."""
    history = Chronicle()
    history.commit(Commit(step, 2.0, 1, 1.0, False, (), ()), 0.0)
    versions = {stage: version(step, Attempt(1, 1)) for stage in stages}
    return picture(history=history, versions=versions, mine=stages)


def test_a_visit_counts_when_its_step_is_committed_by_its_attempt() -> None:
    work = OwnWork()
    work.reduced(1, 5, Attempt(1, 4), 4)
    assert work.visits == 0, "not yet"
    work.reduced(1, 5, Attempt(1, 5), 3)
    work.applied(1, version(5, Attempt(1, 5)))
    work.applied(1, version(5, Attempt(1, 5)))
    assert (work.visits, work.steps) == (3, 1), "the attempt before is void, and nothing counts twice"
    work.reduced(1, 6, Attempt(1, 6), 3)
    work.applied(1, version(6, Attempt(1, 7)))
    assert work.visits == 3, "others made that step"


def test_several_stages_in_one_step_are_one_step() -> None:
    work = OwnWork()
    for stage in (0, 1):
        work.reduced(stage, 1, Attempt(1, 1), 2)
        work.applied(stage, version(1, Attempt(1, 1)))
    assert (work.visits, work.steps) == (4, 1)


def test_the_share_is_of_what_was_done_since_it_came() -> None:
    work = OwnWork()
    work.look(shown(100), 0.0)
    assert work.share is None
    for step in (101, 102):
        work.reduced(1, step, Attempt(1, step), VISITS // 4)
        work.applied(1, version(step, Attempt(1, step)))
    work.look(shown(104, 1), 1.0)
    assert work.share == (VISITS // 4) * 2 / (4 * VISITS)


def test_who_does_everything_from_the_beginning_has_all_of_it() -> None:
    work = OwnWork()
    for step in (1, 2, 3):
        work.reduced(1, step, Attempt(1, step), VISITS)
        work.applied(1, version(step, Attempt(1, step)))
    work.look(shown(3, 1), 1.0)
    assert work.share == 1.0


def test_hours_count_while_it_holds_something_and_is_awake() -> None:
    work = OwnWork()
    for now, stages in ((0.0, ()), (1.0, (1,)), (2.0, (1, 2)), (3.0, ()), (4.0, (1,)), (3600.0, (1,)), (3601.0, (1,))):
        work.look(shown(1, *stages), now)
    assert work.held_seconds == 4.0 and work.stages == {1, 2}


def test_what_it_learns_it_does_not_hold() -> None:
    work = OwnWork()
    for now, mine in ((0.0, ()), (1.0, ()), (2.0, (1,))):
        work.look(shown(1, 1)._replace(mine=mine), now)
        assert work.stages == {*mine}
    assert work.held_seconds == 1.0


def test_what_was_lost_and_came_back_here() -> None:
    work = OwnWork()
    for rung in (Rung.INITIAL, Rung.REPLICA, Rung.BLEND, Rung.SHADOW):
        work.installed(rung)
    assert work.recoveries == 2


def test_a_swarm_that_starts_again_from_its_disks_has_lost_nothing() -> None:
    work = OwnWork()
    for rung in (Rung.SNAPSHOT, Rung.KEPT):
        work.installed(rung)
    assert work.recoveries == 0


def test_the_summary() -> None:
    work = OwnWork()
    assert summary(work) == "this node held no stage, and so did no work"
    work = OwnWork(visits=3210, steps=40, held_seconds=3720.0, stages={0, 2}, share=0.314, recoveries=1)
    assert summary(work) == (
        "this node held the head and stage 2 for 62 min, and took 3,210 microbatches through in 40 steps, "
        "31% of the run's work meanwhile; it brought back 1 lost stage"
    )
    assert work.fields() == {
        "visits": "3210", "steps": "40", "held_seconds": "3720", "stages": "0,2", "recoveries": "1", "share": "0.3140",
    }  # fmt: skip
