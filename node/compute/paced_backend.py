"""A compute backend without a model: it sleeps as long as a modelled device would take, and says that it does.

Two cores that run four stages hide the bubbles of a pipeline; sleeping stages show them. Everything that counts
(attempts, exactly once, versions) is kept as by the real backend; the numbers themselves are zeros.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import log
from pathlib import Path
from typing import Any

from ftnode.models.faults import DiskUnreadable, Misuse
from ftnode.models.ledger import AttemptId, Ledger
from ftnode.node.compute.config import ComputeConfig
from ftnode.node.compute.state_shape import shape_of
from ftnode.node.machine.gradient_memory import GradientMap
from ftnode.node.machine.tensor_slots import SlotMap
from ftnode.node.snapshots.format import SnapshotError, Unreadable
from ftnode.node.snapshots.store import read_snapshot

Answer = dict[str, Any]


@dataclass(slots=True)
class _Paced:
    ledger: Ledger
    step: int
    commit: str
    attempt: AttemptId
    updates: int = 0
    saved: set[tuple[AttemptId, int, int]] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Export:
    """`frozen`: or it will be, when the stage moves on. `lengths`: of its chunks."""

    stage: int
    version: tuple[int, str, AttemptId]
    parts: str
    frozen: bool
    updates: int
    lengths: tuple[int, ...]


class PacedStages:
    """`forward_seconds` and `backward_seconds` are those of one block stage and microbatch; the head takes no time."""

    def __init__(
        self, config: ComputeConfig, slots: SlotMap, gradients: GradientMap | None = None,
        snapshots: GradientMap | None = None,
    ) -> None:  # fmt: skip
        self.config, self.slots, self._gradients = config, slots, gradients
        self.shape = shape_of(config)
        self._tokens = config.sequences * config.context
        self._stages: dict[int, _Paced] = {}
        self._installs: dict[int, _Paced] = {}
        self._exports: dict[int, _Export] = {}
        self._opened: dict[int, tuple[AttemptId, list[list[int]]]] = {}
        self._staged: set[tuple[int, AttemptId]] = set()
        """What groups have reduced; the exchange adds up the zeros that the shared memory holds."""
        self._shelf: set[tuple[int, AttemptId]] = set()

    def out_of_memory(self, error: Exception) -> bool:
        return False

    def is_sick(self) -> bool:
        return False

    def ready(self) -> Answer:
        seconds = self.config.forward_seconds + self.config.backward_seconds
        return {
            "device": f"paced ({self.config.forward_seconds:g} s forward, {self.config.backward_seconds:g} s backward)",
            "precision": self.config.precision,
            "threads": self.config.threads,
            "stage_bytes": 0,
            "head_bytes": 0,
            "activation_bytes": 0,
            "working_bytes": 0,
            "head_working_bytes": 0,
            "memory_free": 0,
            "forward_seconds": self.config.forward_seconds,
            "backward_seconds": self.config.backward_seconds,
            "tokens_per_second": self._tokens / max(seconds, 1e-6),
            "corpus": self.config.corpus or "paced",
            "corpus_reason": "",
        }

    def forward(
        self, stage: int, step: int, attempt: list[int], microbatch: int, visit: int, input: int | None,
        output: int | None, save: bool, validation: bool, onward: Sequence[int] = (),
    ) -> Answer:  # fmt: skip
        for number, each in enumerate((stage, *onward)):
            held = self._held(each)
            self._sleep(each, self.config.forward_seconds)
            if save and not validation and each:
                held.saved.add((_attempt(attempt), microbatch, visit + number))
        if output is not None:
            self._write(output)
        return self._done(log(self.config.vocabulary) if validation and stage == 0 < visit else 0.0)

    def backward(
        self, stage: int, step: int, attempt: list[int], microbatch: int, visit: int, gradient: int | None,
        input: int | None, output: int | None, recompute: bool, onward: Sequence[int] = (),
    ) -> Answer:  # fmt: skip
        for number, each in enumerate((stage, *onward)):
            self._learn(each, step, _attempt(attempt), microbatch, visit - number, recompute and not number)
        if output is not None:
            self._write(output)
        return self._done(log(self.config.vocabulary) if stage == 0 < visit else 0.0)

    def _learn(self, stage: int, step: int, identity: AttemptId, microbatch: int, visit: int, recompute: bool) -> None:
        held = self._held(stage)
        if step != held.step + 1:
            raise Misuse(f"step {step} on weights of step {held.step}", stage)
        held.ledger.admit(identity, (microbatch, visit))
        if stage and not recompute and (identity, microbatch, visit) not in held.saved:
            raise Misuse(f"nothing saved of microbatch {microbatch} at visit {visit}", stage)
        held.saved.discard((identity, microbatch, visit))
        again = self.config.forward_seconds if recompute else 0.0
        self._sleep(stage, again + self.config.backward_seconds)
        held.ledger.record(identity, (microbatch, visit))

    def recount(
        self, stage: int, step: int, attempt: list[int], microbatch: int, visit: int, of: list[Any],
        input: int | None, gradient: int | None, onward: Sequence[int] = (), passed_on: int | None = None,
        handed_back: int | None = None, lent: int | None = None, copy: list[Any] | None = None, key: int = -1,
    ) -> Answer:  # fmt: skip
        if copy is not None:
            self._sleep(stage, self.config.forward_seconds + self.config.backward_seconds)
            return self._done(0.0)
        for each in (stage, *onward):
            if step != self._held(each).step + 1:
                raise Misuse(f"step {step} on weights of step {self._held(each).step}", each)
            self._sleep(each, self.config.forward_seconds + self.config.backward_seconds)
        return self._done(0.0)

    def copy_chunk(self, stage: int, index: int, slot: int, length: int, encoding: str) -> Answer:
        """All weights are zeros."""
        return {}

    def copy_drop(self, stage: int) -> Answer:
        return {}

    def sample_chunk(self, stage: int, key: int, after: bool, index: int, slot: int, length: int) -> Answer:
        return {}

    def retrace(
        self, stage: int, version: list[Any], key: int, updates: Sequence[int], rate_factors: Sequence[float]
    ) -> Answer:
        """Nothing is trained."""
        return self._done(0.0)

    def course(self, stage: int, before: list[Any], after: list[Any]) -> Answer:
        """Nothing moves."""
        return {**self._done(0.0), "fault": "too little happened"}

    def weigh(
        self, stage: int, step: int, attempt: list[int], of: list[Any], key: int,
        parts: Sequence[Sequence[Sequence[int]]],
    ) -> Answer:  # fmt: skip
        """All numbers are zeros."""
        return {"sums": [[0.0] for _ in parts], "fault": ""}

    def reduce(self, stage: int, step: int, attempt: list[int]) -> Answer:
        ledger = self._held(stage).ledger
        ledger.require_accumulated(_attempt(attempt))
        ledger.reduced = True
        self._staged = {key for key in self._staged if key[0] != stage}
        return {
            "norm_squared": 1.0,
            "gradient": "",
            "covered": ledger.covered(),
            "fault": "",
        }

    def reduce_open(self, stage: int, step: int, attempt: list[int], count: int) -> Answer:
        covered: list[list[int]] = []
        if count:
            ledger = self._held(stage).ledger
            ledger.require_accumulated(_attempt(attempt))
            covered = ledger.covered()
        if len(covered) != count:
            raise Misuse(f"{len(covered)} visits are accumulated here, not the {count} that the group says", stage)
        self._staged = {key for key in self._staged if key[0] != stage}
        self._opened[stage] = _attempt(attempt), covered
        return {"covered": covered, "fault": ""}

    def reduce_close(self, stage: int, step: int, attempt: list[int]) -> Answer:
        opened, covered = self._opened.pop(stage, (None, []))
        if opened != _attempt(attempt):
            raise Misuse(f"no sum of attempt {attempt} has begun", stage)
        self._staged.add((stage, _attempt(attempt)))
        return {
            "norm_squared": 1.0,
            "gradient": _zeros_digest(self.config.number_bytes),
            "covered": covered,
            "fault": "",
        }

    def shelve(self, stage: int, attempt: list[int]) -> Answer:
        if (stage, _attempt(attempt)) not in self._staged:
            raise Misuse(f"attempt {attempt} has no reduced gradient", stage)
        self._shelf.add((stage, _attempt(attempt)))
        return {}

    def unshelve(self, stage: int) -> Answer:
        self._shelf = {key for key in self._shelf if key[0] != stage}
        return {}

    def apply(self, stage: int, step: int, commit: str, attempt: list[int], skipped: bool) -> Answer:
        held = self._held(stage)
        if step != held.step + 1:
            raise Misuse(f"step {step} does not follow {held.step}", stage)
        key = stage, _attempt(attempt)
        staged = key in self._shelf | self._staged
        self._shelf.discard(key)
        self._staged.discard(key)
        if not skipped and staged:
            held.updates += 1
        elif not skipped:
            held.ledger.require_reduced(_attempt(attempt))
            held.updates += 1
        held.step, held.commit, held.attempt = step, commit, _attempt(attempt)
        held.ledger.clear()
        held.saved.clear()
        every = self.config.digest_every
        digest = _zeros_digest(self.shape.size(stage, "weights")) if every and step % every == 0 else ""
        return {"digest": digest, "learning_rate": 0.0}

    def discard(self, keep: list[int] | None) -> Answer:
        kept = None if keep is None else _attempt(keep)
        for held in self._stages.values():
            held.saved = {key for key in held.saved if key[0] == kept}
            if held.ledger.attempt != kept:
                held.ledger.clear()
        self._staged = {key for key in self._staged if key[1] == kept}
        return {}

    def initialise(
        self, stage: int, commit: str, first: object = None, step: int = 0, attempt: list[int] | None = None
    ) -> Answer:
        self._stages[stage] = _Paced(Ledger(stage), step, commit, _attempt(attempt or [-1, 0]))
        return {"digest": _zeros_digest(self.shape.size(stage, "weights"))}

    def install_begin(
        self, stage: int, step: int, commit: str, attempt: list[int], parts: str, rate_factor: float,
        first: object = None, tried: Sequence[int] = (),
    ) -> Answer:  # fmt: skip
        self._drop_weights(stage)
        self._installs[stage] = _Paced(Ledger(stage), step, commit, _attempt(attempt))
        return {"chunks": len(self.shape.lengths(stage, parts, "raw")), "bytes": self.shape.size(stage, parts)}

    def install_chunk(
        self, stage: int, index: int, weight: float, slot: int, length: int, encoding: str = "raw",
        lender: int | None = None,
    ) -> Answer:  # fmt: skip
        if stage not in self._installs:
            raise Misuse(f"no install of stage {stage} has begun", stage)
        return {}

    def install_end(self, stage: int, step_count: int, norm_squared: float = 0.0) -> Answer:
        if stage not in self._installs:
            raise Misuse(f"no install of stage {stage} has begun", stage)
        self._stages[stage] = self._installs.pop(stage)
        self._stages[stage].updates = step_count
        return {"digest": _zeros_digest(self.shape.size(stage, "weights")), "blend_seconds": 0.0}

    def export_begin(self, stage: int, step: int, parts: str, encoding: str = "raw", freeze: bool = False) -> Answer:
        held = self._held(stage)
        now = held.step, held.commit, held.attempt
        made = _Export(
            stage, now, parts, freeze or parts == "all", held.updates, self.shape.lengths(stage, parts, encoding)
        )
        if held.step != step:
            made = self._read_along(held, stage, step, parts)
        export = secrets.randbits(48)
        self._exports[export] = made
        return {
            "export": export,
            "version": [made.version[0], made.version[1], list(made.version[2])],
            "norm_squared": 1.0,
            "rate_factor": 1.0,
            "chunks": len(made.lengths),
            "bytes": self.shape.size(stage, parts),
            "weight_bytes": self.shape.size(stage, "weights"),
            "digest": _zeros_digest(self.shape.size(stage, "weights")),
            "step_count": made.updates,
        }

    def _read_along(self, held: _Paced, stage: int, step: int, parts: str) -> _Export:
        for made in self._exports.values():
            if made.frozen and (made.stage, made.version[0], made.parts) == (stage, step, parts):
                return made
        raise Misuse(f"the weights here are of step {held.step}, not {step}", stage)

    def export_chunk(self, export: int, index: int, slot: int) -> Answer:
        if export not in self._exports:
            raise Misuse(f"no export {export} has begun", -1)
        begun = self._exports[export]
        if not begun.frozen and begun.version[0] != self._held(begun.stage).step:
            raise Misuse(f"the weights have moved on from step {begun.version[0]} since the export began", begun.stage)
        if not 0 <= index < len(begun.lengths):
            raise Misuse(f"there is no chunk {index}", begun.stage)
        length = begun.lengths[index]
        self.slots.view(slot)[:length] = bytes(length)
        return {"length": length, "hash": _zeros_digest(length)}

    def export_end(self, export: int) -> Answer:
        if self._exports.pop(export, None) is None:
            raise Misuse(f"no export {export} has begun", -1)
        return {}

    def snapshot_copy(self, stage: int, step: int | None) -> Answer:
        """Nothing is copied: the memory that nobody has written holds zeros, as a paced stage does."""
        held = self._held(stage)
        if step not in (None, held.step):
            raise Misuse(f"the weights here are of step {held.step}, not {step}", stage)
        version = [held.step, held.commit, list(held.attempt)]
        numbers = {"norm_squared": 1.0, "rate_factor": 1.0, "step_count": held.updates, "seconds": 0.0}
        return {"version": version, **numbers}

    def snapshot_release(self, stage: int) -> Answer:
        return {}

    def snapshot_load(
        self, stage: int, folder: str, step: int, commit: str, attempt: list[int], first: object = None
    ) -> Answer:
        self._drop_weights(stage)
        try:
            kept = read_snapshot(Path(folder))
        except Unreadable as error:
            raise DiskUnreadable(str(error), stage) from None
        except SnapshotError as error:
            raise Misuse(str(error), stage) from None
        found = kept.version
        if (kept.stage, found.step, found.commit, tuple(found.attempt)) != (stage, step, commit, _attempt(attempt)):
            raise Misuse(f"{folder} is stage {kept.stage} of step {found.step}, not stage {stage} of {step}", stage)
        self._stages[stage] = _Paced(Ledger(stage), step, commit, _attempt(attempt), kept.index.state.updates)
        return {"digest": kept.digest, "bytes": kept.bytes, "seconds": 0.0}

    def forget(self, stage: int) -> Answer:
        self._drop_weights(stage)
        self._staged = {key for key in self._staged if key[0] != stage}
        self._shelf = {key for key in self._shelf if key[0] != stage}
        if self._gradients is not None:
            self._gradients.release(stage)
        return {}

    def _drop_weights(self, stage: int) -> None:
        self._stages.pop(stage, None)
        self._installs.pop(stage, None)

    def _held(self, stage: int) -> _Paced:
        if stage not in self._stages:
            raise Misuse(f"stage {stage} has no weights here", stage)
        return self._stages[stage]

    def _sleep(self, stage: int, seconds: float) -> None:
        if stage:
            time.sleep(seconds)

    def _write(self, slot: int) -> None:
        size = self.config.boundary_bytes.largest
        self.slots.view(slot)[:size] = bytes(size)

    def _done(self, value: float) -> Answer:
        return {"value": value, "tokens": self._tokens, "fault": ""}


def _attempt(plain: list[int]) -> AttemptId:
    view, n = plain
    return view, n


@lru_cache(maxsize=16)
def _zeros_digest(size: int) -> str:
    return hashlib.blake2b(bytes(size), digest_size=16).hexdigest()
