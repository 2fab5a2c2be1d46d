"""Strangers who announce nonsense in the directory: a swarm that loses a stage goes on as if they were not there."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from ftnode.protocol.words.events import Directory
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import INITIAL_ATTEMPT, Peer, Version
from ftnode.protocol.words.view import View
from tests.protocol.wire.test_admission import some
from tests.sim.directory import DirectoryService
from tests.sim.host import Host
from tests.sim.planted import patched
from tests.sim.targets import best_view
from tests.sim.test_restart import Swarm

SETTINGS = Settings(
    run="sim", stages=3, steps=400, microbatches=2, window=2, head_every=1, lease_seconds=3.0, minority_wait_seconds=6.0
)
LIAR = Peer("zzliar", 7)
NEWCOMER = "newcomer"


def lie(swarm: Swarm, copies: tuple[tuple[int, Version], ...]) -> Presence:
    view = best_view(swarm.world)
    assert view is not None
    return Presence(LIAR, ("/sim/zzliar",), view.lineage.id, 0, 0, False, (), (), copies, 0.0)


def loses(swarm: Swarm, stage: int) -> int:
    """How many steps the swarm commits in the minute after it lost the stage's only holder."""
    world = swarm.world
    world.run(world.now + 5.0)
    world.kill(world.by_id[swarm.holder_of(stage)], "kill", silently=False)
    before = max(step for _, step in swarm.commits)
    world.run(world.now + 60.0)
    return max(step for _, step in swarm.commits) - before


@pytest.mark.parametrize(("announced", "lost"), [(999, 3), (-1, 1), (4, 3), (2**63, 1)])
def test_a_copy_of_a_stage_that_does_not_exist_costs_nobody_anything(announced: int, lost: int) -> None:
    swarm = Swarm(SETTINGS, peers=6)
    swarm.until(5)
    odd = lie(swarm, ((announced, Version(0, "x", INITIAL_ATTEMPT)),))
    swarm.world.directory.lies = lambda: Directory((odd,), ())
    assert loses(swarm, lost) > 10
    notes = [note for note in swarm.world.notes if "nonsense" in note]
    assert all("liar" in note for note in notes)
    assert 0 < len(notes) <= len(swarm.world.hosts), "everybody says it once"


@pytest.mark.parametrize("seed", range(6))
def test_whatever_strangers_announce_the_swarm_goes_on(seed: int) -> None:
    """Well-typed records with any values; none of a lineage or view that honest peers could not tell from their own."""
    swarm = Swarm(SETTINGS, peers=6, seed=seed)
    swarm.until(5)
    chance, view = Random(seed), best_view(swarm.world)
    assert view is not None

    def announced() -> Directory:
        made = (some(Presence, chance) for _ in range(20))
        lineage = view.lineage.id
        liars = (replace(one, peer=Peer(f"{LIAR.id}{n}", 1), lineage=lineage) for n, one in enumerate(made))
        views = (replace(some(View, chance), run="sim", leader=LIAR) for _ in range(5))
        return Directory(tuple(liars), tuple(replace(v, voters=(), epochs=()) for v in views))

    swarm.world.directory.lies = announced
    assert loses(swarm, seed % 4) > 3


def test_a_directory_that_hides_the_run_keeps_who_knows_no_other_peer_from_it() -> None:
    """It is not defended, as SECURITY.md says. Where it hides nothing, the same newcomer finds the run."""
    assert follows_the_run(hidden=False) and not follows_the_run(hidden=True)


def follows_the_run(hidden: bool) -> bool:
    swarm = Swarm(SETTINGS, peers=6)
    swarm.until(5)
    world, visible = swarm.world, DirectoryService._visible

    def hiding(self: DirectoryService, reader: Host) -> tuple[tuple[Presence, ...], tuple[View, ...]]:
        """The newcomer is told of nobody, and nobody of it."""
        presences, views = visible(self, reader)
        if reader.peer.id == NEWCOMER:
            return (), ()
        return tuple(presence for presence in presences if presence.peer.id != NEWCOMER), views

    with patched(*[(DirectoryService, "_visible", hiding)] if hidden else []):
        newcomer = world.start(NEWCOMER, 1, True)
        world.run(world.now + 30.0)
    view = best_view(world)
    assert view is not None and view.members() != (newcomer.peer,)
    return newcomer.view is not None and newcomer.view.lineage.id == view.lineage.id
