"""Text from files: the corpus, its hash, its split by file, and batches that are pure functions of their numbers.

Batches of token shards (shards.py) are drawn here, too.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

SEPARATOR: Final = b"\0"
VALIDATION_ONE_IN: Final = 20
CORPUS_BYTES_MAX: Final = 4 << 30
PIECE_BYTES: Final = 16 << 20
"""Of a file, read at once. A disk that gives less than this in a minute is taken for one that hangs."""
LIBRARY_EXCLUDES: Final = frozenset({"site-packages", "dist-packages", "__pycache__"})
_TRAINING, _VALIDATION = 0, 1


class Tokens(Protocol):
    """One part of a corpus: bytes of a text, or the tokens of shards."""

    def __len__(self) -> int: ...

    def __getitem__(self, positions: NDArray[np.int64], /) -> NDArray[Any]:
        """The tokens at these positions, in the same shape."""
        ...


class DataError(ValueError):
    """The text cannot be used; one line that says why and what to do."""


class NotThere(DataError):
    """What was named does not exist, or cannot be opened."""


class Unread(DataError):
    """The disk did not give it out this time, which says nothing of what is there."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """The two parts of a corpus: a text's bytes, files joined by NUL, or shards' tokens. No file is in both."""

    training: Tokens
    validation: Tokens
    sha256: str
    """Over (path, content) of all files in order, or over the index of shards."""


def _unwatched() -> None:
    """Nobody waits for signs of progress."""


def load_corpus(path: str, progress: Callable[[], None] = _unwatched) -> Corpus:
    """A text file, a folder of them, or with an empty path the Python standard library's own sources. Raises DataError.
    `progress` is called after each piece that was read, or hashed.

    For validation: of a folder, the twentieth of the files whose paths hash lowest; of a file, its last twentieth.
    """
    files = list(_files(path, progress))
    training: bytes | bytearray
    validation: bytes | bytearray
    if len(files) == 1:
        content = files[0][1]
        cut = len(content) - len(content) // VALIDATION_ONE_IN
        training, validation = content[:cut], content[cut:]
    else:
        held_out = validation_names([name for name, _ in files])
        training = SEPARATOR.join(content for name, content in files if name not in held_out)
        validation = SEPARATOR.join(content for name, content in files if name in held_out)
    return Corpus(_array(training), _array(validation), _hash(files, path, progress))


def corpus_hash(path: str, progress: Callable[[], None] = _unwatched) -> str:
    """The `sha256` of `load_corpus(path)`, without keeping the text. Raises DataError."""
    return _hash(_files(path, progress), path, progress)


def validation_names(names: list[str]) -> frozenset[str]:
    """One in twenty of the relative paths, at least one, by their hash."""
    ranked = sorted(
        names, key=lambda name: hashlib.blake2b(name.encode(errors="surrogateescape"), digest_size=8).digest()
    )
    return frozenset(ranked[: max(1, len(names) // VALIDATION_ONE_IN)])


def training_batch(corpus: Corpus, seed: int, step: int, microbatch: int, sequences: int, context: int) -> NDArray[Any]:
    """[sequences, context + 1] windows: inputs and targets. Raises DataError when the text is too short."""
    return _windows(corpus.training, (_TRAINING, seed, step, microbatch), sequences, context + 1)


def validation_batch(corpus: Corpus, seed: int, microbatch: int, sequences: int, context: int) -> NDArray[Any]:
    """As `training_batch`, but the same windows at every evaluation."""
    return _windows(corpus.validation, (_VALIDATION, seed, 0, microbatch), sequences, context + 1)


def _windows(text: Tokens, name: tuple[int, int, int, int], count: int, length: int) -> NDArray[Any]:
    room = len(text) - length + 1
    if room < 1:
        part = "validation" if name[0] == _VALIDATION else "training"
        raise DataError(f"the {part} part of the text has {len(text)} tokens, fewer than one sequence of {length}")
    # Raw Philox counters: numpy promises that stream for ever, unlike those of its distributions.
    kind, seed, step, microbatch = name
    raw = np.random.Philox(key=[seed % 2**64, kind], counter=[0, 0, step, microbatch]).random_raw(count)
    starts = (raw % np.uint64(room)).astype(np.int64)
    return text[starts[:, None] + np.arange(length)]


def _array(text: bytes | bytearray) -> Bytes:
    return np.frombuffer(text, dtype=np.uint8)


def _hash(files: Iterable[tuple[str, bytearray]], path: str, progress: Callable[[], None]) -> str:
    digest, empty = hashlib.sha256(), True
    for name, content in files:
        empty = False
        for part in (name.encode(errors="surrogateescape"), content):
            digest.update(len(part).to_bytes(8, "little"))
            for start in range(0, len(part), PIECE_BYTES):
                digest.update(memoryview(part)[start : start + PIECE_BYTES])
                progress()
    if empty:
        raise DataError(f"no text files in {path or _library()}; give --data a text file or a folder of text files")
    return digest.hexdigest()


def _library() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def _files(path: str, progress: Callable[[], None]) -> Iterator[tuple[str, bytearray]]:
    """(relative path with /, content), sorted by path."""
    root = Path(path) if path else _library()
    try:
        if root.is_file():
            content = _read(root, progress)
            if SEPARATOR in content:
                raise DataError(f"{root} is not text (it holds a zero byte); give --data a text file or a folder")
            yield root.name, content
            return
        total = 0
        for name in sorted(_names(root, not path, progress)):
            content = _read(root / name, progress)
            total += len(content)
            if total > CORPUS_BYTES_MAX:
                raise DataError(
                    f"the text in {root} is larger than {CORPUS_BYTES_MAX >> 30} GiB; give a smaller folder"
                )
            if SEPARATOR not in content:
                yield name, content
    except OSError as error:
        cause = f"cannot read {error.filename or root}: {error.strerror or type(error).__name__}"
        raise DataError(f"{cause}; give --data a readable text file or folder") from error


def _names(root: Path, library: bool, progress: Callable[[], None]) -> Iterator[str]:
    def give_up(error: OSError) -> None:
        raise error

    for folder, folders, names in os.walk(root, onerror=give_up):
        folders[:] = [f for f in folders if not f.startswith(".") and not (library and f in LIBRARY_EXCLUDES)]
        for name in names:
            file = Path(folder, name)
            progress()
            wanted = name.endswith(".py") if library else not name.startswith(".")
            if wanted and stat.S_ISREG(file.lstat().st_mode):
                yield file.relative_to(root).as_posix()


def _read(file: Path, progress: Callable[[], None]) -> bytearray:
    if file.stat().st_size > CORPUS_BYTES_MAX:
        raise DataError(f"{file} is larger than {CORPUS_BYTES_MAX >> 30} GiB; give a smaller text")
    content = bytearray()
    with file.open("rb", buffering=0) as opened:
        while piece := opened.read(PIECE_BYTES):
            content += piece
            progress()
    return content
