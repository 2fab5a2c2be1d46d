"""What a Begin does to the weights of a peer: each stage of its own is brought to the base that the Begin commits.

The gradient that was reduced for it is applied; whoever has none installs what the leader's plan says, or learns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftnode.protocol.effects import Apply
from ftnode.protocol.messages import Begin
from ftnode.protocol.step import StepWork

if TYPE_CHECKING:
    from ftnode.protocol.holder import Holder


def commit_base(holder: Holder, begin: Begin, goes_on: bool) -> None:
    """Rule 19, for all stages that we hold, learn, or held. `goes_on`: the Begin goes on with the attempt in work."""
    core = holder.core
    for stage in holder.learning:
        if holder.installs.outdated(stage, begin, goes_on):
            holder.versions.pop(stage, None)
            holder.installs.drop(stage)
    for stage in (*core.mine, *holder.learning):
        if holder.versions.get(stage) != begin.base and not _apply(holder, stage, begin):
            if stage in holder.learning:
                _learn(holder, stage, begin)
            else:
                _install(holder, stage, begin)
    for stage in set(holder.versions) - {*core.mine, *holder.learning}:
        _keep_for_return(holder, stage, begin)


def _reduced(holder: Holder, stage: int, begin: Begin) -> StepWork | None:
    """The work that reduced the gradient which makes the base."""
    work = holder.retired.work_in(begin.lineage) or holder.work
    if work is None or work.begin.attempt != begin.base.attempt or not work.has_reduced(stage):
        return None
    return work


def _apply(holder: Holder, stage: int, begin: Begin) -> bool:
    work, version, base = _reduced(holder, stage, begin), holder.versions.get(stage), begin.base
    if work is None or version is None or version.step != base.step - 1:
        return False
    holder.core.emit(Apply(stage, base, base.attempt, work.begin.skip))
    holder.versions[stage] = base
    holder.made_in[stage] = begin.lineage, holder.origin
    return True


def _install(holder: Holder, stage: int, begin: Begin) -> None:
    plan = next((plan for plan in begin.installs if (plan.stage, plan.peer) == (stage, holder.core.me)), None)
    if plan is None:
        reason = f"stage {stage} has no weights of step {begin.base.step} and no plan to get them"
        holder.resign((stage,), reason, False)
        return
    holder.versions.pop(stage, None)
    holder.installs.start(plan, begin.base)


def _learn(holder: Holder, stage: int, begin: Begin) -> None:
    """What is under way goes on while no gradient is missed."""
    work, base = _reduced(holder, stage, begin), begin.base
    if work is not None and holder.installs.carries_on(stage, base):
        holder.core.emit(Apply(stage, base, base.attempt, work.begin.skip))
    elif holder.installs.becomes(stage) != base:
        holder.versions.pop(stage, None)
        holder.installs.learn(stage, begin)


def _keep_for_return(holder: Holder, stage: int, begin: Begin) -> None:
    """A stage that we handed over goes with the swarm to the commit that did it, and no further: should its new
    holder die at once, we have it."""
    if holder.versions[stage].step < begin.base.step and not _apply(holder, stage, begin) and holder.core.mine:
        holder.forget(stage)
