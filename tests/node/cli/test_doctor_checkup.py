"""A doctor's verdicts, each with its fix; and the command on this machine."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from ftnode.node.cli import doctor
from ftnode.node.cli.doctor_checkup import (
    FAILED,
    GIB,
    OK,
    WARNING,
    Check,
    PeerAnswer,
    clock,
    disk,
    gpu,
    home,
    memory,
    peers,
    port,
    reachability,
    same_version,
    signed_words,
    versions,
)
from ftnode.node.compute import devices
from ftnode.node.home.identity import home_directory, take_identity
from ftnode.node.links.addresses import remember_peers
from ftnode.node.owner.join_options import Running, note_running
from tests.node.cli.cli_runner import runner

ALL = dict.fromkeys(("ftnode", "torch", "hivemind", "libp2p", "trio", "msgpack"), "1.0")
NEAR, DEAF, SILENT = (
    PeerAnswer("near", opened="/ip4/192.0.2.7/tcp/9"),
    PeerAnswer("deaf", opened=""),
    PeerAnswer("silent", "no answer"),
)
CARD = {"name": "H200", "memory": 140 * GIB, "memory_free": 139 * GIB, "precision": "bfloat16"}


@pytest.mark.parametrize(
    ("check", "verdict", "says"),
    [
        (versions((3, 11), ALL, ""), OK, "torch 1.0"),
        (versions((3, 10), ALL, ""), FAILED, "use Python 3.11, 3.12 or 3.13"),
        (versions((3, 12), {**ALL, "torch": ""}, ""), FAILED, "torch missing"),
        (versions((3, 13), ALL, "hivemind's p2pd is not installed"), FAILED, "install hivemind from a wheel"),
        (home("", "/x"), OK, "/x can be written"),
        (home("", "/x", there=False), OK, "/x is not there yet; ftnode join makes it"),
        (home("/x is not a folder", "/x"), FAILED, "choose another with --home"),
        (
            signed_words(["/x cannot be used: it is no list", "/y"]),
            WARNING,
            "it is no list (and 1 more); see to its rights",
        ),
        (port(("/ip4/0.0.0.0/tcp/1",), "", ()), OK, "can listen on /ip4/0.0.0.0/tcp/1"),
        (port((), "port 1 is in use; choose another, or 0", ()), FAILED, "choose another, or 0"),
        (port((), "", ("/ip4/192.0.2.7/tcp/1",)), OK, "listens on /ip4/192.0.2.7/tcp/1"),
        (peers([], False), WARNING, "pass --peer ADDR"),
        (peers([NEAR, SILENT], True), OK, "1 of 2 answered"),
        (peers([SILENT], True), FAILED, "silent: no answer"),
        (peers([SILENT], False), WARNING, "check the address"),
        (reachability([NEAR], ""), OK, "near gets through at /ip4/192.0.2.7/tcp/9"),
        (reachability([PeerAnswer("p", opened="/ip4/127.0.0.1/tcp/9")], ""), OK, "ask one elsewhere"),
        (reachability([NEAR, DEAF], ""), WARNING, "use --announce"),
        (reachability([], "direct: x got through"), OK, "x got through"),
        (reachability([], "relay: through y"), WARNING, "let a meeting point relay"),
        (reachability([], "nobody: we listen nowhere"), FAILED, "forward the port"),
        (clock([PeerAnswer("a", clock_ahead=0.5)]), OK, "0.5 s behind the peers'"),
        (clock([PeerAnswer("a", clock_ahead=-4.0)]), WARNING, "4.0 s ahead of the peers'"),
        (clock([PeerAnswer("a", clock_ahead=-11.0, clock_doubt=0.5)]), FAILED, "timedatectl set-ntp true"),
        (clock([PeerAnswer("a", clock_ahead=11.0, clock_doubt=9.0)]), OK, "±9.0 s"),
        (
            clock(
                [PeerAnswer("a", clock_ahead=99.0), PeerAnswer("b", clock_ahead=0.0), PeerAnswer("c", clock_ahead=0.1)]
            ),
            OK,
            "0.1 s",
        ),
        (same_version("0.1.0", [PeerAnswer("a", version="0.1.7")]), OK, "0.1.7"),
        (same_version("0.1.0", [PeerAnswer("a", version="0.2.0")]), WARNING, "use the version that the others use"),
        (disk(9 * GIB, "/x"), OK, "9.0 GiB free at /x"),
        (disk(GIB, "/x"), WARNING, "--log-dir"),
        (disk(GIB // 4, "/x"), FAILED, "make room"),
        (memory(9 * GIB), OK, "9.0 GiB"),
        (memory(GIB), WARNING, "end other programs"),
        (memory(GIB // 4), FAILED, "end other programs"),
        (memory(None), WARNING, "use Linux"),
        (
            gpu({"torch": "2", "cuda": "13", "devices": [CARD]}, True),
            OK,
            "H200 (139 GiB free, bfloat16); ftnode join takes",
        ),
        (gpu({"torch": "2", "cuda": None, "devices": []}, False), OK, "the processor computes"),
        (gpu({"torch": "2", "cuda": None, "devices": []}, True), WARNING, "this torch has no CUDA"),
        (
            gpu({"torch": "2", "cuda": "13", "devices": [], "trouble": "driver too old"}, True),
            WARNING,
            "driver too old",
        ),
        (gpu({"trouble": "No module named torch"}, False), FAILED, "No module named torch"),
    ],
)
def test_verdicts(check: Check, verdict: str, says: str) -> None:
    assert check.verdict == verdict and says in f"{check.text}; {check.fix}", check
    assert bool(check.fix) == (verdict != OK), "a fix where something is wrong, and nowhere else"


def test_what_nobody_can_tell_is_not_told() -> None:
    assert reachability([SILENT], "") is clock([SILENT]) is same_version("0.1.0", [SILENT]) is signed_words([]) is None


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch takes seconds to import, and has its own test below."""
    monkeypatch.setattr(doctor, "_probe", lambda: {"torch": "2", "cuda": None, "devices": []})
    monkeypatch.setattr(doctor, "NVIDIA", Path("/nonexistent"))


def test_a_machine_without_a_run(quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = runner(capsys)("doctor", "--home", tmp_path / "home")
    names = [line.split()[1] for line in seen.out.splitlines()]
    assert seen.code == 0 and seen.err == ""
    assert names == ["versions", "home", "port", "peers", "disk", "memory", "gpu"]
    found = json.loads(runner(capsys)("doctor", "--home", tmp_path / "home", "--json").out)
    assert found["format"] == 1 and found["passed"] is True
    assert [check["name"] for check in found["checks"]] == names
    assert set(found["checks"][0]) == {"name", "verdict", "text", "fix"}


def test_a_damaged_file_of_words_about_liars_is_a_warning(
    quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "home" / "convicted" / f"{'0' * 32}.json"
    path.parent.mkdir(parents=True)
    path.write_text("[[")
    found = json.loads(runner(capsys)("doctor", "--home", tmp_path / "home", "--json").out)
    (check,) = [check for check in found["checks"] if check["name"] == "signed words"]
    assert check["verdict"] == WARNING and check["text"].startswith(f"{path} cannot be used: ")


def test_a_port_in_use_fails_and_says_what_to_do(
    quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"/ip4/127.0.0.1/tcp/{other.getsockname()[1]}"
        seen = runner(capsys)("doctor", "--home", tmp_path, "--listen", taken)
    (line,) = [line for line in seen.out.splitlines() if " port " in line]
    assert seen.code == 1 and line.startswith("failed") and "is in use; choose another" in line


def test_a_home_that_is_none(quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    seen = runner(capsys)("doctor", "--home", tmp_path / "file")
    assert seen.code == 1 and "is not a folder; make the folder yours" in seen.out


def test_a_node_that_runs_has_the_port(quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    note_running(tmp_path, Running(os.getpid(), "12D3KooWme", "", ("/ip4/127.0.0.1/tcp/9/p2p/12D3KooWme",)))
    seen = runner(capsys)("doctor", "--home", tmp_path)
    assert seen.code == 0 and "a node of this home listens on /ip4/127.0.0.1/tcp/9" in seen.out


def test_a_node_of_this_home_is_asked_when_it_is_named(
    quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = take_identity(home_directory(str(tmp_path)))
    taken.release()
    address = f"/ip4/127.0.0.1/tcp/9/p2p/{taken.peer_id}"
    note_running(tmp_path, Running(os.getpid(), taken.peer_id, "", (address,)))
    remember_peers(tmp_path, [address])
    asked: list[list[str]] = []
    monkeypatch.setattr(doctor, "_visit", lambda others, ports, timeout: asked.append(list(others)) or [])
    for given in ([], ["--peer", address]):
        runner(capsys)("doctor", "--home", tmp_path, *given)
    assert asked == [[], [address]]


def test_torch_is_asked_in_a_process_of_its_own() -> None:
    found = doctor._probe()
    assert found["torch"][0].isdigit() and isinstance(found["devices"], list) and found["trouble"] == ""


def test_a_torch_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "PROBE_SECONDS", 0.01)
    check = gpu(doctor._probe(), False)
    assert check.verdict == FAILED and "took too long" in check.text, "nothing is wrong with it"
    assert "install" not in check.fix and "end other programs" in check.fix


@pytest.mark.parametrize("knocks", [True, False])
def test_who_knocks_is_seen_at_the_socket(knocks: bool) -> None:
    """The answer of a peer says nothing of it to who has no key there."""
    with doctor._listening(["/ip4/127.0.0.1/tcp/0"]) as (sockets, trouble):
        assert trouble == ""
        (port,) = [each.getsockname()[1] for each in sockets]
        if knocks:
            socket.create_connection(("127.0.0.1", port)).close()
        asked = [PeerAnswer("deaf", opened=""), PeerAnswer("silent", "no answer")]
        where = f"/ip4/127.0.0.1/tcp/{port}" if knocks else ""
        assert [peer.opened for peer in doctor._got_through(asked, sockets)] == [where, None]
