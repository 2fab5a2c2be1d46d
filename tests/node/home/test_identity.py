"""Identity files: made once, locked, checked, never overwritten; signatures that need nothing but a PeerId."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ftnode.node.home.identity import (
    FILE_BYTES,
    home_directory,
    peer_id_bytes,
    peer_id_of,
    peer_id_text,
    take_identity,
    verify,
)
from ftnode.node.home.last_runs import NOTE_BYTES_MAX, RUNS_MAX, runs_of
from ftnode.protocol.words.errors import UserError

# libp2p's peer-ids spec, test vector of an Ed25519 key: the public key and its PeerId in base58.
SPEC_PUBLIC_KEY = bytes.fromhex("1ed1e8fae2c4a144b8be8fd4b47bf3d3b34b871c3cacf6010f0e42d474fce27e")
SPEC_PEER_ID = "12D3KooWBtg3aaRMjxwedh83aGiUkwSxDwUZkzuJcfaqUmo7R3pq"


def test_an_identity_lasts_and_is_private(tmp_path: Path) -> None:
    first = take_identity(tmp_path)
    first.release()
    again = take_identity(tmp_path)
    again.release()
    assert first.peer_id == again.peer_id
    assert first.path.stat().st_mode & 0o777 == 0o600
    assert len(first.path.read_bytes()) == FILE_BYTES
    assert sorted(os.listdir(tmp_path)) == ["identity"]


def test_a_taken_identity_leaves_the_next(tmp_path: Path) -> None:
    first, second = take_identity(tmp_path), take_identity(tmp_path)
    assert (first.path.name, second.path.name) == ("identity", "identity-2")
    assert first.peer_id != second.peer_id
    first.release()
    third = take_identity(tmp_path)
    assert third.peer_id == first.peer_id
    third.release()
    second.release()


def restarted(home: Path, *runs: str) -> list[str]:
    """PeerIds of nodes that start in this order, one for each run, and end together."""
    taken = [take_identity(home, run=run) for run in runs]
    for identity in taken:
        identity.release()
    return [identity.peer_id for identity in taken]


def test_who_comes_back_to_a_run_has_the_identity_that_it_had_there(tmp_path: Path) -> None:
    ours, theirs = restarted(tmp_path, "ours", "theirs")
    assert restarted(tmp_path, "theirs", "ours") == [theirs, ours]
    assert restarted(tmp_path, "theirs") == [theirs]
    assert restarted(tmp_path, "ours", "ours") == [ours, theirs], "two in one run are two"
    assert restarted(tmp_path, "new", "ours") == [ours, theirs], "the last one that was used and is free"
    assert restarted(tmp_path, "ours", "new") == [theirs, ours]


HOLDS = """
import sys
from pathlib import Path
from ftnode.node.home.identity import take_identity
print(take_identity(Path(sys.argv[1]), run=sys.argv[2]).peer_id, flush=True)
sys.stdin.read()
"""


def killed_together(home: Path, *runs: str) -> list[str]:
    """As `restarted`, of real processes, which get no time for anything when they end."""
    argv = [sys.executable, "-c", HOLDS, str(home)]
    nodes, found = [], []
    for run in runs:
        nodes.append(subprocess.Popen([*argv, run], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        found.append(str(nodes[-1].stdout.readline()).strip())  # type: ignore[union-attr]
    for node in nodes:
        node.kill()
        node.communicate()
    return found


def test_two_nodes_of_two_runs_that_were_killed_come_back_as_who_they_were(tmp_path: Path) -> None:
    ours, theirs = killed_together(tmp_path, "ours", "theirs")
    assert killed_together(tmp_path, "theirs", "ours") == [theirs, ours]


def test_without_a_note_of_runs_the_first_free_identity_is_taken(tmp_path: Path) -> None:
    first, second = restarted(tmp_path, "", "")
    note = tmp_path / "identity-2.runs"
    for text in ("", "{", "[]", '{"runs": 7}', '{"runs": "ours"}', "[" * 9_000, '{"runs": [' + '"ours",' * 9_000):
        note.write_text(text)
        assert restarted(tmp_path, "ours") == [first], text[:20]
    (tmp_path / "identity.runs").unlink()
    note.unlink()
    note.symlink_to(tmp_path / "other")
    (tmp_path / "other").write_text('{"runs": ["ours"]}')
    assert restarted(tmp_path, "ours") == [first], "links are not followed"
    note.unlink()
    os.mkfifo(note)
    assert restarted(tmp_path, "ours", "ours") == [first, second], "nothing waits for a pipe"


def test_runs_that_an_identity_was_used_for_are_bounded(tmp_path: Path) -> None:
    for number in range(RUNS_MAX + 3):
        restarted(tmp_path, f"run-{number}")
    assert runs_of(tmp_path / "identity") == tuple(f"run-{number}" for number in range(RUNS_MAX + 2, 2, -1))
    note = tmp_path / "identity.runs"
    assert note.stat().st_mode & 0o777 == 0o600 and note.stat().st_size < NOTE_BYTES_MAX


def test_kinds_of_nodes_have_names_of_their_own(tmp_path: Path) -> None:
    with_name = take_identity(tmp_path, "bootstrap")
    assert with_name.path.name == "bootstrap"
    with_name.release()


@pytest.mark.parametrize(
    ("spoil", "says", "code"),
    [
        (lambda path: path.chmod(0o640), "chmod 600", 77),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "corrupt", 65),
        (lambda path: path.write_bytes(path.read_bytes() + b"x"), "corrupt", 65),
        (lambda path: path.write_bytes(bytes([9]) + path.read_bytes()[1:]), "corrupt", 65),
        (lambda path: path.write_bytes(path.read_bytes()[:40] + bytes(28)), "corrupt", 65),
        (lambda path: path.write_bytes(b""), "corrupt", 65),
    ],
)
def test_a_spoilt_file_is_refused_and_kept(tmp_path: Path, spoil: object, says: str, code: int) -> None:
    identity = take_identity(tmp_path)
    identity.release()
    spoil(identity.path)  # type: ignore[operator]
    before = identity.path.read_bytes()
    with pytest.raises(UserError, match=says) as caught:
        take_identity(tmp_path)
    assert caught.value.exit_code == code
    assert identity.path.read_bytes() == before


def test_a_home_that_is_a_link_gets_its_identity_at_once(tmp_path: Path) -> None:
    """Root follows no link in a home, and the home itself may be one."""
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real").mkdir(mode=0o700)
    identity = take_identity(tmp_path / "link")
    assert (tmp_path / "real" / "identity").exists()
    identity.release()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    identity = take_identity(tmp_path)
    identity.release()
    (tmp_path / "other").symlink_to(identity.path)
    with pytest.raises(UserError):
        take_identity(tmp_path, "other")


def test_the_peer_id_of_the_specification() -> None:
    assert peer_id_of(SPEC_PUBLIC_KEY) == SPEC_PEER_ID
    assert peer_id_text(peer_id_bytes(SPEC_PEER_ID)) == SPEC_PEER_ID


@pytest.mark.parametrize("text", ["", "Qm", "0OIl", SPEC_PEER_ID[:-1], SPEC_PEER_ID * 2, "z" * 52])
def test_what_is_no_peer_id(text: str) -> None:
    with pytest.raises(ValueError):
        peer_id_bytes(text)
    assert not verify(text, b"data", b"signature")


def test_signatures(tmp_path: Path) -> None:
    identity, other = take_identity(tmp_path), take_identity(tmp_path)
    signature = identity.sign(b"data")
    assert verify(identity.peer_id, b"data", signature)
    assert not verify(identity.peer_id, b"date", signature)
    assert not verify(other.peer_id, b"data", signature)
    assert not verify(identity.peer_id, b"data", signature[:-1])
    identity.release()
    other.release()


def test_home_directories(tmp_path: Path) -> None:
    home = home_directory(str(tmp_path / "a" / "b"))
    assert home.is_dir()
    assert home.stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").write_text("")
    for wrong in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match="--home") as caught:
            home_directory(str(wrong))
        assert caught.value.exit_code == 73
