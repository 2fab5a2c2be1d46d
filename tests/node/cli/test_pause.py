"""`ftnode pause` and `resume`: what they write down, whom they tell, and what they wait for."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ftnode.node.cli import pause
from ftnode.node.cli.pause import parse_duration
from ftnode.node.home import waiting
from ftnode.node.home.identity import home_directory
from ftnode.node.owner.control_socket import socket_path
from ftnode.node.owner.pause_notes import read_word
from ftnode.protocol.words.errors import UserError
from tests.node.cli.cli_runner import Seen, runner
from tests.node.life.volunteers import starting

VOLUNTEER = """
import os, sys, trio
from pathlib import Path
from ftnode.node.owner.join_options import Running, note_running
from ftnode.node.owner.control_socket import ControlServer, socket_path
from ftnode.node.home.identity import take_identity
home, behaviour = Path(sys.argv[1]), sys.argv[2]
identity = take_identity(home)
me = identity.peer_id
def note(paused):
    note_running(home, Running(os.getpid(), me, "run", (), False, (), paused))
async def pause(question):
    if behaviour == "ends":
        os._exit(0)
    if behaviour == "leaving":
        return {"state": "leaving"}
    if behaviour not in ("stubborn", "noteless"):
        note("now" if question["now"] else "soon")
    return {"state": "paused"}
async def resume(question):
    if behaviour == "hot":
        return {"state": "paused", "why": "too hot"}
    if behaviour in ("leaving", "handing over"):
        return {"state": behaviour}
    note("")
    return {"state": "starting"}
async def state(question):
    return {"state": "frozen", "why": "by its word"} if behaviour == "noteless" else {"state": "running"}
async def leave(question):
    os._exit(3 if question["now"] else 4)
server = ControlServer(socket_path(home, me), {"pause": pause, "resume": resume, "leave": leave, "state": state})
note("")
print(me, flush=True)
trio.run(server.run)
"""
"""Has an identity and a control socket, and rests as its behaviour says."""

Volunteer = Callable[..., tuple[str, subprocess.Popen[str]]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Seen]:
    return runner(capsys)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return home_directory(str(tmp_path / "home"))


@pytest.fixture
def volunteer(home: Path) -> Iterator[Volunteer]:
    with starting(VOLUNTEER, home) as start:

        def begin(behaviour: str = "obeys") -> tuple[str, subprocess.Popen[str]]:
            return start(behaviour)

        yield begin


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("2h", 7200), ("1d", 86400), ("1w", 604800), ("1h30m", 5400), ("0.5H", 1800)],
)  # fmt: skip
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "2", "h", "2 hours", "-2h", "0s", "400d", "2h,3m", "1e3s", "nan s", "9999999s"])
def test_no_durations(text: str) -> None:
    with pytest.raises(UserError, match=r"no duration|no pause") as raised:
        parse_duration(text)
    assert raised.value.exit_code == 64


def test_with_nothing_running_it_is_written_down(run: Callable[..., Seen], home: Path) -> None:
    seen = run("pause", "--home", home)
    assert seen.code == 0 and "starts paused, until ftnode resume" in seen.out
    word = read_word(home, "anybody")
    assert word is not None and word.paused and word.until is None
    before = time.time()
    told = json.loads(run("pause", "2h", "--home", home, "--json").out)
    assert told == {"until": pytest.approx(before + 7200, abs=60), "paused": {}, "running": []}
    assert "starts at once" in run("resume", "--home", home).out
    word = read_word(home, "anybody")
    assert word is not None and not word.paused


def test_all_of_a_home_rest_and_go_on(run: Callable[..., Seen], home: Path, volunteer: Volunteer) -> None:
    (one, _), (other, _) = volunteer(), volunteer()
    seen = run("pause", "--home", home)
    assert seen.code == 0 and f"{one} rests after" in seen.out and f"{other} rests after" in seen.out
    assert set(json.loads(run("resume", "--home", home, "--json").out)["resumed"]) == {one, other}


def test_one_of_several(run: Callable[..., Seen], home: Path, volunteer: Volunteer) -> None:
    (one, _), (other, _) = volunteer(), volunteer()
    seen = run("pause", "--now", "--peer", one[-8:], "--home", home)
    assert seen.code == 0 and f"{one} rests after" in seen.out and ": now" in seen.out and other not in seen.out
    paused = {peer: word.paused for peer in (one, other) if (word := read_word(home, peer)) is not None}
    assert paused == {one: True}
    assert run("pause", "--peer", "nobody", "--home", home).refused(64, "is not one of those that run here")
    assert run("resume", "--peer", one, "--home", home).code == 0


def test_the_newest_word_of_all_or_one_counts(run: Callable[..., Seen], home: Path, volunteer: Volunteer) -> None:
    (one, _), (other, _) = volunteer(), volunteer()
    run("pause", "--home", home)
    assert run("resume", "--peer", one, "--home", home).code == 0
    assert [word.paused for peer in (one, other) if (word := read_word(home, peer))] == [False, True]


def test_who_does_not_rest_in_time_is_told_of(run: Callable[..., Seen], home: Path, volunteer: Volunteer) -> None:
    peer, process = volunteer("stubborn")
    seen = run("pause", "--timeout", 0.2, "--home", home, "--json")
    assert seen.code == 75 and json.loads(seen.out)["running"] == [peer] and "ftnode pause --now" in seen.err
    assert process.poll() is None


def test_who_waits_long_is_told_for_what(
    run: Callable[..., Seen], home: Path, volunteer: Volunteer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "SAID_AFTER_SECONDS", (0.1, 60.0, 600.0))
    monkeypatch.setattr(waiting, "LOOK_SECONDS", 0.05)
    volunteer("stubborn")
    seen = run("pause", "--timeout", 0.5, "--home", home)
    assert seen.err.count("ftnode: waits for 1 to rest (Ctrl-C waits no longer), for 0 s") == 1


def test_a_node_that_does_not_answer_is_said_to(
    run: Callable[..., Seen], home: Path, volunteer: Volunteer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that was stopped by Ctrl-Z. Nothing but a signal reaches it, not even `ftnode leave --now`."""
    monkeypatch.setattr(waiting, "SAID_AFTER_SECONDS", (0.1, 60.0, 600.0))
    monkeypatch.setattr(waiting, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(pause, "TELL_SECONDS", 0.5)
    monkeypatch.setattr(pause, "ASK_SECONDS", 0.1)
    peer, process = volunteer()
    process.send_signal(signal.SIGSTOP)
    seen = run("pause", "--timeout", 0.2, "--home", home)
    waits, silent, refused = seen.err.splitlines()
    assert seen.code == 75 and waits.startswith("ftnode: waits for 1 to rest"), "also while it is being told"
    assert f"{peer} (process {process.pid}) does not answer; it pauses as soon as it reads the note" in silent
    assert "ftnode pause --now" not in refused and f"end it: kill -9 {process.pid} " in refused
    assert json.loads(run("resume", "--home", home, "--json").out) == {"resumed": [], "paused": {}}
    assert "does not answer; it goes on as soon as it reads the note" in run("resume", "--home", home).out
    process.send_signal(signal.SIGCONT)
    monkeypatch.setattr(pause, "TELL_SECONDS", 20.0)
    assert json.loads(run("resume", "--home", home, "--json").out)["resumed"] == [peer]


def test_a_node_without_a_socket_finds_the_note(run: Callable[..., Seen], home: Path, volunteer: Volunteer) -> None:
    peer, _ = volunteer()
    socket_path(home, peer).unlink()
    seen = run("pause", "--timeout", 0.2, "--home", home)
    assert seen.code == 75 and "it pauses as soon as it reads the note" in seen.err and "ftnode pause --now" in seen.err


def test_who_ends_meanwhile_rests_too(run: Callable[..., Seen], home: Path, volunteer: Volunteer) -> None:
    peer, _ = volunteer("ends")
    seen = run("pause", "--home", home)
    assert seen.code == 0 and f"{peer} has ended" in seen.out


def test_what_else_holds_a_node_back_is_said(run: Callable[..., Seen], home: Path, volunteer: Volunteer) -> None:
    peer, _ = volunteer("hot")
    assert "rests on: too hot" in run("resume", "--home", home).out
    assert json.loads(run("resume", "--home", home, "--json").out) == {"resumed": [], "paused": {peer: "too hot"}}


@pytest.mark.parametrize(("options", "code"), [((), 4), (("--now",), 3)])
def test_leave_goes_by_the_socket(
    run: Callable[..., Seen], home: Path, volunteer: Volunteer, options: tuple[str, ...], code: int
) -> None:
    peer, process = volunteer()
    seen = run("leave", *options, "--home", home, "--timeout", 20)
    assert seen.code == 0 and f"{peer} has left after" in seen.out and process.wait(5) == code


def test_status_says_that_this_machines_node_rests(run: Callable[..., Seen], home: Path, volunteer: Volunteer) -> None:
    peer, _ = volunteer()
    run("pause", "--home", home)
    assert run("status", "--home", home).refused(69, f"node {peer} is paused (soon)", "--peer ADDR")


def test_a_full_disk_keeps_nobody_from_pausing(run: Callable[..., Seen], home: Path, volunteer: Volunteer) -> None:
    peer, _ = volunteer()
    (home / "paused").write_text("no folder")
    seen = run("pause", "--home", home)
    assert seen.code == 73 and f"{peer} rests after" in seen.out and "told all the same" in seen.err
    assert "cannot write" in seen.err and "no volunteer" not in run("resume", "--home", home).out


def test_a_node_that_cannot_write_its_note_says_that_it_rests(
    run: Callable[..., Seen], home: Path, volunteer: Volunteer
) -> None:
    peer, _ = volunteer("noteless")
    seen = run("pause", "--timeout", 20, "--home", home)
    assert seen.code == 0 and f"{peer} rests after" in seen.out and "by its word" in seen.out


def test_who_leaves_does_not_pause_and_is_not_waited_for(
    run: Callable[..., Seen], home: Path, volunteer: Volunteer
) -> None:
    peer, _ = volunteer("leaving")
    seen = run("pause", "--home", home, "--json")
    assert seen.code == 75 and "was asked to leave" in seen.err and json.loads(seen.out)["running"] == [peer]
    assert "was asked to leave" in run("resume", "--home", home).out
    assert json.loads(run("resume", "--home", home, "--json").out) == {"resumed": [], "paused": {}}


def test_a_resume_during_a_hand_over_says_so(run: Callable[..., Seen], home: Path, volunteer: Volunteer) -> None:
    volunteer("handing over")
    assert "ends the hand-over that it has begun" in run("resume", "--home", home).out


def test_at_once_is_written_down(run: Callable[..., Seen], home: Path) -> None:
    run("pause", "--now", "--home", home)
    word = read_word(home, "anybody")
    assert word is not None and word.now
