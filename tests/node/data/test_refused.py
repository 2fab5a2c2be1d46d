"""`ftnode data build` refuses what it cannot use with one line, writes over nothing and leaves nothing half-written."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ftnode.models.data import DataError
from ftnode.node.data import sources
from ftnode.node.data.build import build
from ftnode.node.data.records import find_sources
from ftnode.node.data.tokenizers import ByteTokenizer
from tests.node.cli.cli_runner import Seen
from tests.node.data.corpora import REVISION, shards, text_folder, tokenizer_file


def add(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)


BAD: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "not UTF-8": (lambda folder: add(folder, "x.txt", b"good\n" * 100 + b"\xff\xfe"), ("x.txt", "not UTF-8")),
    "cut character": (lambda folder: add(folder, "x.txt", "€".encode()[:2]), ("x.txt", "not UTF-8")),
    "binary": (lambda folder: add(folder, "x.txt", b"a\0b"), ("x.txt", "zero byte")),
    "no JSON": (lambda folder: add(folder, "x.jsonl", b'{"text": "a"}\n{"text":'), ("x.jsonl, line 2", "no JSON")),
    "no object": (lambda folder: add(folder, "x.jsonl", b"[1]\n"), ("x.jsonl, line 1", "no JSON object")),
    "no field": (lambda folder: add(folder, "x.jsonl", b'{"body": "a"}\n'), ("line 1", "no field 'text'", "body")),
    "no text": (lambda folder: add(folder, "x.jsonl", b'{"text": 1}\n'), ("line 1", "field 'text' is no text")),
    "no Parquet": (lambda folder: add(folder, "x.parquet", b"PAR1 or not"), ("x.parquet", "no Parquet file")),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_input_is_one_line_and_leaves_nothing(bad: str, tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    source = text_folder(tmp_path / "text")
    change, says = BAD[bad]
    change(source)
    assert ftnode("data", "build", source, "--out", tmp_path / "out").refused(65, *says)
    assert {path.name for path in tmp_path.iterdir()} == {"text"}


def test_what_controls_a_terminal_is_not_printed(tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    (tmp_path / "a.jsonl").write_text('{"\\u001b[31m\\u009b2J": "a"}\n')
    seen = ftnode("data", "build", tmp_path / "a.jsonl", "--out", tmp_path / "out")
    assert seen.refused(65, "line 1: no field 'text'", "?[31m?2J") and seen.err[:-1].isprintable()
    (tmp_path / "wrong").write_bytes(b"\x1b]0;title\x07\x9b\n")
    seen = ftnode("tensorboard", tmp_path / "wrong", tmp_path / "events")
    assert seen.refused(65, "no line of metrics: ?]0;title?", "give a metrics.jsonl") and seen.err[:-1].isprintable()


@pytest.mark.parametrize("make", ["missing", "empty file", "empty folder", "empty files"])
def test_a_source_without_text(make: str, tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    source = tmp_path / "source"
    if make == "empty file":
        source.touch()
    elif make != "missing":
        source.mkdir()
        if make == "empty files":
            (source / "a.txt").touch()
    code, *says = (66, "No such file", "check the path") if make == "missing" else (65, "is empty")
    assert ftnode("data", "build", source, "--out", tmp_path / "out").refused(code, str(source), *says)


@pytest.mark.parametrize("out", ["text/out", "text/inner/out", "link/out", "text"])
def test_shards_in_a_source(out: str, tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    source = text_folder(tmp_path / "text")
    (tmp_path / "link").symlink_to(source)
    before = sorted(tmp_path.rglob("*"))
    seen = ftnode("data", "build", source, "--out", tmp_path / out)
    assert seen.refused(73, "is in the source", "choose an --out beside it") and sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("change", ["grow", "shrink", "touch", "remove"])
def test_a_source_that_changes_while_it_is_read(change: str, tmp_path: Path) -> None:
    source = text_folder(tmp_path / "text")
    file = source / "text-39.txt"
    changes: dict[str, Callable[[], object]] = {
        "grow": lambda: file.write_text(file.read_text() + "more"), "shrink": lambda: os.truncate(file, 10),
        "touch": lambda: os.utime(file, ns=(1, 1)), "remove": file.unlink,
    }  # fmt: skip
    found = find_sources([str(source)], "text")
    changes[change]()
    says = "No such file" if change == "remove" else "changed while it was read; build again"
    with pytest.raises(DataError, match=says):
        build(found, ByteTokenizer(), tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"text"}


def test_a_file_that_changes_between_two_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "PIECE_BYTES", 100)
    source = text_folder(tmp_path / "text")
    reading = next(one for one in find_sources([str(source)], "text") if one.size > 200).read()
    next(reading)
    for path in source.rglob("*.txt"):
        os.utime(path, ns=(1, 1))
    with pytest.raises(DataError, match="changed while it was read"):
        list(reading)


def test_too_few_documents_for_validation(tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    seen = ftnode("data", "build", tmp_path / "a.jsonl", "--out", tmp_path / "out")
    assert seen.refused(65, "none of 1 documents is for", "give 20 or more")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--tokenizer", "gpt2"), "cannot read the tokenizer gpt2: No such file or directory; give bytes, or the path"),
        (("--tokenizer", "{bad}"), "bad.json is no file of a tokenizer"),
        (("--tokenizer", "{good}", "--separator", "<none>"), "has no token '<none>'; name one of its own"),
        (("--separator", "x"), "leave --separator out"),
    ],
)
def test_tokenizers_that_cannot_be_used(
    given: tuple[str, ...], says: str, tmp_path: Path, ftnode: Callable[..., Seen]
) -> None:
    (tmp_path / "bad.json").write_text('{"version": 7}')
    places = {"bad": tmp_path / "bad.json", "good": tokenizer_file(tmp_path / "good")}
    options = [one.format(**places) for one in given]
    source = text_folder(tmp_path / "text")
    code = 66 if "cannot read" in says else 65
    assert ftnode("data", "build", source, "--out", tmp_path / "out", *options).refused(code, says)


@pytest.mark.parametrize("given", ["hf:owner/set", "hf:owner/set@main", "hf:@" + REVISION])
def test_a_dataset_needs_a_pinned_revision(given: str, tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    seen = ftnode("data", "build", given, "--out", tmp_path / "out")
    assert seen.refused(65, "is not hf:NAME@REVISION", "40 digits")


@pytest.mark.parametrize(("module", "source"), [("datasets", f"hf:owner/set@{REVISION}"), ("pyarrow", "a.parquet")])
def test_without_the_extra_there_is_one_line(
    module: str, source: str, tmp_path: Path, ftnode: Callable[..., Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (module, "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.chdir(tmp_path)
    assert ftnode("data", "build", source, "--out", "out").refused(
        65, f"{module} is missing", "pip install 'ftnode[data]'"
    )


def test_a_flipped_bit_is_found(tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    folder = shards(tmp_path, shard_bytes=2000).folder
    path = folder / "training-00003.bin"
    data = bytearray(path.read_bytes())
    data[17] ^= 4
    path.write_bytes(data)
    says = ("training-00003.bin does not have the hash",)
    assert ftnode("data", "check", folder).refused(65, *says)
    assert ftnode("run", "init", tmp_path / "run.toml", "--data", folder).refused(65, *says)
    os.truncate(path, 100)
    assert ftnode("data", "check", folder).refused(65, "training-00003.bin has 100 bytes, and 2000 by the index")
    path.unlink()
    assert ftnode("data", "check", folder).refused(65, "training-00003.bin", "No such file", "build it again")
    assert not (tmp_path / "run.toml").exists()


@pytest.mark.parametrize("index", ["ftnode-shards-9", "reformatted", "missing"])
def test_shards_with_an_index_that_cannot_be_read_are_not_trained_on_as_text(
    index: str, tmp_path: Path, ftnode: Callable[..., Seen]
) -> None:
    path = shards(tmp_path).folder / "index.json"
    data = path.read_text()
    if index == "missing":
        path.unlink()
    elif index == "reformatted":
        path.write_text(json.dumps(json.loads(data), separators=(",", ":")))
    else:
        path.write_text(data.replace("ftnode-shards-1", index))
    seen = ftnode("run", "init", tmp_path / "run.toml", "--data", path.parent)
    code = 66 if index == "missing" else 65
    assert ftnode("data", "check", path.parent).refused(code, str(path), "ftnode data build")
    assert seen.refused(code, str(path), "ftnode data build") and not (tmp_path / "run.toml").exists()
