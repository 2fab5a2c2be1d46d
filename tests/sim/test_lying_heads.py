"""Who holds the head alone is tried on the copy that it lends, like the only holder of any stage; and also who leads
is let go for it, though whoever leads says who goes (rule 53)."""

from __future__ import annotations

from dataclasses import replace
from types import MethodType
from typing import Any, Final

import pytest

from ftnode.protocol.leader.leader import Leader
from ftnode.protocol.recovery.copies import keepers
from ftnode.protocol.recovery.copy_trials import CopyTrials, Refuted
from ftnode.protocol.situation import Outcome, Situation
from ftnode.protocol.step.attempt import StepWork
from ftnode.protocol.step.probation import Probation
from ftnode.protocol.views.following import Following
from ftnode.protocol.words.messages import Poisoned
from ftnode.protocol.words.types import HEAD
from tests.sim.host import Host
from tests.sim.liars import lost, view_of
from tests.sim.planted import patched
from tests.sim.test_checks import passes_on
from tests.sim.test_only_holders import SECONDS, SETTINGS, trains_otherwise, tried, world_of
from tests.sim.world import World

STEPS: Final = 8
"""After so many the liar is gone. A copy of the head is fetched in each, and of two keepers each tries four of five."""


def led_by_the_head(seed: int, stages: int = 5, spare: int = 1) -> tuple[World, Host]:
    """And who that is."""
    world = world_of(seed, replace(SETTINGS, stages=stages, head_every=1), spare)
    view = view_of(world)
    assert view.holders[HEAD] == (view.leader,)
    return world, world.by_id[view.leader.id]


def hears_nothing(self: Leader, s: Situation, sender: object, said: Poisoned) -> Outcome:
    """A leader that takes no notice of what is said of it."""
    return Outcome() if said.giver == s.me else HEARS(self, s, sender, said)  # type: ignore[arg-type]


HEARS: Final = Leader.on_poisoned


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(("stages", "seed"), [(5, 1), (2, 2), (2, 3)])
def test_a_head_that_passes_on_something_else_goes_also_while_it_leads(stages: int, seed: int, gradients: bool) -> None:
    world, liar = led_by_the_head(seed, stages)
    passes_on(world, liar, gradients)
    before = world.ledger.top_commit()
    with patched((Leader, "on_poisoned", hears_nothing)):
        world.run(world.now + SECONDS, lambda: str(liar.peer) in lost(world))
    assert lost(world) == [str(liar.peer)], [*world.notes][-20:]
    assert world.ledger.top_commit() - before <= STEPS
    assert view_of(world).leader != liar.peer
    world.run(world.now + SECONDS, lambda: world.ledger.top_commit() >= before + 40)
    assert world.ledger.top_commit() >= before + 40 and lost(world) == [str(liar.peer)], lost(world)


def test_so_does_a_leader_that_holds_another_stage_alone() -> None:
    """The head's holder has gone before, and somebody else leads."""
    world, first = led_by_the_head(1, spare=2)
    world.kill(first, "power", silently=False)
    world.run(world.now + SECONDS / 2, lambda: view_of(world).leader != first.peer and not view_of(world).vacancies())
    world.run(world.now + SECONDS / 4)
    liar = world.by_id[view_of(world).leader.id]
    assert view_of(world).stages_of(liar.peer) and HEAD not in view_of(world).stages_of(liar.peer)
    gone = lost(world)
    passes_on(world, liar, False)
    world.run(world.now + 2 * SECONDS, lambda: str(liar.peer) in lost(world))
    assert lost(world) == [*gone, str(liar.peer)] and view_of(world).leader != liar.peer


@pytest.mark.parametrize("stages", [2, 5])
def test_an_honest_head_stays_and_leads(stages: int) -> None:
    world, leader = led_by_the_head(1, stages)
    with tried() as values:
        world.run(world.now + SECONDS)
    assert len(values) > 50 and {*values} == {0.0} and not lost(world)
    assert view_of(world).leader == leader.peer


@pytest.mark.parametrize("seed", [1, 2])
def test_honest_holders_stay_when_others_pass_on_something_else(seed: int) -> None:
    """What the head was given of a liar it computes with, and passes on what follows."""
    world, _ = led_by_the_head(seed, spare=2)
    liar = world.by_id[view_of(world).holders[1 + seed][0].id]
    passes_on(world, liar, seed == 2)
    world.run(world.now + SECONDS)
    assert lost(world) == [str(liar.peer)]


def test_who_has_no_text_cannot_tell() -> None:
    world, liar = led_by_the_head(1, 2)
    for host in world.live():
        host.participant.holder.may_head = False
    passes_on(world, liar, False)
    with tried() as values:
        world.run(world.now + SECONDS / 2)
    assert not lost(world) and 1.0 not in values


def test_how_the_head_is_trained_is_not_looked_at() -> None:
    """SECURITY.md says that it is not defended."""
    world, liar = led_by_the_head(1, 2)
    trains_otherwise(world, liar)
    world.run(world.now + SECONDS)
    assert not lost(world)


def test_of_two_voters_none_can_choose_another_leader() -> None:
    """SECURITY.md says that it is not defended: one of two is no majority."""
    world, liar = led_by_the_head(1, 1)
    passes_on(world, liar, False)
    before = world.ledger.top_commit(), view_of(world)
    with patched((Leader, "on_poisoned", hears_nothing)):
        world.run(world.now + SECONDS / 2)
    assert not lost(world) and view_of(world) == before[1] and world.ledger.top_commit() > before[0] + 20


def says_so(self: CopyTrials, s: Situation, work: StepWork, *given: object) -> Outcome:
    """That the leader passes on something else, at any moment."""
    self.refuted = Refuted(HEAD, s.view.leader, "it does", 1.0) if s.view is not None else None
    return Outcome()


def accused(world: World, by: int) -> Host:
    """By one of the two that keep the head's copies, or by another member."""
    kept = [peer for stage, peer in keepers(view_of(world), world.settings) if stage == HEAD]
    others = [peer for peer in view_of(world).members() if peer not in (*kept, view_of(world).leader)]
    host = world.by_id[(*kept, *others)[by].id]
    trials = host.participant.holder.copy_trials
    trials.begin = MethodType(says_so, trials)  # type: ignore[method-assign]
    world.liars = True
    return host


@pytest.mark.parametrize("seed", [1, 2])
def test_a_keeper_that_accuses_the_leader_without_a_reason_costs_one_its_place(seed: int) -> None:
    """As it costs any other only holder (SECURITY.md)."""
    world, leader = led_by_the_head(seed, spare=3)
    liar, before = accused(world, 0), world.ledger.top_commit()
    world.run(world.now + 2 * SECONDS, lambda: str(liar.peer) in lost(world))
    honest = [name for name in lost(world) if name != str(liar.peer)]
    assert honest in ([str(leader.peer)], []), lost(world)
    world.run(world.now + SECONDS)
    assert world.ledger.top_commit() > before + 20


def test_a_member_that_keeps_no_copy_of_it_is_not_heard() -> None:
    world, leader = led_by_the_head(1)
    liar = accused(world, 2)
    world.run(world.now + SECONDS / 2)
    assert view_of(world).leader == leader.peer and str(leader.peer) not in lost(world) and liar.alive


def test_nor_is_a_newcomer() -> None:
    world, leader = led_by_the_head(1)
    with patched((Probation, "lasts", lambda self, peer_id: peer_id == liar.peer.id)):
        liar = accused(world, 0)
        world.run(world.now + SECONDS / 2)
    assert view_of(world).leader == leader.peer and str(leader.peer) not in lost(world)


# -- planted bugs


def anybody_may(self: Following, s: Situation, sender: object, said: Poisoned, kept: object) -> None:
    self.leader_doubted = True


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param((Following, "on_accused_leader", lambda self, *given: None), id="nobody doubts the leader"),
        pytest.param((Following, "_take_over", lambda self, *given: None), id="nobody takes over"),
    ],
)
def test_without_a_part_of_it_the_liar_leads_on(bug: tuple[Any, str, Any]) -> None:
    world, liar = led_by_the_head(2, 2)
    passes_on(world, liar, False)
    with patched(bug, (Leader, "on_poisoned", hears_nothing)):
        world.run(world.now + SECONDS / 2)
    assert not lost(world) and view_of(world).leader == liar.peer


def test_where_anybody_is_believed_anybody_makes_another_leader() -> None:
    world, leader = led_by_the_head(1)
    accused(world, 2)
    with patched((Following, "on_accused_leader", anybody_may)):
        world.run(world.now + SECONDS / 2, lambda: view_of(world).leader != leader.peer)
    assert view_of(world).leader != leader.peer
