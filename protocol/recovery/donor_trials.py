"""What donors lent for a stage that is made of theirs, tried before it counts (rule 48).

Who rebuilds a stage holds it at once, alone, and nobody can compare it with anything: it never was. What can be tried
is what it is made of. Compute keeps the weights of each donor until the first step is over. Once the step's visits of
the new stage are done, those of the donors are as well, as far as they are needed here: some of them are done again on
what was lent. Until they agree this peer is not Ready. Where one does not, the new stage is dropped and given up, and
the leader, which is told whose weights those were, plans without them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ftnode.protocol.situation import Outcome, Situation
from ftnode.protocol.step.attempt import StepWork
from ftnode.protocol.step.check import Check, Lot, shown_of
from ftnode.protocol.words.messages import Begin, Donor
from ftnode.protocol.words.types import spoken_stage
from ftnode.protocol.words.view import View

LENT_FOR_IT = "lent other weights for a new stage than"
"""What is said of a donor that is not believed."""


class DonorTrials:
    """Of the stages that this peer has rebuilt in the step that is under way."""

    def __init__(self) -> None:
        self._lent: dict[int, list[Donor]] = {}
        """Stage → those whose weights are in it and have not been tried yet."""
        self._epochs: dict[int, int] = {}
        """Stage → the epoch of its holders when it was lent."""

    @property
    def stages(self) -> Collection[int]:
        """Rebuilt, and not tried yet."""
        return self._lent.keys()

    def lent(self, stage: int, donors: Iterable[Donor], view: View) -> None:
        """The stage is made of these, all of them other peers'."""
        self._set(stage, [*donors])
        self._epochs |= {donor.stage: view.epochs[donor.stage] for donor in self._lent.get(stage, ())}

    def begin(self, view: View, begin: Begin) -> None:
        """A donor's stage may have been lost since, and rebuilt: it has other weights under the same name then, and
        nobody works any more with what was lent."""
        rebuilt = {plan.stage for plan in begin.installs}
        for stage, donors in [*self._lent.items()]:
            same = [one for one in donors if self._epochs[one.stage] == view.epochs[one.stage]]
            later = () if stage in rebuilt else rebuilt
            self._set(stage, [one for one in same if one.stage not in later])

    def _set(self, stage: int, donors: list[Donor]) -> None:
        self._lent.pop(stage, None)
        if donors:
            self._lent[stage] = donors

    def keep_only(self, stages: Collection[int]) -> None:
        """We hold no others."""
        self._lent = {stage: donors for stage, donors in self._lent.items() if stage in stages}

    def forget(self, stage: int) -> None:
        """It is gone, or a step was made with it."""
        self._lent.pop(stage, None)

    def draw(self, s: Situation, work: StepWork) -> Lot | None:
        """Whose weights are tried next, once what is needed for it has been computed: rather on visits of the donor
        itself than of another holder of its stage. What nobody can show has to be believed."""
        begin, view = work.begin, work.view
        if not begin.training or begin.skip or begin.attempt.view != view.number or not work.may_check:
            return None
        for stage in [stage for stage in sorted(self._lent) if work.has_reduced(stage)]:
            while donors := self._lent[stage]:
                lent = donors[0].stage
                did = [peer for peer in work.who_did(lent) if lent in shown_of(view, (lent,), peer, s.settings)]
                if did:
                    of = donors[0].peer if donors[0].peer in did else s.chance.choice(did)
                    return Lot(of, 0.0, s.chance.getrandbits(32), (lent,), rebuilt=stage)
                del donors[0]
            self._set(stage, [])
        return None

    def judge(self, trial: Check, out: Outcome) -> Donor | None:
        """What came of the trial, when it is over. The donor that is not to be believed."""
        donors = self._lent.get(trial.rebuilt, [])
        if trial.judged or not donors or not (trial.refuted or trial.over):
            return None
        trial.judged, donor = True, donors[0]
        if trial.deceived:
            return None  # it is tried again
        if trial.refuted:
            self._set(trial.rebuilt, [])
            worker = "it" if trial.of == donor.peer else trial.of
            text = f"{donor.peer} {LENT_FOR_IT} {worker} works with, of {spoken_stage(donor.stage)}: {trial.refuted}"
            out.note("doubt", text, peer=donor.peer.id, stage=str(donor.stage), step=str(trial.begin.step))
            return donor
        self._set(trial.rebuilt, donors[1:])
        return None
