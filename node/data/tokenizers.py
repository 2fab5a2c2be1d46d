"""Text to token ids: the built-in byte tokenizer, or a Hugging Face `tokenizers` file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from ftnode.models.data import SEPARATOR, DataError, NotThere
from ftnode.models.shards import TOKENIZER_BYTES_MAX, TOKENIZER_NAME, TokenizerFacts, dtype_for
from ftnode.node.home.paths import typed_path

BYTES: Final = "bytes"
CONFIG_NAME: Final = "tokenizer_config.json"
SEPARATORS: Final = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[SEP]", "[EOS]")
"""Tokens that end a document in widely used tokenizers; the first that is there is taken."""


class Tokenizer(Protocol):
    name: str
    """For whoever builds; it is in no shard and no index."""
    facts: TokenizerFacts
    file: bytes
    """Of tokenizer.json; empty when there is none."""

    def encode(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        """The tokens of each text, by themselves, without special tokens around them, in the dtype of shards."""
        ...


class ByteTokenizer:
    """A token is a byte of UTF-8; documents are separated by NUL, as in models/data.py."""

    name = BYTES
    file = b""

    def __init__(self) -> None:
        self.facts = TokenizerFacts(hashlib.sha256(BYTES.encode()).hexdigest(), 256, SEPARATOR[0], 0)

    def encode(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        return [np.frombuffer(text.encode(), np.uint8) for text in texts]


class FileTokenizer:
    """What tokenizer.json says. Special tokens that stand in a text are text: no document can fake a separator."""

    def __init__(self, name: str, file: bytes, separator: str | None = None, usual: str | None = None) -> None:
        """`name`: its path, for messages. `usual`: the separator where none is given and none of SEPARATORS is there.
        Raises DataError."""
        from tokenizers import Tokenizer as HuggingFace

        try:
            self._tokenizer = HuggingFace.from_str(file.decode())
        except Exception as error:  # noqa: BLE001 - the library raises plain ones
            raise DataError(f"{name} is no file of a tokenizer: {str(error)[:200]}; give a tokenizer.json") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise DataError(f"the tokenizer {name} has no tokens")
        size = max(vocabulary.values()) + 1
        self.name, self.file = name, file
        found = _separator(name, vocabulary, separator, usual)
        self.facts = TokenizerFacts(hashlib.sha256(file).hexdigest(), size, found, len(file))
        self._dtype = np.dtype(dtype_for(size))

    def encode(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=self._dtype) for encoding in encodings]


def open_tokenizer(given: str, separator: str | None = None) -> Tokenizer:
    """`bytes`, or the path of a tokenizer.json or of a folder with one. Raises NotThere and DataError."""
    if given == BYTES:
        if separator is not None:
            raise DataError("the byte tokenizer separates documents by NUL; leave --separator out")
        return ByteTokenizer()
    path = typed_path(given)
    if path.is_dir():
        path /= TOKENIZER_NAME
    try:
        with path.open("rb") as file:
            content = file.read(TOKENIZER_BYTES_MAX + 1)
    except OSError as error:
        raise NotThere(
            f"cannot read the tokenizer {path}: {error.strerror}; give bytes, or the path of a tokenizer.json"
        ) from None
    if not 0 < len(content) <= TOKENIZER_BYTES_MAX:
        raise DataError(f"{path} is empty or too large for a tokenizer")
    return FileTokenizer(str(path), content, separator, _end_beside(path))


def _end_beside(path: Path) -> str | None:
    """What ends a text by the `tokenizer_config.json` that published models, and our exports, have beside the file."""
    try:
        with path.with_name(CONFIG_NAME).open("rb") as file:
            found = json.loads(file.read(TOKENIZER_BYTES_MAX))
    except (OSError, ValueError, RecursionError):
        return None
    token = found.get("eos_token") if isinstance(found, dict) else None
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def _separator(name: str, vocabulary: dict[str, int], given: str | None, usual: str | None) -> int:
    if given is not None:
        if given not in vocabulary:
            raise DataError(f"the tokenizer {name} has no token {given!r}; name one of its own with --separator")
        return vocabulary[given]
    for candidate in (*SEPARATORS, usual):
        if candidate is not None and candidate in vocabulary:
            return vocabulary[candidate]
    raise DataError(f"the tokenizer {name} has none of {', '.join(SEPARATORS)}; name its separator with --separator")
