"""Whether others run a newer ftnode: by what peers say, and by what a node of this home has noted."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ftnode.node.watch.status import PeerRow, Speaker, SwarmStatus
from ftnode.node.watch.status_table import plain_lines
from ftnode.node.watch.versions import NOTE_NAME, VERSION, Newer, VersionNews, newer, read_note
from tests.node.cli.cli_runner import runner


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ([], None),
        (["", "1.2.0", "1.2", "1.1.9", "0.99"], None),
        (["1.10.0", "1.2.0"], Newer("1.10.0", 1, 2)),
        (["1.3", "99.0", "1.3", "", "1.2.0"], Newer("1.3", 2, 4)),
        (["1.3", "1.4"], Newer("1.4", 1, 2)),
        (["1.3rc1", "1.3+mine", "2.0.0.0.0", "9999999.0", "see http://evil", "1.3\n", "١.٣"], None),
    ],
)  # fmt: skip
def test_the_version_that_most_of_the_newer_ones_run(told: Sequence[str], found: Newer | None) -> None:
    assert newer(told, "1.2.0") == found


def test_who_runs_what_is_not_released_is_told_nothing() -> None:
    assert newer(["9.0"], "1.2.0.dev3") is None


def test_a_node_says_it_once_and_notes_what_it_saw_last(tmp_path: Path) -> None:
    news = VersionNews(tmp_path)
    assert news.look([]) == "" and news.look(["", VERSION]) == "" and not (tmp_path / NOTE_NAME).exists()
    assert news.look(["9.1", VERSION]) == f"ftnode 9.1 is newer than this one, {VERSION}: 1 of 2 peers run it"
    assert read_note(tmp_path) == Newer("9.1", 1, 2)
    assert news.look(["9.1"]) == "", "it has been said"
    assert news.look(["", ""]) == "" and read_note(tmp_path) is not None, "nobody says anything now"
    assert news.look(["9.2"]) == f"ftnode 9.2 is newer than this one, {VERSION}: a peer runs it"
    assert news.look(["9.1"]) == "", "something newer has been said"
    assert read_note(tmp_path) == Newer("9.1", 1, 1)
    assert news.look([VERSION]) == "" and not (tmp_path / NOTE_NAME).exists()


def test_a_note_counts_only_when_it_is_one_and_newer(tmp_path: Path) -> None:
    note = tmp_path / NOTE_NAME
    for text in (
        "", "{", "[]", '{"version": "9.1"}', '{"version": "9.1\\u001b[2J", "peers": 1, "of": 1}',
        '{"version": "9.1", "peers": 2, "of": 1}', '{"version": "9.1", "peers": "x", "of": 1}', "[" * 4000,
        f'{{"version": "{VERSION}", "peers": 1, "of": 1}}',
    ):  # fmt: skip
        note.write_text(text)
        assert read_note(tmp_path) is None, text
    note.unlink()
    os.mkfifo(note)
    assert read_note(tmp_path) is None, "nobody waits for a pipe"
    assert read_note(tmp_path / "nowhere") is None


def test_the_first_line_of_the_version_is_for_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ftnode = runner(capsys)
    monkeypatch.setenv("FTNODE_HOME", str(tmp_path / "home"))
    seen = ftnode("--version")
    assert (seen.code, seen.out, seen.err) == (0, f"ftnode {VERSION}\n", "")
    assert not (tmp_path / "home").exists(), "a question makes no folder"
    (tmp_path / "home").mkdir()
    VersionNews(tmp_path / "home").look(["9.1", "9.1", "8.0"])
    seen = ftnode("--version")
    assert (seen.code, seen.out) == (0, f"ftnode {VERSION}\n")
    assert seen.err == f"ftnode 9.1 is newer than this one, {VERSION}: 2 of 3 peers run it\n"


def test_a_status_says_it_in_one_line() -> None:
    row = PeerRow("me", "leader", (0,), (), "self", None, VERSION, 0.0)
    peers = (row, replace(row, peer="one", version="9.1"), replace(row, peer="two", version=""))
    status = SwarmStatus(Speaker("me", VERSION, "cpu", "volunteer"), run="run", peers=peers)
    said = f"ftnode 9.1 is newer than this one, {VERSION}: 1 of 2 peers run it"
    assert plain_lines(status).count(said) == 1
    assert not [line for line in plain_lines(replace(status, peers=peers[:1])) if "newer" in line]
