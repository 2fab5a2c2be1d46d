"""The commands of the compute process, carried out with torch on the stages of ftnode.models."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ftnode.models.blend import Blend
from ftnode.models.config import ModelConfig
from ftnode.models.device_precision import precision_of
from ftnode.models.encoded_size import encoded_bytes
from ftnode.models.encoding import decode
from ftnode.models.faults import Misuse, StageFault
from ftnode.models.frozen import frozen_bytes
from ftnode.models.initial import Layer, stage_layers
from ftnode.models.llama import dtype_of
from ftnode.models.low_copy import PRODUCTS, copied_numbers
from ftnode.models.muon import scratch_bytes
from ftnode.models.optimiser import OptimiserConfig
from ftnode.models.retrace import Sampled
from ftnode.models.stage import BEFORE, SavedKey, Stage, StageVersion, Unread
from ftnode.models.state_plan import rule_of
from ftnode.models.state_sample import pieces, sample_numbers
from ftnode.models.tensors import digest
from ftnode.node.compute.config import ComputeConfig
from ftnode.node.compute.exports import Exports, state_of
from ftnode.node.compute.group_gradients import GroupGradients
from ftnode.node.compute.measure import (
    Figures,
    device_name,
    give_back,
    head_to_measure,
    head_working_bytes,
    measure,
    memory_free,
)
from ftnode.node.compute.memory_cap import MemoryCap, out_of_memory
from ftnode.node.compute.pinned_places import PinnedPlaces
from ftnode.node.compute.recounting import Recounting, Visits
from ftnode.node.compute.run_text import RunText
from ftnode.node.compute.snapshots import SnapshotCopies, load_snapshot
from ftnode.node.compute.visit_tensors import VisitTensors
from ftnode.node.machine.gradient_memory import GradientMap
from ftnode.node.machine.tensor_slots import SlotMap

_log = logging.getLogger("ftnode.compute")
Answer = dict[str, Any]
Begun = Callable[[], Answer]
"""Waits for a task that a card has begun, and answers."""
PlainAttempt = list[int]
PlainVersion = tuple[int, str, PlainAttempt]
"""Step, commit and attempt."""
PlainLayers = dict[str, Any]


@dataclass(slots=True)
class _Install:
    stage: Stage
    blend: Blend
    version: StageVersion
    rate_factor: float
    kept: dict[int, Tensor]
    """The weights [n] of stages that it is made of, in the host's memory."""
    seconds: float = 0.0


class TorchStages:
    """Any number of stages on one device. Broken numbers are answered with `fault`; they spoil the attempt."""

    def __init__(
        self, config: ComputeConfig, slots: SlotMap, gradients: GradientMap | None = None,
        snapshots: GradientMap | None = None, progress: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        torch.set_num_threads(config.threads)
        self.config, self.slots = config, slots
        self.memory = MemoryCap(config)
        self.model = ModelConfig.of(config)
        self._products = "float32"
        if config.precision == "float32":
            self._products = config.products or precision_of(config.device)
        self.optimiser = OptimiserConfig(
            config.learning_rate, config.steps, config.beta1, config.beta2, config.eps, config.weight_decay,
            config.warmup_steps, config.decay, config.minimum_factor, config.clip, config.optimiser,
            config.matrix_learning_rate, config.momentum,
        )  # fmt: skip
        self._compiled = config.compiled
        self._device = torch.device(config.device)
        self._progress = progress
        self.text = RunText(config, progress)
        self.tensors = VisitTensors(config, self.model, slots, self.text)
        self.recounting = Recounting(
            self.tensors, self._stage_of_another, config.state_plan, self.optimiser, dtype_of(self.model),
            self._room_on_host,
        )  # fmt: skip
        self._stages: dict[int, Stage] = {}
        self._installs: dict[int, _Install] = {}
        self._group = GroupGradients(gradients, self._pinned(gradients), self.optimiser)
        self._exports = Exports(self._stages, config.chunk_numbers)
        self._snapshots = SnapshotCopies(self._pinned(snapshots))
        self._samples: dict[bool, tuple[int, Tensor]] = {}
        """After a step or before it: the key, and the numbers that have come."""

    def out_of_memory(self, error: Exception) -> bool:
        return out_of_memory(error)

    def is_sick(self) -> bool:
        """After some errors a card tells its process nothing but these (CUDA Runtime API, Error Handling)."""
        try:
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
        except RuntimeError:
            return True
        return False

    # What a node should know before it claims a stage.

    def ready(self) -> Answer:
        room = self._room()
        stage = self.config.stages  # of no other block stage more is trained
        figures, not_compiled = self._measured(stage)
        copies = self.tensors.copies.tensors * self.config.slot_bytes
        figures = replace(figures, working_bytes=figures.working_bytes + copies)
        working = max(self._scratch_bytes(), figures.working_bytes)
        head_working = max(0, self._head_working_bytes() - working)
        give_back(self._device)
        corpus, corpus_reason = self.text.look()
        return {
            "device": device_name(self.config.device),
            "precision": self._products if self.config.precision == "float32" else self.config.precision,
            "threads": self.config.threads,
            "compiled": self._compiled,
            "not_compiled": not_compiled,
            "stage_bytes": self._bytes(stage),
            "head_bytes": self._bytes(0),
            "head_working_bytes": head_working,
            "memory_free": max(0, room - working),
            **asdict(figures),
            "tokens_per_second": self.tensors.tokens / (figures.forward_seconds + figures.backward_seconds),
            "corpus": corpus,
            "corpus_reason": corpus_reason,
        }

    def _measured(self, stage: int) -> tuple[Figures, str]:
        """Its figures, and why blocks are not compiled though they should be, as for want of a compiler."""
        try:
            return measure(self._new_stage(stage), self.tensors.shape), ""
        except RuntimeError as error:  # as all errors of torch's compiler are
            if not self._compiled or out_of_memory(error):
                raise
            _log.exception("blocks cannot be compiled")
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        self._compiled = False
        return measure(self._new_stage(stage), self.tensors.shape), reason

    def _bytes(self, stage: int) -> int:
        """Of its state, its gradient, that of others' visits, the copy that products read, and what is not trained."""
        plan, low = self.config.state_plan, PRODUCTS[self._products]
        copied, low_bytes = copied_numbers(plan.entries(stage, "weights"), not stage), low.itemsize if low else 0
        frozen = frozen_bytes(plan.frozen(stage), not stage, self.config.number_bytes, low_bytes)
        gradients = (1 + self.config.checks) * plan.size(stage, "weights")
        return plan.size(stage, "all") + gradients + copied * low_bytes + frozen

    def _head_working_bytes(self) -> int:
        device = torch.device(self.config.device)
        model = head_to_measure(self.model, self.tensors.tokens, device)
        return head_working_bytes(self._new_stage(0, model), self.tensors.shape)

    def _scratch_bytes(self) -> int:
        """Of an update: one at a time, whatever number of stages."""
        plan = self.config.state_plan
        found = [plan.entries(stage, "weights") for stage in (0, plan.stages)]
        named = {name: shape for entries in found for name, (_, shape) in entries.items()}
        matrices = [shape for name, shape in named.items() if rule_of(plan.optimiser, name, shape) == "muon"]
        return max((scratch_bytes(shape, self.config.number_bytes) for shape in matrices), default=0)

    # The step.

    def forward(
        self, stage: int, step: int, attempt: PlainAttempt, microbatch: int, visit: int, input: int | None,
        output: int | None, save: bool, validation: bool, onward: Sequence[int] = (),
    ) -> Answer | Begun:  # fmt: skip
        several, tensors = [self._held(each) for each in (stage, *onward)], self.tensors
        saves = save and not validation
        for held in several:
            if not validation:
                held.require_next(step)
            if saves and held.saved >= self.config.live_activations:
                raise Misuse(f"{held.saved} activations are saved already", held.index)
        last = stage == 0 and visit > 0
        if last and not validation:
            raise Misuse("the last visit of a training microbatch is a backward", stage)
        try:
            if last:
                x, tokens = tensors.activation(input, stage)
                targets_bt = tensors.targets(step, microbatch, True)
                return self._read([several[0].begin_evaluate(x, targets_bt, tokens)])
            x, tokens = tensors.read(stage, visit, step, microbatch, validation, input)
            into, begun = tensors.place(output, tensors.activations, stage), list[Unread]()
            for number, held in enumerate(several):
                key, end = _key(attempt, microbatch, visit + number), number == len(onward)
                task = held.begin_forward(key, x, saves, tokens if stage else None)
                if stage and not number and not validation:
                    self._look_at(x, task)
                made = tensors.copies.buffer(into) if end else tensors.within(tensors.activations)
                assert task.tensor is not None
                tensors.activations.encode(task.tensor, tokens, made, task.check)
                begun.append(replace(task, tensor=None))
                if not end:
                    x, tokens = tensors.activations.decode(made)
            tensors.copies.give(made, into)
            return self._read(begun)
        except StageFault as fault:
            return self._done(fault=str(fault))

    def backward(
        self, stage: int, step: int, attempt: PlainAttempt, microbatch: int, visit: int, gradient: int | None,
        input: int | None, output: int | None, recompute: bool, onward: Sequence[int] = (),
    ) -> Answer | Begun:  # fmt: skip
        several, tensors = [self._held(each) for each in (stage, *onward)], self.tensors
        for held in several:
            held.require_next(step)
        key = _key(attempt, microbatch, visit)
        try:
            if stage == 0 and visit > 0:
                targets_bt = tensors.targets(step, microbatch, False)
                x, tokens = tensors.activation(input, stage)
                task = several[0].begin_learn(key, x, targets_bt, tokens)
                self._look_at(x, task)
            else:
                again = recompute or stage == 0
                inputs = tensors.read(stage, visit, step, microbatch, False, input) if again else (None, None)
                task = several[0].begin_backward(key, tensors.gradient(gradient, stage), *inputs)
            begun = [replace(task, tensor=None)]
            for number, held in enumerate(several[1:], start=1):
                made = tensors.within(tensors.gradients)
                self._encode_gradient(task, made, step, microbatch, visit - number + 1)
                earlier = _key(attempt, microbatch, visit - number)
                task = held.begin_backward(earlier, tensors.gradients.decode(made), None)
                begun.append(replace(task, tensor=None))
            if task.tensor is not None:
                into = tensors.place(output, tensors.gradients, stage)
                made = tensors.copies.buffer(into)
                self._encode_gradient(task, made, step, microbatch, visit - len(onward))
                tensors.copies.give(made, into)
            return self._read(begun)
        except StageFault as fault:
            return self._done(fault=str(fault))

    def _encode_gradient(self, task: Unread, into: Tensor, step: int, microbatch: int, visit: int) -> None:
        """What the visit hands back."""
        assert task.tensor is not None
        self.tensors.encode_gradient(task.tensor, into, step, microbatch, visit, task.check)

    def recount(
        self, stage: int, step: int, attempt: PlainAttempt, microbatch: int, visit: int, of: list[Any],
        input: int | None, gradient: int | None, onward: Sequence[int] = (), passed_on: int | None = None,
        handed_back: int | None = None, lent: int | None = None, copy: PlainVersion | None = None, key: int = -1,
    ) -> Answer:  # fmt: skip
        """Visits of another holder of these stages, forward and backward, apart from our own. `value`: how far what it
        passed on and handed back is from what we make, at most; 0 where neither is here. `lent`: the visit is of this
        stage, on the weights that were lent of it when `stage` was made; 0 where these are not here, or do not fit.
        `copy`: of `stage`, on the copy of that version that `copy_chunk` has brought, which is dropped then. `key`:
        what it gives to the sample of this key is kept for `retrace`; -1: nothing is."""
        visits = Visits(
            step, _attempt(attempt), microbatch, visit, str(of), input, gradient, passed_on, handed_back
        )  # fmt: skip
        try:
            if copy is not None:
                away = self.recounting.on_copy(stage, _version(copy), visits, key)
            elif lent is None:
                away = self.recounting.again([self._held(each) for each in (stage, *onward)], visits)
            elif self.recounting.has_lent(stage, lent):
                away = self.recounting.on_lent(self._held(stage), lent, visits)
            else:
                away = 0.0
        except StageFault as fault:
            return self._done(fault=str(fault))
        return self._done(value=away)

    def copy_chunk(self, stage: int, index: int, slot: int, length: int, encoding: str) -> Answer:
        """Chunk `index` of a copy of a stage's weights, one after the other from 0 on."""
        if not index:
            self.recounting.begin_copy(stage)
        weights = self.recounting.copies.get(stage)
        if weights is None:
            raise Misuse(f"chunk {index} of a copy that has not begun", stage)
        into = weights[index * self.config.chunk_numbers :][: self.config.chunk_numbers]
        into.copy_(self._chunk(stage, slot, length, encoding, into.numel(), weights.dtype))
        return {}

    def copy_drop(self, stage: int) -> Answer:
        """What has come of the copy is not tried."""
        self.recounting.drop_copy()
        return {}

    def sample_chunk(self, stage: int, key: int, after: bool, index: int, slot: int, length: int) -> Answer:
        """Chunk `index` of a sample of a stage's state before a step or after it, one after the other from 0 on."""
        if not index:
            size = sample_numbers(pieces(self.config.state_plan, stage, key))
            self._samples[after] = key, torch.zeros(size, dtype=dtype_of(self.model))
        of, flat = self._samples.get(after, (-1, torch.empty(0)))
        if of != key:
            raise Misuse(f"chunk {index} of a sample that has not begun", stage)
        into = flat[index * self.config.chunk_numbers :][: self.config.chunk_numbers]
        into.copy_(self._chunk(stage, slot, length, "raw", into.numel(), flat.dtype))
        return {}

    def retrace(
        self, stage: int, version: PlainVersion, key: int, updates: Sequence[int], rate_factors: Sequence[float]
    ) -> Answer:
        """`value`: how far what went into the step on the weights of `version` is from what the visits give that were
        done again on their copy (models/retrace.py); 0 where none was. `updates`, `rate_factors`: of the samples that
        `sample_chunk` has brought, before the step and after it; they are dropped then."""
        samples = [
            Sampled(self._samples.pop(after, (-1, torch.empty(0)))[1], count, factor)
            for after, count, factor in zip((False, True), updates, rate_factors)
        ]
        size = sample_numbers(pieces(self.config.state_plan, stage, key))
        if any(sample.flat.numel() != size for sample in samples):
            raise Misuse("a sample that has not come", stage)
        return self._done(value=self.recounting.retrace(stage, _version(version), key, samples))

    def course(self, stage: int, before: PlainVersion, after: PlainVersion) -> Answer:
        """`value`: by how many standard deviations the weights went against the gradient from one copy that was tried
        to the next one; `fault`: why that says nothing."""
        found = self.recounting.course(stage, _version(before), _version(after))
        return self._done(fault="too little happened") if found is None else self._done(value=found)

    def weigh(
        self, stage: int, step: int, attempt: PlainAttempt, of: list[Any], key: int,
        parts: Sequence[Sequence[Sequence[int]]],
    ) -> Answer:  # fmt: skip
        """Sketches of what the visits of another one gave when they were done again: one for each list of parts of the
        gradient."""
        sketches = self.recounting.weigh(stage, _attempt(attempt), str(of), key, parts)
        if sketches is None:
            return {"sums": [], "fault": "nothing of it was done again"}
        return {"sums": [sketch.sums.tolist() for sketch in sketches], "fault": ""}

    def reduce(self, stage: int, step: int, attempt: PlainAttempt) -> Answer:
        held = self._held(stage)
        held.require_next(step)
        self._group.drop(stage)
        try:
            reduction = held.reduce(_attempt(attempt))
        except StageFault as fault:
            return {"norm_squared": 0.0, "gradient": "", "covered": [], "fault": str(fault)}
        return {
            "norm_squared": reduction.norm_squared,
            "gradient": "",
            "covered": reduction.covered,
            "fault": "",
        }

    def reduce_open(self, stage: int, step: int, attempt: PlainAttempt, count: int) -> Answer:
        """Give what we accumulated, `count` visits, to the group; without any, the stage need not be here."""
        if count:
            self._held(stage).require_next(step)
        try:
            return self._group.open(stage, self._stages.get(stage), _attempt(attempt), count)
        except StageFault as fault:
            return {"covered": [], "fault": str(fault)}

    def reduce_close(self, stage: int, step: int, attempt: PlainAttempt) -> Answer:
        """The group's sum is in the shared memory."""
        return self._group.close(stage, _attempt(attempt))

    def shelve(self, stage: int, attempt: PlainAttempt) -> Answer:
        self._group.shelve(stage, _attempt(attempt))
        return {}

    def unshelve(self, stage: int) -> Answer:
        self._group.unshelve(stage)
        return {}

    def apply(self, stage: int, step: int, commit: str, attempt: PlainAttempt, skipped: bool) -> Answer:
        held = self._held(stage)
        version = StageVersion(step, commit, _attempt(attempt))
        self._freeze_what_is_read(held)
        if not skipped:
            self.recounting.applied(stage)
        rate = held.apply(version, skipped, self._group.take(stage, version.attempt))
        every = self.config.digest_every
        return {"digest": digest(held.weights) if every and step % every == 0 else "", "learning_rate": rate}

    def _freeze_what_is_read(self, held: Stage) -> None:
        """For want of memory those who read the stage begin anew: what is lent must not cost it."""
        try:
            self._exports.moves_on(held)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            _log.warning("no memory for stage %d as others read it; they begin anew", held.index)

    def discard(self, keep: PlainAttempt | None) -> Answer:
        for held in self._stages.values():
            held.discard(None if keep is None else _attempt(keep))
        self._group.discard(None if keep is None else _attempt(keep))
        self.recounting.discard()
        return {}

    # Weights from nothing, from others, for others.

    def initialise(
        self, stage: int, commit: str, first: PlainLayers | None = None, step: int = 0,
        attempt: PlainAttempt | None = None,
    ) -> Answer:  # fmt: skip
        """First weights. `first`: where the layers of the model lie that the run begins with
        (node/data/first_layers.py); as the weights of `step` and `attempt` where these are lost."""
        self._drop_weights(stage)
        self._group.drop(stage)
        made = self._new_stage(stage)
        if first is None:
            made.initialise(self.config.seed, commit)
        else:
            version = StageVersion(step, commit, _attempt(attempt) if attempt else BEFORE)
            made.begin_with(self._layers(stage, first), version, self.config.seed)
        self._stages[stage] = made
        return {"digest": digest(made.weights)}

    def install_begin(
        self, stage: int, step: int, commit: str, attempt: PlainAttempt, parts: str, rate_factor: float,
        first: PlainLayers | None = None, tried: Sequence[int] = (),
    ) -> Answer:  # fmt: skip
        """The stage is unusable until `install_end`. Sums that a learner has of it already stay. `first`: as of
        `initialise`, where a part of the model is not trained. `tried`: the weights of these stages, which it is made
        of, are kept until a step is made with it; not where a part of the model is not trained."""
        self._drop_weights(stage)
        made = self._new_stage(stage, first=first)
        state = state_of(made, parts)
        version = StageVersion(step, commit, _attempt(attempt))
        blend = Blend(state, self.config.chunk_numbers, stage)
        kept = {} if first is not None else {each: torch.zeros_like(made.weights, device="cpu") for each in tried}
        self._installs[stage] = _Install(made, blend, version, rate_factor, kept)
        return {"chunks": blend.chunks, "bytes": state.nbytes}

    def install_chunk(
        self, stage: int, index: int, weight: float, slot: int, length: int, encoding: str = "raw",
        lender: int | None = None,
    ) -> Answer:  # fmt: skip
        """`lender`: the stage that it comes from."""
        install = self._installing(stage)
        started = time.perf_counter()
        numbers = install.blend.numbers(index)
        chunk = self._chunk(stage, slot, length, encoding, numbers, install.stage.dtype)
        install.blend.add(index, weight, chunk)
        if lender in install.kept:
            kept, begin = install.kept[lender], index * self.config.chunk_numbers
            kept[begin : begin + numbers] = chunk[: max(0, kept.numel() - begin)]
        install.seconds += time.perf_counter() - started
        return {}

    def _chunk(self, stage: int, slot: int, length: int, encoding: str, numbers: int, dtype: torch.dtype) -> Tensor:
        """So many numbers of a state, out of a slot. Raises Misuse for another length than these have."""
        if length != encoded_bytes(numbers, encoding, self.config.number_bytes):
            raise Misuse(f"a chunk of {length} bytes", stage)
        content = self.slots.view(slot)[:length]
        return (
            torch.frombuffer(content, dtype=dtype) if encoding == "raw" else decode(content, encoding, numbers, dtype)
        )

    def install_end(self, stage: int, step_count: int, norm_squared: float = 0.0) -> Answer:
        """`norm_squared`: of the last committed gradient, when the donor held the same stage."""
        install = self._installing(stage)
        started = time.perf_counter()
        install.blend.finish()
        install.stage.require_credible(step_count)
        install.stage.become(install.version, step_count, install.rate_factor, norm_squared)
        weights_digest = digest(install.stage.weights)
        self._stages[stage], self.recounting.lent[stage] = install.stage, install.kept
        del self._installs[stage]
        return {"digest": weights_digest, "blend_seconds": install.seconds + time.perf_counter() - started}

    def export_begin(self, stage: int, step: int, parts: str, encoding: str = "raw", freeze: bool = False) -> Answer:
        """`freeze`: as it is now, until `export_end`, though the stage moves on."""
        export, account = self._exports.begin(self._held(stage), step, parts, encoding, freeze)
        version = account.version
        return {
            "export": export,
            "version": [version.step, version.commit, list(version.attempt)],
            "norm_squared": account.norm_squared,
            "rate_factor": account.rate_factor,
            "chunks": -(-account.numbers // self.config.chunk_numbers),
            "bytes": self.config.number_bytes * account.numbers,
            "weight_bytes": self.config.number_bytes * account.weights,
            "digest": account.digest,
            "step_count": account.step_count,
        }

    def export_chunk(self, export: int, index: int, slot: int) -> Answer:
        chunk = self._exports.chunk(export, index)
        self.slots.view(slot)[: len(chunk)] = chunk
        return {"length": len(chunk), "hash": hashlib.blake2b(chunk, digest_size=16).hexdigest()}

    def export_end(self, export: int) -> Answer:
        self._exports.end(export)
        return {}

    def snapshot_copy(self, stage: int, step: int | None) -> Answer:
        """The state as it is now, into the memory that the node writes snapshots from."""
        return self._snapshots.copy(self._held(stage), step)

    def snapshot_load(
        self, stage: int, folder: str, step: int, commit: str, attempt: PlainAttempt, first: PlainLayers | None = None
    ) -> Answer:
        """The stage from the disk; without weights when that fails. `first`: as of `install_begin`."""
        started = time.perf_counter()
        self._drop_weights(stage)
        made = self._new_stage(stage, first=first)
        version = StageVersion(step, commit, _attempt(attempt))
        kept = load_snapshot(made, self.config.state_plan, Path(folder), version, self._progress)
        self._stages[stage] = made
        return {"digest": kept.digest, "bytes": kept.bytes, "seconds": time.perf_counter() - started}

    def snapshot_release(self, stage: int) -> Answer:
        """The node wants the memory of the stage's copy back."""
        self._snapshots.release(stage)
        return {}

    def forget(self, stage: int) -> Answer:
        self._drop_weights(stage)
        self._group.forget(stage)
        return {}

    # Parts of the above.

    def _pinned(self, memory: GradientMap | None) -> PinnedPlaces | None:
        device = torch.device(self.config.device)
        return None if memory is None else PinnedPlaces(memory, dtype_of(self.model), device)

    def _room(self) -> int:
        """Bytes that may still be allocated."""
        return self.memory.free(memory_free(self._device))

    def _room_on_host(self) -> int | None:
        """Where weights lie in the host's memory the kernel ends whoever takes too much."""
        return None if self._device.type == "cuda" else self._room()

    def _stage_of_another(self, index: int) -> Stage:
        """To do a visit again. Numbers that are too large for float16 are none for its holder, which may have another
        device: who has one of float16 would accuse it. Raises Misuse."""
        return self._new_stage(index, products="float32" if self._products == "float16" else self._products)

    def _new_stage(
        self, index: int, model: ModelConfig | None = None, first: PlainLayers | None = None, products: str = ""
    ) -> Stage:
        """`first`: what is not trained is read from there; `products`: other ones than those of the device. Raises
        Misuse."""
        if not 0 <= index <= self.config.stages:
            raise Misuse(f"there is no stage {index}", index)
        config = self.config
        made = Stage(
            model or self.model, config.stages, index, self.optimiser, config.microbatches, config.device,
            products or self._products, self._compiled,
        )  # fmt: skip
        if first is not None:
            made.take_frozen(self._layers(index, first))
        return made

    def _layers(self, stage: int, first: PlainLayers) -> list[Layer]:
        return stage_layers(self.model, self.config.stages, stage, first)

    def _drop_weights(self, stage: int) -> None:
        self._stages.pop(stage, None)
        self._installs.pop(stage, None)
        self.recounting.drop(stage)

    def _held(self, stage: int) -> Stage:
        if stage not in self._stages:
            raise Misuse(f"stage {stage} has no weights here", stage)
        return self._stages[stage]

    def _installing(self, stage: int) -> _Install:
        if stage not in self._installs:
            raise Misuse(f"no install of stage {stage} has begun", stage)
        return self._installs[stage]

    def _read(self, begun: Sequence[Unread]) -> Answer | Begun:
        """Once the device has done all of a task; a card goes on with a next one meanwhile."""
        if not self.tensors.copies.beside:
            return self._answered(begun)
        for each in begun:
            each.check.gather(self.tensors.copies.bring)
        return lambda: self._answered(begun)

    def _answered(self, begun: Sequence[Unread]) -> Answer:
        """Each stage of the task hears of its own faults; the node of the first."""
        value, faults = 0.0, list[StageFault]()
        for each in begun:
            try:
                value += each.read()
            except StageFault as fault:
                faults.append(fault)
        if not faults:
            check = begun[0].check
            return {**self._done(value=value), "received": check.norm_received, "way": list(check.way)}
        return {**self._done(fault=str(faults[0])), "faulty": faults[0].stage}

    def _look_at(self, x: Tensor, task: Unread) -> None:
        """Which way an activation points that came from another stage, where somebody can check its maker."""
        if self.config.checks:
            task.check.point(x)

    def _done(self, value: float = 0.0, fault: str = "") -> Answer:
        return {"value": value, "tokens": 0 if fault else self.tensors.tokens, "fault": fault}


def _version(plain: PlainVersion) -> StageVersion:
    step, commit, attempt = plain
    return StageVersion(step, commit, _attempt(attempt))


def _attempt(plain: PlainAttempt) -> tuple[int, int]:
    view, n = plain
    return view, n


def _key(attempt: PlainAttempt, microbatch: int, visit: int) -> SavedKey:
    return _attempt(attempt), microbatch, visit
