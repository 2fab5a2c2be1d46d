"""What a learner was lent, tried before it counts (rule 48).

Who lends weights may lend others than it works with. A learner that went by them would be taken for the liar, since
what it computes then is wrong. So in a run with checks it does some of the lender's visits first, as in a check: what
the lender passed on has to come out. Until then it is not Ready. The weights of a lender that they do not fit are
dropped, and it is asked for no more of the stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

from ftnode.protocol.situation import Outcome, Situation
from ftnode.protocol.step.check import Check, Lot, shown_of
from ftnode.protocol.words.messages import Begin
from ftnode.protocol.words.types import Peer, spoken_stage
from ftnode.protocol.words.view import View

STEPS_MAX: Final = 3
"""So many trials may be cut short by the next step. After that the weights count, as they do at once where nobody
shows anything: that must not keep everybody out."""
LENT_OTHERS: Final = "lent other weights of"
"""What is said of whoever is not believed."""


class Trials:
    """Of the stages that this peer learns."""

    def __init__(self) -> None:
        self._lent: dict[int, Peer] = {}
        """Those whose weights are not tried yet, and who lent them."""
        self._begun = Counter[int]()
        """Trials of each that have come to nothing, or may."""
        self.refuted: set[tuple[int, Peer]] = set()
        """(stage, holder) that lent other weights than it works with."""
        self.refused: frozenset[int] = frozenset()
        """Stages all of whose holders are such."""

    @property
    def stages(self) -> Collection[int]:
        """Whose weights are not tried yet."""
        return self._lent.keys()

    def on_view(self, view: View) -> None:
        """Another holder of a stage may be believed."""
        self.refuted = {(stage, peer) for stage, peer in self.refuted if peer in view.holders[stage]}
        self.refused = frozenset(
            stage for stage, group in enumerate(view.holders) if group and not self.believed(stage, group)
        )

    def believed(self, stage: int, group: Iterable[Peer]) -> list[Peer]:
        """Who may lend us the stage."""
        return [peer for peer in group if (stage, peer) not in self.refuted]

    def lent(self, stage: int, by: Peer) -> None:
        """The stage's weights are here."""
        self._lent[stage] = by

    def keep_only(self, stages: Collection[int]) -> None:
        """We learn no others, or hold them now."""
        self._lent = {stage: by for stage, by in self._lent.items() if stage in stages}

    def forget(self, stage: int) -> None:
        """Its weights are gone."""
        self._lent.pop(stage, None)

    def draw(self, s: Situation, begin: Begin, usable: Collection[int]) -> Lot | None:
        """Which of the stages whose weights are those of the base are tried in this step, and on whose visits: the
        lender's, or, where it had none in the step before, another holder's. What nobody can show has to be
        believed."""
        view = s.view
        if view is None or not begin.training or begin.skip or begin.attempt.view != view.number:
            return None
        for stage in sorted(self._lent.keys() & {*usable}):
            by, group = self._lent[stage], view.holders[stage]
            others = [peer for peer in group if peer not in (s.me, by)]
            of = s.chance.choice(others) if others and (by not in group or self._begun[stage] % 2) else by
            learnt = [other for other in sorted(self._lent) if other in usable and self._lent[other] == by]
            tried = shown_of(view, learnt, of, s.settings)
            if stage in tried and self._begun[stage] < STEPS_MAX:
                self._begun.update(tried)
                return Lot(of, 0.0, s.chance.getrandbits(32), tried)
            self._believe(stage)
        return None

    def _believe(self, stage: int) -> None:
        del self._lent[stage], self._begun[stage]

    def judge(self, s: Situation, trial: Check, out: Outcome) -> tuple[int, ...]:
        """What came of it so far. The stages whose weights are not to be believed."""
        tried = tuple(stage for stage in trial.stages if stage in self._lent)
        if trial.agreed or (trial.given_up and not trial.refuted and not trial.deceived):
            for stage in tried:
                self._believe(stage)
        if not trial.refuted:
            return ()
        for stage in tried:
            by = self._lent[stage]
            self._believe(stage)
            self.refuted.add((stage, by))
            worker = "it" if trial.of == by else trial.of
            text = f"{by} {LENT_OTHERS} {spoken_stage(stage)} than {worker} works with: {trial.refuted}"
            out.note("doubt", text, peer=by.id, stage=str(stage), step=str(trial.begin.step))
        if s.view is not None:
            self.on_view(s.view)
        return tried
