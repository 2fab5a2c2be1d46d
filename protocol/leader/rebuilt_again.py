"""The leader's part of rule 29: a rebuilt stage that scores far too badly is made once more, of others than before."""

from __future__ import annotations

from ftnode.protocol.chronicle import Chronicle, Rebuild
from ftnode.protocol.leader.leader_memory import LeaderMemory
from ftnode.protocol.leader.lenders import refuted
from ftnode.protocol.recovery.rebuilt_score import Remedy, others, rise_max
from ftnode.protocol.recovery.rungs import REBUILT, Available, filled_from
from ftnode.protocol.situation import Outcome, Situation
from ftnode.protocol.words.messages import Begin, Donor, Plan
from ftnode.protocol.words.types import spoken_stage
from ftnode.protocol.words.view import View


def made_again(
    s: Situation, out: Outcome, view: View, memory: LeaderMemory, chronicle: Chronicle, begin: Begin, score: float
) -> tuple[Plan, ...]:
    """Plans for those stages that the base of the Begin was the first step of, where its validation says that they are
    far worse than usual. Those that have another holder now, or several, stay as they are."""
    step = begin.base.step
    found = [rebuild for (at, _), rebuild in sorted(chronicle.rebuilds.items()) if at == step]
    rebuilt = {rebuild.stage: rebuild for rebuild in found if rebuild.rung in REBUILT}
    if not (s.settings.checks and rebuilt and begin.training and not begin.skip) or begin.attempt.view != view.number:
        return ()
    before, _ = chronicle.around(next(iter(rebuilt.values())))
    rise = rise_max({stage: rebuild.rung for stage, rebuild in rebuilt.items()}, s.settings)
    remedy = memory.scores.judge(step, begin.attempt, before, score, rise)
    if remedy is None:
        return ()
    held = frozenset(stage for stage, group in enumerate(view.holders) if group) - refuted(memory, view)
    available = Available(step, held - rebuilt.keys(), {}, ())
    plans = [_plan(s, view, rebuild, available, remedy) for rebuild in rebuilt.values()]
    made = tuple(plan for plan in plans if plan is not None)
    listed = ", ".join(spoken_stage(plan.stage) for plan in made) or "nothing"
    text = f"validation rose from {before:.2f} to {score:.2f} with what was rebuilt; made anew: {listed}"
    out.note("score", text, step=str(step), stages=",".join(str(stage) for stage in rebuilt))
    return made


def _plan(s: Situation, view: View, rebuild: Rebuild, available: Available, remedy: Remedy) -> Plan | None:
    """For whoever holds the stage alone."""
    stage, group = rebuild.stage, view.holders[rebuild.stage]
    if len(group) != 1:
        return None
    if remedy is Remedy.AGAIN:
        rung, lenders, _ = others(stage, available, s.settings)
        reason = "with what it was made of the model is far worse than it should be"
    else:
        rung, lenders, _ = filled_from(stage, available, s.settings)
        reason = "of others it is worse still"
    if rung not in REBUILT:
        return None
    chosen = [(at, min(view.holders[at], key=lambda peer: peer != group[0])) for at in lenders]
    donors = tuple(Donor(at, peer, s.contacts.get(peer, ())) for at, peer in chosen)
    return Plan(stage, group[0], rung, donors, s.settings.rate_factor, reason, None, anew=True)
