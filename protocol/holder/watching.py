"""What a holder sees of the tensors that others pass on to it, and whom it tells what looks unusual (rule 42).

It holds another stage than the maker, mostly, and could not do that one's visits again. So the other holders of the
maker's stage hear of it, and check that one in the next step, and whoever keeps a shadow of it tries the next copy.
Nobody is accused, and each is heard only so often.
"""

from __future__ import annotations

from ftnode.protocol.situation import Outcome, Situation
from ftnode.protocol.step.attempt import StepWork
from ftnode.protocol.step.boundary_norms import BoundaryNorms, Source
from ftnode.protocol.step.doubts import BUDGET_A_STEP, BUDGET_MAX, Budget, Doubt, Doubts, bound
from ftnode.protocol.step.routes import neighbours
from ftnode.protocol.step.showing import keepers_in
from ftnode.protocol.words.effects import Backward, Forward
from ftnode.protocol.words.events import Done
from ftnode.protocol.words.messages import Begin, Doubted
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import View


class Watching:
    """Of one holder, from step to step. `doubts`: its own."""

    def __init__(self, doubts: Doubts) -> None:
        self._doubts = doubts
        self._norms = BoundaryNorms()
        self._telling = Budget(BUDGET_MAX)
        self._told: dict[Peer, int] = {}
        """In which step others were last told of a peer."""

    def begin(self, s: Situation, begin: Begin) -> None:
        if s.settings.checks and s.view is not None:
            self._norms.begin(s.view, begin)

    def on_done(self, s: Situation, work: StepWork, done: Done) -> Outcome:
        """A task of the attempt in work is finished, and has measured what it was given. As in check.py, an attempt
        that an earlier view began is not looked at: its paths may name others than those who made what is here."""
        out, task, source = Outcome(), done.task, work.source_of(done.task)
        if not s.settings.checks or s.view is None or done.received < 0 or done.fault or source is None:
            return out
        if not isinstance(task, Forward | Backward) or work.is_validation(task.microbatch):
            return out
        if task.attempt.view != s.view.number:
            return out
        reason = self._norms.see(source, done.received, done.way)
        if reason:
            self._doubt(s, s.view, out, source, Doubt(source.maker, task.stage, task.step, reason), done, work)
        return out

    def _doubt(
        self, s: Situation, view: View, out: Outcome, source: Source, doubt: Doubt, done: Done, work: StepWork
    ) -> None:  # fmt: skip
        """Who may do its visits again hears of it: its group, and who keeps a copy of the stage (rule 53)."""
        peer = doubt.peer
        able = {*view.holders[source.stage], *keepers_in(work.begin, source.stage)} - {peer}
        if self._doubts.notice(doubt, s.me in able):
            about = f"what {peer} gave to stage {doubt.stage} in step {doubt.step} is {doubt.reason}"
            out.note("doubt", about, peer=peer.id, stage=str(doubt.stage), step=str(doubt.step))
        if self._told.get(peer) == doubt.step:
            return
        self._telling.grow(doubt.step, BUDGET_A_STEP, BUDGET_MAX)
        others = sorted(able - {s.me})
        if not others or not self._telling.spend():
            return
        self._told[peer] = doubt.step
        bound(self._told)
        for other in others:
            out.send(other, Doubted(view.lineage.id, view.number, doubt.step, done.task.attempt, source.stage, peer))

    def on_doubted(self, s: Situation, sender: Peer, doubted: Doubted, begin: Begin | None) -> Outcome:
        """A holder of a stage beside ours doubts another holder of ours."""
        out, view, peer = Outcome(), s.view, doubted.peer
        if view is None or begin is None or not s.settings.checks or not s.of_view(doubted.lineage, doubted.view):
            return out
        group = view.holders[doubted.stage]
        if s.me not in (*group, *keepers_in(begin, doubted.stage)) or peer not in group or peer in (s.me, sender):
            return out
        if sender not in neighbours(view, doubted.stage, s.settings.swap):
            return out
        if self._doubts.hear(sender, Doubt(peer, doubted.stage, begin.step, ""), begin.step):
            about = f"{sender} says that what {peer} passed on in step {doubted.step} is unlike what is usual"
            out.note("doubt", about, peer=peer.id, stage=str(doubted.stage), step=str(doubted.step))
        return out
