"""The weights that a run begins with, out of a checkpoint of safetensors: layer by layer, each with its hash.

A layer is the bytes of its tensors as the checkpoint stores them, one behind the other in the order of
models/parameters.py: `head.bin` is embedding, LM head and final norm, `layer-00000.bin` the first block. The index has
the size and sha256 of each, and the manifest has the sha256 of the index, so that one layer can be verified alone.
Nothing here is unpickled, and no size is believed before it is held against the file and the model. No torch here.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple

from ftnode.models.config import ModelConfig
from ftnode.models.huggingface import NoModel, read_json
from ftnode.models.parameters import LM_HEAD, Shape, block_shapes, head_shapes
from ftnode.models.safetensors_header import StoredTensor, read_header
from ftnode.models.shards import BLOCK_BYTES, StoredFile

FORMAT: Final = "ftnode-weights-1"
WEIGHTS_NAME: Final = "weights.json"
INDEX_BYTES_MAX: Final = 1 << 20
"""Room for thousands of layers."""
SINGLE: Final = "model.safetensors"
SHARDED: Final = "model.safetensors.index.json"
NUMBERS: Final = {"F32": ("float32", 4), "BF16": ("bfloat16", 2), "F16": ("float16", 2)}
"""safetensors' name → ours, and its bytes."""
WIDTHS: Final = dict(NUMBERS.values())
EXPONENTS: Final = {"float32": ("<u4", 0x7F800000), "bfloat16": ("<u2", 0x7F80), "float16": ("<u2", 0x7C00)}
"""How a number is seen as bits, and those that are all set where it is infinite or NaN."""
NOT_NEEDED: Final = re.compile(r".*rotary_emb\.inv_freq")
_HASH: Final = re.compile(r"[0-9a-f]{64}")


class Span(NamedTuple):
    """Bytes of a file."""

    path: str
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class WeightIndex:
    """What the index says. `dtype`: of all numbers, one of WIDTHS."""

    dtype: str
    files: tuple[StoredFile, ...]
    """The head's, then one for each block."""

    def encode(self) -> bytes:
        """Equal indexes give equal bytes."""
        rows = [{"name": file.name, "size": file.size, "sha256": file.sha256} for file in self.files]
        plain = {"format": FORMAT, "dtype": self.dtype, "layers": rows}
        return (json.dumps(plain, indent=1, sort_keys=True) + "\n").encode()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.encode()).hexdigest()

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def layer_names(config: ModelConfig, stages: int, stage: int) -> list[str]:
    """Of one of the stages 0..`stages`. Raises ValueError."""
    if not stage:
        return ["head.bin"]
    per_stage = config.layers_per_stage(stages)
    return [f"layer-{layer:05}.bin" for layer in range((stage - 1) * per_stage, stage * per_stage)]


def layer_shapes(config: ModelConfig, name: str) -> dict[str, Shape]:
    """The tensors of a layer, in order."""
    head = name == "head.bin"
    matrices, norms = head_shapes(config) if head else block_shapes(config, int(name[6:11]), 1)
    return {**matrices, **norms}


def all_names(config: ModelConfig) -> list[str]:
    """Of a model's layers, the head first."""
    return ["head.bin", *(f"layer-{layer:05}.bin" for layer in range(config.layers))]


def layer_size(config: ModelConfig, name: str, dtype: str) -> int:
    """In bytes."""
    return WIDTHS[dtype] * sum(prod(shape) for shape in layer_shapes(config, name).values())


def parse_index(data: bytes, config: ModelConfig) -> WeightIndex:
    """The inverse of `WeightIndex.encode`, for this model and no other. Raises NoModel."""
    try:
        plain = json.loads(data[:INDEX_BYTES_MAX])
        index = WeightIndex(
            plain["dtype"], tuple(StoredFile(row["name"], row["size"], row["sha256"]) for row in plain["layers"])
        )
        fits = index.dtype in WIDTHS and index.encode() == data
        names = [file.name for file in index.files]
        if not fits or any(not _HASH.fullmatch(file.sha256) for file in index.files):
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise NoModel("the index of the first weights is none") from None
    wanted = all_names(config)
    if names != wanted or any(file.size != layer_size(config, file.name, index.dtype) for file in index.files):
        raise NoModel("the index of the first weights is of another model")
    return index


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where the tensors of a model lie in a folder."""

    config: ModelConfig
    dtype: str
    tensors: dict[str, StoredTensor]

    def spans(self, name: str) -> list[Span]:
        """Of a layer."""
        found = (self.tensors[tensor] for tensor in layer_shapes(self.config, name))
        return [Span(str(tensor.path), tensor.start, tensor.size) for tensor in found]

    def index(self) -> WeightIndex:
        """Every byte is read and hashed, and a number that is not finite is refused. Raises NoModel, OSError."""
        files = []
        for name in all_names(self.config):
            digest = hashlib.sha256()
            for tensor, span in zip(layer_shapes(self.config, name), self.spans(name)):
                for block in read_spans([span]):
                    digest.update(block)
                    if not finite(block, self.dtype):
                        raise NoModel(f"{tensor} has a number that is not finite")
            files.append(StoredFile(name, layer_size(self.config, name, self.dtype), digest.hexdigest()))
        return WeightIndex(self.dtype, tuple(files))


def open_checkpoint(folder: Path, config: ModelConfig) -> Checkpoint:
    """Headers only. Raises NoModel for a folder that does not have exactly this model's tensors; OSError."""
    found: dict[str, StoredTensor] = {}
    for path in _files(folder):
        found |= read_header(path)
    wanted = {name: shape for layer in all_names(config) for name, shape in layer_shapes(config, layer).items()}
    for name, shape in wanted.items():
        if name not in found:
            raise NoModel(f"{name} is missing in {folder}")
        if found[name].shape != shape:
            raise NoModel(f"{name} in {folder} has shape {found[name].shape}, and the model has {shape}")
    spare = {LM_HEAD} if config.tied else set()
    strange = sorted(name for name in found.keys() - wanted.keys() - spare if not NOT_NEEDED.fullmatch(name))
    if strange:
        raise NoModel(f"{strange[0]} in {folder} is nothing that ftnode computes with")
    kinds = sorted({found[name].dtype for name in wanted})
    if len(kinds) > 1 or kinds[0] not in NUMBERS:
        raise NoModel(f"the numbers in {folder} are {' and '.join(kinds)}; taken is one of {', '.join(NUMBERS)}")
    return Checkpoint(config, NUMBERS[kinds[0]][0], {name: found[name] for name in wanted})


def read_spans(spans: Sequence[Span]) -> Iterator[bytes]:
    """Their bytes, in blocks. Raises EOFError where a file is shorter, OSError."""
    for path, start, size in spans:
        with open(path, "rb") as file:
            file.seek(start)
            left = size
            while left:
                wanted = min(left, BLOCK_BYTES)
                block = file.read(wanted)
                if len(block) < wanted:
                    raise EOFError(f"{path} is shorter than it was")
                left -= len(block)
                yield block


def finite(block: bytes, dtype: str) -> bool:
    """Whether all numbers are; of whole numbers of this type."""
    import numpy as np

    view, bits = EXPONENTS[dtype]
    return not bool(((np.frombuffer(block, view) & bits) == bits).any())


def _files(folder: Path) -> list[Path]:
    """The safetensors of a folder. Raises NoModel."""
    if (folder / SHARDED).exists():
        weights: Any = read_json(folder / SHARDED).get("weight_map")
        if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights.values()):
            raise NoModel(f"{folder / SHARDED} has no weight_map")
        names = sorted(set(weights.values()))
    elif (folder / SINGLE).exists():
        names = [SINGLE]
    elif any(folder.glob("*.bin")) or any(folder.glob("*.pt*")):
        raise NoModel(f"{folder} has pickles, which may run any program when they are read; get its safetensors")
    else:
        raise NoModel(f"there is no {SINGLE} in {folder}")
    for name in names:
        if Path(name).name != name:
            raise NoModel(f"{folder / SHARDED} names files elsewhere")
        real, home = (folder / name).resolve(), folder.resolve()
        blobs = home.parent.parent / "blobs" if home.parent.name == "snapshots" else home
        if not (real.is_relative_to(home) or real.is_relative_to(blobs)):  # the hub's cache links to its blobs
            raise NoModel(f"{folder / name} leads out of the folder")
        if not real.is_file():
            raise NoModel(f"there is no {folder / name}")
    return [folder / name for name in names]
