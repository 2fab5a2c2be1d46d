"""Encodings with a bug, which tests must find."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import numpy as np

from ftnode.node.reduction.encoding import Blocks


class Hasty(Blocks):
    """Its rounding depends on the time."""

    def encode(self, numbers: Any, key: bytes, chunk: int) -> memoryview:
        return super().encode(numbers, time.perf_counter_ns().to_bytes(16, "little"), chunk)


class Hoarder(Blocks):
    """Error feedback with a residual that nobody commits: what a chunk lost is added to it when it is encoded next."""

    residuals: ClassVar[dict[tuple[bytes, int], Any]] = {}

    def encode(self, numbers: Any, key: bytes, chunk: int) -> memoryview:
        wanted = numbers + self.residuals.get((key, chunk), 0)
        content = super().encode(wanted, key, chunk)
        self.residuals[key, chunk] = wanted - self.decode(content, len(numbers))
        return content


class Scaleless(Blocks):
    """It decodes without the scales of the blocks."""

    def decode(self, content: memoryview, numbers: int) -> Any:
        ones = bytearray(content)
        blocks = len(self._split(content)[0])
        ones[: 2 * blocks] = np.full(blocks, 0x3F80, "<u2").tobytes()
        return super().decode(memoryview(ones), numbers)
