"""Peers that are not there, or never answer, cost a run nothing that counts when a stage is lost (rule 10)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final

import pytest

from ftnode.lab.hostile import traitor
from ftnode.protocol.participant import Participant
from ftnode.protocol.recovery import candidate_order
from ftnode.protocol.situation import Situation
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words import messages as ms
from ftnode.protocol.words.events import Directory, Event
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Peer
from tests.sim.directory import DirectoryService
from tests.sim.host import Host
from tests.sim.planted import patched
from tests.sim.targets import best_view
from tests.sim.test_duty import betrays
from tests.sim.test_restart import Swarm

SETTINGS: Final = Settings(
    run="sim", stages=3, steps=100_000, microbatches=2, window=2, head_every=1, lease_seconds=5.0,
    minority_wait_seconds=9.0,
)  # fmt: skip
PEERS: Final = 4
"""As many as there are stages; with one of them goes a stage."""
FALSE: Final = 1000
MUTE: Final = 20
WAIT_SECONDS: Final = 90.0


@dataclass(frozen=True)
class Crowd:
    """Who else is there: `absent` records of peers that do not answer a dial, `mute` peers that say everything but
    Answers, and promise room for all stages. `hidden`: nobody finds the record of the honest standby."""

    absent: int = 0
    mute: int = 0
    hidden: bool = False


def recovers(seed: int, stage: int, crowd: Crowd) -> float:
    """Seconds from the loss of the stage's only holder to the second commit after it."""
    with hidden_records() if crowd.hidden else nullcontext():
        return _recovers(seed, stage, crowd)


def hidden_records() -> Any:
    """Nobody finds the standby's."""
    announce = DirectoryService.announce

    def hide(self: DirectoryService, host: Host, presence: Presence) -> None:
        if host.peer.id != "standby":
            announce(self, host, presence)

    return patched((DirectoryService, "announce", hide))


def _recovers(seed: int, stage: int, crowd: Crowd) -> float:
    swarm = Swarm(SETTINGS, PEERS, seed)
    world = swarm.world
    swarm.until(3)
    for index in range(crowd.mute):
        betrays(world.start(f"mute{index}", 4, True), mute)
    peer = Peer("nobody", 1)
    nobody = Host(peer, Participant(peer, SETTINGS, world.chance), world.hosts[0].compute, 1, True)
    nobody.vanished = True
    world.by_id |= {f"false{index:04}": nobody for index in range(crowd.absent)}
    records = tuple(
        Presence(Peer(f"false{index:04}", 1), ("/sim/false",), "", -1, 4, True, (), (), (), 1e9)
        for index in range(crowd.absent)
    )
    world.directory.lies = lambda: Directory(records, ())
    standby = world.start("standby", 1, True)
    world.run(world.now + 2 * SETTINGS.lease_seconds)
    view = best_view(world)
    assert view is not None and standby.peer not in view.members()
    assert not any(host.peer in view.members() for host in world.hosts if host.peer.id.startswith("mute"))
    lost_at, newest = world.now, max(step for _, step in swarm.commits)
    world.kill(world.by_id[swarm.holder_of(stage)], "kill", silently=False)
    world.run(world.now + WAIT_SECONDS, lambda: max(step for _, step in swarm.commits) > newest + 1)
    return world.now - lost_at


def mute(event: Event, decide: traitor.Decide) -> list[fx.Effect]:
    """It never says whether it takes a stage."""
    return [each for each in decide(event) if not (isinstance(each, fx.Send) and isinstance(each.message, ms.Answer))]


def holds(seed: int, stage: int, crowd: Crowd, at_most: float) -> bool:
    return recovers(seed, stage, crowd) <= at_most


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("crowd", [Crowd(absent=FALSE), Crowd(absent=FALSE, hidden=True)], ids=["there", "hidden"])
def test_a_thousand_false_presences_cost_less_than_twice_the_time(crowd: Crowd, stage: int) -> None:
    without = recovers(stage, stage, Crowd())
    assert without < 5.0
    assert holds(stage, stage, crowd, 2 * without)


@pytest.mark.parametrize("stage", range(4))
def test_peers_that_never_answer_cost_less_than_a_lease(stage: int) -> None:
    """They are heard like everybody else, so that only an unanswered offer tells."""
    without = recovers(stage, stage, Crowd())
    assert holds(stage, stage, Crowd(mute=MUTE), without + SETTINGS.lease_seconds)


def records_are_candidates() -> Any:
    """Whoever stands in the directory is asked."""
    return patched((Situation, "hears", lambda self, peer: True))


def one_at_a_time() -> Any:
    """The next one is asked when the one before has had its time."""
    return patched((candidate_order, "WIDTH_MAX", 1))


def nobody_introduces_itself() -> Any:
    """What is not found in the directory is not there."""
    return patched((Participant, "_introduce", lambda self, to: None))


@pytest.mark.parametrize(
    ("plant", "crowd"),
    [
        (records_are_candidates, Crowd(absent=FALSE)), (one_at_a_time, Crowd(mute=MUTE)),
        (nobody_introduces_itself, Crowd(absent=FALSE, hidden=True)),
    ],
)  # fmt: skip
def test_a_planted_bug_is_found(plant: Callable[[], Any], crowd: Crowd) -> None:
    with plant():
        assert not all(holds(stage, stage, crowd, 1.0 + SETTINGS.lease_seconds) for stage in range(4))
