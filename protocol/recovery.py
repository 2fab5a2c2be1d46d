"""The ladder: how a stage without weights gets some (design section 7). The first rung that is possible is taken."""

from __future__ import annotations

from collections.abc import Sequence

from ftnode.protocol.settings import Settings
from ftnode.protocol.types import HEAD, Rung

Choice = tuple[Rung | None, tuple[int, ...], str]
"""(rung, stages that lend their weights, reason); rung None halts the run with that reason."""


def choose_rung(stage: int, alive: frozenset[int], base_step: int, settings: Settings) -> Choice:
    """How to fill `stage` when the stages `alive` have weights of step `base_step`.

    CheckFree (All is Not Lost, algorithm 1) blends a middle stage from both neighbours; it knows no answer for the
    first and last block stage but a copy, which its section 4.2 calls a significant drop, nor for adjacent losses.
    """
    last = settings.stages
    if base_step == 0:
        return Rung.INITIAL, (), "nothing is committed yet: initial weights are a function of seed and stage"
    if stage in alive:
        return Rung.REPLICA, (stage,), "another holder of the stage is alive"
    if stage == HEAD:
        return None, (), "the head is lost and nobody keeps a copy of embedding and LM head"
    if 1 < stage < last:
        missing = [near for near in (stage - 1, stage + 1) if near not in alive]
        if not missing:
            return Rung.BLEND, (stage - 1, stage + 1), "middle stage: both neighbours are alive"
        return None, (), f"adjacent stages {stage} and {missing[0]} are lost together"
    near = 2 if stage == 1 else last - 1
    if settings.ends == "halt":
        return None, (), f"stage {stage} is an end of the pipeline and the manifest says to halt"
    if last < 2 or near not in alive:
        return None, (), f"stage {stage} is lost and its block neighbour is not there to copy"
    return Rung.COPY, (near,), f"stage {stage} is an end of the pipeline: its one block neighbour takes its place"


def how_to_go_on(stages: Sequence[int]) -> str:
    """What a person can do about a halted run; its weights are kept where they are."""
    listed = ", ".join(str(stage) for stage in stages)
    return f"the run halts and keeps its weights; it goes on when a former holder of stage {listed} comes back"
