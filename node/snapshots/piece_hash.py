"""The hash of a file in pieces, found in a thread while the next piece is read or written.

BLAKE3 checks 3.7 GB in a second on one core, where the digest that members compare (BLAKE2b) checks 0.7; a disk is in
between, and waits for neither. Both let other threads of Python run meanwhile.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final

from blake3 import blake3

AHEAD: Final = 2
"""Pieces that may wait for their hash; the memory of one more is in use."""


class PieceHash:
    """`add` the pieces in order; what they lie in stays as it is until AHEAD more were added."""

    def __init__(self) -> None:
        self._found = blake3()
        self._pool = ThreadPoolExecutor(1)
        self._waiting: deque[Future[Any]] = deque()

    def __enter__(self) -> PieceHash:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._pool.shutdown(cancel_futures=True)

    def add(self, piece: memoryview | bytes) -> None:
        if len(self._waiting) >= AHEAD:
            self._waiting.popleft().result()
        self._waiting.append(self._pool.submit(self._found.update, piece))

    def hexdigest(self) -> str:
        """Of all that was added."""
        while self._waiting:
            self._waiting.popleft().result()
        return self._found.hexdigest()
