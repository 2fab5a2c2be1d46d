"""The corpus is the same everywhere, no file is in both parts, and a batch is a pure function of its numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ftnode.models import data
from ftnode.models.data import (
    VALIDATION_ONE_IN,
    DataError,
    corpus_hash,
    load_corpus,
    training_batch,
    validation_batch,
    validation_names,
)


def folder(path: Path, count: int = 40) -> Path:
    (path / "inner" / "__pycache__").mkdir(parents=True)
    for i in range(count):
        (path / ("inner" if i % 2 else ".") / f"text-{i:02}.txt").write_text(f"<{i:02}>" * (20 + i))
    return path


def test_files_are_split_by_name_and_never_shared(tmp_path: Path) -> None:
    corpus = load_corpus(str(folder(tmp_path)))
    training = {part[:4] for part in bytes(corpus.training).split(b"\0")}
    validation = {part[:4] for part in bytes(corpus.validation).split(b"\0")}
    assert len(validation) == 40 // VALIDATION_ONE_IN
    assert not training & validation and len(training | validation) == 40


def test_the_hash_knows_names_and_contents(tmp_path: Path) -> None:
    first = load_corpus(str(folder(tmp_path / "a"))).sha256
    assert load_corpus(str(folder(tmp_path / "b"))).sha256 == first == corpus_hash(str(tmp_path / "a"))
    (tmp_path / "b" / "text-00.txt").rename(tmp_path / "b" / "text-99.txt")
    renamed = load_corpus(str(tmp_path / "b")).sha256
    (tmp_path / "a" / "text-00.txt").write_text("another")
    assert len({first, renamed, load_corpus(str(tmp_path / "a")).sha256}) == 3


def test_binary_hidden_and_linked_files_are_left_out(tmp_path: Path) -> None:
    before = load_corpus(str(folder(tmp_path))).sha256
    (tmp_path / "binary.txt").write_bytes(b"a\0b")
    (tmp_path / ".hidden").write_text("hidden")
    (tmp_path / "link.txt").symlink_to(tmp_path / "text-00.txt")
    assert load_corpus(str(tmp_path)).sha256 == before


def test_one_file_is_cut(tmp_path: Path) -> None:
    file = tmp_path / "book.txt"
    file.write_bytes(bytes(range(1, 101)))
    corpus = load_corpus(str(file))
    assert bytes(corpus.training) == bytes(range(1, 96))
    assert bytes(corpus.validation) == bytes(range(96, 101))


def test_the_standard_library_is_there_without_installed_packages() -> None:
    corpus = load_corpus("")
    assert len(corpus.training) > 10 * len(corpus.validation) > 10**6
    text = bytes(corpus.training) + bytes(corpus.validation)
    assert b"class TarFile(object):" in text
    assert b"class LlamaForCausalLM" not in text


def test_batches_are_pure_and_differ(tmp_path: Path) -> None:
    corpus = load_corpus(str(folder(tmp_path)))
    batch = training_batch(corpus, seed=1, step=2, microbatch=3, sequences=4, context=8)
    assert batch.shape == (4, 9) and batch.dtype == np.uint8
    assert np.array_equal(batch, training_batch(corpus, 1, 2, 3, 4, 8))
    others = [training_batch(corpus, *numbers, 4, 8) for numbers in ((2, 2, 3), (1, 3, 3), (1, 2, 4), (1, 3, 2))]
    assert not any(np.array_equal(batch, other) for other in others)
    for window in batch:
        assert bytes(window) in bytes(corpus.training)


def test_validation_windows_are_of_validation_text_and_always_the_same(tmp_path: Path) -> None:
    corpus = load_corpus(str(folder(tmp_path)))
    batch = validation_batch(corpus, seed=1, microbatch=0, sequences=4, context=8)
    assert np.array_equal(batch, validation_batch(corpus, 1, 0, 4, 8))
    assert not np.array_equal(batch, validation_batch(corpus, 1, 1, 4, 8))
    for window in batch:
        assert bytes(window) in bytes(corpus.validation)


@pytest.mark.parametrize("several", [False, True])
def test_who_waits_for_a_slow_disk_hears_of_each_piece(
    several: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the text and its hash are the same in pieces."""
    path = folder(tmp_path) if several else tmp_path / "book.txt"
    if not several:
        path.write_bytes(bytes(range(1, 101)))
    whole = load_corpus(str(path))
    monkeypatch.setattr(data, "PIECE_BYTES", 16)
    size = sum(file.stat().st_size for file in tmp_path.rglob("*.txt"))
    loads, hashes = list[int](), list[int]()
    corpus = load_corpus(str(path), lambda: loads.append(1))
    assert bytes(corpus.training) == bytes(whole.training) and bytes(corpus.validation) == bytes(whole.validation)
    assert corpus.sha256 == whole.sha256 == corpus_hash(str(path), lambda: hashes.append(1))
    assert len(loads) >= 2 * size / 16 and len(hashes) >= 2 * size / 16, "as it is read, and as it is hashed"


def test_the_streams_are_known() -> None:
    """A change here is another batch for every run that has begun."""
    corpus = load_corpus(str(Path(__file__)))
    raw = np.random.Philox(key=[7, 0], counter=[0, 0, 1, 2]).random_raw(1)
    start = int(raw[0]) % (len(corpus.training) - 4)
    assert int(raw[0]) == 10348786303213616551
    assert bytes(training_batch(corpus, 7, 1, 2, 1, 4)[0]) == bytes(corpus.training[start : start + 5])


def test_unusable_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no-such-folder"):
        load_corpus(str(tmp_path / "no-such-folder"))
    with pytest.raises(DataError, match="no text files"):
        load_corpus(str(tmp_path))
    with pytest.raises(DataError, match="no text files"):
        corpus_hash(str(tmp_path))
    (tmp_path / "binary").write_bytes(b"a\0b")
    with pytest.raises(DataError, match="is not text"):
        load_corpus(str(tmp_path / "binary"))
    (tmp_path / "short.txt").write_text("short")
    with pytest.raises(DataError, match="fewer than one sequence of 9"):
        training_batch(load_corpus(str(tmp_path)), 1, 1, 0, 1, 8)


def test_validation_names_has_at_least_one() -> None:
    assert len(validation_names(["a", "b"])) == 1
    names = [str(i) for i in range(1000)]
    assert validation_names(names) == validation_names(names[::-1])
    assert len(validation_names(names)) == 50
