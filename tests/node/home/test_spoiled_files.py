"""Small files that a node reads for its owner, spoiled in every way: one line, or as good as none, and no traceback."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ftnode.node.cli.config_file import read_config
from ftnode.node.driver.trace import parse_record
from ftnode.node.links.addresses import remembered_peers
from ftnode.node.owner.join_options import RUNNING_FOLDER, Running, note_running, running_nodes
from ftnode.node.owner.pause_notes import ALL, FOLDER, read_word, write_word
from ftnode.node.owner.pause_rules import Hysteresis, OwnerRules, Readings, Word, wanted
from ftnode.node.snapshots.format import INDEX_NAME, SnapshotError, _checksum, index_bytes, parse_header, parse_index
from ftnode.node.snapshots.store import SnapshotStore
from ftnode.protocol.manifest.parse import parse
from ftnode.protocol.words.errors import UserError
from tests.node.snapshots.keeping import RUN, keep

DEEP = "[" * 4000
DIGITS = "9" * 3900
BAD = [DEEP, '{"a":' * 700, "[]", "3", "null", '"x"', "", "{", "\x00", f"{DIGITS}"]
RUNS = '{{"pid":{},"peer":"x","run":"","addresses":[]}}'
NOTE = '{"format":1,"paused":true,"until":%s,"written":%s,"now":false}'


@pytest.mark.parametrize("text", [*BAD, NOTE % (DIGITS, "1"), NOTE % ("null", DIGITS), NOTE % ("null", "Infinity")])
def test_a_note_of_a_pause(tmp_path: Path, text: str) -> None:
    """It pauses, says why, and the next word of its owner counts."""
    (tmp_path / FOLDER).mkdir()
    note = tmp_path / FOLDER / f"{ALL}.json"
    note.write_text(text)
    word = read_word(tmp_path, "me")
    assert word is not None and word.paused
    verdict, _ = wanted(0.0, 0.0, Readings(), OwnerRules(), word, Hysteresis())
    assert verdict.why == f"the note {note} cannot be read, until ftnode resume"
    write_word(tmp_path, ALL, Word(False, written=5.0))
    word = read_word(tmp_path, "me")
    assert word is not None and not word.paused and not word.unread


@pytest.mark.parametrize("spoiled", [ALL, "me"])
def test_what_can_be_read_does_not_outdo_what_cannot(tmp_path: Path, spoiled: str) -> None:
    """It may have been a pause that came later, until it is replaced."""
    other = "me" if spoiled == ALL else ALL
    write_word(tmp_path, other, Word(False, written=5.0))
    note = tmp_path / FOLDER / f"{spoiled}.json"
    note.write_text(DEEP)
    word = read_word(tmp_path, "me")
    assert word is not None and word.paused and str(note) in word.unread
    write_word(tmp_path, spoiled, Word(False, written=1.0))
    word = read_word(tmp_path, "me")
    assert word is not None and not word.paused and not word.unread


@pytest.mark.parametrize("text", [*BAD, RUNS.format(DIGITS), RUNS.format("Infinity")])
def test_a_note_of_a_running_node(tmp_path: Path, text: str) -> None:
    note_running(tmp_path, Running(os.getpid(), "me", "run", ()))
    (tmp_path / RUNNING_FOLDER / "x.json").write_text(text)
    assert [running.peer for running in running_nodes(tmp_path)] == ["me"]


@pytest.mark.parametrize("text", BAD)
def test_remembered_peers(tmp_path: Path, text: str) -> None:
    """There is one line for it: it must not look as if nobody had ever been met."""
    (tmp_path / "peers.json").write_text(text)
    said: list[str] = []
    assert remembered_peers(tmp_path, said.append) == ()
    (line,) = said
    assert line.startswith(f"{tmp_path / 'peers.json'} is damaged: goes on without the peers that it remembered")


def test_remembered_peers_of_a_new_home_are_no_trouble(tmp_path: Path) -> None:
    said: list[str] = []
    assert remembered_peers(tmp_path, said.append) == () and not said
    (tmp_path / "peers.json").mkdir()
    assert remembered_peers(tmp_path, said.append) == () and said[0].startswith(f"cannot read {tmp_path}/peers.json: ")


@pytest.mark.parametrize("text", BAD)
def test_a_snapshots_index_and_a_tensor_files_header(text: str) -> None:
    with pytest.raises(SnapshotError, match="x"):
        parse_index(text.encode(), Path("x"))
    if text not in ("{", "[]"):
        with pytest.raises(SnapshotError, match="x has no safetensors header"):
            parse_header(text.encode(), Path("x"))


def test_a_snapshots_index_with_something_deep_in_it(tmp_path: Path) -> None:
    plain = json.loads(index_bytes(keep(tmp_path, 1).index))
    text = json.dumps(plain | {"model": 0}).replace('"model": 0', '"model": ' + "[" * 900 + "]" * 900)
    with pytest.raises(SnapshotError, match="damaged"):
        parse_index(text.encode(), Path("x"))


@pytest.mark.parametrize("fields", [{"stages": 0}, {"stage": 9}, {"stages": 3}, {"stage": 0, "stages": 0}])
def test_a_snapshots_index_of_a_stage_that_does_not_exist(tmp_path: Path, fields: dict[str, int]) -> None:
    """Its checksum fits all the same."""
    kept = keep(tmp_path, 1)
    plain = {**json.loads(index_bytes(kept.index)), **fields}
    plain.pop("checksum")
    (kept.folder / INDEX_NAME).write_text(json.dumps({**plain, "checksum": _checksum(plain)}))
    whole, troubles = SnapshotStore(tmp_path, RUN).survey()
    assert whole == () and "is no index of a snapshot: ValueError" in str(troubles[0])


@pytest.mark.parametrize("text", BAD)
def test_a_record_of_a_trace(text: str) -> None:
    with pytest.raises(UserError, match="not a trace record") as raised:
        parse_record(text.encode(), "x:1")
    assert raised.value.exit_code == 65


@pytest.mark.parametrize("text", [f"a = {DEEP}", f"a = {'9' * 5000}", "a = " + "{b=" * 4000, "\x00", "[join"])
def test_toml(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(UserError, match="is no TOML") as raised:
        read_config(tmp_path / "config.toml")
    assert raised.value.code == "E78-config_file"
    with pytest.raises(UserError, match="is not TOML") as raised:
        parse(text, "manifest.toml")
    assert raised.value.code == "E78-manifest"
