"""Only the tokenizer that made a run's data is exported: given, found in the home, or lent by the run's members."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from ftnode.models.shards import read_index
from ftnode.node.data.build import Built
from ftnode.node.data.corpus import corpus_facts
from ftnode.node.data.shard_lending import ShardLender
from ftnode.node.data.shard_store import ShardStore
from ftnode.node.data.shard_wire import ShardReply, hear
from ftnode.node.export import tokenizer
from ftnode.node.export.continuing import check_tokens
from ftnode.node.export.tokenizer import fetch_tokenizer
from ftnode.node.export.tokenizer_files import KnownTokenizer, byte_tokenizer, find_tokenizer, tokenizer_files
from ftnode.node.home.files import json_bytes
from ftnode.node.links.side_messages import say
from ftnode.node.owner.join_options import shards_folder
from ftnode.protocol.manifest.parse import Manifest
from ftnode.protocol.words.errors import UserError
from tests.node.data.corpora import shards, tokenizer_file, tokenizer_json
from tests.node.export.exporting import NOW, Holder, Swarm, peer_id, run, version
from tests.node.export.test_checkpoint import manifest

SIZE = 400


@pytest.fixture
def built(tmp_path: Path) -> Built:
    return shards(tmp_path / "corpus", str(tokenizer_file(tmp_path / "bpe", SIZE)), files=4)


@pytest.fixture
def made(built: Built) -> Manifest:
    return on_shards(built.sha256)


def on_shards(sha256: str) -> Manifest:
    plain = manifest()
    return replace(
        plain,
        model=replace(plain.model, vocabulary=SIZE),
        data=replace(plain.data, kind="shards", sha256=sha256),
    )


def changed() -> str:
    """A tokenizer of the same size and form: two tokens have each other's id."""
    found = json.loads(tokenizer_json(SIZE))
    vocabulary = found["model"]["vocab"]
    first, second = list(vocabulary)[-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    return json.dumps(found)


def refused(made: Manifest, given: Path | str | None, home: Path, code: int, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        find_tokenizer(made, None if given is None else str(given), home)
    assert caught.value.exit_code == code


# -- what is here


def test_another_tokenizer_of_the_same_size_is_refused(tmp_path: Path, built: Built, made: Manifest) -> None:
    other = tmp_path / "other.json"
    other.write_text(changed())
    at_home(tmp_path, made, built)
    refused(made, other, tmp_path, 65, "is not the one that made the run's data")
    refused(made, "bytes", tmp_path, 65, "are not bytes")
    right = find_tokenizer(made, str(tmp_path / "bpe"), tmp_path)
    assert not right.missing
    assert tokenizer_files(right).contents["tokenizer.json"] == (tmp_path / "bpe" / "tokenizer.json").read_bytes()


def test_it_is_refused_too_when_only_the_members_have_the_index(tmp_path: Path, built: Built, made: Manifest) -> None:
    other = tmp_path / "other.json"
    other.write_text(changed())
    index = (built.folder / "index.json").read_bytes()
    for given in (str(other), "bytes"):
        known = find_tokenizer(made, given, tmp_path)
        assert known.missing == "index.json"
        with pytest.raises(UserError, match="leave --tokenizer out"):
            known.with_file("index.json", index)


def at_home(home: Path, made: Manifest, built: Built) -> Path:
    folder = shards_folder(home, made.data.sha256)
    folder.mkdir(parents=True)
    for name in ("index.json", "tokenizer.json"):
        if (built.folder / name).exists():
            (folder / name).write_bytes((built.folder / name).read_bytes())
    return folder


def test_the_home_has_it_when_it_has_the_shards(tmp_path: Path, built: Built, made: Manifest) -> None:
    assert find_tokenizer(made, None, tmp_path).missing == "index.json"
    folder = at_home(tmp_path, made, built)
    known = find_tokenizer(made, None, tmp_path)
    assert not known.missing
    assert tokenizer_files(known).contents["tokenizer.json"] == tokenizer_json(SIZE).encode()
    (folder / "tokenizer.json").write_text(changed())
    assert find_tokenizer(made, None, tmp_path).missing == "tokenizer.json", "spoiled at home, to be fetched"


def test_the_folder_of_shards_will_do(tmp_path: Path, built: Built, made: Manifest) -> None:
    assert not find_tokenizer(made, str(built.folder), tmp_path).missing
    plain = shards(tmp_path / "plain", files=4)
    known = find_tokenizer(on_shards(plain.sha256), str(plain.folder), tmp_path)
    assert not known.missing and tokenizer_files(known).end == 0
    bpe = str(tmp_path / "bpe")
    with pytest.raises(UserError, match="are bytes; leave --tokenizer out"):
        find_tokenizer(on_shards(plain.sha256), bpe, tmp_path).with_file(
            "index.json", (plain.folder / "index.json").read_bytes()
        )


def test_texts_are_bytes(tmp_path: Path) -> None:
    tokenizer_file(tmp_path / "bpe", 300)
    refused(manifest(), tmp_path / "bpe", tmp_path, 65, "are bytes; leave --tokenizer out")
    assert not find_tokenizer(manifest(), "bytes", tmp_path).missing


def test_mistakes(tmp_path: Path, made: Manifest) -> None:
    refused(made, tmp_path / "missing", tmp_path, 66, "cannot read the tokenizer")
    refused(made, tmp_path, tmp_path, 66, "there is no tokenizer.json")
    path = tmp_path / "tokenizer.json"
    none = '{"model": {"vocab": {"a": "b"}}}', '{"model": {"vocab": {"a": 1e999}}}'
    for text in ("{", "[]", "{}", '{"model": {"vocab": 3}}', *none):
        path.write_text(text)
        refused(made, path, tmp_path, 65, "is no tokenizer.json")
    path.write_text(json.dumps({"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": SIZE, "content": "x"}]}))
    refused(made, tmp_path, tmp_path, 65, f"ids up to {SIZE}, the run's model {SIZE} tokens")


# -- the token that ends a document


def test_all_files_name_the_token_that_ends_a_document(tmp_path: Path, built: Built, made: Manifest) -> None:
    transformers = pytest.importorskip("transformers")
    (tmp_path / "bpe" / "tokenizer_config.json").write_text('{"eos_token": "x", "model_max_length": 7}')
    (tmp_path / "bpe" / "special_tokens_map.json").write_text('{"eos_token": "x"}')
    at_home(tmp_path, made, built)
    files = tokenizer_files(find_tokenizer(made, str(tmp_path / "bpe"), tmp_path))
    assert files.end == read_index(built.folder)[0].tokenizer.separator
    config: dict[str, Any] = json.loads(files.contents["tokenizer_config.json"])
    assert config == {"eos_token": "<|endoftext|>", "model_max_length": 7}
    assert json.loads(files.contents["special_tokens_map.json"]) == {"eos_token": "<|endoftext|>"}
    out = tmp_path / "out"
    out.mkdir()
    for name, content in {**files.contents, "config.json": b'{"model_type": "llama"}'}.items():
        (out / name).write_bytes(content)
    assert transformers.AutoTokenizer.from_pretrained(out).eos_token_id == files.end


# -- from the run's members


async def nowhere(peer_id: str) -> str:
    return ""


def swarm(nursery: trio.Nursery, made: Manifest, built: Built, tmp_path: Path, lenders: tuple[int, ...]) -> Swarm:
    holders = [Holder(stage + 1, stage, version(5), run=made.run_id) for stage in range(3)]
    for stage in lenders:
        store = ShardStore(tmp_path / f"store-{stage}", made.data.sha256, SIZE, 1 << 30)
        store.take_over(store.look(built.folder))
        holders[stage].lender = ShardLender(made.run_id, [store], lambda *_: None, lambda peer: True, nowhere)
    found = Swarm(nursery, *holders)
    found.tell(5, 0.0)
    return found


async def fetched(swarm: Swarm, known: KnownTokenizer, told: list[str], seconds: float = NOW) -> KnownTokenizer:
    return await fetch_tokenizer(swarm, swarm.peers, known, seconds, told.append)


@pytest.mark.parametrize("lender", [0, 2])
def test_members_lend_it(tmp_path: Path, built: Built, made: Manifest, lender: int) -> None:
    async def main(nursery: trio.Nursery) -> None:
        known = await fetched(
            swarm(nursery, made, built, tmp_path, (lender,)), find_tokenizer(made, None, tmp_path), []
        )
        assert tokenizer_files(known).contents["tokenizer.json"] == tokenizer_json(SIZE).encode()

    run(main)


def test_what_does_not_have_its_hash_is_not_taken(tmp_path: Path, built: Built, made: Manifest) -> None:
    async def main(nursery: trio.Nursery) -> None:
        found = swarm(nursery, made, built, tmp_path, (0, 1))
        (tmp_path / "store-0" / "tokenizer.json").unlink()
        (tmp_path / "store-0" / "tokenizer.json").write_text(changed())
        known = await fetched(found, find_tokenizer(made, None, tmp_path), [])
        assert known.files["tokenizer.json"] == tokenizer_json(SIZE).encode()

    run(main)


def test_the_wrong_one_is_refused_with_the_index_of_the_members(tmp_path: Path, built: Built, made: Manifest) -> None:
    async def main(nursery: trio.Nursery) -> None:
        other = tmp_path / "other.json"
        other.write_text(changed())
        known = find_tokenizer(made, str(other), tmp_path)
        with pytest.raises(UserError, match="is not the one that made the run's data"):
            await fetched(swarm(nursery, made, built, tmp_path, (0,)), known, [])

    run(main)


class Dripping:
    """Lends a file a byte at a time, each in time."""

    async def serve(self, _: str, stream: trio.SocketStream) -> None:
        await hear(stream)
        await say(stream, ShardReply(1_000_000))
        with suppress(trio.BrokenResourceError):
            while True:
                await stream.send_all(b"x")
                await trio.lowlevel.checkpoint()


def test_one_that_never_ends_is_left_for_another(
    tmp_path: Path, built: Built, made: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each block came within its time, and a file of 256 MiB could take four hours."""
    monkeypatch.setattr(tokenizer, "FILE_SECONDS", 0.3)
    monkeypatch.setattr(tokenizer, "BLOCK_BYTES", 1)

    async def main(nursery: trio.Nursery) -> None:
        found = swarm(nursery, made, built, tmp_path, (2,))
        monkeypatch.setattr(found.holders[peer_id(1)], "lender", Dripping())
        known = await fetched(found, find_tokenizer(made, None, tmp_path), [])
        assert known.files["tokenizer.json"] == tokenizer_json(SIZE).encode()

    run(main)


def test_nobody_has_it(tmp_path: Path, built: Built, made: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "PAUSE_SECONDS", 0.02)

    async def main(nursery: trio.Nursery) -> None:
        told: list[str] = []
        with pytest.raises(UserError, match=r"does not come from its members .*pass --tokenizer") as caught:
            await fetched(swarm(nursery, made, built, tmp_path, ()), find_tokenizer(made, None, tmp_path), told, 0.5)
        assert caught.value.exit_code == 69
        assert told and "does not come from its members" in told[0]

    run(main)


@pytest.mark.parametrize(
    ("file", "advice"), [(json_bytes(byte_tokenizer()), "--tokenizer bytes"), (b"another", "--tokenizer model/tok")]
)
def test_shards_of_another_tokenizer_than_the_models_are_one_line_that_says_how_to_make_them(
    file: bytes, advice: str, built: Built, tmp_path: Path
) -> None:
    plain, folder = manifest(), tmp_path / "corpus" / "shards"
    begun = replace(plain, start=replace(plain.start, tokenizer=hashlib.sha256(file).hexdigest()))
    with pytest.raises(UserError, match=f"another tokenizer than the model's; .*{advice}"):
        check_tokens(begun, corpus_facts(folder, 8), folder, Path("model"))
