"""Token shards by memory map: windows over their ends, an index that is checked, files that are what it says."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ftnode.models.data import DataError, training_batch, validation_batch
from ftnode.models.shards import (
    INDEX_NAME,
    Index,
    Shard,
    TokenizerFacts,
    check_file,
    dtype_for,
    is_shard_folder,
    open_shards,
    parse_index,
    read_index,
)

COUNTS = {"training": (100, 100, 7), "validation": (100, 3)}


def write(folder: Path, vocabulary: int = 1000) -> Index:
    """Shards of counted tokens: token p of a part is 3·p, those of validation begin at 500."""
    folder.mkdir(parents=True, exist_ok=True)
    dtype, shards = dtype_for(vocabulary), []
    for part, counts in COUNTS.items():
        start = 500 if part == "validation" else 0
        for number, count in enumerate(counts):
            data = (3 * np.arange(count) + start).astype(dtype).tobytes()
            start += 3 * count
            (folder / f"{part}-{number:05}.bin").write_bytes(data)
            shards.append(Shard(f"{part}-{number:05}.bin", part, count, hashlib.sha256(data).hexdigest()))
    index = Index(TokenizerFacts("ab" * 32, vocabulary, 0, 0), dtype, tuple(shards))
    (folder / INDEX_NAME).write_bytes(index.encode())
    return index


def test_windows_reach_over_the_ends_of_shards(tmp_path: Path) -> None:
    write(tmp_path)
    corpus = open_shards(tmp_path)
    assert (len(corpus.training), len(corpus.validation)) == (207, 103)
    positions = np.arange(0, 200)[:, None] + np.arange(8)
    assert np.array_equal(corpus.training[positions], 3 * positions)
    assert np.array_equal(corpus.validation[np.array([[0, 99, 100, 102]])], [[500, 797, 800, 806]])


def test_batches_are_those_of_the_same_tokens_in_memory(tmp_path: Path) -> None:
    write(tmp_path)
    corpus = open_shards(tmp_path)
    whole = replace(corpus, training=3 * np.arange(207), validation=500 + 3 * np.arange(103))
    for draw in (lambda text: training_batch(text, 7, 3, 2, 5, 16), lambda text: validation_batch(text, 7, 2, 5, 16)):
        assert draw(corpus).shape == (5, 17) and np.array_equal(draw(corpus), draw(whole))


@pytest.mark.parametrize(
    ("vocabulary", "dtype"),
    [(256, "uint8"), (257, "uint16"), (65536, "uint16"), (65537, "uint32"), (1 << 32, "uint32")],
)
def test_tokens_are_as_wide_as_the_vocabulary_needs(vocabulary: int, dtype: str) -> None:
    assert dtype_for(vocabulary) == dtype


def test_a_token_that_the_vocabulary_does_not_have_is_refused(tmp_path: Path) -> None:
    write(tmp_path, vocabulary=600)
    corpus = open_shards(tmp_path)
    assert corpus.training[np.array([199])] == 597
    with pytest.raises(DataError, match="a token 603 in a vocabulary of 600"):
        corpus.training[np.array([201])]


def test_the_hash_of_the_index_covers_all(tmp_path: Path) -> None:
    index = write(tmp_path)
    assert read_index(tmp_path) == (index, index.sha256) and open_shards(tmp_path).sha256 == index.sha256
    assert hashlib.sha256((tmp_path / INDEX_NAME).read_bytes()).hexdigest() == index.sha256
    others = [
        replace(index, dtype="uint32"),
        replace(index, tokenizer=replace(index.tokenizer, sha256="cd" * 32)),
        replace(index, shards=(replace(index.shards[0], sha256="00" * 32), *index.shards[1:])),
        replace(index, shards=index.shards[::-1]),
    ]
    assert len({other.sha256 for other in (index, *others)}) == 5
    with pytest.raises(DataError, match="the run's is 0000"):
        open_shards(tmp_path, "0" * 64)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    index = write(tmp_path)
    for file in index.files:
        check_file(tmp_path, file)
    path = tmp_path / "training-00001.bin"
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"training-00001.bin does not have the hash"):
        check_file(tmp_path, index.files[1])
    path.write_bytes(data[:-1])
    for look in (lambda: check_file(tmp_path, index.files[1]), lambda: open_shards(tmp_path)):
        with pytest.raises(DataError, match=r"training-00001.bin has 199 bytes, and 200 by the index"):
            look()
    path.unlink()
    with pytest.raises(DataError, match="No such file"):
        open_shards(tmp_path)


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    """An index with a change, written as a build would write it."""

    def edit(data: bytes) -> bytes:
        plain = json.loads(data)
        change(plain)
        return (json.dumps(plain, indent=1, sort_keys=True) + "\n").encode()

    return edit


BAD: dict[str, Callable[[bytes], bytes]] = {
    "no JSON": lambda data: data[:-10],
    "too deep": lambda data: b"[" * 100_000,
    "too large": lambda data: data + b" " * (16 << 20),
    "a list": lambda data: b"[]",
    "another format": edited(lambda plain: plain.update(format="ftnode-shards-9")),
    "another layout": lambda data: data + b"\n",
    "no shards": edited(lambda plain: plain.pop("shards")),
    "an unknown field": edited(lambda plain: plain["shards"][0].update(more=1)),
    "an unknown key": edited(lambda plain: plain.update(more=1)),
    "shards that are text": edited(lambda plain: plain.update(shards="x")),
    "a dtype that does not fit": edited(lambda plain: plain.update(dtype="uint32")),
    "a path": edited(lambda plain: plain["shards"][0].update(name="../training-00000.bin")),
    "an absolute path": edited(lambda plain: plain["shards"][0].update(name="/training-00000.bin")),
    "a path behind a part": edited(lambda plain: plain["shards"][0].update(name="training-/../../x.bin")),
    "a name of another part": edited(lambda plain: plain["shards"][0].update(part="validation")),
    "one name twice": edited(lambda plain: plain["shards"].append(plain["shards"][0])),
    "a name that is a number": edited(lambda plain: plain["shards"][0].update(name=7)),
    "a hash that is none": edited(lambda plain: plain["shards"][0].update(sha256="AB" * 32)),
    "an empty shard": edited(lambda plain: plain["shards"][0].update(tokens=0)),
    "a vast shard": edited(lambda plain: plain["shards"][0].update(tokens=1 << 40)),
    "true for a number": edited(lambda plain: plain["shards"][0].update(tokens=True)),
    "half a token": edited(lambda plain: plain["shards"][0].update(tokens=1.5)),
    "a separator beyond": edited(lambda plain: plain["tokenizer"].update(separator=1000)),
    "a vast tokenizer": edited(lambda plain: plain["tokenizer"].update(bytes=1 << 40)),
    "a name for the tokenizer": edited(lambda plain: plain["tokenizer"].update(name="bpe")),
}


@pytest.mark.parametrize("bad", BAD)
def test_an_index_that_no_build_wrote_is_refused(bad: str, tmp_path: Path) -> None:
    data = write(tmp_path).encode()
    parse_index(data)
    with pytest.raises(DataError):
        parse_index(BAD[bad](data))


def test_a_folder_of_shards_is_known_by_its_index(tmp_path: Path) -> None:
    write(tmp_path / "shards")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / INDEX_NAME).write_text('{"format": "something else"}')
    assert is_shard_folder(tmp_path / "shards")
    assert (
        not is_shard_folder(tmp_path / "text") and not is_shard_folder(tmp_path) and not is_shard_folder(tmp_path / "x")
    )


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("index", ["ftnode-shards-9", "reformatted", "cut off", "something else"])
def test_shards_with_an_index_that_cannot_be_read_are_no_text(index: str, alone: bool, tmp_path: Path) -> None:
    data = write(tmp_path).encode()
    changed = {
        "ftnode-shards-9": data.replace(b"ftnode-shards-1", b"ftnode-shards-9"), "cut off": data[:-100],
        "reformatted": json.dumps(json.loads(data), separators=(",", ":")).encode(), "something else": b"{}",
    }  # fmt: skip
    (tmp_path / INDEX_NAME).write_bytes(changed[index])
    if alone:
        for path in tmp_path.glob("*.bin"):
            path.unlink()
    assert is_shard_folder(tmp_path) is (not alone or index != "something else")
    with pytest.raises(DataError, match=r"is no index of shards: .*; build them again"):
        read_index(tmp_path)
