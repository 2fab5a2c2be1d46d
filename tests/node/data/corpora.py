"""Small corpora for tests: texts, a tokenizer trained on the spot, and shards built of them."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from ftnode.node.data.build import Built, build
from ftnode.node.data.records import find_sources
from ftnode.node.data.tokenizers import open_tokenizer

REVISION = "0123456789abcdef0123456789abcdef01234567"
"""Of a dataset."""


def words(seed: str, count: int) -> str:
    """Letters that look like text, and are the same for the same seed."""
    digest, found = hashlib.sha256(seed.encode()).hexdigest(), []
    while len(found) < count:
        found += [digest[i : i + 2 + i % 5] for i in range(0, 56, 5)]
        digest = hashlib.sha256(digest.encode()).hexdigest()
    return " ".join(found[:count]) + "\n"


def text_folder(folder: Path, files: int = 40, count: int = 60) -> Path:
    """Files of differing lengths, some in a folder within."""
    for number in range(files):
        path = folder / ("inner" if number % 3 else ".") / f"text-{number:02}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(words(f"file {number}", count + number))
    return folder


@cache
def tokenizer_json(size: int = 400) -> str:
    """A byte-level BPE of so many tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([words(f"file {number}", 200) for number in range(20)], trainer)
    return str(tokenizer.to_str())


def tokenizer_file(folder: Path, size: int = 400) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tokenizer.json"
    path.write_text(tokenizer_json(size))
    return path


def shards(folder: Path, tokenizer: str = "bytes", shard_bytes: int = 2000, files: int = 40) -> Built:
    """Shards of a text folder, in `folder`/shards."""
    source = text_folder(folder / "text", files)
    return build(
        find_sources([str(source)], "text"), open_tokenizer(tokenizer), folder / "shards", shard_bytes=shard_bytes
    )
