"""How far honest parts of a sum are from what is usual in their group, and finished sums from what is taken.

python -m tests.node.reduction.honest_parts [bytes | few | words]

A small model is trained on this repository's text, 16 microbatches a step. Now and then the gradients of a step are
divided at random among two to eight members, one visit each or more, and cut into pieces as in a group (decision 0047).
"""

from __future__ import annotations

import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from ftnode.models.config import ModelConfig
from ftnode.models.optimiser import OptimiserConfig
from ftnode.models.stage import Stage, StageVersion
from ftnode.node.reduction.part_bounds import LARGEST_SUM, sum_bound, usual_norms

MICROBATCHES: Final = 16
STAGES: Final = 2
LOOKED_AT: Final = (1, 2, 3, 5, 10, 20, 40, 80, 120, 160)
DIVISIONS: Final = 12
Numbers = np.ndarray[Any, np.dtype[Any]]
Draw = Callable[[int, int], torch.Tensor]


class Seen(NamedTuple):
    """Of one part: its norm, of what is usual; its cosine to the others'; of the finished sum, the norm over what its
    receiver's own part would make usual for all."""

    size: float
    cosine: float
    whole: float


def texts() -> bytes:
    root = Path(__file__).parents[3]
    found = [*sorted((root / "docs").rglob("*.md")), *sorted((root / "node").rglob("*.py"))]
    return b"".join(path.read_bytes() for path in found)


def windows(tokens: Numbers, sequences: int, context: int) -> Draw:
    def draw(step: int, microbatch: int) -> torch.Tensor:
        chance = np.random.default_rng([step, microbatch])
        starts = chance.integers(0, len(tokens) - context - 1, sequences)
        return torch.from_numpy(np.stack([tokens[at : at + context + 1] for at in starts]).astype(np.int64))

    return draw


def words(text: bytes, vocabulary: int) -> Numbers:
    found = re.findall(rb"\w+|\W", text)
    known = {word: number for number, (word, _) in enumerate(Counter(found).most_common(vocabulary - 1))}
    return np.array([known.get(word, vocabulary - 1) for word in found])


def gradients(
    stages: Sequence[Stage], attempt: tuple[int, int], draw: Draw, microbatches: int = MICROBATCHES
) -> list[list[Numbers]]:
    """Of each stage, that of each microbatch of a step."""
    found: list[list[Numbers]] = [[] for _ in stages]
    before = [torch.zeros_like(stage.gradient) for stage in stages]
    for microbatch in range(microbatches):
        tokens = draw(attempt[1], microbatch)
        x = stages[0].forward((attempt, microbatch, 0), tokens[:, :-1], False)
        for stage in stages[1:]:
            x = stage.forward((attempt, microbatch, stage.index), x, True)
        back = stages[0].learn((attempt, microbatch, len(stages)), x, tokens[:, 1:]).gradient
        for stage in reversed(stages[1:]):
            assert back is not None
            back = stage.backward((attempt, microbatch, stage.index), back, None).gradient
        assert back is not None
        stages[0].backward((attempt, microbatch, 0), back, tokens[:, :-1])
        for index, stage in enumerate(stages):
            found[index].append((stage.gradient - before[index]).numpy().copy())
            before[index] = stage.gradient.clone()
    return found


def looked_at(of_microbatches: Sequence[Numbers], members: int, chance: random.Random) -> list[Seen]:
    """One division among so many members: what each owner sees of each other's part."""
    taken = chance.sample(range(MICROBATCHES), chance.choice((MICROBATCHES, members + 1, members, 2 * members)))
    cuts = sorted(chance.sample(range(1, len(taken)), members - 1))
    shares = [taken[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(taken)])]
    whole: list[Numbers] = [np.sum([of_microbatches[m] for m in share], axis=0) for share in shares]
    counts, found = [len(share) for share in shares], list[Seen]()
    pieces = [np.array_split(gradient, members) for gradient in whole]
    norms = [[float(np.linalg.norm(piece)) for piece in each] for each in pieces]
    for owner in range(members):
        told = [norms[k][owner] for k in range(members)]
        usual = usual_norms(told, counts, owner, float(np.linalg.norm(whole[owner])))
        total = np.sum([pieces[k][owner] for k in range(members)], axis=0)
        for k in set(range(members)) - {owner}:
            part, rest = pieces[k][owner], total - pieces[k][owner]
            cosine = float(part @ rest) / (told[k] * float(np.linalg.norm(rest)) or 1.0)
            once = (sum_bound(norms[k], counts, k, owner) - told[k]) / LARGEST_SUM
            found.append(Seen(told[k] / usual[k], cosine, float(np.linalg.norm(total)) / (told[k] + once)))
    return found


def measure(draw: Draw, vocabulary: int, products: str) -> dict[tuple[int, int], list[Seen]]:
    """By (stage, members)."""
    config = ModelConfig(dim=64, heads=4, layers=4, context=64, hidden=128, vocabulary=vocabulary)
    optimiser = OptimiserConfig(
        learning_rate=3e-3, steps=LOOKED_AT[-1], weight_decay=0.1, warmup_steps=10, clip=1.0
    )  # fmt: skip
    stages = [Stage(config, STAGES, n, optimiser, MICROBATCHES, "cpu", products) for n in range(STAGES + 1)]
    for stage in stages:
        stage.initialise(1, "measured")
    chance, found = random.Random(2), defaultdict[tuple[int, int], list[Seen]](list)
    for step in range(1, LOOKED_AT[-1] + 1):
        attempt = 0, step
        of_step = gradients(stages, attempt, draw)
        for stage, members in ((s, n) for s in range(STAGES + 1) for n in (2, 3, 4, 8) if step in LOOKED_AT):
            for _ in range(DIVISIONS):
                found[stage, members] += looked_at(of_step[stage], members, chance)
        for stage_ in stages:
            stage_.reduce(attempt)
            stage_.apply(StageVersion(step, f"c{step}", attempt), skipped=False)
    return found


def drawn_as(kind: str, text: bytes) -> tuple[Draw, int, str]:
    """How microbatches of a kind are drawn, the vocabulary, and in which numbers products are made."""
    letters: Numbers = np.frombuffer(text, np.uint8)
    tokens, sequences = (words(text, 4096), 1) if kind == "words" else (letters, 1 + (kind == "bytes"))
    vocabulary, products = 4096 if kind == "words" else 256, "bfloat16" if kind == "few" else "float32"
    return windows(tokens, sequences, 64), vocabulary, products


def main(kinds: Sequence[str]) -> None:
    torch.set_num_threads(1)
    text = texts()
    for kind in kinds:
        found = measure(*drawn_as(kind, text))
        for (stage, members), seen in sorted(found.items()):
            sizes, cosines, sums = (np.array(numbers) for numbers in zip(*seen))
            print(
                f"{kind}, stage {stage}, {members} members: of {len(seen)} parts half are below "
                f"{np.median(sizes):.2f}, 99 % below {np.quantile(sizes, 0.99):.2f}, all below {sizes.max():.2f}; "
                f"sums below {sums.max():.2f}; cosines {cosines.min():.2f} to {cosines.max():.2f}, "
                f"half below {np.median(cosines):.2f}"
            )


if __name__ == "__main__":
    main(sys.argv[1:] or ("bytes", "few", "words"))
