"""What a kept snapshot of one stage is on a disk.

    HOME/snapshots/RUN/STEP/stage-K-NAME/
        weights.safetensors    the parameters
        optimiser.safetensors  the optimiser's moments of each
        index.json             everything else, written last

The index says of what step, commit and lineage the stage is, how its tensors are called, where the data goes on, and
the hash of each part, so that it is known without loading and each part can be loaded by itself. It carries its own
checksum. What is not whole is none: every trouble is a SnapshotError that names the file and the cause.

Two phases, a temporary folder and an index that is written last are Orbax's ("Orbax: Distributed Checkpointing with
JAX", section C); the parts that can be loaded alone are its checkpointables.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import isfinite
from pathlib import Path
from typing import Any, Final

from ftnode.models.config import ModelConfig
from ftnode.models.parameters import Shape
from ftnode.models.safetensors_header import NUMBER_NAMES, safetensors_header
from ftnode.models.state_plan import KINDS, PARTS, StatePlan
from ftnode.node.snapshots.state_digest import whole_digest
from ftnode.protocol.words.types import Attempt, Version

FORMAT: Final = 1
INDEX_NAME: Final = "index.json"
INDEX_BYTES_MAX: Final = 4 << 20
HEADER_BYTES_MAX: Final = 16 << 20
BLOCK_BYTES: Final = 4096
"""Where numbers begin in a file is a multiple of it, so that they can go to the disk without a copy on the way."""
LAYERS_MAX: Final = 512
"""As in a manifest."""
OPTIMISER_BEFORE: Final = "adam"
"""Of an index that names none."""


class SnapshotError(Exception):
    """A snapshot that is not there, not whole, or of something else. One line, with the file and the cause."""


class Unreadable(SnapshotError):
    """The disk did not give it out this time, which says nothing of what is there."""


class UnknownFormat(SnapshotError):
    """Of another version of ftnode, and not ours to clear away."""


@dataclass(frozen=True, slots=True)
class Part:
    """One file. `bytes`: all of it; `hash`: its BLAKE3."""

    file: str
    bytes: int
    hash: str


@dataclass(frozen=True, slots=True)
class Lineal:
    """Whose history it is: lineage and forks as in words/view.py, the number of the view, the epoch of the stage."""

    lineage: str
    forks: int
    view: int
    epoch: int


@dataclass(frozen=True, slots=True)
class DataPosition:
    """Where training goes on: batches are a function of these."""

    sha256: str
    seed: int
    next_step: int


@dataclass(frozen=True, slots=True)
class StageState:
    """What is said of a stage's numbers. `norm_squared`: of the last committed gradient; `updates`: of the moments."""

    norm_squared: float
    rate_factor: float
    updates: int


@dataclass(frozen=True, slots=True)
class StageIndex:
    """`optimiser`: its kind. `digest`: of the weights, as the audit compares them. `sequence`: order of saving in this
    folder, from 1; clocks may go back. `saved`: Unix seconds, for people."""

    run: str
    stage: int
    stages: int
    version: Version
    lineal: Lineal
    state: StageState
    data: DataPosition
    model: ModelConfig
    optimiser: str
    digest: str
    parts: Mapping[str, Part]
    sequence: int
    saved: float
    ftnode: str

    @property
    def plan(self) -> StatePlan:
        return StatePlan(self.model, self.stages, self.optimiser)

    @property
    def whole_digest(self) -> str:
        """Of all that is loaded, as holders tell each other of it."""
        hashes = {name: part.hash for name, part in self.parts.items()}
        return whole_digest(hashes, self.state.updates, self.state.rate_factor)

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts.values())


@dataclass(frozen=True, slots=True)
class KeptSnapshot:
    """A snapshot that is whole, as far as that shows without reading its tensors."""

    folder: Path
    index: StageIndex

    @property
    def stage(self) -> int:
        return self.index.stage

    @property
    def version(self) -> Version:
        return self.index.version

    @property
    def digest(self) -> str:
        """Of the weights, as the audit compares them."""
        return self.index.digest

    @property
    def whole_digest(self) -> str:
        """Of weights, moments and counts, as the protocol compares them."""
        return self.index.whole_digest

    @property
    def bytes(self) -> int:
        return self.index.bytes


def part_header(plan: StatePlan, stage: int, part: str) -> bytes:
    return safetensors_header(plan.entries(stage, part), plan.model.number_bytes, BLOCK_BYTES)


def index_bytes(index: StageIndex) -> bytes:
    """JSON for people and other programs; equal indices are equal bytes."""
    entries = index.plan.entries(index.stage, "weights")
    per_stage = index.model.layers_per_stage(index.stages)
    first = (index.stage - 1) * per_stage if index.stage else 0
    version = index.version
    plain: dict[str, Any] = {
        "format": FORMAT,
        "ftnode": index.ftnode,
        "run": index.run,
        "stage": index.stage,
        "stages": index.stages,
        "step": version.step,
        "commit": version.commit,
        "attempt": list(version.attempt),
        **asdict(index.lineal),
        "sequence": index.sequence,
        "saved": index.saved,
        "digest": index.digest,
        **asdict(index.state),
        "data": asdict(index.data),
        "model": asdict(index.model),
        "optimiser": index.optimiser,
        "layers": [first, per_stage if index.stage else 0],
        "tensors": {name: list(shape) for name, (_, shape) in entries.items()},
        "parts": {name: asdict(part) for name, part in index.parts.items()},
    }
    plain["checksum"] = _checksum(plain)
    return (json.dumps(plain, indent=1, ensure_ascii=False) + "\n").encode()


def parse_index(text: bytes, source: Path) -> StageIndex:
    """Raises SnapshotError."""
    try:
        plain = json.loads(text)
        checksum = plain.pop("checksum", None) if isinstance(plain, dict) else None
        fits = checksum == _checksum(plain)
    except (ValueError, RecursionError):
        raise SnapshotError(f"{source} is not JSON: it is damaged") from None
    if not isinstance(plain, dict) or type(plain.get("format")) is not int:
        raise SnapshotError(f"{source} is no index of a snapshot")
    if plain["format"] != FORMAT:
        raise UnknownFormat(f"{source} has format {plain['format']}, this ftnode reads {FORMAT}")
    if not fits:
        raise SnapshotError(f"{source} is damaged: its checksum does not fit")
    optimiser = plain.get("optimiser", OPTIMISER_BEFORE)
    if optimiser not in KINDS:
        raise UnknownFormat(f"{source} has the state of an optimiser that this ftnode does not know: {optimiser}")
    try:
        index = _index(plain, optimiser)
        sizes = {name: _part_size(index, name) for name in PARTS}
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise SnapshotError(f"{source} is no index of a snapshot: {type(error).__name__} {error}") from None
    for name, size in sizes.items():
        if index.parts[name].bytes != size:
            raise SnapshotError(f"{source}: {name} of {index.parts[name].bytes} bytes does not fit the model")
    return index


def parse_header(text: bytes, source: Path) -> dict[str, tuple[str, Shape, int]]:
    """Tensor → (type, shape, offset in bytes), of a safetensors header without its length. Raises SnapshotError."""
    try:
        plain = json.loads(text)
        return {
            name: (str(found["dtype"]), tuple(map(int, found["shape"])), int(found["data_offsets"][0]))
            for name, found in plain.items()
            if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError):
        raise SnapshotError(f"{source} has no safetensors header: it is damaged") from None


def mismatch(found: Mapping[str, tuple[str, Shape]], wanted: Mapping[str, tuple[str, Shape]]) -> str:
    """The first difference in words, or "". Both: tensor → (type, shape)."""
    for name, (dtype, shape) in wanted.items():
        if name not in found:
            return f"{name} is missing"
        if found[name][1] != shape:
            return f"{name} has shape {_shown(found[name][1])}, not {_shown(shape)}"
        if found[name][0] != dtype:
            return f"{name} has numbers {found[name][0]}, not {dtype}"
    return next((f"{name} is not of this stage" for name in found if name not in wanted), "")


def structure(plan: StatePlan, stage: int, part: str) -> dict[str, tuple[str, Shape]]:
    """What a part of this stage has to hold."""
    dtype = NUMBER_NAMES[plan.model.number_bytes]
    return {name: (dtype, shape) for name, (_, shape) in plan.entries(stage, part).items()}


def _part_size(index: StageIndex, part: str) -> int:
    """Of its file, in bytes. Raises ValueError for a stage that does not exist."""
    return len(part_header(index.plan, index.stage, part)) + index.plan.size(index.stage, part)


def _index(plain: Mapping[str, Any], optimiser: str) -> StageIndex:
    """Raises KeyError, TypeError, ValueError."""
    view, n = plain["attempt"]
    known = {entry.name for entry in fields(ModelConfig)}  # earlier snapshots lack later fields
    model = ModelConfig(**{name: value for name, value in plain["model"].items() if name in known})
    _require(model.layers <= LAYERS_MAX, f"{model.layers} layers")
    parts = {name: Part(**plain["parts"][name]) for name in PARTS}
    for name, part in parts.items():
        _require(part.file == f"{name}.safetensors", f"{name} in a file {part.file}")
        _require(type(part.bytes) is int and type(part.hash) is str, f"parts.{name}")
    numbers = ("norm_squared", "rate_factor", "saved")
    _require(all(type(plain[name]) in (int, float) and isfinite(plain[name]) for name in numbers), "a number")
    whole = ("stage", "stages", "step", "forks", "view", "epoch", "sequence", "updates")
    _require(all(type(plain[name]) is int and plain[name] >= 0 for name in whole), "a whole number")
    texts = ("ftnode", "run", "commit", "lineage", "digest")
    _require(all(type(plain[name]) is str and len(plain[name]) <= 128 for name in texts), "a text")
    _require(type(view) is int and type(n) is int, "attempt")
    return StageIndex(
        plain["run"], plain["stage"], plain["stages"], Version(plain["step"], plain["commit"], Attempt(view, n)),
        Lineal(plain["lineage"], plain["forks"], plain["view"], plain["epoch"]),
        StageState(float(plain["norm_squared"]), float(plain["rate_factor"]), plain["updates"]),
        DataPosition(**plain["data"]), model, optimiser, plain["digest"], parts, plain["sequence"],
        float(plain["saved"]), plain["ftnode"],
    )  # fmt: skip


def _require(fits: bool, what: str) -> None:
    if not fits:
        raise ValueError(what)


def _checksum(plain: Mapping[str, Any]) -> str:
    text = json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def _shown(shape: Shape) -> str:
    return f"({', '.join(map(str, shape))})"
