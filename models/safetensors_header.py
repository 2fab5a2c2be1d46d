"""The header of a safetensors file, written without the library: so that tensors can follow as they come; and read, so
that their bytes are found without loading one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

from ftnode.models.huggingface import NoModel

NUMBER_NAMES: Final = {4: "F32", 8: "F64"}
"""Of safetensors, by bytes."""
HEADER_BYTES_MAX: Final = 64 << 20
TENSORS_MAX: Final = 1 << 17
DIMENSIONS_MAX: Final = 8
DTYPE_BYTES: Final = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """`size` bytes from `start` on are its numbers."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Every tensor of a file, held against the file's length. Raises NoModel, OSError."""
    with path.open("rb") as file:
        whole = file.seek(0, 2)
        file.seek(0)
        length = int.from_bytes(file.read(8), "little")
        if whole < 8 or not 2 <= length <= min(HEADER_BYTES_MAX, whole - 8):
            raise NoModel(f"{path} is no file of safetensors: its header would have {length} bytes")
        text = file.read(length)
    try:
        plain = json.loads(text)
        if not isinstance(plain, dict) or len(plain) > TENSORS_MAX:
            raise ValueError
        named = [(str(name), entry) for name, entry in plain.items() if name != "__metadata__"]
        return {name: _tensor(path, entry, 8 + length, whole) for name, entry in named}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise NoModel(f"{path} has a header that cannot be") from None


def _tensor(path: Path, entry: Any, start: int, whole: int) -> StoredTensor:
    """Raises ValueError, KeyError, TypeError."""
    dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    if len(shape) > DIMENSIONS_MAX or any(type(number) is not int or number < 0 for number in (*shape, begin, end)):
        raise ValueError
    if not begin <= end <= whole - start:
        raise ValueError
    if dtype in DTYPE_BYTES and DTYPE_BYTES[dtype] * prod(shape) != end - begin:
        raise ValueError
    return StoredTensor(path, str(dtype), shape, start + begin, end - begin)


def safetensors_header(
    entries: Mapping[str, tuple[int, tuple[int, ...]]], number_bytes: int, multiple: int = 8, dtype: str = ""
) -> bytes:
    """Length and header of a safetensors file whose tensors lie as `entries` says (offsets in numbers).

    It is a multiple of so many bytes, so that the numbers behind it are aligned. `dtype`: what safetensors calls the
    numbers, where their bytes do not say it.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for name, (offset, shape) in entries.items():
        span = [offset * number_bytes, (offset + prod(shape)) * number_bytes]
        header[name] = {"dtype": dtype or NUMBER_NAMES[number_bytes], "shape": list(shape), "data_offsets": span}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % multiple)
    return len(text).to_bytes(8, "little") + text
