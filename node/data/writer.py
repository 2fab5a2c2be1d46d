"""Shards while they grow: tokens appended, cut at a fixed size, hashed as they go, taken up again after a kill."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ftnode.models.data import DataError
from ftnode.models.shards import BLOCK_BYTES, Shard


class ShardWriter:
    """The shards of one part: `shard_tokens` each, but the last."""

    def __init__(self, folder: Path, part: str, dtype: str, shard_tokens: int) -> None:
        self.part, self.documents = part, 0
        self.finished: list[Shard] = []
        self._folder, self._shard_tokens = folder, shard_tokens
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._file: BinaryIO | None = None
        self._tokens = 0
        """In the open shard; 0 when none is open."""
        self._digest = hashlib.sha256()

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.finished) + self._tokens

    def append(self, tokens: NDArray[Any]) -> None:
        """Raises OSError."""
        while len(tokens):
            if self._file is None:
                self._file = self._path(len(self.finished)).open("wb")
            here = tokens[: self._shard_tokens - self._tokens]
            data = here.astype(self._dtype, copy=False).tobytes()
            self._file.write(data)
            self._digest.update(data)
            self._tokens += len(here)
            tokens = tokens[len(here) :]
            if self._tokens == self._shard_tokens:
                self.finish()

    def finish(self) -> None:
        """Close the open shard, if there is one."""
        if self._file is None:
            return
        self.flush()
        self._file.close()
        name = self._path(len(self.finished)).name
        self.finished.append(Shard(name, self.part, self._tokens, self._digest.hexdigest()))
        self._file, self._tokens, self._digest = None, 0, hashlib.sha256()

    def flush(self) -> None:
        """To the disk."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def state(self) -> dict[str, Any]:
        """What `take_up` needs, as plain values; true once flushed."""
        return {"finished": [asdict(s) for s in self.finished], "tokens": self._tokens, "documents": self.documents}

    def take_up(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was noted; what was written after it is cut off. Raises DataError when a file does not
        fit, OSError."""
        self.finished = [Shard(**shard) for shard in state["finished"]]
        self.documents = int(state["documents"])
        for shard in self.finished:
            self._require(self._folder / shard.name, shard.tokens, exactly=True)
        number = len(self.finished)
        if state["tokens"]:
            path = self._path(number)
            size = self._require(path, int(state["tokens"]), exactly=False)
            self._file = path.open("r+b")
            self._file.truncate(size)
            while block := self._file.read(BLOCK_BYTES):
                self._digest.update(block)
            self._tokens = int(state["tokens"])
            number += 1
        while self._path(number).exists():
            self._path(number).unlink()
            number += 1

    def _require(self, path: Path, tokens: int, exactly: bool) -> int:
        size = tokens * self._dtype.itemsize
        found = path.stat().st_size if path.exists() else -1
        if found < size or (exactly and found > size):
            raise DataError(f"{path} is not as the build left it; build again")
        return size

    def _path(self, number: int) -> Path:
        return self._folder / f"{self.part}-{number:05}.bin"
