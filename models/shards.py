"""A corpus as token shards: files of token ids that are read by memory map, and the index that says what they are.

    index.json            format, tokenizer, dtype, and of every shard its name, part, tokens and sha256
    training-00000.bin    token ids, little-endian, as wide as the vocabulary needs; joined in the index's order
    validation-00000.bin
    tokenizer.json        the tokenizer's own file, unless it is the byte tokenizer

The hash of index.json is the corpus's hash in a manifest: it covers every shard's hash, the tokenizer's and the dtype.
The numpy files of nanoGPT (train.bin, val.bin) and the .bin/.idx pairs of Megatron-LM are prior art.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ftnode.models.data import Corpus, DataError, NotThere, Unread

INDEX_NAME: Final = "index.json"
TOKENIZER_NAME: Final = "tokenizer.json"
FORMAT: Final = "ftnode-shards-1"
PARTS: Final = ("training", "validation")
DTYPES: Final = {"uint8": 1, "uint16": 2, "uint32": 4}
"""Bytes of a token id, by the name of its type."""
INDEX_BYTES_MAX: Final = 16 << 20
"""Room for 100,000 shards."""
SHARD_BYTES_MAX: Final = 1 << 30
TOKENIZER_BYTES_MAX: Final = 256 << 20
BLOCK_BYTES: Final = 1 << 20
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_NAME: Final = re.compile(r"(training|validation)-\d{5,9}\.bin")
_ANY_FORMAT: Final = re.compile(rb'"format"\s*:\s*"ftnode-shards-')


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """Which tokenizer made the shards. What its file or folder was called where they were built is not in it: the same
    text and tokenizer make the same corpus everywhere.

    `bytes`: length of its file, 0 when there is none (the byte tokenizer).
    """

    sha256: str
    vocabulary: int
    """Token ids are below it."""
    separator: int
    """Token id behind every document."""
    bytes: int

    @property
    def name(self) -> str:
        return TOKENIZER_NAME if self.bytes else "bytes"


@dataclass(frozen=True, slots=True)
class Shard:
    name: str
    part: str
    """One of PARTS."""
    tokens: int
    sha256: str


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that belongs to the corpus."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Index:
    """What index.json says."""

    tokenizer: TokenizerFacts
    dtype: str
    """One of DTYPES."""
    shards: tuple[Shard, ...]

    def encode(self) -> bytes:
        """The file's content; equal indexes give equal bytes."""
        plain = {"format": FORMAT, **asdict(self)}
        return (json.dumps(plain, indent=1, sort_keys=True, ensure_ascii=True) + "\n").encode()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.encode()).hexdigest()

    @property
    def number_bytes(self) -> int:
        return DTYPES[self.dtype]

    @property
    def files(self) -> tuple[StoredFile, ...]:
        """All files but the index itself, the tokenizer's first."""
        own = self.tokenizer
        first = [StoredFile(TOKENIZER_NAME, own.bytes, own.sha256)] if own.bytes else []
        shards = [StoredFile(shard.name, shard.tokens * self.number_bytes, shard.sha256) for shard in self.shards]
        return (*first, *shards)

    @property
    def size(self) -> int:
        """Bytes of all `files`."""
        return sum(file.size for file in self.files)

    def tokens(self, part: str) -> int:
        return sum(shard.tokens for shard in self.shards if shard.part == part)


class TokenShards:
    """The tokens of one part, joined: position p is token p of its shards in order. Shards are mapped when touched."""

    def __init__(self, folder: Path, shards: Sequence[Shard], dtype: str, vocabulary: int) -> None:
        """Raises DataError when a shard is missing or has another size than the index says."""
        self._folder, self._shards, self._vocabulary = folder, tuple(shards), vocabulary
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._ends = np.array(list(accumulate(shard.tokens for shard in shards)), dtype=np.int64)
        self._maps: dict[int, NDArray[Any]] = {}
        for shard in shards:
            _check_size(folder / shard.name, shard.tokens * self._dtype.itemsize)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The tokens there, in the shape of `positions`. Raises DataError for one that the vocabulary does not have."""
        found = np.empty(positions.shape, np.int64)
        owners = np.searchsorted(self._ends, positions, side="right")
        for owner in np.unique(owners):
            here = owners == owner
            start = int(self._ends[owner]) - self._shards[owner].tokens
            found[here] = self._map(int(owner))[positions[here] - start]
        if found.size and int(found.max()) >= self._vocabulary:
            raise DataError(f"a token {int(found.max())} in a vocabulary of {self._vocabulary}")
        return found

    def _map(self, owner: int) -> NDArray[Any]:
        if owner not in self._maps:
            path = self._folder / self._shards[owner].name
            try:
                self._maps[owner] = np.memmap(path, self._dtype, mode="r", shape=(self._shards[owner].tokens,))
            except (OSError, ValueError) as error:
                raise DataError(f"cannot map {path}: {error}") from None
        return self._maps[owner]


def is_shard_folder(path: Path) -> bool:
    """Whether its index is one of shards: of any format, however it is spaced, or of none when shards lie beside it.
    What is wrong with it, `read_index` says; it is never text to train on."""
    try:
        with (path / INDEX_NAME).open("rb") as file:
            return holds_shards(path) or bool(_ANY_FORMAT.search(file.read(INDEX_BYTES_MAX)))
    except OSError:
        return False


def holds_shards(folder: Path) -> bool:
    """Whether files have the names of shards, with or without an index: of an unfinished build, or fetched in part."""
    try:
        return any(_NAME.fullmatch(path.name) for path in folder.iterdir())
    except OSError:
        return False


def read_index(folder: Path) -> tuple[Index, str]:
    """A folder's index and the hash of its file. Raises NotThere and DataError."""
    path = folder / INDEX_NAME
    try:
        with path.open("rb") as file:
            data = file.read(INDEX_BYTES_MAX + 1)
    except OSError as error:
        raise NotThere(f"cannot read {path}: {error.strerror}; make it with ftnode data build") from None
    try:
        return parse_index(data), hashlib.sha256(data).hexdigest()
    except DataError as error:
        raise DataError(f"{path} is no index of shards: {error}; build them again with ftnode data build") from None


def parse_index(data: bytes) -> Index:
    """The inverse of `Index.encode`; every word of it is checked. Raises DataError."""
    if len(data) > INDEX_BYTES_MAX:
        raise DataError(f"it is larger than {INDEX_BYTES_MAX} bytes")
    try:
        plain = json.loads(data)
    except (ValueError, RecursionError):
        raise DataError("it is not JSON") from None
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        raise DataError(f"its format is not {FORMAT}")
    try:
        tokenizer = TokenizerFacts(**plain["tokenizer"])
        shards = tuple(Shard(**shard) for shard in plain["shards"])
        index = Index(tokenizer, plain["dtype"], shards)
        _check(index)
    except (KeyError, TypeError, AttributeError):
        raise DataError("a field is missing, unknown or of another type") from None
    if index.encode() != data:
        raise DataError("it was written or edited by something else")
    return index


def dtype_for(vocabulary: int) -> str:
    """The narrowest type for token ids below `vocabulary`."""
    return next(name for name, size in DTYPES.items() if vocabulary <= 1 << 8 * size)


def open_shards(folder: str | Path, sha256: str = "") -> Corpus:
    """The corpus in a folder, by memory map. The hashes of shards are not looked at here (`check_file` does that).

    `sha256`: what the index must hash to; empty: whatever there is. Raises DataError.
    """
    path = Path(folder)
    index, found = read_index(path)
    if sha256 not in ("", found):
        raise DataError(f"the index in {path} is {found[:12]}, the run's is {sha256[:12]}")
    training, validation = (
        TokenShards(path, [s for s in index.shards if s.part == part], index.dtype, index.tokenizer.vocabulary)
        for part in PARTS
    )
    return Corpus(training, validation, found)


def check_file(folder: Path, file: StoredFile) -> None:
    """Raises DataError unless the file is there with its size and hash: Unread where that cannot be told."""
    path = folder / file.name
    _check_size(path, file.size)
    try:
        with path.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise Unread(f"cannot read {path}: {error.strerror}; get the file or build it again") from None
    if digest != file.sha256:
        raise DataError(f"{path} does not have the hash that the index says: it is damaged; get it or build it again")


def _check_size(path: Path, size: int) -> None:
    try:
        found = path.stat().st_size
    except OSError as error:
        raise Unread(f"cannot read {path}: {error.strerror}; get the file or build it again") from None
    if found != size:
        raise DataError(f"{path} has {found} bytes, and {size} by the index: it is damaged; get it or build it again")


def _check(index: Index) -> None:
    """Raises DataError for what no build makes, TypeError for a field of another type."""
    own = index.tokenizer
    numbers = [own.vocabulary, own.separator, own.bytes, *(shard.tokens for shard in index.shards)]
    if any(type(number) is not int for number in numbers):
        raise DataError("a number that is none")
    if not 0 < own.vocabulary <= 1 << 32 or not 0 <= own.separator < own.vocabulary:
        raise DataError("a vocabulary or a separator that cannot be")
    if not 0 <= own.bytes <= TOKENIZER_BYTES_MAX or index.dtype != dtype_for(own.vocabulary):
        raise DataError("a tokenizer or a dtype that cannot be")
    if any(not _HASH.fullmatch(found) for found in (own.sha256, *(shard.sha256 for shard in index.shards))):
        raise DataError("a hash that is none")
    for shard in index.shards:
        if not _NAME.fullmatch(shard.name) or not shard.name.startswith(f"{shard.part}-"):
            raise DataError("a shard with a name that no build gives")
        if not 0 < shard.tokens <= SHARD_BYTES_MAX // index.number_bytes:
            raise DataError(f"{shard.name} has a size that no build gives")
    if len({shard.name for shard in index.shards}) != len(index.shards):
        raise DataError("two shards of one name")
