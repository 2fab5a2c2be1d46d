"""Donors that lend other weights for a lost stage than they work with (rule 48): nothing of them gets in."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from types import MethodType
from typing import Any, Final

import pytest

from ftnode.protocol.leader.leader_memory import LeaderMemory
from ftnode.protocol.recovery.donor_trials import LENT_FOR_IT, DonorTrials
from ftnode.protocol.situation import Outcome
from ftnode.protocol.step.check import Check
from ftnode.protocol.words.messages import Donor
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Rung
from tests.sim.checks import Violation
from tests.sim.compute import Poison
from tests.sim.host import Host
from tests.sim.liars import grown, view_of
from tests.sim.planted import patched
from tests.sim.test_duty import LONG

CHECKS: Final = 0.02
SETTINGS: Final = replace(LONG, stages=5, microbatches=4, window=4, checks=CHECKS)
STEPS: Final = 3
SECONDS: Final = 90.0


def nobody_tries() -> AbstractContextManager[None]:
    return patched((DonorTrials, "lent", lambda self, *given: None))


def turned(history: int) -> int:
    return ~history


class Swarm:
    """Holders for each stage, and some peers that stand by."""

    def __init__(self, seed: int, settings: Settings = SETTINGS, spare: int = 2) -> None:
        self.world = grown(seed, settings, settings.replicas * settings.stage_count, spare=spare)
        self.installed: list[tuple[int, Rung, tuple[int, ...], str]] = []
        self.world.on_installed = self._installed
        self.world.notes.clear()

    def _installed(self, host: Host, effect: Any) -> None:
        plan = effect.plan
        self.installed.append((plan.stage, plan.rung, tuple(donor.stage for donor in plan.donors), host.peer.id))

    def holders_of(self, stage: int) -> list[Host]:
        return [self.world.by_id[peer.id] for peer in view_of(self.world).holders[stage]]

    def lie(self, *hosts: Host) -> None:
        self.world.liars = True
        for host in hosts:
            host.lends = turned

    def lose(self, *hosts: Host) -> None:
        """These, at once; the run goes on for some steps."""
        before = self.world.ledger.top_commit()
        for host in hosts:
            self.world.kill(host, "kill", silently=False)
        self.world.run(self.world.now + SECONDS, lambda: self.world.ledger.top_commit() >= before + STEPS)
        assert self.world.ledger.top_commit() >= before + STEPS, [*self.world.notes][-40:]

    def refusals(self) -> list[str]:
        return [note for note in self.world.notes if LENT_FOR_IT in note]

    def rungs(self, stage: int) -> list[tuple[Rung, tuple[int, ...]]]:
        """How it came back, each time."""
        return [(rung, lenders) for at, rung, lenders, _ in self.installed if at == stage]


@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.parametrize("lender", [2, 4])
def test_a_neighbour_that_lends_other_weights_lends_nothing(seed: int, lender: int) -> None:
    """The stage comes back from the other side, and the liar keeps its own, which nobody else has."""
    swarm = Swarm(seed)
    (liar,) = swarm.holders_of(lender)
    swarm.lie(liar)
    swarm.lose(*swarm.holders_of(3))
    assert swarm.refusals() and liar in swarm.holders_of(lender)
    first, *_, last = swarm.rungs(3)
    assert first == (Rung.BLEND, (2, 4)) and lender not in last[1], swarm.installed


def test_where_nobody_tries_what_was_lent_the_lie_gets_in() -> None:
    swarm = Swarm(1)
    swarm.lie(*swarm.holders_of(2))
    with nobody_tries(), pytest.raises(Violation, match="which is made of what nobody works with"):
        swarm.lose(*swarm.holders_of(3))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_where_both_neighbours_lie_others_lend(seed: int) -> None:
    swarm = Swarm(seed)
    swarm.lie(*swarm.holders_of(2), *swarm.holders_of(4))
    swarm.lose(*swarm.holders_of(3))
    assert swarm.rungs(3)[-1] == (Rung.INTERPOLATE, (1, 5)), swarm.installed


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_lender_far_away_is_tried_as_well(seed: int) -> None:
    """Two neighbours are lost together, and what is left of them on one side lies."""
    swarm = Swarm(seed)
    swarm.lie(*swarm.holders_of(4))
    swarm.lose(*swarm.holders_of(2), *swarm.holders_of(3))
    assert swarm.refusals()
    for stage in (2, 3):
        assert 4 not in swarm.rungs(stage)[-1][1], swarm.installed


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_of_a_stage_with_two_holders_the_honest_one_lends(seed: int) -> None:
    swarm = Swarm(seed, replace(SETTINGS, stages=4, replicas=2), spare=1)
    lent = 2
    liar = swarm.holders_of(lent)[0]
    swarm.lie(liar)
    swarm.lose(*swarm.holders_of(3))
    rungs = swarm.rungs(3)
    made = [rung for rung in rungs if rung[0] in (Rung.BLEND, Rung.COPY, Rung.INTERPOLATE)]
    assert swarm.refusals() and len(made) >= 2, swarm.installed


@pytest.mark.parametrize("seed", [1, 2])
def test_honest_donors_are_believed(seed: int) -> None:
    swarm = Swarm(seed)
    swarm.lose(*swarm.holders_of(3))
    assert swarm.rungs(3) == [(Rung.BLEND, (2, 4))] and not swarm.refusals()
    weighed = [note for note in swarm.world.notes if " plan: " in note]
    assert len(weighed) == 1 and "without a holder, steps of learning: stage 3: blend" in weighed[0], weighed


def test_a_step_that_is_tried_again_is_tried_again_with_the_donors() -> None:
    """The first attempts with the new stage are poisoned, and the step is skipped. Nobody believes for that."""
    swarm = Swarm(1)
    swarm.lie(*swarm.holders_of(2))
    step = swarm.world.ledger.top_commit() + 1
    swarm.world.poisons += [Poison(at, 0, 1, True, 2) for at in (step, step + 1)]
    swarm.lose(*swarm.holders_of(3))
    assert swarm.refusals() and 2 not in swarm.rungs(3)[-1][1], swarm.installed


def accuser(self: DonorTrials, trial: Check, out: Outcome) -> Donor | None:
    """It says of all donors that they lied."""
    donors = self._lent.pop(trial.rebuilt, [])
    trial.refuted, trial.distance = "a lie", 1.0
    return donors[0] if donors else None


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_who_says_without_a_reason_that_donors_lied_costs_nobody_a_place(seed: int) -> None:
    """And the run goes on, also where nobody else stands by."""
    swarm = Swarm(seed, spare=1)
    swarm.world.liars = True
    (newcomer,) = [host for host in swarm.world.live() if host.peer not in view_of(swarm.world).members()]
    newcomer.participant.holder.donor_trials.judge = MethodType(  # type: ignore[method-assign]
        accuser, newcomer.participant.holder.donor_trials
    )
    members = {*view_of(swarm.world).members()}
    (lost,) = swarm.holders_of(3)
    swarm.world.kill(lost, "kill", silently=False)
    swarm.world.run(swarm.world.now + SECONDS)
    assert members - {lost.peer} <= {*view_of(swarm.world).members()}
    before = swarm.world.ledger.top_commit()
    swarm.world.start("honest", 1, True)
    swarm.world.kill(newcomer, "kill", silently=False)
    swarm.world.run(swarm.world.now + 2 * SECONDS, lambda: swarm.world.ledger.top_commit() >= before + STEPS)
    assert swarm.world.ledger.top_commit() >= before + STEPS, [*swarm.world.notes][-30:]


def forgetful() -> AbstractContextManager[None]:
    """The leader plans with donors that are not believed."""
    return patched((LeaderMemory, "refute", lambda self, stage, donor, by: True))


def test_a_leader_that_forgets_whom_not_to_believe_asks_the_liar_without_end() -> None:
    swarm = Swarm(1)
    swarm.lie(*swarm.holders_of(2))
    with forgetful(), pytest.raises(AssertionError):
        swarm.lose(*swarm.holders_of(3))


def tells_at_once() -> AbstractContextManager[None]:
    """A trial that the end of an attempt cuts short counts as passed."""
    return patched((DonorTrials, "begin", lambda self, view, begin: self._lent.clear()))


def test_where_a_new_attempt_ends_the_trial_the_lie_gets_in() -> None:
    swarm = Swarm(1)
    swarm.lie(*swarm.holders_of(2))
    step = swarm.world.ledger.top_commit() + 1
    swarm.world.poisons += [Poison(at, 0, 1, True, 1) for at in (step, step + 1)]
    with tells_at_once(), pytest.raises(Violation, match="which is made of what nobody works with"):
        swarm.lose(*swarm.holders_of(3))
