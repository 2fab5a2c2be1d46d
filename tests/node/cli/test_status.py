"""Whom `ftnode status` asks, and what stands about running nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ftnode.node.cli.status import whom_to_ask, with_link
from ftnode.node.home.identity import home_directory, take_identity
from ftnode.node.links.addresses import remember_peers
from ftnode.node.owner.join_options import Running, forget_running, note_running, running_nodes
from ftnode.protocol.words.errors import UserError


def address(tmp_path: Path, name: str, port: int) -> str:
    taken = take_identity(home_directory(str(tmp_path / name)))
    taken.release()
    return f"/ip4/127.0.0.1/tcp/{port}/p2p/{taken.peer_id}"


def test_given_then_running_then_remembered(tmp_path: Path) -> None:
    home = home_directory(str(tmp_path / "home"))
    given, running, remembered = (address(tmp_path, name, 4000 + n) for n, name in enumerate("abc"))
    remember_peers(home, [remembered])
    assert whom_to_ask(home, ()) == (remembered,)
    note_running(home, Running(os.getpid(), "peer", "run", (running,)))
    assert whom_to_ask(home, ()) == (running,)
    assert whom_to_ask(home, (given,)) == (given,)


def test_a_link_names_peers_and_a_run(tmp_path: Path) -> None:
    one, other = (address(tmp_path, name, 4000) for name in "ab")
    link = f"ftnode:{'ab' * 16}?peer={one}"
    assert with_link(link, (other,), "") == ((other, one), "ab" * 16)
    assert with_link(link, (), "tiny") == ((one,), "tiny")
    assert with_link("", (other,), "tiny") == ((other,), "tiny")
    with pytest.raises(UserError, match="is no ftnode: link"):
        with_link(one, (), "")


def test_training_nodes_come_before_meeting_points(tmp_path: Path) -> None:
    note_running(tmp_path, Running(os.getpid(), "a", "", ("/meeting",)))
    note_running(tmp_path, Running(os.getpid(), "b", "run", ("/training",)))
    assert [node.peer for node in running_nodes(tmp_path)] == ["b", "a"]
    forget_running(tmp_path, "b")
    assert [node.peer for node in running_nodes(tmp_path)] == ["a"]


def test_dead_nodes_are_forgotten(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    path = note_running(tmp_path, Running(child.pid, "a", "run", ()))
    assert path.exists()
    assert running_nodes(tmp_path) == ()
    assert not path.exists()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"pid": "x"}', '{"pid": 1}', "null"])
def test_spoiled_files_are_forgotten(text: str, tmp_path: Path) -> None:
    (tmp_path / "running").mkdir()
    (tmp_path / "running" / "x.json").write_text(text)
    assert running_nodes(tmp_path) == ()
