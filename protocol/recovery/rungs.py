"""The ladder: how a stage without weights gets some, by the first possible rung (docs/explanation/recovery.md)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from ftnode.protocol.words.settings import SWAP_STAGES_MIN, Settings
from ftnode.protocol.words.types import HEAD, Rung

Choice = tuple[Rung | None, tuple[int, ...], str]
"""(rung, stages that lend their weights, reason); rung None halts the run with that reason."""
REBUILT = frozenset((Rung.BLEND, Rung.COPY, Rung.INTERPOLATE))
"""Rungs that make weights that never were: they learn faster by a factor, once."""
LOSSY = REBUILT | {Rung.HEAD, Rung.SHADOW, Rung.FIRST, Rung.OMIT}
"""Rungs after which the model is not the one that was lost; it is evaluated as soon as it has made a step."""


class Available(NamedTuple):
    """Whose weights of `step` there are."""

    step: int
    held: frozenset[int]
    """Stages of which a holder has them."""
    copied: Mapping[int, int]
    """Stage → step of the newest copy that somebody lends, not later than `step`."""
    stored: Collection[int]
    """Stages of which a disk has exactly these."""

    def without(self, stages: Collection[int]) -> Available:
        """These are held, and not lent to others by anybody who is believed."""
        step, held, copied, stored = self
        kept = {stage: at for stage, at in copied.items() if stage not in stages}
        return Available(step, held.difference(stages), kept, [stage for stage in stored if stage not in stages])


def filled_from(stage: int, available: Available, settings: Settings) -> Choice:
    """Can a stage be filled, and from what? Whoever looks for a holder asks this before the view, and whoever plans the
    installs after it. A stage that comes back as a copy or from a disk lends its weights to others."""
    step, held, copied, stored = available
    if stage in stored and stage not in held:
        return Rung.SNAPSHOT, (stage,), "its snapshot is on a disk"
    return choose_rung(stage, held | ({*copied, *stored} - {stage}), step, settings, copied)


def choose_rung(
    stage: int, alive: frozenset[int], base_step: int, settings: Settings, copied: Mapping[int, int]
) -> Choice:
    """How to fill `stage` when the stages `alive` have weights of step `base_step`; `copied`: stage → step of a copy.

    CheckFree (All is Not Lost, algorithm 1) blends a middle stage from both neighbours. CheckFree+ copies the ends from
    the partners that learned their part on swapped routes, and keeps copies of embedding and LM head. The paper has no
    answer for adjacent losses; here the nearest survivors on both sides are interpolated. A run that goes on from a
    model has that model, of which a stage is nearer to what was lost than any other stage is.
    """
    if base_step == 0:
        return Rung.INITIAL, (), "nothing is trained yet"
    if stage in alive:
        return Rung.REPLICA, (stage,), "another volunteer has it"
    if stage in copied:
        age = base_step - copied[stage]
        kept = f"a copy of step {copied[stage]} is kept" + (f", {age} steps old" if age else "")
        return (Rung.HEAD if stage == HEAD else Rung.SHADOW), (stage,), kept
    if settings.continued and alive - {HEAD}:
        return Rung.FIRST, (), "its last holder is gone, and everybody can have what the run began with"
    if stage == HEAD:
        return None, (), "the head is lost and nobody keeps a copy of it"
    if not alive - {HEAD}:
        return None, (), "all block stages are lost together"
    return _from_blocks(stage, sorted(alive - {HEAD}), settings)


def _from_blocks(stage: int, blocks: Sequence[int], settings: Settings) -> Choice:
    """From the weights of other block stages, of which there are some."""
    partner = partner_of(stage, settings)
    if partner in blocks and (stage in (1, settings.stages) or settings.swapped == "copy"):
        return Rung.COPY, (partner,), f"stage {partner} has been trained to take its place"
    below = max((block for block in blocks if block < stage), default=None)
    above = min((block for block in blocks if block > stage), default=None)
    if below is not None and above is not None:
        if above - below == 2:
            return Rung.BLEND, (below, above), "its last holder is gone, both neighbours are there"
        return Rung.INTERPOLATE, (below, above), f"neighbours are lost, too: {below} and {above} are nearest"
    nearest = below if below is not None else above
    assert nearest is not None
    if settings.ends == "halt":
        return None, (), f"nobody is left on one side of stage {stage}, and the manifest says to stop then"
    if abs(nearest - stage) > 1:
        why = f"neighbours are lost, too: stage {nearest} is nearest"
        return Rung.COPY, (nearest,), why
    cost = "" if partner else "; the loss rises much"
    return (
        Rung.COPY,
        (nearest,),
        f"stage {stage} is an end of the pipeline and has one neighbour{cost}",
    )


def partner_of(stage: int, settings: Settings) -> int:
    """The block stage that takes this one's place on every other microbatch; 0 if none does."""
    last = settings.stages
    if not settings.swap or last < SWAP_STAGES_MIN:
        return 0
    return {1: 2, 2: 1, last: last - 1, last - 1: last}.get(stage, 0)


def how_to_go_on(stages: Sequence[int]) -> str:
    """What a person can do about a halted run; its weights are kept where they are."""
    listed = ", ".join(str(stage) for stage in stages)
    return f"the run halts and keeps its weights; it goes on when a former holder of stage {listed} comes back"
