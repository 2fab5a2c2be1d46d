"""The digest by which holders tell each other of a snapshot: of all that training goes on from.

Weights, moments, the count of updates and the rate factor of a rebuilt stage are equal on all honest holders of a
version: they follow from sums that members make to the bit, or were copied. The norm of the last gradient only weighs
donors of a rebuild and is left out, as are times, paths and lineages. The hashes of the parts are those of their files,
so that who has a snapshot knows its digest without reading it, and who is given one finds it while the numbers come.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from blake3 import blake3


def whole_digest(hashes: Mapping[str, str], updates: int, rate_factor: float) -> str:
    """`hashes`: of each part's file, by its name."""
    told = "/".join([*(f"{name}={hashes[name]}" for name in sorted(hashes)), str(updates), float(rate_factor).hex()])
    return hashlib.blake2b(told.encode(), digest_size=16).hexdigest()


class WholeHash:
    """Found from a state's numbers as they come, part after part. `parts`: name, header of the file, bytes of
    numbers."""

    def __init__(self, parts: Sequence[tuple[str, bytes, int]]) -> None:
        self._left = [(name, size) for name, _, size in parts]
        self._found: dict[str, Any] = {name: blake3(header) for name, header, _ in parts}

    def add(self, piece: memoryview) -> None:
        """What is behind the last part counts for nothing."""
        while self._left and len(piece):
            name, size = self._left[0]
            self._found[name].update(piece[:size])
            taken = min(size, len(piece))
            self._left[0] = name, size - taken
            if taken == size:
                self._left.pop(0)
            piece = piece[taken:]

    def digest(self, updates: int, rate_factor: float) -> str:
        """Of what was added."""
        return whole_digest({name: found.hexdigest() for name, found in self._found.items()}, updates, rate_factor)
