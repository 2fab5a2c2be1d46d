"""The contest's text: which documents it takes, and that its shards have them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders

from ftnode.lab.codecs import tokens
from ftnode.lab.codecs.plan import QUICK
from ftnode.models.data import Corpus

TEXTS = [f"def f_{number}():\n    return {number} + {number}\n" for number in range(60)]


def part(texts: list[str]) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.frombuffer("\0".join(texts).encode(), np.uint8)


def test_documents_are_taken_from_everywhere_until_there_is_enough() -> None:
    text = part(TEXTS)
    assert tokens.documents(text, 0) == TEXTS
    some = tokens.documents(text, 1000)
    assert 1000 <= sum(map(len, some)) < 1000 + len(TEXTS[-1])
    assert set(some) < set(TEXTS) and {TEXTS.index(one) // 20 for one in some} == {0, 1, 2}
    assert tokens.documents(part(TEXTS[::-1]), 1000) == some
    assert tokens.documents(text, 2000)[: len(some)] == some


def test_shards_have_the_documents_and_the_tokenizer_has_not_seen_the_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_out = ["zzzzzzzz zzzzzzzz\n" * 20]
    whole = Corpus(part(TEXTS), part(held_out), "ab" * 32)
    monkeypatch.setattr(tokens, "load_corpus", lambda path: whole)
    corpus, index = tokens.open_tokens(tmp_path / "shards", replace(QUICK, vocabulary=300, text_bytes_max=0))
    tokenizer = Tokenizer.from_file(str(tmp_path / "shards" / "tokenizer.json"))
    tokenizer.decoder = decoders.ByteLevel()
    found = tokenizer.decode(tokens.all_tokens(corpus.training).tolist(), skip_special_tokens=False)
    assert found == "".join(text + "<|endoftext|>" for text in TEXTS)
    assert tokenizer.decode(tokens.all_tokens(corpus.validation).tolist()) == held_out[0]
    assert not any("zz" in token for token in tokenizer.get_vocab())
    assert index.tokenizer.vocabulary <= 300
    monkeypatch.setattr(tokens, "load_corpus", lambda path: pytest.fail("they are there"))
    assert tokens.open_tokens(tmp_path / "shards", QUICK)[0].sha256 == corpus.sha256
