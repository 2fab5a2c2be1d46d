"""The weights of the stages that this peer holds or learns, on their way from commit to commit (rules 19, 26 and 48).

    Begin      → each stage comes to its base: by the gradient that was reduced for it; by the leader's plan, which says
                 from whom its weights come; or, of a learner, fetched meanwhile, and going along with each commit
    Installed  → the version is here; what others lent for it has to be tried before it counts

A stage that was handed over goes along for one commit, should its new holder die at once. `learning` are stages that
the last Begin lets us learn, `work` the attempt in work; both are the holder's.
"""

from __future__ import annotations

from collections.abc import Collection

from ftnode.protocol.holder.own_departure import OwnDeparture
from ftnode.protocol.recovery.donor_trials import DonorTrials
from ftnode.protocol.recovery.held_weights import HeldWeights
from ftnode.protocol.recovery.installs import Installs
from ftnode.protocol.recovery.rolls import OwnRolls
from ftnode.protocol.recovery.rungs import REBUILT
from ftnode.protocol.recovery.trials import Trials
from ftnode.protocol.situation import Outcome, Situation
from ftnode.protocol.step.attempt import StepWork
from ftnode.protocol.step.completed_attempt import CompletedAttempt
from ftnode.protocol.words.effects import Apply, Forget
from ftnode.protocol.words.events import Installed
from ftnode.protocol.words.messages import NOT_LENT, Begin, Plan
from ftnode.protocol.words.types import Rung, Version


class OwnStages:
    """What it cannot bring to a base it gives up, by the departure."""

    def __init__(self, completed: CompletedAttempt, rolls: OwnRolls, departure: OwnDeparture) -> None:
        """`completed`: an attempt that may have made the base. `rolls`: what snapshots of it are like."""
        self.weights, self.installs = HeldWeights(), Installs()
        self.trials, self.donor_trials = Trials(), DonorTrials()
        self._completed, self._rolls, self._departure = completed, rolls, departure
        self._places: dict[int, int] = {}
        """Stage → the device on which it was when it was last installed."""
        self._made_anew: tuple[Plan, Version] | None = None
        """The last plan by which we made a stage once more that we had."""

    @property
    def untried(self) -> set[int]:
        """Stages with weights that others lent, and that have not been tried yet."""
        return {*self.trials.stages, *self.donor_trials.stages}

    def usable(self, s: Situation, learning: Collection[int], base: Version) -> dict[int, int]:
        """Stages that have the weights of the base, and the device of each."""
        ours = (stage for stage in (*s.mine, *learning) if self.weights.versions.get(stage) == base)
        return {stage: self._places.get(stage, 0) for stage in ours}

    def forget(self, out: Outcome, stage: int) -> None:
        """Nothing of it is needed any more."""
        self.weights.forget(stage)
        self.trials.forget(stage)
        self.donor_trials.forget(stage)
        out.append(Forget(stage))

    def break_off(self, out: Outcome, but: Collection[int]) -> None:
        """Installs of all but these."""
        for stage in self.installs.keep_only(but):
            self.forget(out, stage)

    def lose_all(self) -> None:
        """Compute is gone, and everything with it."""
        self.trials.keep_only(())
        self.donor_trials.keep_only(())
        self.weights.lose_all()
        self.installs.lost()

    def commit_base(
        self, s: Situation, out: Outcome, begin: Begin, learning: Collection[int], work: StepWork | None, goes_on: bool
    ) -> None:
        """Bring each stage that we hold, learn, or held to the base that the Begin commits. `goes_on`: with the attempt
        in work."""
        for stage in learning:
            if self.installs.outdated(s, stage, begin, goes_on):
                self.weights.expect(stage)
                if self.installs.drop(stage):
                    self.forget(out, stage)
        for plan in begin.installs:
            if plan.anew and plan.peer == s.me and plan.stage in s.mine and self._made_anew != (plan, begin.base):
                self._made_anew = plan, begin.base
                self.forget(out, plan.stage)
        for stage in (*s.mine, *learning):
            if self.weights.versions.get(stage) != begin.base and not self._apply(out, stage, begin, work):
                if stage in learning:
                    self._learn(s, out, stage, begin, work)
                else:
                    self._install(s, out, stage, begin)
        for stage in set(self.weights.versions) - {*s.mine, *learning}:
            self._keep_for_return(s, out, stage, begin, work)

    def on_installed(self, s: Situation, event: Installed, learning: Collection[int]) -> tuple[Version | None, Outcome]:
        """Which version of the stage is here now, if any is; and of an install that goes on, what it does next."""
        plan = self.installs.plan_of(event)
        version, out = self.installs.on_installed(s, event)
        if version is not None:
            if plan is not None and s.settings.checks:
                self._has_to_try(s, plan, learning)
            assert s.view is not None
            self.weights.hold(event.stage, version, s.view.lineage.id)
            self._places[event.stage] = event.place
        return version, out

    def _work_of_base(self, stage: int, begin: Begin, at_work: StepWork | None) -> StepWork | None:
        """The work that reduced the gradient which makes the base."""
        work = self._completed.work_in(begin.lineage) or at_work
        if work is None or work.begin.attempt != begin.base.attempt or not work.has_reduced(stage):
            return None
        return work

    def _apply(self, out: Outcome, stage: int, begin: Begin, at_work: StepWork | None) -> bool:
        """Whether its gradient is here, on the weights before."""
        work, version, base = self._work_of_base(stage, begin, at_work), self.weights.versions.get(stage), begin.base
        if work is None or version is None or version.step != base.step - 1:
            return False
        out.append(Apply(stage, base, base.attempt, work.begin.skip))
        if not work.begin.skip:
            self.donor_trials.forget(stage)
        self.weights.hold(stage, base, begin.lineage)
        return True

    def _install(self, s: Situation, out: Outcome, stage: int, begin: Begin) -> None:
        """By the leader's plan; without one the stage is given up."""
        plan = next((plan for plan in begin.installs if (plan.stage, plan.peer) == (stage, s.me)), None)
        if plan is None:
            reason = f"stage {stage} has no weights of step {begin.base.step} and no plan to get them"
            out.extend(self._departure.give_up(s, (stage,), reason))
            return
        self.weights.expect(stage)
        if plan.rung is Rung.SNAPSHOT and self._rolls.contradict(stage, begin.base, plan.digest):
            reason = f"{NOT_LENT}: the roll of step {begin.base.step} here has another digest than the plan"
            out.extend(self._departure.give_up(s, (stage,), reason))
            return
        out.extend(self.installs.start(s, plan, begin.base))

    def _learn(self, s: Situation, out: Outcome, stage: int, begin: Begin, at_work: StepWork | None) -> None:
        """What is under way goes on while no gradient is missed."""
        work, base = self._work_of_base(stage, begin, at_work), begin.base
        if work is not None and self.installs.carries_on(stage, base):
            out.append(Apply(stage, base, base.attempt, work.begin.skip))
        elif self.installs.becomes(stage) != base:
            assert s.view is not None
            self.weights.expect(stage)
            out.extend(self.installs.learn(s, stage, begin, self.trials.believed(stage, s.view.holders[stage])))

    def _keep_for_return(self, s: Situation, out: Outcome, stage: int, begin: Begin, at_work: StepWork | None) -> None:
        """A stage that we handed over goes with the swarm to the commit that did it, and no further: should its new
        holder die at once, we have it."""
        behind = self.weights.versions[stage].step < begin.base.step
        if behind and not self._apply(out, stage, begin, at_work) and s.mine:
            self.forget(out, stage)

    def _has_to_try(self, s: Situation, plan: Plan, learning: Collection[int]) -> None:
        """The weights that the plan is about are here, and came from others."""
        assert s.view is not None
        if plan.stage in learning and plan.rung is Rung.REPLICA:
            self.trials.lent(plan.stage, plan.donors[0].peer)
        elif plan.stage in s.mine and plan.rung in REBUILT:
            self.donor_trials.lent(plan.stage, (donor for donor in plan.donors if donor.peer != s.me), s.view)
