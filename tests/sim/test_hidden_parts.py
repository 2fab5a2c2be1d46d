"""Who shows nobody what it made its piece of a sum of is let go, and nobody honest for a broken line (rule 50)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from ftnode.lab.hostile import traitor
from ftnode.protocol.leader import convictions
from ftnode.protocol.leader.cases import Cases
from ftnode.protocol.step.check import Check
from ftnode.protocol.step.doubts import Budget
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words.messages import UNSHOWN, Convicted, Judge, Poisoned, Verdict
from ftnode.protocol.words.types import Attempt, Peer
from tests.sim.host import Host
from tests.sim.planted import patched
from tests.sim.test_at_odds import lost
from tests.sim.test_checks import SOON_SECONDS
from tests.sim.test_duty import betrays, seen, swarm
from tests.sim.test_third import gone_from, marked, of_stage, says_nothing
from tests.sim.world import World

SEEDS: Final = range(1, 4)


def beside(world: World, host: Host) -> list[Host]:
    """The other holders of its stage."""
    view = seen(world)
    group = view.holders[view.stages_of(host.peer)[0]]
    return [world.by_id[peer.id] for peer in group if peer != host.peer]


def cases(world: World) -> int:
    return sum(" case: " in note for note in world.notes)


@pytest.mark.parametrize("replicas", [3, 4])
@pytest.mark.parametrize("seed", SEEDS)
def test_who_shows_nobody_its_parts_goes_and_nobody_else(seed: int, replicas: int) -> None:
    world = swarm(seed, replicas, checks=1.0)
    host = of_stage(world)
    host.hides = lambda peer: True
    assert gone_from(world, host) == [str(host.peer)] and not marked(world)
    convicted = [other for other in world.live() if host.peer.id in other.participant.memory.convicted]
    assert len(convicted) >= len(seen(world).members()) - 1


def trains_without_losses(world: World, seconds: float = 2 * SOON_SECONDS) -> None:
    world.notes.clear()
    before = world.ledger.top_commit()
    world.run(world.now + seconds)
    assert lost(world) == [] and not any(" liar: " in note for note in world.notes)
    assert world.ledger.top_commit() >= before + 5


@pytest.mark.parametrize("seed", SEEDS)
def test_who_one_other_gets_nothing_from_stays_and_so_does_that_one(seed: int) -> None:
    """A line between two is broken for such streams, in both directions."""
    world = swarm(seed, 3, checks=1.0)
    host = of_stage(world)
    deaf = beside(world, host)[0]
    host.hides, deaf.hides = (lambda peer: peer == deaf.peer), (lambda peer: peer == host.peer)
    trains_without_losses(world)


def hears_one(world: World) -> None:
    host = of_stage(world)
    deaf = beside(world, host)[0]
    host.hides = lambda peer: peer == deaf.peer
    gone_from(world, host)


def test_planted_the_word_of_one_is_enough() -> None:
    """Then a broken line costs somebody its place."""

    def believed(self: Cases, s: Any, out: Any, sender: Peer, accused: Peer, poisoned: Poisoned, *more: Any) -> None:
        self._on_its_word(s, out, sender, accused, poisoned)

    with patched((Cases, "_accuse_of_hiding", believed)):
        world = swarm(1, 3, checks=1.0)
        hears_one(world)
        assert lost(world)


def test_planted_who_is_shown_nothing_is_in_the_wrong() -> None:
    """As one that accuses others otherwise."""
    with patched((Poisoned, "hides", False)):
        world = swarm(1, 3, checks=1.0)
        hears_one(world)
        assert lost(world)


def test_planted_nobody_says_that_it_was_shown_nothing() -> None:
    with patched((Cases, "_accuse_of_hiding", lambda self, *given: None)):
        world = swarm(1, 3, checks=1.0)
        host = of_stage(world)
        host.hides = lambda peer: True
        assert gone_from(world, host) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_who_says_it_without_a_reason_costs_nobody_its_place(seed: int) -> None:
    """And is soon not heard any more: each time others do visits again."""
    world = swarm(seed, 3, checks=1.0)
    of_stage(world).sees_no_parts = True
    before = world.ledger.top_commit()
    trains_without_losses(world, 8 * SOON_SECONDS)
    assert 1 <= cases(world) <= 3 + (world.ledger.top_commit() - before) / 32


def test_planted_whoever_says_it_is_always_heard() -> None:
    with patched((Budget, "spend", lambda self: True)):
        world = swarm(1, 3, checks=1.0)
        of_stage(world).sees_no_parts = True
        before = world.ledger.top_commit()
        trains_without_losses(world, 8 * SOON_SECONDS)
        assert cases(world) > 3 + (world.ledger.top_commit() - before) / 32


def test_where_nobody_else_can_ask_nothing_follows() -> None:
    """Of three, the third says nothing."""
    world = swarm(1, 3, checks=1.0)
    host = of_stage(world)
    host.hides = lambda peer: True
    for other in beside(world, host):
        says_nothing(other)
    assert gone_from(world, host) == [] and not marked(world)


def dies_when_it_is_asked(world: World, host: Host) -> None:
    """Its machine is gone at the moment at which somebody wants to see its parts."""

    def hides(peer: Peer) -> bool:
        if host.alive:
            world.kill(host, "kill", silently=True)
        return True

    host.hides = hides


@pytest.mark.parametrize("seed", SEEDS)
def test_who_is_lost_at_that_moment_is_not_convicted(seed: int) -> None:
    """Others ask for longer than a lease."""
    world = swarm(seed, 3, checks=1.0)
    host = of_stage(world)
    dies_when_it_is_asked(world, host)
    gone_from(world, host)
    assert not any(other.participant.memory.convicted for other in world.live())
    assert not any(" liar: " in note for note in world.notes)


def test_planted_nobody_is_asked_for_longer_than_a_moment() -> None:
    """Then whoever is lost is convicted."""
    weigh = Check.to_weigh

    def soon(self: Check, reduced: Any) -> Any:
        return [replace(task, seconds=min(task.seconds, 0.5)) for task in weigh(self, reduced)]

    with patched((Check, "to_weigh", soon)):
        found = 0
        for seed in range(1, 7):
            world = swarm(seed, 3, checks=1.0)
            dies_when_it_is_asked(world, of_stage(world))
            gone_from(world, of_stage(world))
            found += any(" liar: " in note for note in world.notes)
        assert found


def test_words_of_hiding_never_convict_who_says_them() -> None:
    a, b, c = (Peer(name, 1) for name in "abc")
    said = Poisoned("lineage", 1, 1, Attempt(1, 1), 1, UNSHOWN, "it shows nothing", b, 1.0)

    def of(*guilty: bool | None) -> Peer | None:
        about = Judge.of(a, said, b)
        words = tuple((Peer(str(n), 1), Verdict(about, each, "")) for n, each in enumerate(guilty))
        return convictions.liar_of(Convicted(a, said, words))

    assert of(True) == b and of(True, True, False) == b
    assert of() is None and of(None) is None and of(True, False) is None and of(False, False, True) is None
    assert c and of(False) is None


def test_a_step_is_not_over_before_others_have_asked() -> None:
    """Else there is nothing to show any more."""
    world = swarm(1, 3, checks=1.0)
    host = of_stage(world)
    host.hides = lambda peer: True
    told: list[tuple[int, int]] = []

    def way(event: Any, decide: traitor.Decide) -> list[fx.Effect]:
        if isinstance(getattr(event, "message", None), Verdict):
            told.append((event.message.about.step, world.ledger.top_commit()))
        return decide(event)

    betrays(world.by_id[seen(world).leader.id], way)
    gone_from(world, host)
    assert told and all(commit < step for step, commit in told)
