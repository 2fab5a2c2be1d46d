"""What one step asks of a volunteer: bytes over its line, and arithmetic of its device.

Arithmetic is counted as in PaLM (Chowdhery et al. 2022, appendix B): 6 · parameters + 12 · layers · context · dim
operations for each token. A product with a matrix takes two for each weight forward, and four backward, or two where
the weight is frozen. Attention takes 4 · layers · context · dim forward, though half of that is masked, and twice as
many backward. The head's embedding is looked up, so that only its other matrix counts. The optimiser, adapters,
encodings and everything else that is done number by number are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from ftnode.protocol.manifest.boundary import BLOCK_BITS, BLOCK_MAX, encoded_bytes
from ftnode.protocol.manifest.parse import Manifest
from ftnode.protocol.manifest.sections import NUMBER_BYTES
from ftnode.protocol.words.types import HEAD

FORWARD: Final = 2
BACKWARD: Final = 4
"""Operations for each weight and token."""
MUON_ITERATIONS: Final = 5
FLOAT64_SHARE: Final = 1 / 64
"""Of the operations a second that a consumer's card reaches: so many of them in float64, as Muon's update needs."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of one volunteer and one step. As many come as go. `tensors`: between stages; `sums`: among the holders of
    its stage."""

    tensors: int
    sums: int

    @property
    def total(self) -> int:
        return self.tensors + self.sums


def traffic(manifest: Manifest, stage: int, holders: int = 1) -> Traffic:
    """Of one of `holders` equal volunteers that hold this stage, and no other.

    Every microbatch comes once and goes on once, in both directions. A sum is reduce-scatter and all-gather
    (Rabenseifner 2004): everybody owns a piece of it, gets that piece of all others, and sends them its sum.
    """
    tensors = ceil(manifest.batch.microbatches / holders) * manifest.boundary_bytes.both
    return Traffic(tensors, 2 * (holders - 1) * _sum_bytes(manifest, ceil(_parameters(manifest, stage) / holders)))


def operations(manifest: Manifest, stage: int) -> tuple[float, float]:
    """Floating-point operations for one microbatch, forward and backward, the latter with what is computed again."""
    tokens = manifest.batch.sequences * manifest.model.context
    model = manifest.model
    if stage == HEAD:
        weights = float(model.vocabulary * model.dim)
    else:
        layers = model.layers // manifest.pipeline.stages
        weights = layers * (model.block_parameters + 2.0 * model.context * model.mixed)
    forward, backward = FORWARD * weights * tokens, BACKWARD * weights * tokens
    backward -= FORWARD * _frozen(manifest, stage) * tokens
    return forward, backward + recomputed(manifest, stage) * forward


def update_operations(manifest: Manifest, stage: int) -> float:
    """Floating-point operations, in float64, of Muon's update of a block stage (decision 0022): for each matrix of
    m ≤ n five times a product of m · m · n, one of m · m · m and again one of m · m · n."""
    model = manifest.model
    reads = [(model.dim, model.mixed), *[(model.dim, model.keys)] * 2, *[(model.dim, model.hidden)] * 2]
    shapes = [sorted(shape) for shape in (*reads, (model.stream, model.mixed), (model.stream, model.hidden))]
    layers = model.layers // manifest.pipeline.stages if stage != HEAD else 0
    return float(layers * MUON_ITERATIONS * sum(4 * m * m * n + 2 * m**3 for m, n in shapes))


def recomputed(manifest: Manifest, stage: int) -> float:
    """The share of microbatches whose activations are computed again, since more of them wait for their way back than
    `live_activations`. Those on their way are taken to be spread evenly over the path. The head keeps none."""
    if stage == HEAD:
        return 0.0
    visits = manifest.pipeline.stages + 1
    under_way = min(manifest.pipeline.window, manifest.batch.microbatches)
    waiting = under_way * (visits - stage) / visits
    return max(0.0, 1 - manifest.pipeline.live_activations / waiting)


def _frozen(manifest: Manifest, stage: int) -> int:
    """Weights that have no gradient, though what they read has one."""
    model = manifest.model
    if model.trains_all:
        return 0
    if stage == HEAD:
        return model.vocabulary * model.dim
    whole = model.layers // manifest.pipeline.stages * model.block_parameters
    return whole if model.lora else whole - manifest.stage_parameters


def _parameters(manifest: Manifest, stage: int) -> int:
    return manifest.head_parameters if stage == HEAD else manifest.stage_parameters


def _sum_bytes(manifest: Manifest, numbers: int) -> int:
    """Of so many numbers of a sum as they travel, without frames."""
    encoding = manifest.pipeline.sums
    if encoding in BLOCK_BITS:
        return encoded_bytes(encoding, ceil(numbers / BLOCK_MAX), BLOCK_MAX)
    return numbers * NUMBER_BYTES[manifest.model.precision]
