"""Newcomers of a swarm that is too large to show its view in the directory: presences alone lead them to it."""

from __future__ import annotations

from typing import Final

import pytest

from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.view import View
from tests.sim.directory import DirectoryService
from tests.sim.host import Host
from tests.sim.planted import patched
from tests.sim.targets import best_view
from tests.sim.test_restart import Swarm

SETTINGS: Final = Settings(
    run="sim", stages=2, steps=100_000, microbatches=4, window=2, replicas=2, lease_seconds=5.0,
    minority_wait_seconds=9.0,
)  # fmt: skip
JOIN_SECONDS: Final = 90.0


def no_claims(self: DirectoryService, host: Host, view: View | None) -> None:
    """Too large a record, which nobody writes."""


def no_presence(self: DirectoryService, host: Host, presence: Presence) -> None:
    """Nor that one."""


@pytest.mark.parametrize("nothing", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_newcomer_finds_the_swarm_and_founds_none(seed: int, nothing: bool) -> None:
    """Where the directory has no presences either, it founds a run of its own."""
    swarm = Swarm(SETTINGS, 3, seed)
    swarm.until(3)
    world = swarm.world
    lineages = {name for name, _ in world.ledger.views}
    for shelves in world.directory.shelves.values():
        for shelf in shelves:
            shelf.views.clear()
            if nothing:
                shelf.presences.clear()
    patches = [(DirectoryService, "publish", no_claims), (DirectoryService, "announce", no_presence)]
    with patched(*patches[: 1 + nothing]):
        newcomer = world.start("newcomer", 1)

        def joined() -> bool:
            view = best_view(world)
            return view is not None and newcomer.peer in view.members()

        world.run(world.now + JOIN_SECONDS, joined)
        assert joined() is not nothing, world.notes[-20:]
    assert ({name for name, _ in world.ledger.views} == lineages) is not nothing
