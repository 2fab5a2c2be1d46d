"""What the run tells those who watch it: why it halts, and what happened before they came."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftnode.node.manifests.presets import PRESETS
from ftnode.node.watch.run_status import Surroundings, run_status
from ftnode.protocol.manifest.sections import Manifest
from tests.sim.test_comings_and_goings import LONG, seen, started
from tests.sim.world import World

HALTING = replace(LONG, ends="halt", head_every=1)
MANIFEST: Manifest = PRESETS["tiny"]


@pytest.mark.parametrize(
    ("lost", "why"),
    [
        ((1,), "nobody is left on one side of stage 1, and the manifest says to stop then"),
        ((1, 2, 3), "all block stages are lost together"),
    ],
)
def test_a_run_that_halts_says_why_and_what_can_be_done(lost: tuple[int, ...], why: str) -> None:
    world = started(World(HALTING, 3, delay_max=0.01), 8)
    commit, view = world.ledger.top_commit(), seen(world)
    assert commit > 3
    for stage in lost:
        world.kill(world.by_id[view.holders[stage][0].id], "kill", silently=False)
    world.run(world.now + 120.0)
    assert world.ledger.top_commit() <= commit + 1
    leader = world.by_id[seen(world).leader.id]
    listed = ", ".join(map(str, lost))
    waiting = leader.participant.waiting()
    assert waiting.startswith("halted: ") and f"a former holder of stage {listed}" in waiting, waiting
    assert any(" halt" in note and why in note for note in world.notes), list(world.notes)
    status = run_status(leader.participant.picture, MANIFEST, Surroundings("cpu"), world.now)
    assert (status.state, status.waiting) == ("halted", waiting)


def test_who_comes_late_is_told_of_recoveries_before_its_time() -> None:
    """The head is lost and comes back; later the holder of stage 1 goes, and a peer that has only just come takes its
    place, and with it a copy of the head and the history that travels with it."""
    world = started(World(replace(LONG, head_every=1), 3, delay_max=0.01), 5)
    view = seen(world)
    world.kill(world.by_id[view.holders[0][0].id], "kill", silently=False)
    world.run(world.now + 60.0)
    step = next(step for step, stage in _rebuilds(world, seen(world).leader.id) if stage == 0)
    view = seen(world)
    world.start("late", 1, True)
    world.run(world.now + 10.0)
    late = world.by_id["late"].participant
    assert (step, 0) not in late.chronicle.rebuilds and world.ledger.top_commit() > step + 8
    world.kill(world.by_id[view.holders[1][0].id], "kill", silently=False)
    world.run(world.now + 60.0)
    assert seen(world).stages_of(late.me) == (1,)
    rebuild = late.chronicle.rebuilds[step, 0]
    assert rebuild.newcomer is None and rebuild.rung == "head" and rebuild.seconds is not None
    row = next(
        row for row in run_status(late.picture, MANIFEST, Surroundings("cpu"), world.now).recoveries if row.stage == 0
    )
    assert (row.step, row.rung, row.newcomer, row.bytes_fetched) == (
        step,
        "head",
        "",
        0,
    ) and row.seconds == rebuild.seconds


def test_the_bytes_of_copies_are_counted_by_keeper_and_stage() -> None:
    """Of the virtual world every copy has 1000 bytes: so many as there were commits, for the head."""
    world = started(World(replace(LONG, head_every=2), 3, delay_max=0.01), 4)
    view = seen(world)
    leader = world.by_id[view.leader.id].participant
    rows = run_status(leader.picture, MANIFEST, Surroundings("cpu"), world.now).copies
    keepers = {view.holders[1][0].id, view.holders[3][0].id}
    assert {row.peer for row in rows} == keepers and {row.stage for row in rows} == {0}
    copies = world.ledger.top_commit() // 2
    for row in rows:
        assert row.step % 2 == 0 or row.step <= 2
        assert abs(row.bytes_fetched / 1000 - copies) <= 2 and row.bytes_fetched > 5000


def _rebuilds(world: World, peer: str) -> list[tuple[int, int]]:
    return list(world.by_id[peer].participant.chronicle.rebuilds)
