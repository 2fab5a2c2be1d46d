"""A stranger's views cost a swarm nothing, whatever it signs (rule 14)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ftnode.protocol.views import following, proofs
from ftnode.protocol.views.following import Following
from ftnode.protocol.views.proofs import Proofs
from tests.sim import forged_views
from tests.sim.checks import Violation
from tests.sim.forged_views import WAYS, commits_around, is_hurt
from tests.sim.planted import patched
from tests.sim.world import World

pytestmark = pytest.mark.timeout(300)


def holds(seed: int, way: str) -> bool:
    try:
        before, during, after = commits_around(seed, way)
    except Violation:
        return False
    assert before > 20
    return not is_hurt(way, before, during, after)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_swarm_goes_on_as_before(seed: int, way: str) -> None:
    """More seeds: `python -m tests.sim.forged_views FIRST LAST`."""
    assert holds(seed, way)


def anything_follows() -> Any:
    """A later view counts whoever signed it."""
    return patched((proofs, "follows", lambda trusted, later: later.view.number > trusted.number))


def anybody_is_akin() -> Any:
    """Nobody asks who founded a fork."""
    return patched((Proofs, "akin", lambda self, proof: True))


def far_is_enough() -> Any:
    """Whoever claims to be far ahead is believed in an open run."""
    return patched((following, "ABOUT", 10**9))


def the_directory_is_believed() -> Any:
    """A record shows which view is the newest."""
    return patched((Proofs, "of", lambda self, view: None), (Following, "_can_ask", lambda self, s: False))


def anybody_shows() -> Any:
    """Who goes by the directory's word alone takes the first proof of anybody."""
    return patched((Following, "_speaks_for", lambda self, mine, sender: True))


def nobody_is_asked() -> Any:
    """Who goes by the directory's word alone takes the next one, although members are heard."""
    return patched((Following, "_can_ask", lambda self, s: False))


@pytest.mark.parametrize(
    ("plant", "way"),
    [
        (anything_follows, "next"), (anything_follows, "last"), (anybody_is_akin, "fork"), (far_is_enough, "elsewhere"),
        (the_directory_is_believed, "claimed"), (anybody_shows, "astray"),
        (nobody_is_asked, "astray"),
    ],
)  # fmt: skip
def test_a_planted_bug_is_found(plant: Callable[[], Any], way: str) -> None:
    with plant():
        assert not holds(1, way)


def test_a_newcomer_that_hears_a_stranger_first_follows_it() -> None:
    """It is not defended in an open run, as SECURITY.md says. The members go on as before."""
    world = World(forged_views.SETTINGS, 1, delay_max=0.03)
    for index in range(world.settings.stage_count):
        world.at(0.1 * index, world.start, (f"peer{index}", 1, True))
    world.run(forged_views.TRAINS_SECONDS)
    honest = [host.peer.id for host in world.live()]
    world.network.block({pair for name in honest for pair in ((name, "newcomer"), ("newcomer", name))})
    world.directory.down = True
    newcomer = world.start("newcomer", 1, True)
    stranger = forged_views._enters(world, "elsewhere")
    before = world.ledger.top_commit()
    world.run(world.now + forged_views.BEAT_SECONDS * 8)
    assert newcomer.view is not None and newcomer.view.leader == stranger.peer
    views = [world.by_id[name].view for name in honest]
    assert all(view is not None and view.leader != stranger.peer for view in views)
    assert world.ledger.top_commit() > before
