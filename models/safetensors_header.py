"""The header of a safetensors file, written without the library: so that tensors can follow as they come."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from typing import Any, Final

NUMBER_NAMES: Final = {4: "F32", 8: "F64"}
"""Of safetensors, by bytes."""


def safetensors_header(
    entries: Mapping[str, tuple[int, tuple[int, ...]]], number_bytes: int, multiple: int = 8
) -> bytes:
    """Length and header of a safetensors file whose tensors lie as `entries` says (offsets in numbers).

    It is a multiple of so many bytes, so that the numbers behind it are aligned.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for name, (offset, shape) in entries.items():
        span = [offset * number_bytes, (offset + prod(shape)) * number_bytes]
        header[name] = {"dtype": NUMBER_NAMES[number_bytes], "shape": list(shape), "data_offsets": span}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % multiple)
    return len(text).to_bytes(8, "little") + text
