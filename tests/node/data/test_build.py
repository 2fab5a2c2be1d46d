"""`ftnode data build`: what stands in the shards, whatever the source, and however often it was stopped."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from ftnode.models.data import DataError, validation_names
from ftnode.models.shards import PARTS, Index, read_index
from ftnode.node.data import build as build_module
from ftnode.node.data import records
from ftnode.node.data import sources as sources_module
from ftnode.node.data.build import Built, Occupied, build
from ftnode.node.data.records import find_sources
from ftnode.node.data.sources import SourceAway, place_to_cut
from ftnode.node.data.tokenizers import open_tokenizer
from tests.node.cli.cli_runner import Seen
from tests.node.data.corpora import REVISION, text_folder, tokenizer_file, tokenizer_json, words


def tokens(folder: Path, part: str) -> list[int]:
    """All of a part, read without the code under test."""
    index = json.loads((folder / "index.json").read_bytes())
    names = [shard["name"] for shard in index["shards"] if shard["part"] == part]
    return [int(token) for name in names for token in np.fromfile(folder / name, np.dtype(index["dtype"]))]


def documents(folder: Path, part: str) -> list[str]:
    """Of shards of bytes."""
    return bytes(tokens(folder, part)).decode().split("\0")[:-1]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def made(out: Path, *given: Path | str, tokenizer: str = "bytes", **options: Any) -> Built:
    return build(find_sources([str(one) for one in given], "text"), open_tokenizer(tokenizer), out, **options)


def test_files_are_documents_and_split_by_name_as_text_is(tmp_path: Path) -> None:
    source = text_folder(tmp_path / "text")
    built = made(tmp_path / "out", source, shard_bytes=1000)
    files = {path.relative_to(source).as_posix(): path.read_text() for path in source.rglob("*.txt")}
    held_out = validation_names(list(files))
    assert documents(tmp_path / "out", "validation") == [files[name] for name in sorted(held_out)]
    assert documents(tmp_path / "out", "training") == [files[name] for name in sorted(files) if name not in held_out]
    assert built.documents == {"training": 38, "validation": 2}
    sizes = [shard.tokens for shard in built.index.shards if shard.part == "training"]
    assert len(sizes) > 3 and set(sizes[:-1]) == {1000}


def test_a_link_to_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    made(tmp_path / "out", text_folder(tmp_path / "text"))
    assert (tmp_path / "disk" / "index.json").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "out", "text"]


def test_a_link_that_leads_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to("out")
    with pytest.raises(Occupied, match="a link that leads back to itself; choose another --out"):
        made(tmp_path / "out", text_folder(tmp_path / "text"))


def test_where_something_is_mounted_nothing_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(build_module.os.path, "ismount", lambda path: path == tmp_path / "out")
    with pytest.raises(Occupied, match="another disk is mounted there; choose an --out in it"):
        made(tmp_path / "out", text_folder(tmp_path / "text"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "text"]


def test_what_is_built_stays_where_it_cannot_get_its_name(tmp_path: Path) -> None:
    """It took hours, and the next call goes on from there."""
    out, source = tmp_path / "out", text_folder(tmp_path / "text")

    def fill(_progress: object) -> None:
        out.mkdir(exist_ok=True)
        (out / "thesis.txt").write_text("mine")

    with pytest.raises(OSError, match="not empty"):
        made(out, source, report=fill, checkpoint_bytes=1)
    (out / "thesis.txt").unlink()
    assert made(out, source, checkpoint_bytes=1).resumed
    made(tmp_path / "straight", source)
    assert contents(out) == contents(tmp_path / "straight")


class Label(str):
    """One that counts how often any of them is compared with another."""

    looks = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Label.looks += 1
        return str.__eq__(self, other)


def test_of_many_files_each_is_looked_for_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = [Label(f"{number:06}.txt") for number in range(400)]
    seen = [sources_module.Seen(Path(f"/{label}"), label, 9, 0) for label in labels]
    monkeypatch.setattr(records, "find_files", lambda given: seen)
    Label.looks = 0
    found = find_sources(["/"], "text")
    assert Label.looks < 20 * len(labels), "80,000 when each was looked for among all"
    assert [source.label for source in found] == [each.label for each in seen]


class Text(str):
    """One that counts the bytes that are copied of what it is encoded to."""

    copied = 0

    class Encoded(bytes):
        def __getitem__(self, part: Any) -> Any:
            found = super().__getitem__(part)
            if isinstance(found, int):
                return found
            Text.copied += len(found)
            return Text.Encoded(found)

    def replace(self, *_: object) -> str:  # type: ignore[override]
        return self

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return Text.Encoded(super().encode(encoding, errors))


def test_of_a_long_record_each_byte_is_copied_twice() -> None:
    text = "word " * (20 * sources_module.PIECE_BYTES // 5)
    Text.copied = 0
    pieces = [piece.text for piece in sources_module.record_pieces(Text(text), "training", (1,))]
    assert Text.copied < 3 * len(text), "11 times when what was left was copied for each piece"
    assert "".join(pieces) == text and max(map(len, pieces)) <= sources_module.PIECE_BYTES


def test_a_tokenizer_file_makes_the_librarys_tokens(tmp_path: Path) -> None:
    source = text_folder(tmp_path / "text")
    built = made(tmp_path / "out", source, tokenizer=str(tokenizer_file(tmp_path / "bpe")), shard_bytes=1000)
    reference = Tokenizer.from_str(tokenizer_json())
    end = reference.token_to_id("<|endoftext|>")
    held_out = validation_names([path.relative_to(source).as_posix() for path in source.rglob("*.txt")])
    wanted = [n for name in sorted(held_out) for n in [*reference.encode((source / name).read_text()).ids, end]]
    assert tokens(tmp_path / "out", "validation") == wanted
    facts = built.index.tokenizer
    assert (built.index.dtype, facts.name, facts.vocabulary, facts.separator) == ("uint16", "tokenizer.json", 400, end)
    assert (tmp_path / "out" / "tokenizer.json").read_text() == tokenizer_json()


def test_where_the_tokenizer_lay_makes_no_difference(tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    source, hashes = text_folder(tmp_path / "text"), set()
    renamed = tokenizer_file(tmp_path / "mine").rename(tmp_path / "mine" / "secret.json")
    for number, given in enumerate((tokenizer_file(tmp_path / "bpe").parent, tokenizer_file(tmp_path / "x"), renamed)):
        seen = ftnode("data", "build", source, "--tokenizer", given, "--out", tmp_path / f"{number}", "--json")
        facts = json.loads(seen.out)
        hashes.add(facts["sha256"])
        assert facts["tokenizer"].startswith(str(given))
    assert len(hashes) == 1 and contents(tmp_path / "0") == contents(tmp_path / "2")
    assert b"secret" not in (tmp_path / "2" / "index.json").read_bytes()


@pytest.mark.parametrize("told", ["<stop>", {"content": "<stop>"}], ids=["text", "token"])
def test_a_published_model_says_beside_its_tokenizer_what_ends_a_text(tmp_path: Path, told: object) -> None:
    path = tokenizer_file(tmp_path / "model")
    path.write_text(tokenizer_json().replace("<|endoftext|>", "<stop>"))
    with pytest.raises(DataError, match="name its separator with --separator"):
        open_tokenizer(str(path))
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps({"eos_token": told}))
    stop = Tokenizer.from_file(str(path)).token_to_id("<stop>")
    assert open_tokenizer(str(path)).facts.separator == stop
    other = json.loads(tokenizer_json())["model"]["vocab"]["a"]
    assert open_tokenizer(str(path), "a").facts.separator == other, "what is given counts first"
    (tmp_path / "model" / "tokenizer_config.json").write_text('["broken"')
    with pytest.raises(DataError, match="name its separator"):
        open_tokenizer(str(path))


def test_a_document_cannot_fake_a_separator(tmp_path: Path) -> None:
    text_folder(tmp_path / "text")
    (tmp_path / "text" / "fake.txt").write_text("one <|endoftext|> two")
    built = made(tmp_path / "out", tmp_path / "text", tokenizer=str(tokenizer_file(tmp_path / "bpe")))
    everything = [n for part in PARTS for n in tokens(tmp_path / "out", part)]
    assert everything.count(built.index.tokenizer.separator) == 41


def test_a_single_file_is_cut_between_characters(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("äöü€😀" * 100, encoding="utf-8")
    made(tmp_path / "out", tmp_path / "book.txt")
    training, validation = documents(tmp_path / "out", "training"), documents(tmp_path / "out", "validation")
    assert training[0] + validation[0] == "äöü€😀" * 100 and 0 < len(validation[0]) <= 30


def test_a_long_document_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = "".join(words(str(n), 7) for n in range(300)) + "€" * 500 + " and\n" + "é" * 300
    (tmp_path / "text").mkdir()
    for number in range(20):
        (tmp_path / "text" / f"{number}.txt").write_text(long, encoding="utf-8")
    monkeypatch.setattr(sources_module, "PIECE_BYTES", 97)
    made(tmp_path / "out", tmp_path / "text")
    assert set(documents(tmp_path / "out", "training") + documents(tmp_path / "out", "validation")) == {long}


@pytest.mark.parametrize(
    ("data", "cut"), [(b"ab\ncd", 3), (b"ab cd", 3), ("aé".encode(), 3), ("aé".encode()[:2], 1), ("€".encode()[:2], 1)]
)
def test_pieces_end_behind_a_line_a_word_or_a_character(data: bytes, cut: int) -> None:
    assert place_to_cut(data) == cut


def test_json_lines(tmp_path: Path) -> None:
    texts = [words(str(n), 5) for n in range(60)]
    lines = [json.dumps({"text": text, "id": n}) for n, text in enumerate(texts)]
    (tmp_path / "a.jsonl").write_text("\n\n".join(lines) + "\n" + json.dumps({"text": ""}) + "\n")
    built = made(tmp_path / "out", tmp_path / "a.jsonl")
    assert built.documents == {"training": 57, "validation": 3}
    training, validation = documents(tmp_path / "out", "training"), documents(tmp_path / "out", "validation")
    assert sorted(training + validation) == sorted(texts)
    assert training == [text for text in texts if text not in validation]


def test_parquet_has_the_documents_of_its_column(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    texts = [words(str(n), 5) for n in range(100)]
    table = pyarrow.table({"text": texts, "n": list(range(100))})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=30)
    assert made(tmp_path / "out", tmp_path / "a.parquet").documents == {"training": 95, "validation": 5}
    both = documents(tmp_path / "out", "training") + documents(tmp_path / "out", "validation")
    assert sorted(both) == sorted(texts)
    source = records.Parquet(sources_module.find_files([str(tmp_path / "a.parquet")])[0], "text")
    assert [piece.text for piece in source.read((47,))] == texts[47:]
    with pytest.raises(DataError, match="no column 'body'; pick one with --field: text, n"):
        find_sources([str(tmp_path / "a.parquet")], "body")


def test_a_null_is_no_document(tmp_path: Path) -> None:
    texts = [words(str(n), 5) for n in range(59)]
    lines = [json.dumps({"text": text}) for text in (*texts[:9], None, *texts[9:])]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    assert sum(made(tmp_path / "lines", tmp_path / "a.jsonl").documents.values()) == 59
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"text": [*texts[:9], None, *texts[9:]]}), tmp_path / "a.parquet")
    assert sum(made(tmp_path / "rows", tmp_path / "a.parquet").documents.values()) == 59


@pytest.mark.parametrize("where", ["schema_arrow", "iter_batches"])
def test_what_pyarrow_cannot_do_is_told_of(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ArrowNotImplementedError is no ValueError."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"text": ["a"]}), tmp_path / "a.parquet")

    def fail(*_: object, **__: object) -> None:
        raise pyarrow.ArrowNotImplementedError("no such encoding")

    monkeypatch.setattr(parquet.ParquetFile, where, property(fail) if where == "schema_arrow" else fail)
    with pytest.raises(DataError, match=r"a\.parquet.*no such encoding"):
        made(tmp_path / "out", tmp_path / "a.parquet")


class Streamed(list[dict[str, str]]):
    def skip(self, count: int) -> Streamed:
        return Streamed(self[count:])


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """A module `datasets` whose one dataset has sixty records; what it was asked for."""
    asked: list[Any] = []
    module = ModuleType("datasets")

    def load_dataset(name: str, configuration: str | None, **options: Any) -> Streamed:
        asked.append((name, configuration, options))
        if name != "owner/set":
            raise FileNotFoundError(f"there is no\n{name}")
        return Streamed({"text": words(str(n), 5)} for n in range(60))

    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    yield asked


def test_a_dataset_of_the_hub(tmp_path: Path, hub: list[Any]) -> None:
    built = made(tmp_path / "out", f"hf:owner/set:big@{REVISION}")
    assert hub == [("owner/set", "big", {"revision": REVISION, "split": "train", "streaming": True})]
    assert built.documents == {"training": 57, "validation": 3}
    source = find_sources([f"hf:owner/set@{REVISION}"], "text")[0]
    assert [piece.text for piece in source.read((58,))] == [words("58", 5), words("59", 5)]
    with pytest.raises(DataError, match="cannot read hf:owner/none: there is no owner/none; check the name"):
        made(tmp_path / "none", f"hf:owner/none@{REVISION}")
    assert not (tmp_path / "none.building").exists()


# A build that was stopped.

KILLED = """
import sys
from pathlib import Path
from ftnode.node.data import build as build_module
from ftnode.node.data.build import build
from ftnode.node.data.records import find_sources
from ftnode.node.data.tokenizers import open_tokenizer
build_module.BATCH_BYTES = 3000
sources, tokenizer, out = sys.argv[3:], sys.argv[1], Path(sys.argv[2])
def report(progress):
    print(progress.done, flush=True)
    sys.stdin.readline()
build(find_sources(sources, "text"), open_tokenizer(tokenizer), out, report, shard_bytes=5000, checkpoint_bytes=5000)
"""


def start_build(tokenizer: str, out: Path, *sources: Path) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", KILLED, tokenizer, str(out), *map(str, sources)]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe"])
@pytest.mark.parametrize("batches", [1, 4, 11])
def test_a_killed_build_goes_on_and_ends_with_the_same_bytes(tokenizer: str, batches: int, tmp_path: Path) -> None:
    name = tokenizer if tokenizer == "bytes" else str(tokenizer_file(tmp_path / "bpe"))
    source = text_folder(tmp_path / "text", count=250)
    lines = [json.dumps({"text": words(str(n), 50)}) for n in range(80)]
    (source / "records.jsonl").write_text("\n".join(lines))
    made(tmp_path / "undisturbed", source, tokenizer=name, shard_bytes=5000)
    killed = start_build(name, tmp_path / "out", source)
    assert killed.stdin is not None and killed.stdout is not None
    for _ in range(batches):
        assert killed.stdout.readline()
        killed.stdin.write("\n")
        killed.stdin.flush()
    killed.stdout.readline()
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL and not (tmp_path / "out").exists()
    saved = (tmp_path / "out.building" / "state.json").exists()
    assert saved == (batches > 1)
    # What a kill may leave behind what was noted last: half a batch.
    for path in unfinished(tmp_path / "out.building"):
        with path.open("ab") as file:
            file.write(b"more")
    assert made(tmp_path / "out", source, tokenizer=name, shard_bytes=5000).resumed is saved
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")
    assert not (tmp_path / "out.building").exists()


class Worn(io.BufferedReader):
    """A file on a disk that gives out only so many pieces of it."""

    left = 30

    def read(self, size: int | None = -1, /) -> bytes:
        self._wear()
        return super().read(size)

    def readline(self, size: int | None = -1, /) -> bytes:
        self._wear()
        return super().readline(size)

    def _wear(self) -> None:
        self.left -= 1
        if not self.left:
            raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_a_disk_that_does_not_give_a_source_out_ends_a_build_until_it_does(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources_module, "PIECE_BYTES", 64)
    monkeypatch.setattr(build_module, "BATCH_BYTES", 1)
    source = tmp_path / name
    line = json.dumps({"text": "and so on"}) if name.endswith("l") else "and so on and on and on"
    source.write_text((line + "\n") * 200)
    whole = made(tmp_path / "whole", source, checkpoint_bytes=1)
    with monkeypatch.context() as patch:
        patch.setattr(sources_module.Seen, "open", lambda seen: Worn(io.FileIO(seen.path)))
        with pytest.raises(SourceAway, match=f"cannot read .*{name}: Input/output error; call again"):
            made(tmp_path / "out", source, checkpoint_bytes=1)
    again = made(tmp_path / "out", source, checkpoint_bytes=1)
    assert again.resumed and contents(tmp_path / "out") == contents(whole.folder)


def unfinished(work: Path) -> list[Path]:
    """Shards that the last note does not say to be finished."""
    path = work / "state.json"
    parts = json.loads(path.read_bytes())["parts"].values() if path.exists() else []
    finished = {shard["name"] for part in parts for shard in part["finished"]}
    return [path for path in work.glob("*.bin") if path.name not in finished]


def stopped(tmp_path: Path, source: Path) -> Path:
    """The folder of a build that stopped after its first note."""

    def stop(progress: build_module.BuildProgress) -> None:
        if (tmp_path / "out.building" / "state.json").exists():
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(build_module, "BATCH_BYTES", 500)
        made(tmp_path / "out", source, report=stop, shard_bytes=1000, checkpoint_bytes=1000)
    return tmp_path / "out.building"


def test_a_build_does_not_go_on_with_other_sources_or_options(tmp_path: Path) -> None:
    source = text_folder(tmp_path / "text")
    work = stopped(tmp_path, source)
    before = contents(work)
    with pytest.raises(Occupied, match="unfinished build of other sources or options"):
        made(tmp_path / "out", source, shard_bytes=2000)
    os.utime(source / "text-00.txt", ns=(1, 1))
    with pytest.raises(Occupied, match="its sources have changed"):
        made(tmp_path / "out", source, shard_bytes=1000)
    assert contents(work) == before


def test_a_build_does_not_go_on_behind_a_shard_that_is_not_as_it_was(tmp_path: Path) -> None:
    source = text_folder(tmp_path / "text")
    os.truncate(stopped(tmp_path, source) / "training-00000.bin", 10)
    with pytest.raises(DataError, match=r"training-00000\.bin is not as the build left it; build again"):
        made(tmp_path / "out", source, shard_bytes=1000)
    assert made(tmp_path / "out", source, shard_bytes=1000).resumed is False


@pytest.mark.parametrize("resumed", [True, False])
def test_a_bad_line_costs_only_what_this_call_began(resumed: bool, tmp_path: Path) -> None:
    """Progress of an earlier call stays: when the file is put back as it was, a later one goes on."""
    source = tmp_path / "a.jsonl"
    good = "".join(json.dumps({"text": words(str(n), 40)}) + "\n" for n in range(60))
    source.write_text(good + '{"text": "as good"}\n')
    made(tmp_path / "undisturbed", source, shard_bytes=1000)
    as_it_was = source.stat()
    if resumed:
        before = (stopped(tmp_path, source) / "state.json").read_bytes()
    source.write_text(good + '{"text"; "as good"}\n')
    os.utime(source, ns=(as_it_was.st_atime_ns, as_it_was.st_mtime_ns))
    with pytest.raises(DataError, match="line 61: no JSON"):
        made(tmp_path / "out", source, shard_bytes=1000, checkpoint_bytes=1 << 30)
    assert (tmp_path / "out.building").exists() is resumed
    if resumed:
        assert (tmp_path / "out.building" / "state.json").read_bytes() == before
        source.write_text(good + '{"text": "as good"}\n')
        os.utime(source, ns=(as_it_was.st_atime_ns, as_it_was.st_mtime_ns))
        assert made(tmp_path / "out", source, shard_bytes=1000).resumed
        assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")


def test_a_dataset_that_breaks_off_is_gone_on_with(tmp_path: Path, hub: list[Any]) -> None:
    source = f"hf:owner/set@{REVISION}"
    made(tmp_path / "undisturbed", source, shard_bytes=1000)

    def load_dataset(name: str, configuration: str | None, **options: Any) -> Iterator[dict[str, str]]:
        for number in range(50):
            yield {"text": words(str(number), 5)}
        raise ConnectionError("no answer")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_module, "BATCH_BYTES", 500)
        patch.setattr(sys.modules["datasets"], "load_dataset", load_dataset)
        with pytest.raises(DataError, match="the network"):
            made(tmp_path / "out", source, shard_bytes=1000, checkpoint_bytes=1000)
    assert made(tmp_path / "out", source, shard_bytes=1000).resumed
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")


def test_two_builds_do_not_write_to_one_folder(tmp_path: Path) -> None:
    source = text_folder(tmp_path / "text")
    with build_module._work_folder(tmp_path / "out"), pytest.raises(Occupied, match="another build writes to"):
        made(tmp_path / "out", source)


def test_what_is_there_stays(tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    source = text_folder(tmp_path / "text")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    assert ftnode("data", "build", source, "--out", tmp_path / "out").refused(73, "already there and stays as it is")
    (tmp_path / "new.building").mkdir()
    (tmp_path / "new.building" / "mine").write_text("mine")
    assert ftnode("data", "build", source, "--out", tmp_path / "new").refused(73, "no part of a build")
    assert (tmp_path / "new.building" / "mine").exists() and contents(tmp_path / "out") == {"mine": b"mine"}


# The command line.


def test_the_command_says_what_it_made_and_run_init_takes_it(tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    source, bpe = text_folder(tmp_path / "text", count=800), tokenizer_file(tmp_path / "bpe").parent
    seen = ftnode("data", "build", source, "--tokenizer", bpe, "--out", tmp_path / "out", "--json")
    facts = json.loads(seen.out)
    index, sha256 = read_index(tmp_path / "out")
    assert isinstance(index, Index) and facts["sha256"] == sha256 and facts["tokens"]["training"] > 1000
    assert ftnode("data", "check", tmp_path / "out").out.startswith("2 shards are whole")
    assert ftnode("run", "init", tmp_path / "run.toml", "--data", tmp_path / "out").code == 0
    shown = json.loads(ftnode("run", "show", tmp_path / "run.toml", "--json").out)
    assert shown["data"] == {"kind": "shards", "sha256": sha256} and shown["model"]["vocabulary"] == 400
