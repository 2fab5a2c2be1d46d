"""Keepers that lend other copies than they were lent (rule 49): nothing of them gets in, and honest copies are taken as
before."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final

import pytest

from ftnode.protocol.leader import lenders
from ftnode.protocol.participant import Participant
from ftnode.protocol.recovery.copies import OwnCopies
from ftnode.protocol.recovery.lent_copies import LentCopies
from ftnode.protocol.situation import Outcome
from ftnode.protocol.words.events import Kept
from ftnode.protocol.words.messages import Plan
from ftnode.protocol.words.types import HEAD, Attempt, Rung, Version
from tests.sim import liars
from tests.sim.checks import Violation
from tests.sim.compute import Weights
from tests.sim.host import Host
from tests.sim.liars import grown, view_of
from tests.sim.planted import patched
from tests.sim.scenario import run_seed
from tests.sim.test_duty import LONG
from tests.sim.world import World

SETTINGS: Final = replace(LONG, stages=4, shadow_every=1)
STEPS: Final = 3
SECONDS: Final = 60.0
MADE: Final = {Rung.BLEND, Rung.COPY, Rung.INTERPOLATE}


def believing() -> AbstractContextManager[None]:
    """Whoever installs a copy takes any."""
    return patched((Plan, "takes", lambda self, digest: True))


def credulous() -> AbstractContextManager[None]:
    """A leader also counts on copies of which it has heard only from their keepers, and nobody compares them."""
    return patched(
        (LentCopies, "counts", lambda self, keeper, stage, version: True),
        (LentCopies, "counts_of_step", lambda self, keeper, stage, step: True),
        (Plan, "takes", lambda self, digest: True),
    )


def deaf() -> AbstractContextManager[None]:
    """Nobody tells what it has lent."""
    return patched((Participant, "_on_lent", lambda self, copy: None))


def hasty() -> AbstractContextManager[None]:
    """A keeper drops its older copy as soon as a newer one is whole."""
    original = OwnCopies.on_kept

    def on_kept(self: OwnCopies, event: Kept) -> Outcome:
        self._told[event.stage] = event.version
        return original(self, event)

    return patched((OwnCopies, "on_kept", on_kept))


class Swarm:
    """One holder for each stage, two peers that stand by, and copies of all stages."""

    def __init__(self, seed: int) -> None:
        self.world = grown(seed, SETTINGS, SETTINGS.stage_count, spare=2)
        self.rungs: list[tuple[int, Rung]] = []
        self.world.on_installed = self._installed
        view = view_of(self.world)
        self.stage = next(s for s in (2, 3, 1, 4) if view.holders[s][0] != view.leader)
        """Of a holder that does not lead."""

    def _installed(self, host: Host, effect: Any) -> None:
        self.rungs.append((effect.plan.stage, effect.plan.rung))

    def holder_of(self, stage: int) -> Host:
        return self.world.by_id[view_of(self.world).holders[stage][0].id]

    def keepers_of(self, stage: int) -> list[Host]:
        return sorted((host for host in self.world.live() if stage in host.copies), key=lambda host: host.peer)

    def lie(self, host: Host) -> None:
        """About all copies that it keeps."""
        host.bend_copies(lambda weights: weights._replace(history=weights.history ^ 1))

    def lose(self, *hosts: Host) -> set[Rung]:
        """These, at once; how the stage of the first of them came back."""
        stages = view_of(self.world).stages_of(hosts[0].peer)
        before, _ = self.world.ledger.top_commit(), self.rungs.clear()
        for host in hosts:
            self.world.kill(host, "kill", silently=False)
        self.world.run(self.world.now + SECONDS, lambda: self.world.ledger.top_commit() >= before + STEPS)
        assert self.world.ledger.top_commit() >= before + STEPS, self.world.notes
        return {rung for stage, rung in self.rungs if stage in stages}


def calm(swarm: Swarm) -> Swarm:
    """When each keeper has what it was told to have."""
    world = swarm.world
    world.run(world.now + SECONDS, lambda: len(swarm.keepers_of(HEAD)) == 2 and bool(swarm.keepers_of(swarm.stage)))
    return swarm


@pytest.mark.parametrize("seed", [1, 2])
def test_a_stage_of_which_only_a_liar_has_a_copy_comes_back_by_the_next_rung(seed: int) -> None:
    swarm = calm(Swarm(seed))
    (liar,) = swarm.keepers_of(swarm.stage)
    swarm.lie(liar)
    assert swarm.lose(swarm.holder_of(swarm.stage)) <= MADE


def test_without_the_comparison_the_lie_gets_in() -> None:
    swarm = calm(Swarm(1))
    (liar,) = swarm.keepers_of(swarm.stage)
    swarm.lie(liar)
    with believing(), pytest.raises(Violation, match="was never its weights"):
        swarm.lose(swarm.holder_of(swarm.stage))


@pytest.mark.parametrize("which", [0, 1])
def test_of_two_keepers_of_the_head_the_honest_one_lends(which: int) -> None:
    swarm = calm(Swarm(1))
    swarm.lie(swarm.keepers_of(HEAD)[which])
    assert swarm.lose(swarm.holder_of(HEAD)) == {Rung.HEAD}


@pytest.mark.parametrize("seed", [1, 2])
def test_whoever_leads_next_knows_what_was_lent(seed: int) -> None:
    """The leader and the holder of a stage are lost in the same moment."""
    swarm = calm(Swarm(seed))
    leader = swarm.world.by_id[view_of(swarm.world).leader.id]
    assert swarm.lose(swarm.holder_of(swarm.stage), leader) == {Rung.SHADOW}


def tells_of_a_later_one(liar: Host, stage: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And lends it, under a name that nobody has heard."""
    held = liar.copies[stage]
    made_up = Version(held.version.step, "made up", Attempt(held.version.attempt.view, 10**6))
    monkeypatch.setattr(liar.participant.holder.copies, "versions", lambda: ((stage, made_up),))
    liar.bend_copies(lambda weights: Weights(made_up, 1))


def test_a_copy_of_which_only_its_keeper_tells_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    swarm = calm(Swarm(1))
    (liar,) = swarm.keepers_of(swarm.stage)
    tells_of_a_later_one(liar, swarm.stage, monkeypatch)
    assert swarm.lose(swarm.holder_of(swarm.stage)) <= MADE
    assert any("does not count on copies of" in note for note in swarm.world.notes)


def test_with_a_leader_that_counts_on_it_the_lie_gets_in(monkeypatch: pytest.MonkeyPatch) -> None:
    swarm = calm(Swarm(1))
    (liar,) = swarm.keepers_of(swarm.stage)
    tells_of_a_later_one(liar, swarm.stage, monkeypatch)
    assert vars(lenders)["lent"]
    with credulous(), pytest.raises(Violation, match="I4"):
        swarm.lose(swarm.holder_of(swarm.stage))


def test_where_nobody_tells_what_it_lent_no_copy_is_taken() -> None:
    with deaf():
        swarm = calm(Swarm(1))
        assert swarm.lose(swarm.holder_of(swarm.stage)) <= MADE


def test_a_measured_world_takes_no_harm_and_without_the_comparison_it_does() -> None:
    seen = liars.measure("copies", 2)
    assert seen["harmless"] == seen["worlds"] == 2 and seen["honest_removed"] == 0, seen
    with believing():
        assert liars.measure("copies", 2)["harmless"] < 2


JUST_MADE: Final = 66
"""A seed, and the seconds of it in which the head's holder is lost before anybody has heard of the honest keeper's
newest copy."""
MOMENTS: Final = 20.016, 20.02


def lost_at(seconds: float) -> bool:
    """Whether it does no harm."""
    with patched((liars, "SETTLED_SECONDS", seconds)):
        (world,) = liars.seen_in("copies", [JUST_MADE])
    return bool(world["harmless"])


def test_the_copy_before_counts_while_nobody_has_heard_of_the_newest() -> None:
    assert all(map(lost_at, MOMENTS))


def test_without_the_copy_before_a_run_stands_still() -> None:
    with hasty():
        assert not any(map(lost_at, MOMENTS))


def test_honest_copies_are_taken() -> None:
    """Seeds in which base and copies were lost alike before there were digests."""
    found = [run_seed(seed) for seed in range(1, 9)]
    assert not any(outcome.violation for outcome in found)
    assert sum(n for outcome in found for (_, rung), n in outcome.met.items() if rung in ("head", "shadow")) >= 4


def test_the_world_is_the_same_each_time() -> None:
    first, second = Swarm(3), Swarm(3)
    assert first.world.events == second.world.events and isinstance(first.world, World)
