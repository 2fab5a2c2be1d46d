"""Ways to rebuild a lost stage, by name: those of the papers, those of the swarm, and those that try to be better.

Each is a pure choice (`Way`) carried out with what the swarm uses: its ladder's choice of donors, their shares, a
streaming Blend, and Stage.become. CheckFree is "All is Not Lost: LLM Recovery without Checkpoints"; its Algorithm 1 is
`squared-norm`, its published code `norm-after-clipping`, its section 4.2's comparisons `random` and `previous`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from ftnode.lab.recovery.whole_model import WholeModel, version_of
from ftnode.models.blend import Blend
from ftnode.models.initial import initialise
from ftnode.models.llama import RESIDUAL_OUTPUTS
from ftnode.models.stage import Stage
from ftnode.models.tensors import PASS_NUMBERS
from ftnode.protocol.recovery.rungs import choose_rung
from ftnode.protocol.words.donor_shares import shares
from ftnode.protocol.words.settings import Settings

OPTIMISERS = ("fresh", "blended", "second-moment")


@dataclass(frozen=True, slots=True)
class Way:
    """How weights of a lost stage are made.

    `donors`: none (new random weights), previous, next, neighbours (both, or the one there is at an end) or partner
    (whose place it takes on swapped routes; elsewhere neighbours). `keep_random`: the residual outputs, by which a
    block writes, are new and small. `outputs`: what they are multiplied with; 0 makes the stage an identity.
    """

    donors: str = "neighbours"
    weighting: str = "squared-norm"
    after_clipping: bool = False
    outputs: float = 1.0
    keep_random: bool = False


WAYS = {
    "random": Way("none"),
    "previous": Way("previous"),
    "uniform": Way(weighting="uniform"),
    "norm": Way(weighting="norm"),
    "squared-norm": Way(),
    "inverse-norm": Way(weighting="inverse-norm"),
    "norm-after-clipping": Way(weighting="norm", after_clipping=True),
    "squared-norm-after-clipping": Way(after_clipping=True),
    "partner": Way("partner"),
    "identity": Way(weighting="uniform", outputs=0.0),
    "random-identity": Way("none", outputs=0.0),
    "half-blend": Way(weighting="uniform", outputs=0.5),
    "quarter-blend": Way(weighting="uniform", outputs=0.25),
    "blend-random-outputs": Way(weighting="uniform", keep_random=True),
}


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """`donors`: (stage, share), empty for random weights. `moved_bytes`: what the newcomer received."""

    stage: int
    donors: tuple[tuple[int, float], ...]
    moved_bytes: int


def choose_donors(
    donors: str, stage: int, stages: int, lost: frozenset[int], swap: bool
) -> tuple[tuple[int, int], ...]:
    """(stage, distance) of those who lend: whom the swarm's own ladder names, or the nearest on one side.

    Nobody when nobody is left.
    """
    alive = frozenset(range(1, stages + 1)) - lost
    settings = Settings("lab", stages, steps=0, microbatches=1, window=1, swap=swap and donors == "partner")
    _, chosen, _ = choose_rung(stage, alive, base_step=1, settings=settings, copied={})
    found = tuple((near, abs(near - stage)) for near in chosen)
    if donors == "none":
        return ()
    if donors == "previous":
        return found[:1]
    return found[-1:] if donors == "next" else found


def rebuild(
    model: WholeModel, stage: int, way: Way, *, optimiser: str = "fresh", rate_factor: float = 1.1,
    lost: frozenset[int] = frozenset(), draw: int = 0,
) -> Rebuilt:  # fmt: skip
    """Make `stage` anew from the others; `draw` numbers the losses, so that each has random weights of its own."""
    target, size = model.stages[stage], model.size
    chosen = choose_donors(way.donors, stage, size.stages, lost | {stage}, model.swap)
    given: tuple[float, ...] = ()
    if chosen:
        norms = [model.stages[near].norm_squared for near, _ in chosen]
        clip = target.optimiser.clip if way.after_clipping else float("inf")
        given = shares(norms, [distance for _, distance in chosen], way.weighting, clip)
    fresh = new_weights(target, model.seed, draw)
    if chosen:
        blend_into(
            target.weights, stage, [(model.stages[near].weights, share) for (near, _), share in zip(chosen, given)]
        )
        for view, new in zip(residual_outputs(target, target.weights), residual_outputs(target, fresh)):
            if way.keep_random:
                view.copy_(new)
    else:
        target.weights.copy_(fresh)
    for view in residual_outputs(target, target.weights):
        view.mul_(way.outputs)
    moments = [(model.stages[near], share) for (near, _), share in zip(chosen, given)]
    updates = take_up_optimiser(target, moments, optimiser)
    target.become(version_of(model.step), updates, rate_factor, 0.0)
    rows = 1 if optimiser == "fresh" else 3 if optimiser == "blended" else 2
    return Rebuilt(
        stage, tuple((near, share) for (near, _), share in zip(chosen, given)),
        len(chosen) * rows * 4 * target.layout.size,
    )  # fmt: skip


def take_up_optimiser(target: Stage, donors: list[tuple[Stage, float]], policy: str) -> int:
    """Moments of the rebuilt stage; returns its count of updates. Without donors there is nothing but a fresh start.

    fresh: zero, as CheckFree's code. blended: both moments as the weights. second-moment: only Adam's squares, so that
    the first steps are neither sign-like nor driven by somebody else's direction.
    """
    target.moments.zero_()
    if policy == "fresh" or not donors:
        return 0
    taken = slice(0 if policy == "blended" else target.layout.size, None)  # of two rows: exp_avg, exp_avg_sq
    blend_into(target.moments[taken], target.index, [(donor.moments[taken], share) for donor, share in donors])
    return min(donor.updates for donor, _ in donors)


def blend_into(flat: Tensor, stage: int, donors: list[tuple[Tensor, float]]) -> None:
    """As the swarm does it: chunk by chunk, shares adding up to 1."""
    blend = Blend(flat, PASS_NUMBERS, stage)
    for donor, share in donors:
        for index, chunk in enumerate(torch.split(donor.detach(), PASS_NUMBERS)):
            blend.add(index, share, chunk)
    blend.finish()


def new_weights(stage: Stage, seed: int, draw: int) -> Tensor:
    """[n] as at the start of a run, from a stream that no stage and no other loss has used."""
    name = hashlib.blake2b(f"ftnode/rebuilt/{seed}/{draw}".encode(), digest_size=4).digest()
    flat = torch.empty(stage.layout.size, dtype=stage.dtype)
    initialise(flat, stage.layout, stage.config, int.from_bytes(name, "little"), stage.index)
    return flat.to(stage.device)


def residual_outputs(stage: Stage, flat: Tensor) -> list[Tensor]:
    """The matrices by which the stage's blocks write into the residual stream."""
    with torch.no_grad():
        return [
            stage.layout.view(flat, name).detach() for name in stage.layout.entries if name.endswith(RESIDUAL_OUTPUTS)
        ]
