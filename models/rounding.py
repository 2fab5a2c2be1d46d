"""Numbers of a model on their way into a checkpoint of fewer bits. Without torch."""

from __future__ import annotations

from typing import Final, Protocol

EXPORT_DTYPES: Final = {"float32": ("F32", 4), "bfloat16": ("BF16", 2), "float16": ("F16", 2), "float64": ("F64", 8)}
"""Ours → safetensors' name, and its bytes."""


class Writes(Protocol):
    def write(self, data: bytes, /) -> object: ...


class Rounded:
    """Rounds to the nearest number, ties to even, what is written to it, in whole numbers of `number_bytes`."""

    def __init__(self, into: Writes, number_bytes: int, dtype: str) -> None:
        self._into, self._from, self._dtype = into, {4: "<f4", 8: "<f8"}[number_bytes], dtype

    def write(self, data: bytes, /) -> None:
        """Raises OverflowError for a number that the type does not hold."""
        import numpy as np

        numbers = np.frombuffer(data, self._from)
        with np.errstate(over="ignore"):
            if self._dtype == "bfloat16":
                bits = numbers.astype("<f4").view("<u4")
                made = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
                broken = (made & 0x7F80) == 0x7F80
            else:
                made = numbers.astype({"float16": "<f2", "float32": "<f4", "float64": "<f8"}[self._dtype])
                broken = ~np.isfinite(made)
        if broken.any():
            raise OverflowError(f"a weight of {float(numbers[broken][0]):g} is no number of {self._dtype}")
        self._into.write(made.tobytes())
