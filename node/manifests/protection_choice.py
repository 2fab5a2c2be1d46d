"""What the volunteers of a new run spend so that a lost stage costs little, by what was measured, and why.

docs/explanation/recovery.md: over 800 iterations with 24 failures, shadows every 10 steps were 6 iterations behind the
run without failures, blends of neighbours 225, and 220 with swapped routes, of which 180 are the swap's own price.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ftnode.node.home.size import size_text
from ftnode.node.manifests.line_choice import Choice
from ftnode.protocol.manifest.parse import Manifest
from ftnode.protocol.words.errors import UserError
from ftnode.protocol.words.settings import SWAP_STAGES_MIN

ERRORS = "protection_choice"

PROTECTIONS: Final = ("none", "checkfree", "checkfree+", "shadow")
NEVER: Final = 1_000_000
"""Of recovery.head_every: no run gets there."""
SHADOW_EVERY: Final = 10
"""Steps, as measured, where the bytes allow it."""
SHADOW_EVERY_MAX: Final = 100
"""By default. What older shadows are worth was not measured."""
ANEW: Final = "is made of its neighbours, and learns again"
BACK: Final = {
    "none": f"{ANEW}, but a lost head halts the run",
    "checkfree": ANEW,
    "checkfree+": "is made of its neighbours, or of the one that swaps places with it, and learns again",
    "shadow": "goes on from its copy",
}
"""What becomes of a stage whose holders have all gone."""
ALONE: Final = (
    "the one block stage has no neighbours: where all of its holders have gone, the run waits for one of them"
)
BEHIND: Final = {
    "none": "225 of them",
    "checkfree": "225 of them",
    "checkfree+": "220 of them, 180 for swapped routes",
    "shadow": "6 of them with copies every 10 steps, 48 with every 50",
}
"""What 24 losses cost that were measured in a run of 800 steps (docs/explanation/recovery.md)."""
FIRST_LOST: Final = {"none": 0.26, "checkfree": 0.26, "checkfree+": 0.01, "shadow": 0.01}
"""Nats per byte at the end of a swarm's 400 steps that lost its first block stage once, half way (same page)."""


def with_protection(choice: Choice, name: str | None) -> Choice:
    """`name`: one of PROTECTIONS; None where nobody said. Raises UserError (64) where the run has too few stages."""
    manifest = choice.manifest
    stages, every = manifest.pipeline.stages, shadow_every(manifest)
    if name is None:
        return _default(choice, every)
    if name == "checkfree+" and (stages < SWAP_STAGES_MIN or manifest.batch.microbatches < 2):
        raise UserError(
            f"--protect checkfree+ needs {SWAP_STAGES_MIN} stages and 2 microbatches, for swapped routes; choose "
            "checkfree"
        )
    return _with(choice, name, every, "as asked for")


def shadow_every(manifest: Manifest) -> int:
    """Steps between two shadows of a stage: SHADOW_EVERY, or so many that they take a tenth of the bytes."""
    spending = replace(manifest, recovery=replace(manifest.recovery, shadow_every=1))
    return max(SHADOW_EVERY, spending.shadow_every_min)


def protection_text(manifest: Manifest) -> str:
    """In one line: what is done, what it takes, and what losses cost then."""
    recovery = manifest.recovery
    head = 0 if recovery.head_every == NEVER else manifest.head_every
    name = "shadow" if recovery.shadow_every else "checkfree+" if manifest.pipeline.swap else "checkfree"
    name = name if head or not manifest.head_state_bytes else "none"
    spent = 0.0
    does = []
    if recovery.shadow_every:
        spent += manifest.pipeline.stages * manifest.shadow_bytes / recovery.shadow_every
        does.append(f"of each stage every {recovery.shadow_every} steps")
    if head:
        spent += min(2, manifest.pipeline.stages) * manifest.head_state_bytes / head
        does.append("of the head " + ("every step" if head == 1 else f"every {head} steps"))
    takes = f"that is {size_text(spent)} a step beside its tensors, {spent / manifest.step_bytes:.1%} more"
    what = f"volunteers keep copies for each other, {' and '.join(does)}; {takes}" if does else "nobody keeps copies"
    lost = "a stage whose holders have all gone"
    if manifest.pipeline.stages == 1 and not recovery.shadow_every:
        return f"protection {name}: {what}; {ALONE}"
    if manifest.start.weights and not recovery.shadow_every:
        return f"protection {name}: {what}; {lost} begins again with the model that the run goes on from"
    cost = f"24 such losses cost a run of 800 steps {BEHIND[name]}"
    once = f"one of the first stage left a run of 400 steps with a loss that is {FIRST_LOST[name]:.2f} higher"
    return f"protection {name}: {what}; {lost} {BACK[name]}: {cost}, and {once}"


def _default(choice: Choice, every: int) -> Choice:
    manifest = choice.manifest
    if manifest.start.weights:
        return _with(choice, "checkfree", every, "a lost stage begins again with the model that the run goes on from")
    if every > SHADOW_EVERY_MAX:
        return _with(choice, "checkfree", every, f"shadows would be {every} steps old, for a tenth of a step's bytes")
    reason = "with shadows a run was 6 iterations behind after 24 losses, with blends of neighbours 225"
    return _with(choice, "shadow", every, reason)


def _with(choice: Choice, name: str, every: int, reason: str) -> Choice:
    swapped = choice.because(reason, "pipeline", swap=True) if name == "checkfree+" else choice
    return swapped.because(
        f"{reason} (--protect {name})", "recovery", shadow_every=every if name == "shadow" else 0,
        head_every=NEVER if name == "none" else 0,
    )  # fmt: skip
