"""Who shows a checker or a third another tensor than it gave, or got, costs nobody else a place (rules 42, 48, 50)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from ftnode.protocol.leader.convictions import Convictions
from ftnode.protocol.step.check import Check
from ftnode.protocol.step.sealed_tensors import Finding
from ftnode.protocol.step.showing import Showing
from ftnode.protocol.words.effects import Send
from ftnode.protocol.words.messages import Seal
from ftnode.protocol.words.types import Peer
from tests.sim.compute import Tensor
from tests.sim.host import Host
from tests.sim.planted import patched
from tests.sim.seals import WorldSeals
from tests.sim.test_at_odds import lost
from tests.sim.test_checks import SOON_SECONDS
from tests.sim.test_duty import seen, swarm
from tests.sim.world import World

NOBODY_IS_ASKED: Final = (Check, "question", lambda self, finding, now: None)
"""Whom one checks has no say in what it was given."""
ANY_SIGNATURE: Final = (WorldSeals, "fits", lambda self, boundary, tensor: boundary.seal is not None)


def another(tensor: Tensor) -> Tensor:
    return tensor._replace(chain=~tensor.chain)


def beside(world: World) -> Host:
    """A holder of a stage beside those that others check, which does not lead."""
    view = seen(world)
    return world.by_id[next(peer for peer in view.voters if peer in view.holders[1] and peer != view.leader).id]


def shows_others(made: bool, replicas: int, seed: int = 1) -> tuple[World, Host]:
    """Somebody shows another tensor than it gave (`made`) or than it got."""
    world = swarm(seed, replicas, checks=1.0)
    host = beside(world)
    host.shows = lambda tensor, own, to: another(tensor) if own is made else tensor
    world.liars = True
    world.notes.clear()
    return world, host


def gone_after(world: World, host: Host, steps: int = 12) -> list[str]:
    """Who goes until this one does, and in some steps after that."""
    begun = world.ledger.top_commit()
    world.run(world.now + SOON_SECONDS, lambda: world.ledger.top_commit() >= begun + steps)
    return lost(world)


@pytest.mark.parametrize("replicas", [2, 3])
def test_who_shows_another_tensor_than_it_gave_goes_and_nobody_else(replicas: int) -> None:
    world, host = shows_others(True, replicas)
    assert {*gone_after(world, host)} == {str(host.peer)}
    known = [other for other in world.live() if host.peer.id in other.participant.memory.convicted]
    assert len(known) >= len(seen(world).members()) - 1
    assert any(" convicted: " in note and "two different tensors" in note for note in world.notes)


@pytest.mark.parametrize("replicas", [2, 3])
def test_planted_whom_one_checks_is_not_asked_what_it_was_given(replicas: int) -> None:
    """Then somebody honest goes."""
    with patched(NOBODY_IS_ASKED):
        world, host = shows_others(True, replicas)
        assert {*gone_after(world, host)} - {str(host.peer)}


@pytest.mark.parametrize("replicas", [2, 3])
def test_who_shows_another_tensor_than_it_got_costs_nobody_else_a_place(replicas: int) -> None:
    """It is as if it showed nothing (rule 52)."""
    world, host = shows_others(False, replicas)
    before = world.ledger.top_commit()
    assert {*gone_after(world, host)} <= {str(host.peer)} and world.ledger.top_commit() > before
    assert any(" check: " in note and "not all is shown" in note for note in world.notes)


@pytest.mark.parametrize("replicas", [2, 3])
def test_planted_what_is_shown_needs_no_signature_of_its_maker(replicas: int) -> None:
    """Then somebody honest goes."""
    with patched(ANY_SIGNATURE):
        world, host = shows_others(False, replicas)
        assert {*gone_after(world, host)} - {str(host.peer)}


def test_a_third_asks_as_well() -> None:
    """A checker that heard nothing accuses somebody honest. The third finds who it was, and the accusation falls."""
    question = Check.question

    def of_judges(self: Check, finding: Any, now: float) -> Any:
        return question(self, finding, now) if self.judge is not None else None

    with patched((Check, "question", of_judges)):
        world, host = shows_others(True, 3, 2)
        assert {*gone_after(world, host)} == {str(host.peer)}
    assert any(" case: " in note for note in world.notes)


def go_over_a_broken_line(thirds_ask: bool) -> tuple[set[str], Host, Peer]:
    """Who goes where the first that is shown another tensor than was given is the only one, and where its question does
    not arrive at whom it checks: it says at once that this one lies."""
    world, host = shows_others(True, 3)
    tricked, asks = list[Peer](), Check.question

    def shows(tensor: Tensor, own: bool, to: Peer) -> Tensor:
        if own and not tricked and to != seen(world).leader:
            tricked.append(to)
        return another(tensor) if own and to in tricked else tensor

    def question(self: Check, finding: Finding, now: float) -> Send | None:
        arrives = thirds_ask if finding.agrees else self.me not in tricked or self.judge is not None
        return asks(self, finding, now) if arrives else None

    host.shows = shows
    with patched((Check, "question", question)):
        gone = {*gone_after(world, host)}
    assert any(" case: " in note for note in world.notes)
    return gone, host, tricked[0]


def test_a_third_that_sees_no_lie_asks_who_said_so() -> None:
    """What it was shown is another tensor than the third was."""
    gone, host, _ = go_over_a_broken_line(thirds_ask=True)
    assert gone == {str(host.peer)}


def test_planted_who_said_so_is_not_asked_what_it_was_shown() -> None:
    """Then it goes itself, and is honest."""
    gone, _, tricked = go_over_a_broken_line(thirds_ask=False)
    assert str(tricked) in gone


def does_not_sign(world: World, host: Host) -> None:
    """What it gives has a signature of somebody else."""
    sealed = world.seals.sealed_tensor

    def wrong(sender: Any, boundary: Any, tensor: Tensor) -> Any:
        made = sealed(sender, boundary, tensor)
        return replace(made, seal=Seal(made.seal.digest, "made up")) if sender == host.peer else made

    world.seals.sealed_tensor = wrong  # type: ignore[method-assign]
    world.liars = True


def test_who_does_not_sign_is_named_by_who_gets_it_and_goes() -> None:
    """As where numbers are refused: with one more at most (rule 25)."""
    world = swarm(1, 2, checks=1.0)
    host = beside(world)
    world.notes.clear()
    does_not_sign(world, host)
    world.run(world.now + 4 * SOON_SECONDS, lambda: str(host.peer) in lost(world))
    assert str(host.peer) in lost(world) and len({*lost(world)}) <= 2
    assert any("its maker has not signed" in note for note in world.notes)


def test_planted_unsigned_tensors_are_taken() -> None:
    """Then nobody says anything, and what it gave can be denied."""
    with patched((WorldSeals, "checked_tensor", lambda self, boundary, tensor: boundary)):
        world = swarm(1, 2, checks=1.0)
        host = beside(world)
        world.notes.clear()
        does_not_sign(world, host)
        gone_after(world, host, 5)
        assert not any("its maker has not signed" in note for note in world.notes)


def test_whom_one_checks_and_who_answers_nothing_is_judged_by_what_was_shown() -> None:
    """It waits half a lease, and does not stop the run."""
    with patched((Showing, "_tell_given", lambda self, sender, show: [])):
        world, host = shows_others(True, 2)
        before = world.ledger.top_commit()
        assert {*gone_after(world, host)} - {str(host.peer)} and world.ledger.top_commit() > before


def test_planted_nobody_heeds_the_proof() -> None:
    """Then who shows other tensors stays, and no honest one goes."""
    with patched((Convictions, "on_convicted", lambda self, s, sender, case: [])):
        world, host = shows_others(True, 2)
        assert gone_after(world, host) == []
