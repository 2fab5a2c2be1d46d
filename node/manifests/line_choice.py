"""What a new run should send over the lines of its volunteers, by what was measured, and why.

The start is a preset. Chosen are keys that change what travels, and how full it keeps a line; the data, the parameters
and the tokens of a step stay. Steps needed were seen in these measurements:

- docs/explanation/thin-lines.md#the-contest: steps to one loss with Muon, three seeds, 8 blocks of dim 256, a byte-pair
  vocabulary: bfloat16 424, int8 407, int4 459; in a subspace of 64 coordinates int8 453, int4 629.
- docs/reference/performance.md#optimisers: Muon has after 160 to 200 steps what Adam has after 320.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from ftnode.models.config import ModelConfig
from ftnode.node.home.duration import figure
from ftnode.node.owner.limits import line_text
from ftnode.protocol.lines.stage_work import FLOAT64_SHARE, traffic, update_operations
from ftnode.protocol.lines.step_estimate import Line, estimate
from ftnode.protocol.manifest.boundary import BLOCK_MIN, block_numbers
from ftnode.protocol.manifest.parse import PATHS_MAX, Manifest

HOME: Final = Line.of_home(20e6 / 8)
"""Where no line is named, the optimiser is chosen for this one."""
DEVICE: Final = 1e13
"""Operations a second, of a consumer's graphics card. Over thin lines it hardly matters."""
CLEARLY: Final = 1.2
"""Times as fast has to be what costs more steps. Three seeds of one row are up to 9 % apart."""
MUON_STEPS: Final = 0.7
"""Of Adam's."""
MUON_RATE: Final = DEVICE * FLOAT64_SHARE
"""Operations of an update in a second, which are in float64 (docs/explanation/decisions/0022-muon.md)."""
THREAD_RATE: Final = 6e10
"""Of one thread, as measured there."""
MUON_SECONDS_MAX: Final = 30.0
"""Of one update on one thread. One of a minute counts as hung."""
TENSOR_SECONDS_MIN: Final = 0.005
"""On the line up. A tensor and word of it take about a millisecond besides."""
SUM_HOLDERS: Final = 4
SUM_SHARE: Final = 0.1
"""A sum of so many holders that takes more of a step is worth int4."""
KEYS_MAX: Final = 1024
"""Of batch.microbatches, and of the keys that grow with it."""


@dataclass(frozen=True, slots=True)
class Travel:
    """What goes from stage to stage. `part`: one coordinate of so many; 1: no subspace. `steps`: as many as bfloat16 in
    all coordinates needs, times this."""

    boundary: str
    part: int
    steps: float

    @property
    def name(self) -> str:
        return self.boundary if self.part == 1 else f"{self.boundary} in a subspace"

    def of(self, manifest: Manifest) -> Manifest:
        """That manifest with these tensors, and as many parameters in its blocks."""
        config = ModelConfig.of(manifest.model)
        if self.part > 1:
            config = config.in_subspace(manifest.model.dim // self.part)
        return replace(
            manifest,
            model=replace(manifest.model, subspace=config.subspace, hidden=config.hidden),
            pipeline=replace(manifest.pipeline, boundary=self.boundary, boundary_gradients=""),
        )


TRAVELS: Final = (
    Travel("int8", 1, 1.0), Travel("int4", 1, 1.08), Travel("int8", 4, 1.07), Travel("int4", 4, 1.48),
)  # fmt: skip
"""The fewer steps for sure, the earlier."""


@dataclass(frozen=True, slots=True)
class Choice:
    """`reasons`: by section.key, a line each, for every key that was looked at."""

    manifest: Manifest
    reasons: dict[str, str] = field(default_factory=dict)

    def because(self, reason: str, section: str, **values: object) -> Choice:
        """With these keys of one section, for this reason, which stands at the first of them."""
        changed = replace(getattr(self.manifest, section), **values)
        manifest = replace(self.manifest, **{section: changed})
        return Choice(manifest, self.reasons | {f"{section}.{next(iter(values))}": reason})


def choose(start: Manifest, line: Line | None) -> Choice:
    """`line`: of a typical volunteer; None where nobody said: then the batch stays as it is, and what travels is
    rounded only as far as no loss was seen to suffer."""
    choice = _travels(Choice(start), line)
    if line is not None:
        choice = _window(_batch(choice, line))
    choice = _sums(choice, line)
    return _optimiser(choice, line)


def _travels(choice: Choice, line: Line | None) -> Choice:
    """Steps times seconds decide."""
    manifest = choice.manifest
    exists = bool(manifest.start.weights)
    if exists and line is None:
        reason = "the model has learnt with activations that were hardly rounded; thin lines may want int8 (--line)"
        return choice.because(reason, "pipeline", boundary="bfloat16", boundary_gradients="")
    travels = [travel for travel in TRAVELS if travel.part == 1 or not exists]  # it writes to its whole stream
    fitting = [travel for travel in travels if block_numbers(travel.of(manifest).model.stream) >= BLOCK_MIN]
    if not fitting:
        reason = f"rows of {manifest.model.stream} numbers make blocks that are too short for int8"
        return choice.because(reason, "pipeline", boundary="bfloat16", boundary_gradients="")
    if line is None:
        reason = (
            "int8 needed no more steps than bfloat16 (three seeds), and has a quarter of the bytes of float32; thin "
            "lines may want int4 and a subspace (--line)"
        )
        return choice.because(reason, "pipeline", boundary="int8", boundary_gradients="")
    made = {travel: travel.of(manifest) for travel in fitting}
    seconds = {travel: _seconds(_window(_batch(Choice(made[travel]), line)).manifest, line) for travel in fitting}
    best = fitting[0]
    for travel in fitting[1:]:
        if CLEARLY * travel.steps * seconds[travel] < best.steps * seconds[best]:
            best = travel
    took = ", ".join(f"{figure(seconds[travel])} with {travel.name}" for travel in fitting)
    was = f"{figure(_seconds(manifest, line))} with {manifest.pipeline.boundary}"
    reason = f"over {line_text(line.up, line.down)} a step takes about {took}, and {was}"
    if len(fitting) > 1:
        needs = ", ".join(f"{travel.steps:.2f}" for travel in fitting)
        reason = f"{reason}; these need {needs} of bfloat16's steps (three seeds)"
    choice = choice.because(reason, "pipeline", boundary=best.boundary, boundary_gradients="")
    model, before = made[best].model, manifest.model
    reason = "all coordinates travel; see pipeline.boundary"
    if best.part > 1:
        reason = (
            f"blocks write to {model.subspace} of {model.dim} coordinates, and only these travel; hidden is "
            f"{model.hidden} instead of {before.hidden}, for as many parameters; see pipeline.boundary"
        )
    return choice.because(reason, "model", subspace=model.subspace, hidden=model.hidden)


def _batch(choice: Choice, line: Line) -> Choice:
    """The same tokens in more and smaller microbatches, until twice as many as there are hops can be on their way."""
    manifest, hops = choice.manifest, _hops(choice.manifest)
    cuts = [manifest, *(cut for cut in _cuts(manifest) if cut.boundary_bytes.largest / line.up >= TENSOR_SECONDS_MIN)]
    cut = next((one for one in cuts if one.batch.microbatches >= 2 * hops), cuts[-1])
    batch, before = cut.batch, manifest.batch
    if cut == manifest:
        smaller = "twice as many on their way keep lines full"
        if before.microbatches < 2 * hops:
            smaller = "smaller ones cannot be had, or would be too small"
        return choice.because(f"a microbatch passes {hops} hops; {smaller}", "batch", microbatches=before.microbatches)
    reason = (
        f"{batch.microbatches} of {batch.sequences} sequences instead of {before.microbatches} of {before.sequences}: "
        f"a microbatch passes {hops} hops, and twice as many on their way keep lines full"
    )
    choice = choice.because(reason, "batch", microbatches=batch.microbatches, sequences=batch.sequences)
    same = f"as much as {manifest.evaluation.microbatches} microbatches of {before.sequences} sequences"
    choice = choice.because(same, "evaluation", microbatches=cut.evaluation.microbatches)
    same = f"as much memory as {manifest.pipeline.live_activations} microbatches of {before.sequences} sequences"
    return choice.because(same, "pipeline", live_activations=cut.pipeline.live_activations)


def _cuts(manifest: Manifest) -> Iterator[Manifest]:
    """The same batch in more and more microbatches, as far as a manifest may have."""
    batch, evaluation, pipeline = manifest.batch, manifest.evaluation, manifest.pipeline
    for parts in range(2, batch.sequences + 1):
        microbatches = parts * batch.microbatches
        if batch.sequences % parts or microbatches * (pipeline.stages + 2) > PATHS_MAX:
            continue
        if max(microbatches, parts * evaluation.microbatches, parts * pipeline.live_activations) > KEYS_MAX:
            continue
        yield replace(
            manifest,
            batch=replace(batch, microbatches=microbatches, sequences=batch.sequences // parts),
            evaluation=replace(evaluation, microbatches=parts * evaluation.microbatches),
            pipeline=replace(pipeline, live_activations=parts * pipeline.live_activations),
        )


def _window(choice: Choice) -> Choice:
    manifest, hops = choice.manifest, _hops(choice.manifest)
    window = min(manifest.batch.microbatches, 2 * hops)
    reason = (
        f"twice the {hops} hops of a microbatch keep lines full; with 6 for 10 a step took 1.1 to 1.3 times as long"
    )
    if window < 2 * hops:
        reason = f"the whole batch; {2 * hops}, twice the hops, would keep lines full"
    return choice.because(reason, "pipeline", window=window)


def _sums(choice: Choice, line: Line | None) -> Choice:
    manifest = choice.manifest
    if manifest.pipeline.replicas == 1:
        return choice
    int8 = replace(manifest, pipeline=replace(manifest.pipeline, sums="int8"))
    same = "loss as with exact sums, whose seeds differ more (8 seeds, 300 steps)"
    if line is None:
        return choice.because(f"{same}, in a quarter of the bytes", "pipeline", sums="int8")
    sent = max(traffic(int8, stage, SUM_HOLDERS).sums for stage in (0, 1)) / line.up
    step = estimate(int8, line, DEVICE, SUM_HOLDERS).seconds
    sums = "int4" if sent > SUM_SHARE * step else "int8"
    reason = f"{same}; with {SUM_HOLDERS} holders an int8 sum takes {figure(sent)} of a step of {figure(step)}"
    return choice.because(reason, "pipeline", sums=sums)


def _optimiser(choice: Choice, line: Line | None) -> Choice:
    if choice.manifest.start.weights:
        return choice.because("so has the model learnt before", "optimiser", kind="adam")
    operations, line = update_operations(choice.manifest, 1), line or HOME
    on_thread, on_card = operations / THREAD_RATE, operations / MUON_RATE
    if on_thread > MUON_SECONDS_MAX:
        reason = f"muon needs fewer steps, but its update of a stage takes {figure(on_thread)} on one thread"
        return choice.because(reason, "optimiser", kind="adam")
    step = _seconds(choice.manifest, line)
    costs = (
        f"its update takes {figure(on_card)} on a consumer's card, and a step about {figure(step)} over "
        f"{line_text(line.up, line.down)}"
    )
    if (on_card + step) * MUON_STEPS > step:
        reason = f"muon needs about {MUON_STEPS} of adam's steps, which is not worth it: {costs}"
        return choice.because(reason, "optimiser", kind="adam")
    reason = f"muon needs about {MUON_STEPS} of adam's steps (424 against 625 for one loss, three seeds); {costs}"
    return choice.because(reason, "optimiser", kind="muon")


def _hops(manifest: Manifest) -> int:
    """Of one microbatch: through all stages back to the head, and back again."""
    return 2 * (manifest.pipeline.stages + 1)


def _seconds(manifest: Manifest, line: Line) -> float:
    return estimate(manifest, line, DEVICE).seconds
