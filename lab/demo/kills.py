"""`--kill STAGE@STEP`, `--kill STAGE*@STEP`: which holders are killed, and when exactly.

The moment is taken from the victim's own trace: it has counted some but not all microbatches of that step. The demo
waits for it, sends SIGKILL to the node's process and to no other, and sees that its children go with it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ftnode.lab.demo.report import Kill
from ftnode.lab.swarms.swarm import Swarm, descendants, wait_until_gone
from ftnode.lab.traces.story import Story
from ftnode.protocol.words.errors import UserError

ERRORS = "demo_kills"

AIM_SECONDS = 30.0
"""A step that takes longer than this to come to the right moment is not waited for."""
AIM_POLL_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class Planned:
    """`everybody`: all holders of the stage, not one of them."""

    stage: int
    step: int
    everybody: bool = False


def plan_kills(given: Sequence[tuple[int, int, bool]] | None, stages: int, steps: int) -> tuple[Planned, ...]:
    """From the command line; None: a middle stage in the middle of the run. Raises UserError (64)."""
    if given is None:
        return (Planned(max(1, stages // 2), max(2, steps // 2)),) if stages > 1 and steps > 1 else ()
    plans = [Planned(*one) for one in given]
    for one in plans:
        text = f"--kill {one.stage}{'*' * one.everybody}@{one.step}"
        if not 0 <= one.stage <= stages:
            raise UserError(f"{text}: there is no stage {one.stage}; stages are 0 (the head) to {stages}")
        if not 1 <= one.step <= steps:
            raise UserError(f"{text}: there is no step {one.step}; the run has {steps}")
    return tuple(sorted(plans, key=lambda one: one.step))


def together(waiting: Sequence[Planned]) -> tuple[Planned, ...]:
    """The next kills: all that are planned for the same step."""
    return tuple(planned for planned in waiting if planned.step == waiting[0].step)


def strike(swarm: Swarm, story: Story, planned: Sequence[Planned]) -> tuple[Kill, ...]:
    """Kill the stages' holders in the middle of the step, all at once; nobody when it did not come to that moment.

    The moment is that of the stage whose holder is seen in the middle first. Blocks until then, for AIM_SECONDS at
    most; call it when the step before is committed. If the holders are quicker than we look, a later step will do.
    """
    deadline = time.monotonic() + AIM_SECONDS
    family: dict[str, tuple[int, ...]] = {}
    while time.monotonic() < deadline:
        groups = [(one, story.holders(one.stage)) for one in planned]
        holders = [(one, node) for one, group in groups for node in (group if one.everybody else group[:1])]
        if not all(group for _, group in groups) or not all(swarm.processes[node].alive for _, node in holders):
            story.read()
            time.sleep(AIM_POLL_SECONDS)
            continue
        for node in {node for _, node in holders} - family.keys():  # now, because it takes longer than a microbatch
            family[node] = descendants(swarm.processes[node].process.pid)
        for one, node in holders:
            if story.read(only=node) and _in_the_middle(story, node, one):
                moments = {node: swarm.kill(node)}
                moments |= {other: swarm.kill(other) for _, other in holders if other not in moments}
                sizes = {one.stage: len(group) for one, group in groups}
                return tuple(
                    replace(
                        _killed(story, name, it.stage, moments[name], family[name]),
                        holders=sizes[it.stage],
                        survivors=sizes[it.stage] > 1 and not it.everybody,
                    )
                    for it, name in holders
                )
        time.sleep(AIM_POLL_SECONDS)
    return ()


def _in_the_middle(story: Story, node: str, planned: Planned) -> bool:
    """Early enough that it is still true when the signal arrives."""
    step, counted = story.progress(node, planned.stage)
    return step >= planned.step and 1 <= counted <= max(1, (story.microbatches - 1) // 2)


def _killed(story: Story, node: str, stage: int, moment: float, family: tuple[int, ...]) -> Kill:
    """Raises UserError (70) when a child outlives its node."""
    left = wait_until_gone(family)
    story.read(only=node)
    step, counted = story.progress(node, stage)
    if not counted:  # it was killed with the others, and had not begun
        step = story.applied.get((node, stage), story.committed) + 1
    if left:
        raise UserError(f"processes {left} outlived their killed node {node}; this is a bug of ftnode", 70)
    return Kill(stage=stage, step=step, node=node, time=moment, accumulated=counted)
