"""`ftnode data tokenizer`: a tokenizer that data build takes, and that gives every text back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer

from ftnode.node.data.records import find_sources
from ftnode.node.data.tokenizer_training import train
from ftnode.node.data.tokenizers import open_tokenizer
from tests.node.cli.cli_runner import Seen
from tests.node.data.corpora import text_folder


def test_a_tokenizer_for_data_build(tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    texts, out = text_folder(tmp_path / "texts"), tmp_path / "own.json"
    seen = ftnode("data", "tokenizer", texts, "--out", out, "--vocabulary", 300)
    assert seen.code == 0 and f"wrote {out}: 300 tokens" in seen.out
    assert open_tokenizer(str(out)).facts.vocabulary == 300
    assert ftnode("data", "build", texts, "--tokenizer", out, "--out", tmp_path / "shards").code == 0
    tokenizer = Tokenizer.from_file(str(out))
    strange = "Größe 東京 \x01\n\n  two  blanks"
    assert tokenizer.decode(tokenizer.encode(strange).ids) == strange
    assert ftnode("data", "tokenizer", texts, "--out", out).refused(73, "already there")
    assert ftnode("data", "tokenizer", tmp_path / "none", "--out", tmp_path / "x").refused(66, "cannot read")


def test_documents_for_validation_teach_it_nothing(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text("abab " * 950 + "qzqz " * 50)
    text, _ = train(find_sources([str(path)], "text"), 300)
    assert Tokenizer.from_str(text).token_to_id("ab") is not None
    assert Tokenizer.from_str(text).token_to_id("qz") is None
