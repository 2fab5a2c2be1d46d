"""The contest's corpus: Python's standard library as token shards, made by what `ftnode data build` is made of.

Training and validation are split by file, as load_corpus does it. The tokenizer learns from the training part only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ftnode.lab.parts.data import byte_level_bpe
from ftnode.lab.recovery.whole_model import VALIDATION_SEED, Size
from ftnode.models.data import SEPARATOR, Corpus, Tokens, load_corpus, validation_batch
from ftnode.models.shards import PARTS, Index, open_shards, read_index
from ftnode.node.data.build import build
from ftnode.node.data.sources import Piece, Position, record_pieces
from ftnode.node.data.tokenizers import FileTokenizer


class Tokenized(Protocol):
    """Which tokens are wanted: of so large a vocabulary, from about so much of each part of the text; 0: from all."""

    @property
    def vocabulary(self) -> int: ...

    @property
    def text_bytes_max(self) -> int: ...


class Documents:
    """One part of a corpus as a source of `ftnode data build`; positions are documents. `corpus`: its hash."""

    def __init__(self, part: str, texts: Sequence[str], corpus: str) -> None:
        self.label, self.size = part, len(texts)
        self._texts, self._corpus = texts, corpus

    @property
    def identity(self) -> list[object]:
        return ["documents", self.label, self.size, self._corpus]

    def read(self, position: Position = (0,)) -> Iterator[Piece]:
        for number in range(position[0], self.size):
            yield from record_pieces(self._texts[number], self.label, (number + 1,))


def open_tokens(folder: Path, wanted: Tokenized) -> tuple[Corpus, Index]:
    """The shards in `folder`, which are made where they are missing. Raises DataError."""
    if not folder.exists():
        whole = load_corpus("")
        texts = {part: documents(getattr(whole, part), wanted.text_bytes_max) for part in PARTS}
        learnt = byte_level_bpe(texts["training"], wanted.vocabulary)
        tokenizer = FileTokenizer("the contest's tokenizer", learnt.to_str().encode())
        build([Documents(part, texts[part], whole.sha256) for part in PARTS], tokenizer, folder)
    return open_shards(folder), read_index(folder)[0]


def documents(text: Tokens, bytes_max: int) -> list[str]:
    """Of one part: all with 0; else those whose hash is lowest, until they have `bytes_max` bytes together."""
    assert isinstance(text, np.ndarray)  # of bytes, not of shards
    whole = text.tobytes().split(SEPARATOR)
    if not bytes_max:
        return [document.decode(errors="replace") for document in whole]
    found, size = [], 0
    for document in sorted(whole, key=lambda document: hashlib.blake2b(document, digest_size=8).digest()):
        if size >= bytes_max:
            break
        size += len(document)
        found.append(document.decode(errors="replace"))
    return found


def all_tokens(part: Tokens) -> NDArray[Any]:
    return part[np.arange(len(part))]


def validation_windows(corpus: Corpus, size: Size) -> NDArray[Any]:
    """[N, T + 1]: those that WholeModel.validate looks at."""
    return np.concatenate([
        validation_batch(corpus, VALIDATION_SEED, number, size.sequences, size.config.context)
        for number in range(size.validation_microbatches)
    ])  # fmt: skip
