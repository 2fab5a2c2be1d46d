"""Stages that are being read by others, chunk by chunk.

Weights move on at the next commit. Who rebuilds a stage reads them while the step waits for it; who keeps a copy reads
while the next step is computed, from what was frozen when it asked. Who copies a stage with its optimiser, a learner,
reads what is here, and it is frozen only when a commit is about to change it. A frozen state lies in host memory,
encoded, once for all who read the same, and goes with the last of them.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from ftnode.models.encoded_size import ENCODINGS
from ftnode.models.encoding import decode, encode
from ftnode.models.faults import Misuse
from ftnode.models.retrace import gathered
from ftnode.models.stage import EXPORTED, Stage, StageVersion
from ftnode.models.state_sample import key_of, pieces
from ftnode.models.tensors import as_bytes, chunks, digest

EXPORTS_MAX = 128
"""The node lends to fewer; more are a leak."""
OVERTAKEN_MAX = 2
"""Versions of a stage that are frozen since a commit came while they were read; readers of others are left behind."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of a stage is read."""

    stage: int
    version: StageVersion
    parts: str
    encoding: str


@dataclass(frozen=True, slots=True)
class Account:
    """What is said of a state besides its bytes. `digest`: of the weights once they are decoded."""

    version: StageVersion
    norm_squared: float
    rate_factor: float
    step_count: int
    digest: str
    numbers: int
    weights: int
    """Of these numbers, the first."""


@dataclass(slots=True)
class _Frozen:
    account: Account
    chunks: list[bytes]
    readers: set[int] = field(default_factory=set)


class Exports:
    """Names of exports are drawn, so that none is that of another in a compute process before this one."""

    def __init__(self, stages: Mapping[int, Stage], chunk_numbers: int) -> None:
        self._stages, self._numbers = stages, chunk_numbers
        self._live: dict[int, tuple[Wanted, Account]] = {}
        self._frozen: dict[Wanted, _Frozen] = {}

    def begin(self, held: Stage, step: int, parts: str, encoding: str, freeze: bool) -> tuple[int, Account]:
        """Name of the export, and what its reader will have. Raises Misuse for a step that is not here."""
        lossy, sample = encoding != "raw", key_of(parts) is not None
        if encoding not in ENCODINGS or (lossy and not (freeze and parts == "weights")) or (sample and not freeze):
            raise Misuse(f"{parts} as {encoding} is no export", held.index)
        if held.version is None:
            raise Misuse(f"stage {held.index} has no weights here", held.index)
        if len(self._live) + sum(len(frozen.readers) for frozen in self._frozen.values()) >= EXPORTS_MAX:
            raise Misuse(f"{EXPORTS_MAX} exports are under way", held.index)
        flat, name = state_of(held, parts), secrets.randbits(48)
        if held.version.step != step:
            return name, self._join(held, step, parts, encoding, name)
        wanted = Wanted(held.index, held.version, parts, encoding)
        if not freeze:
            account = self._account(held, flat, digest(held.weights))
            self._live[name] = wanted, account
            return name, account
        if wanted not in self._frozen:
            self._frozen[wanted] = self._freeze(held, flat, encoding, flat if sample else held.weights)
        self._frozen[wanted].readers.add(name)
        return name, self._frozen[wanted].account

    def moves_on(self, held: Stage) -> None:
        """The stage is about to change: freeze what is read of it with the optimiser. Without memory for that its
        readers are left behind, and this raises what torch or Python do."""
        readers = {
            name: (wanted, account)
            for name, (wanted, account) in self._live.items()
            if wanted.stage == held.index and wanted.version == held.version and wanted.parts == "all"
        }
        overtaken = sum(wanted.stage == held.index and wanted.parts == "all" for wanted in self._frozen)
        if not readers or overtaken >= OVERTAKEN_MAX:
            return
        for name, (wanted, account) in readers.items():
            if wanted not in self._frozen:
                self._frozen[wanted] = _Frozen(account, self._raw(state_of(held, "all")))
            del self._live[name]
            self._frozen[wanted].readers.add(name)

    def chunk(self, name: int, index: int) -> bytes | memoryview:
        """Raises Misuse when there is no such export or chunk, or the stage has moved on and was not frozen."""
        if name in self._live:
            wanted, _ = self._live[name]
            held = self._stages.get(wanted.stage)
            if held is None or held.version != wanted.version:
                raise Misuse(
                    f"the weights have moved on from step {wanted.version.step} since the export began", wanted.stage
                )
            flat = state_of(held, wanted.parts)
            if not 0 <= index * self._numbers < flat.numel():
                raise Misuse(f"there is no chunk {index}", wanted.stage)
            return as_bytes(flat[index * self._numbers : (index + 1) * self._numbers].cpu())
        wanted, frozen = self._reading(name)
        if not 0 <= index < len(frozen.chunks):
            raise Misuse(f"there is no chunk {index}", wanted.stage)
        return frozen.chunks[index]

    def end(self, name: int) -> None:
        """Raises Misuse for an export that has not begun."""
        if name in self._live:
            del self._live[name]
            return
        wanted, frozen = self._reading(name)
        frozen.readers.remove(name)
        if not frozen.readers:
            del self._frozen[wanted]

    def _reading(self, name: int) -> tuple[Wanted, _Frozen]:
        for wanted, frozen in self._frozen.items():
            if name in frozen.readers:
                return wanted, frozen
        raise Misuse(f"no export {name} has begun", -1)

    def _join(self, held: Stage, step: int, parts: str, encoding: str, name: int) -> Account:
        """Read along what others read of a version that is over."""
        for wanted, frozen in self._frozen.items():
            if (wanted.stage, wanted.version.step, wanted.parts, wanted.encoding) == (
                held.index, step, parts, encoding,
            ):  # fmt: skip
                frozen.readers.add(name)
                return frozen.account
        raise Misuse(f"the weights here are of step {held.version and held.version.step}, not {step}", held.index)

    def _account(self, held: Stage, flat: Tensor, weights_digest: str) -> Account:
        assert held.version is not None
        return Account(
            held.version,
            held.norm_squared,
            held.rate_factor,
            held.updates,
            weights_digest,
            flat.numel(),
            held.weights.numel(),
        )

    def _raw(self, flat: Tensor) -> list[bytes]:
        return [bytes(as_bytes(piece.cpu())) for piece in chunks(flat, self._numbers)]

    def _freeze(self, held: Stage, flat: Tensor, encoding: str, told_of: Tensor) -> _Frozen:
        """`told_of`: what the digest is of, where nothing is rounded."""
        if encoding == "raw":
            return _Frozen(self._account(held, flat, digest(told_of)), self._raw(flat))
        hash_, encoded = hashlib.blake2b(digest_size=16), []
        for piece in chunks(flat, self._numbers):
            encoded.append(encode(piece, encoding))
            hash_.update(as_bytes(decode(encoded[-1], encoding, piece.numel(), piece.dtype)))
        return _Frozen(self._account(held, flat, hash_.hexdigest()), encoded)


def state_of(stage: Stage, parts: str) -> Tensor:
    """The flat numbers that `parts` names. Raises Misuse."""
    if (key := key_of(parts)) is not None:
        return gathered(stage.state("all"), pieces(stage.plan, stage.index, key))
    if parts not in EXPORTED:
        raise Misuse(f"parts must be one of {', '.join(EXPORTED)}, not {parts}", stage.index)
    return stage.state(parts)
