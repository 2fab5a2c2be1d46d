"""How soon an old member of a group of three that lies is checked for a doubt, and how often honest ones are.

python -m tests.node.reduction.doubted_parts [COURSES]

A model as `ftnode lab liars` has it is trained on this repository's text, with eight microbatches a step. Of the
gradients of each step the inner products are kept, of each third. From these follow the norms and cosines of all parts,
whichever visits a member does, and turns or multiplies. So one training serves for many courses of a group, each with
visits of its own. In a course the member is honest for BEFORE steps, and lies for LIES_FOR (decision 0047).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from random import Random
from statistics import mean, median
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from ftnode.models.config import ModelConfig
from ftnode.models.optimiser import OptimiserConfig
from ftnode.models.stage import Stage, StageVersion
from ftnode.node.reduction.part_bounds import usual_norms
from ftnode.protocol.step.doubts import Doubts
from ftnode.protocol.words.types import PartSeen, Peer
from tests.node.reduction.honest_parts import Numbers, gradients, texts, windows

MICROBATCHES: Final = 8
MEMBERS: Final = tuple(Peer(name, 1) for name in "abc")
LIAR: Final = 2
BEFORE: Final = 200
LIES_FOR: Final = 250
STEPS: Final = 700
LOT: Final = 0.005
"""The chance that another holder does all again that one did, with checks of 0.02 and three holders."""
Lie = Callable[[Random], float]
"""By how much it multiplies the gradient of a visit."""
LIES: Final[dict[str, Lie]] = {
    "turned": lambda chance: -1.0,
    "times 1.5": lambda chance: 1.5,
    "turned in a tenth": lambda chance: -1.0 if chance.random() < 0.1 else 1.0,
    "nothing in a tenth": lambda chance: 0.0 if chance.random() < 0.1 else 1.0,
}


class Course(NamedTuple):
    """`found`: steps until a check falls on a step with a lie; None: not in LIES_FOR. `checks`: for a doubt, that one
    of two made in a step, on average."""

    found: int | None
    checks: float


def trained(steps: int, seed: int) -> Numbers:
    """Inner products of what microbatches add to the gradient, [steps, stages, owners, microbatches, microbatches]."""
    config = ModelConfig(dim=64, heads=2, layers=1, context=64, hidden=128, vocabulary=256)
    optimiser = OptimiserConfig(learning_rate=4e-3, steps=10**6, weight_decay=0.0, warmup_steps=20, clip=1.0)
    stages = [Stage(config, 1, number, optimiser, MICROBATCHES, "cpu", "float32") for number in range(2)]
    for stage in stages:
        stage.initialise(seed, "measured")
    draw = windows(np.frombuffer(texts(), np.uint8), 4, 64)
    found = np.zeros((steps, len(stages), len(MEMBERS), MICROBATCHES, MICROBATCHES))
    for step in range(steps):
        attempt = seed, step + 1
        for number, of_microbatches in enumerate(gradients(stages, attempt, draw, MICROBATCHES)):
            whole: Numbers = np.stack(of_microbatches).astype(np.float64)
            for owner, piece in enumerate(np.array_split(whole, len(MEMBERS), axis=1)):
                found[step, number, owner] = piece @ piece.T
        for stage in stages:
            stage.reduce(attempt)
            stage.apply(StageVersion(step + 1, f"c{step + 1}", attempt), skipped=False)
    return found


def divided(chance: Random) -> list[list[int]]:
    """Whose visits each microbatch is: about as many each, and one or two to who is faster."""
    owners = [microbatch % len(MEMBERS) for microbatch in range(MICROBATCHES)]
    for _ in range(chance.randrange(3)):
        owners[chance.randrange(len(MEMBERS), MICROBATCHES)] = chance.randrange(len(MEMBERS))
    chance.shuffle(owners)
    names = chance.sample(range(len(MEMBERS)), len(MEMBERS))
    return [[at for at, owner in enumerate(owners) if names[owner] == member] for member in range(len(MEMBERS))]


def seen_by(owner: int, products: Numbers, shares: Sequence[Sequence[int]], factors: Numbers) -> list[PartSeen]:
    """What it sees of the others' parts of its piece. `products`: of all pieces, in this step."""
    members = len(shares)
    weights = np.zeros((members, MICROBATCHES))
    for member, share in enumerate(shares):
        weights[member, share] = factors[share] if member == LIAR else 1.0
    dots: Any = weights @ products[owner] @ weights.T
    norms = [float(np.sqrt(dots[k, k])) for k in range(members)]
    whole = float(np.sqrt(sum(weights[owner] @ piece @ weights[owner] for piece in products)))
    usual, found = usual_norms(norms, [len(share) for share in shares], owner, whole), list[PartSeen]()
    for k in set(range(members)) - {owner}:
        rest = float(np.sqrt(max(0.0, dots.sum() - 2 * dots[k].sum() + dots[k, k])))
        cosine = float(dots[k].sum() - dots[k, k]) / (norms[k] * rest) if norms[k] * rest else 0.0
        found.append(PartSeen(MEMBERS[k], norms[k] / usual[k], max(-1.0, min(1.0, cosine)), 1.0))
    return found


def course(products: Numbers, lie: Lie | None, seed: int) -> Course:
    """`products`: of one stage, [steps, owners, microbatches, microbatches]; `lie`: None is none."""
    chance, watching = Random(seed), {owner: Doubts() for owner in range(len(MEMBERS)) if owner != LIAR}
    begun, checks = chance.randrange(len(products) - BEFORE - LIES_FOR), 0
    for step in range(BEFORE + LIES_FOR):
        shares, factors = divided(chance), np.ones(MICROBATCHES)
        if lie is not None and step >= BEFORE:
            factors = np.array([lie(chance) for _ in range(MICROBATCHES)])
        lies = any(factors[at] != 1.0 for at in shares[LIAR])
        for owner, doubts in watching.items():
            able = [peer for k, peer in enumerate(MEMBERS) if k != owner]
            checked = doubts.choose(step, able, chance)
            if lies and (checked == MEMBERS[LIAR] or chance.random() < LOT):
                return Course(step - BEFORE, checks / len(watching) / (step + 1))
            checks += checked is not None
            doubts.see(1, step, seen_by(owner, products[begun + step], shares, factors))
    return Course(None, checks / len(watching) / (BEFORE + LIES_FOR))


def main(courses: int) -> None:
    torch.set_num_threads(1)
    trainings = [trained(STEPS, seed) for seed in (1, 2)]
    for stage, what in enumerate(("head", "block stage")):

        def courses_with(lie: Lie | None, stage: int = stage) -> list[Course]:
            return [course(trainings[seed % 2][:, stage], lie, seed) for seed in range(courses)]

        checks = mean(each.checks for each in courses_with(None))
        print(f"{what}: where nobody lies, one checks another for a doubt in {checks:.2%} of steps")
        for name, lie in LIES.items():
            steps = [each.found for each in courses_with(lie) if each.found is not None]
            print(
                f"{what}, {name}: found in {len(steps)} of {courses}, after {mean(steps):.0f} steps on the mean, "
                f"{median(steps):g} in the middle, {max(steps)} at most"
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 40)
