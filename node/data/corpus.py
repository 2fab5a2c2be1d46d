"""What a folder or file passed as --data is to a run: text, whose bytes are hashed, or token shards with an index."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ftnode.models.data import DataError, NotThere, load_corpus
from ftnode.models.shards import INDEX_NAME, PARTS, check_file, holds_shards, is_shard_folder, read_index
from ftnode.protocol.manifest.parse import Manifest
from ftnode.protocol.words.errors import UserError

VOCABULARY_MIN = 256
"""Of a manifest's model."""


@dataclass(frozen=True, slots=True)
class CorpusFacts:
    """What a manifest says of its corpus. `vocabulary`: that its tokens need; None for text, whose tokens are bytes."""

    kind: str
    sha256: str
    vocabulary: int | None = None


def corpus_facts(path: Path | None, context: int) -> CorpusFacts:
    """Of a text, a folder of it, a folder of shards, or of Python's standard library. Everything is read and hashed.

    Raises UserError: 66 when there is no text in it, or shards without an index; 65 when shards are damaged or of an
    unknown format, or a part of it is shorter than a sequence of `context` tokens.
    """
    if path is not None and (is_shard_folder(path) or holds_shards(path)):
        return _shard_facts(path, context)
    try:
        corpus = load_corpus(str(path or ""))
    except (DataError, OSError) as error:
        raise UserError(f"cannot use the data: {error}", 66) from None
    for name, part in (("training", corpus.training), ("validation", corpus.validation)):
        if len(part) <= context:
            raise UserError(
                f"the {name} part of {path} has {len(part)} bytes, fewer than one sequence of {context + 1}; "
                "give a longer text", 65,
            )  # fmt: skip
    return CorpusFacts("files" if path else "standard-library", corpus.sha256)


def check_shards(path: Path, manifest: Manifest) -> None:
    """Raises UserError when `path`, passed to a run that trains on shards, is a file or a folder of something else
    (66), or is of the run but made by a tokenizer that does not fit its model (78)."""
    if not path.is_dir():
        raise UserError(
            f"{path} is no folder, and the run trains on token shards; pass a folder that may hold some", 66
        )
    if not is_shard_folder(path):
        if not holds_shards(path):
            raise UserError(
                f"no {INDEX_NAME} in {path}, and no shards; pass the folder of the run's token shards, or leave --data "
                "out to fetch them", 66,
            )  # fmt: skip
        return
    try:
        index, sha256 = read_index(path)
    except DataError as error:
        raise UserError(f"cannot use the data: {error}", 65) from None
    tokenizer, tokens = index.tokenizer, manifest.model.vocabulary
    if sha256 == manifest.data.sha256 and tokenizer.vocabulary > tokens:
        raise UserError(
            f"the tokenizer {tokenizer.name} of {path} has {tokenizer.vocabulary} tokens, and model.vocabulary is "
            f"{tokens}; make the manifest anew with: ftnode run init --data {path}", 78,
        )  # fmt: skip


def _shard_facts(path: Path, context: int) -> CorpusFacts:
    try:
        index, sha256 = read_index(path)
        for file in index.files:
            check_file(path, file)
    except DataError as error:
        raise UserError(f"cannot use the data: {error}", 66 if isinstance(error, NotThere) else 65) from None
    for part in PARTS:
        if index.tokens(part) <= context:
            raise UserError(
                f"the {part} part of {path} has {index.tokens(part)} tokens, fewer than one sequence of {context + 1}; "
                "build it from more text", 65,
            )  # fmt: skip
    return CorpusFacts("shards", sha256, max(VOCABULARY_MIN, index.tokenizer.vocabulary))
