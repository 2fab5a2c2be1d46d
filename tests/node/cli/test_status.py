"""Whom `ftnode status` asks, and what stands about running nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from ftnode.node.cli.leave import chosen
from ftnode.node.cli.status import SeveralHere, whom_to_ask, with_link
from ftnode.node.home import waiting
from ftnode.node.home.identity import home_directory, take_identity
from ftnode.node.links.addresses import remember_peers
from ftnode.node.owner import service_homes
from ftnode.node.owner.join_options import Running, forget_running, note_running, running_nodes
from ftnode.node.owner.other_homes import homes_of_processes
from ftnode.node.watch import light_client
from ftnode.node.watch.status import Member, Speaker, SwarmStatus
from ftnode.protocol.words.errors import UserError
from tests.node.cli.cli_runner import Seen


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


def test_nodes_of_several_runs_are_not_mixed_up(tmp_path: Path) -> None:
    """Not even when they have the same name; a run that is named is asked of its own nodes."""
    home = home_directory(str(tmp_path / "home"))
    one, other, point, remembered = (address(tmp_path, name, 4000 + n) for n, name in enumerate("abcd"))
    note_running(home, Running(os.getpid(), "a", "ab" * 16, (one,), name="tiny"))
    note_running(home, Running(os.getpid(), "b", "ba" * 16, (other,), name="tiny"))
    note_running(home, Running(os.getpid(), "c", "", (point,)))
    for run in ("", "tiny"):
        with pytest.raises(SeveralHere, match=r"tiny \(abababababab\), tiny \(babababababa\); choose one with --run"):
            whom_to_ask(home, (), run)
    assert whom_to_ask(home, (), "abab") == (one,)
    assert set(whom_to_ask(home, (), "another")) == {one, other, point}
    note_running(home, Running(os.getpid(), "b", "ba" * 16, (), paused="it is late", name="tiny"))
    assert whom_to_ask(home, ()) == (one,)
    remember_peers(home, [remembered])
    with pytest.raises(SeveralHere) as several:
        whom_to_ask(home, ())
    assert several.value.asked == {"ab" * 16: (one,), "ba" * 16: (remembered,)}


def test_nodes_of_another_home_are_found_by_what_they_hold_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the user's own home alone: who names a home means that one."""
    monkeypatch.setattr(service_homes, "platform_folder", lambda of: tmp_path / "own")
    monkeypatch.setattr(service_homes, "SERVICE_HOMES", ())
    monkeypatch.setattr(service_homes, "homes_of_processes", homes_of_processes)
    elsewhere = home_directory(str(tmp_path / "elsewhere"))
    taken = take_identity(elsewhere)
    node = Running(os.getpid(), taken.peer_id, "run", ("/there",))
    try:
        note_running(elsewhere, node)
        assert elsewhere in homes_of_processes()
        assert node in service_homes.nodes_here(tmp_path / "own")
        assert service_homes.nodes_here(tmp_path / "named") == service_homes.other_homes(tmp_path / "named") == ()
        with pytest.raises(UserError, match=f"choose one of .*{elsewhere}.* with --home"):
            chosen(home_directory(str(tmp_path / "own")), None)
        ours = replace(node, peer="ours", run="")
        note_running(home_directory(str(tmp_path / "own")), ours)
        assert service_homes.nodes_here(tmp_path / "own") == (ours,)
    finally:
        taken.release()
    assert elsewhere not in homes_of_processes()


def test_a_node_in_another_network_is_not_of_this_machine(tmp_path: Path) -> None:
    """As one in a container: its addresses lead nowhere from here."""
    home = home_directory(str(tmp_path / "home"))
    take_identity(home).release()
    note_running(home, Running(os.getpid(), "peer", "run", ("/there",)))
    holds = "import sys; file = open(sys.argv[1], 'rb'); print('open', flush=True); sys.stdin.read()"
    for unshare in ([], ["unshare", "--map-root-user", "--net"]):
        command = [*unshare, sys.executable, "-c", holds, str(home / "identity")]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            if not process.stdout.readline():
                pytest.skip("no network namespace can be made here")
            assert (home in homes_of_processes()) is (not unshare)
            process.communicate()


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


def test_nobody_to_ask_names_the_home(tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    home = tmp_path / "hoem"
    home.mkdir()
    assert ftnode("status", "--home", home).refused(64, f"(home {home})", "or another --home")


@pytest.mark.parametrize("command", ["status", "peers", "credits"])
def test_who_waits_for_an_answer_says_so(
    command: str, tmp_path: Path, ftnode: Callable[..., Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, said = list[str](), Event()

    def say(line: str) -> None:
        lines.append(line)
        said.set()

    def slow(*_arguments: object, **_more: object) -> None:
        assert said.wait(60)
        raise UserError("no peer answered", 69)

    monkeypatch.setattr(waiting, "SAID_AFTER_SECONDS", (0.001,))
    monkeypatch.setattr(waiting, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(waiting, "_on_stderr", say)
    monkeypatch.setattr(light_client, "fetch_answer", slow)
    peer = address(tmp_path, "a", 4000)
    assert ftnode(command, "--peer", peer, "--home", tmp_path).refused(69, "no peer answered")
    assert lines[0].startswith(f"waits for an answer of {peer}, for ")


def test_a_meeting_point_that_knows_nobody_says_so(
    tmp_path: Path, ftnode: Callable[..., Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    point = SwarmStatus(Speaker("p" * 8, "0", "", "bootstrap"))
    monkeypatch.setattr(light_client, "fetch_answer", lambda *_arguments, **_more: (point, ()))
    asked = ("--peer", address(tmp_path, "a", 4000), "--home", tmp_path)
    assert ftnode("status", *asked).out == "bootstrap pppppp takes part in no run, and knows no volunteer yet\n"
    lines = ftnode("peers", *asked).out.splitlines()
    assert lines[0] == "no run, as bootstrap pppppp sees it" and lines[1].startswith("it knows of nobody"), lines
    known = replace(point, members=(Member("ab" * 16, "tiny", "peer", ()),))
    monkeypatch.setattr(light_client, "fetch_answer", lambda *_arguments, **_more: (known, ()))
    lines = ftnode("status", *asked).out.splitlines()
    assert lines == ["bootstrap pppppp takes part in no run", "it knows 1 volunteer of tiny (abababababab)"]
