"""`ftnode data build`: sources to token shards, in bounded memory, and after a kill on from where it was.

    sources → pieces → batches → tokens (a thread of its own) → shards

Everything is written to OUT.building and renamed to OUT when it is whole. Every CHECKPOINT_BYTES of text, shards are
flushed and `state.json` says how far they and the sources are; a build that finds one goes on there. Since a piece is
encoded by itself and cut by the text alone, the bytes do not depend on where a build was stopped.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ftnode.models.data import DataError
from ftnode.models.shards import (
    DTYPES,
    FORMAT,
    INDEX_NAME,
    PARTS,
    SHARD_BYTES_MAX,
    TOKENIZER_NAME,
    Index,
    dtype_for,
)
from ftnode.node.data.sources import PIECE_BYTES, Piece, Position, Source, SourceAway
from ftnode.node.data.tokenizers import Tokenizer
from ftnode.node.data.writer import ShardWriter
from ftnode.node.home.paths import typed_path

BATCH_BYTES: Final = 4 << 20
"""Of text, encoded at once. The library keeps some 110 bytes for a token while it does: at worst half a GB."""
PIECE_COST: Final = 256
"""What a piece takes beside its text; there may be very many short ones."""
CHECKPOINT_BYTES: Final = 16 << 20
SHARD_BYTES: Final = 64 << 20
STATE_NAME: Final = "state.json"
WORK_SUFFIX: Final = ".building"
_OURS: Final = re.compile(r"(training|validation)-\d{5,}\.bin|index\.json|tokenizer\.json|state\.json(\.new)?")


class Occupied(Exception):
    """The folder to write to is not free; one line that says why and what to do."""


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """How far a build is. `size`: 0 when it is not known; both in bytes, or in records."""

    done: int
    size: int
    tokens: int
    resumed: bool


@dataclass(frozen=True, slots=True)
class Built:
    """What a build made. `sha256`: what a manifest's data.sha256 is."""

    folder: Path
    sha256: str
    index: Index
    documents: dict[str, int]
    resumed: bool


@dataclass(frozen=True, slots=True)
class _Batch:
    pieces: tuple[Piece, ...]
    source: int
    """Of the last piece."""
    size: int
    """Bytes of text."""


def check_apart(given: Sequence[str], out: Path) -> None:
    """Raises Occupied when `out` is in a folder of the sources: a later build would read its own shards."""
    for one in given:
        folder = typed_path(one)
        if folder.is_dir() and _resolved(out).is_relative_to(folder.resolve()):
            raise Occupied(f"{out} is in the source {folder}; choose an --out beside it")


def _resolved(out: Path) -> Path:
    """Raises Occupied."""
    try:
        return out.resolve()
    except (OSError, RuntimeError):  # the latter before Python 3.13
        raise Occupied(f"{out} is a link that leads back to itself; choose another --out") from None


def build(
    sources: Sequence[Source],
    tokenizer: Tokenizer,
    out: Path,
    report: Callable[[BuildProgress], None] = lambda progress: None,
    *,
    shard_bytes: int = SHARD_BYTES,
    checkpoint_bytes: int = CHECKPOINT_BYTES,
) -> Built:
    """Write the shards of `sources` to `out`, which is not there yet, or an empty folder.

    Raises Occupied; DataError for a source that cannot be used: what this call began is gone then, and what an earlier
    one noted stays for a later one; OSError when it cannot be written, SourceAway when a source cannot be read now, and
    a second call goes on.
    """
    assert 0 < shard_bytes <= SHARD_BYTES_MAX
    out = _resolved(out)  # what is built beside a link cannot get its name
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Occupied(f"{out} is already there and stays as it is; choose another --out")
    if os.path.ismount(out):
        raise Occupied(f"{out} cannot be made anew, another disk is mounted there; choose an --out in it")
    with _work_folder(out) as work:
        building = _Building(sources, tokenizer, work, report, shard_bytes, checkpoint_bytes)
        try:
            building.take_up()
            building.run()
            index = building.index()
        except DataError as error:
            building.close()
            kept = building.resumed or (isinstance(error, SourceAway) and (work / STATE_NAME).exists())
            if not kept:
                shutil.rmtree(work)
            raise
        finally:
            building.close()
        _write(work / INDEX_NAME, index.encode())
        if tokenizer.file:
            _write(work / TOKENIZER_NAME, tokenizer.file)
        os.rename(work, out)
        (out / STATE_NAME).unlink(missing_ok=True)  # not before: without it a build begins anew
        _sync(out.parent)
    documents = {writer.part: writer.documents for writer in building.writers.values()}
    return Built(out, index.sha256, index, documents, building.resumed)


class _Building:
    """One build, from its state file to its index."""

    def __init__(
        self, sources: Sequence[Source], tokenizer: Tokenizer, work: Path, report: Callable[[BuildProgress], None],
        shard_bytes: int, checkpoint_bytes: int,
    ) -> None:  # fmt: skip
        self.resumed = False
        self._sources, self._tokenizer, self._work, self._report = sources, tokenizer, work, report
        self._checkpoint_bytes = checkpoint_bytes
        self._dtype = dtype_for(tokenizer.facts.vocabulary)
        tokens = max(1, shard_bytes // DTYPES[self._dtype])
        self.writers = {part: ShardWriter(work, part, self._dtype, tokens) for part in PARTS}
        self._separator = np.array([tokenizer.facts.separator], dtype=self._dtype)
        plain = [FORMAT, PIECE_BYTES, shard_bytes, asdict(tokenizer.facts), [source.identity for source in sources]]
        self._fingerprint = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
        self._source = 0
        self._position: Position = (0,)
        self._starts = [0, *accumulate(source.size for source in sources)]
        """How much of all sources lies before each."""
        self._size = 0 if any(source.size == 0 for source in sources) else self._starts[-1]

    def take_up(self) -> None:
        """Go on from the state file, or from nothing. Raises Occupied when another build's is there."""
        path = self._work / STATE_NAME
        try:
            state = json.loads(path.read_bytes())
        except FileNotFoundError:
            self._clear()
            return
        except (ValueError, RecursionError):
            raise Occupied(f"{path} cannot be read; remove {self._work} and build again") from None
        if state.get("fingerprint") != self._fingerprint:
            raise Occupied(
                f"{self._work} is an unfinished build of other sources or options, or its sources have changed; "
                "remove it, or choose another --out"
            )
        self._source, self._position = int(state["source"]), tuple(map(int, state["position"]))
        for part, writer in self.writers.items():
            writer.take_up(state["parts"][part])
        self.resumed = True

    def _clear(self) -> None:
        """Of a build that was stopped before its first state. Raises Occupied when anything else is there."""
        left = list(self._work.iterdir())
        for path in left:
            if not _OURS.fullmatch(path.name):
                raise Occupied(f"{path} is no part of a build; move {self._work} away, or choose another --out")
        for path in left:
            path.unlink()

    def run(self) -> None:
        """Encode one batch while the one before is written and the next is read."""
        unsaved = 0
        self._tell()
        with ThreadPoolExecutor(1, "tokenizer") as executor:
            waiting: tuple[_Batch, Future[list[NDArray[Any]]]] | None = None
            for batch in self._batches():
                encoding = executor.submit(self._tokenizer.encode, [piece.text for piece in batch.pieces])
                if waiting is not None:
                    unsaved = self._store(*waiting, unsaved)
                waiting = batch, encoding
            if waiting is not None:
                self._store(*waiting, unsaved)
        for writer in self.writers.values():
            writer.finish()

    def index(self) -> Index:
        """Raises DataError when a part has no document."""
        count = sum(writer.documents for writer in self.writers.values())
        for writer in self.writers.values():
            if not writer.documents:
                raise DataError(f"none of {count} documents is for {writer.part}; give 20 or more, or a longer text")
        shards = tuple(shard for part in PARTS for shard in self.writers[part].finished)
        return Index(self._tokenizer.facts, self._dtype, shards)

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()

    def _batches(self) -> Iterator[_Batch]:
        pieces: list[Piece] = []
        size, source = 0, self._source
        for source, piece in self._pieces():
            pieces.append(piece)
            size += piece.size + PIECE_COST
            if size >= BATCH_BYTES:
                yield _Batch(tuple(pieces), source, size)
                pieces, size = [], 0
        if pieces:
            yield _Batch(tuple(pieces), source, size)

    def _pieces(self) -> Iterator[tuple[int, Piece]]:
        for number in range(self._source, len(self._sources)):
            position = self._position if number == self._source else (0,)
            for piece in self._sources[number].read(position):
                yield number, piece

    def _store(self, batch: _Batch, encoding: Future[list[NDArray[Any]]], unsaved: int) -> int:
        """Append a batch, and note where we are when enough has come together. Answers how much has."""
        grown: dict[str, list[NDArray[Any]]] = {part: [] for part in PARTS}
        for piece, tokens in zip(batch.pieces, encoding.result()):
            grown[piece.part].append(tokens)
            if piece.last:
                grown[piece.part].append(self._separator)
                self.writers[piece.part].documents += 1
        for part, arrays in grown.items():
            if arrays:
                self.writers[part].append(np.concatenate(arrays))
        last = batch.pieces[-1].after
        unsaved += batch.size
        if last is not None:
            self._at(batch.source, last)
            if unsaved >= self._checkpoint_bytes:
                self._save(batch.source, last)
                unsaved = 0
        self._tell()
        return unsaved

    def _at(self, source: int, position: Position) -> None:
        self._told = self._starts[source] + position[0]

    _told = 0

    def _tell(self) -> None:
        tokens = sum(writer.tokens for writer in self.writers.values())
        self._report(BuildProgress(self._told, self._size, tokens, self.resumed))

    def _save(self, source: int, position: Position) -> None:
        for writer in self.writers.values():
            writer.flush()
        state = {
            "fingerprint": self._fingerprint, "source": source, "position": list(position),
            "parts": {part: writer.state() for part, writer in self.writers.items()},
        }  # fmt: skip
        draft = self._work / f"{STATE_NAME}.new"
        _write(draft, json.dumps(state).encode())
        os.rename(draft, self._work / STATE_NAME)


@contextmanager
def _work_folder(out: Path) -> Iterator[Path]:
    """A folder beside `out`, locked: nobody else builds in it. Raises Occupied, OSError."""
    work = out.with_name(out.name + WORK_SUFFIX)
    work.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(work, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Occupied(f"another build writes to {out} now; wait for it, or choose another --out") from None
        yield work
    finally:
        os.close(descriptor)


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    with suppress(OSError):  # not every file system can
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
