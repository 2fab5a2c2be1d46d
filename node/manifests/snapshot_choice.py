"""How often the volunteers of a new run keep their stages on their disks."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ftnode.node.manifests.line_choice import Choice

SNAPSHOT_EVERY_MIN: Final = 10
USUAL_EVERY: Final = 100
"""Steps between snapshots where a run has no validations."""


def with_snapshots(choice: Choice, every: int | None) -> Choice:
    """`every`: steps from one snapshot to the next, 0 for none; None where nobody said: a swarm that is switched off
    as a whole then loses no more than lies between two validations, and no more than a tenth of a short run."""
    manifest = choice.manifest
    if every is None:
        usual = manifest.evaluation.every or USUAL_EVERY
        every = max(SNAPSHOT_EVERY_MIN, min(usual, manifest.run.steps // 10))
        reason = "a swarm that is switched off as a whole goes on from there; 0 keeps nothing"
        return choice.because(reason, "recovery", snapshot_every=every)
    return replace(choice, manifest=replace(manifest, recovery=replace(manifest.recovery, snapshot_every=every)))
