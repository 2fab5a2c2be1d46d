"""`ftnode leave`: whom it asks, how it waits, and whom it must not touch."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ftnode.node.cli import leave
from ftnode.node.home.identity import home_directory, take_identity
from ftnode.node.owner import control_socket
from ftnode.node.owner.join_options import Running, note_running
from ftnode.node.owner.left_note import forget_left, note_left, read_left
from ftnode.node.owner.left_note import told as told_fate
from ftnode.protocol.holder.own_departure import HandedOver
from tests.node.cli.cli_runner import Seen, runner
from tests.node.life.volunteers import starting

VOLUNTEER = """
import os, signal, sys, time
from pathlib import Path
from ftnode.node.owner.join_options import Running, note_running
from ftnode.node.home.identity import take_identity
home, wanted, keeps = Path(sys.argv[1]), int(sys.argv[2]), tuple(map(int, sys.argv[3:]))
identity, heard = take_identity(home), []
signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
note_running(home, Running(os.getpid(), identity.peer_id, "run", ()))
print(identity.peer_id, flush=True)
while len(heard) < wanted:
    signal.sigtimedwait([], 0.02)
    note_running(home, Running(os.getpid(), identity.peer_id, "run", (), bool(heard), keeps if heard else ()))
sys.exit(0 if len(heard) == wanted else 1)
"""
"""Has an identity, says where it runs and that it leaves, and ends after so many signals."""

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

        def begin(signals: int = 1, keeps: tuple[int, ...] = ()) -> tuple[str, subprocess.Popen[str]]:
            return start(signals, *keeps)

        yield begin


def test_it_waits_until_all_have_left(run: Callable[..., Seen], home: Path, volunteer: Volunteer) -> None:
    one, other = volunteer(), volunteer()
    seen = run("leave", "--home", home, "--timeout", 20)
    assert seen.code == 0, seen
    for peer, process in (one, other):
        assert f"{peer} has left after" in seen.out and process.wait(5) == 0


def test_only_the_one_that_is_named(run: Callable[..., Seen], home: Path, volunteer: Volunteer) -> None:
    (one, gone), (other, stays) = volunteer(), volunteer()
    seen = run("leave", "--home", home, "--peer", one[-8:], "--json")
    assert seen.code == 0 and list(json.loads(seen.out)["left"]) == [one]
    assert gone.wait(5) == 0 and stays.poll() is None
    assert run("leave", "--home", home, "--peer", "nobody").refused(64, "is not one of those that run here", other)


def test_an_empty_name_is_not_all_of_them(run: Callable[..., Seen], home: Path, volunteer: Volunteer) -> None:
    """As a shell gives it of a variable that is not set. The only node left."""
    _, stays = volunteer()
    for command in ("leave", "pause", "resume"):
        assert run(command, "--home", home, "--peer", "").refused(64, "--peer", "is empty")
    assert stays.poll() is None


def test_a_part_of_two_names_is_none(run: Callable[..., Seen], home: Path, volunteer: Volunteer) -> None:
    (one, first), (other, second) = volunteer(), volunteer()
    assert run("leave", "--home", home, "--peer", "12D3Koo").refused(64, "part of several PeerIds", one, other)
    assert first.poll() is None and second.poll() is None


def test_who_hands_over_for_too_long_is_told_of_and_left_alone(
    run: Callable[..., Seen], home: Path, volunteer: Volunteer
) -> None:
    peer, process = volunteer(signals=2)
    seen = run("leave", "--home", home, "--timeout", 0.3)
    assert seen.code == 75 and peer in seen.err and "leave --now" in seen.err
    assert process.poll() is None
    again = run("leave", "--home", home, "--timeout", 0.3)
    assert again.code == 75 and process.poll() is None, "asked twice, it would end without handing over"
    assert run("leave", "--home", home, "--now", "--timeout", 20).code == 0 and process.wait(5) == 0


def test_a_last_copy_stays_and_is_told_of(run: Callable[..., Seen], home: Path, volunteer: Volunteer) -> None:
    (peer, process), (other, gone) = volunteer(signals=2, keeps=(0, 2)), volunteer()
    seen = run("leave", "--home", home, "--timeout", 30)
    assert (
        seen.code == 75 and f"{peer} has the last copy of the head and stage 2" in seen.err and "hand" not in seen.out
    )
    assert "ftnode export" in seen.err and "ftnode leave --now" in seen.err
    assert f"{other} has left" in seen.out and gone.wait(5) == 0 and process.poll() is None
    again = run("leave", "--home", home, "--timeout", 30, "--json")
    assert again.code == 75 and json.loads(again.out)["keeps"] == {peer: [0, 2]} and process.poll() is None
    assert run("leave", "--home", home, "--now", "--timeout", 20).code == 0 and process.wait(5) == 0


def test_now_is_what_a_second_interruption_is(run: Callable[..., Seen], home: Path, volunteer: Volunteer) -> None:
    _, process = volunteer(signals=2)
    assert run("leave", "--home", home, "--now", "--timeout", 20).code == 0
    assert process.wait(5) == 0


def test_a_strangers_process_with_the_same_number_is_not_touched(run: Callable[..., Seen], home: Path) -> None:
    """The volunteer died and left its note; its process id is now ours."""
    identity = take_identity(home)
    identity.release()
    note_running(home, Running(os.getpid(), identity.peer_id, "run", ()))
    assert run("leave", "--home", home).refused(69, "no volunteer runs here", str(home))


def test_a_process_that_has_not_the_identity_is_not_touched(run: Callable[..., Seen], home: Path) -> None:
    """The note has another number than the volunteer, which is us and has no socket."""
    identity, stranger = take_identity(home), subprocess.Popen(["sleep", "60"])
    try:
        note_running(home, Running(stranger.pid, identity.peer_id, "run", ()))
        seen = run("leave", "--home", home, "--timeout", 0.3)
        assert seen.refused(69, identity.peer_id, f"process {stranger.pid} is not seen to be it")
        assert stranger.poll() is None
    finally:
        identity.release()
        stranger.kill()
        assert stranger.wait(5) == -signal.SIGKILL, "a signal came before"


@pytest.mark.parametrize("words", [["leave"], ["leave", "--now"], ["pause"], ["resume"], ["snapshots", "save", "out"]])
def test_a_home_of_somebody_else_says_whose_it_is(
    words: list[str], run: Callable[..., Seen], home: Path, volunteer: Volunteer, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, process = volunteer()
    owner = pwd.getpwuid(home.stat().st_uid).pw_name
    monkeypatch.setattr("os.geteuid", lambda: 4_000_000)
    assert run(*words, "--home", home).refused(77, f"{home} is {owner}'s", "sudo")
    assert process.poll() is None and not list(home.glob("pause*"))


def test_a_meeting_point_is_no_volunteer(run: Callable[..., Seen], home: Path) -> None:
    note_running(home, Running(os.getpid(), "peer", "", ()))
    assert run("leave", "--home", home).refused(69, "no volunteer runs here")


def test_who_is_too_busy_to_answer_is_not_asked_twice(
    run: Callable[..., Seen], home: Path, volunteer: Volunteer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_socket, "SECONDS", 0.1)
    peer, process = volunteer()
    listener = control_socket.ControlServer(control_socket.socket_path(home, peer), {})  # nobody serves it
    assert run("leave", "--home", home, "--timeout", 0.5).code == 75
    assert process.poll() is None, "a signal came, too"
    listener.close()
    assert run("leave", "--home", home, "--timeout", 20).code == 0 and process.wait(5) == 0


@pytest.mark.parametrize("text", ["30", "soon", "-3s", "0s", "400d", ""])
def test_what_is_no_time_is_refused(text: str, run: Callable[..., Seen], home: Path, volunteer: Volunteer) -> None:
    _, process = volunteer()
    assert run("leave", "--home", home, "--within", text).refused(64, "--within", "is no time", "write 30s or 2m")
    assert run("leave", "--home", home, "--within", "3s", "--now").refused(64, "exclude each other")
    assert process.poll() is None


def test_one_whose_time_is_over_is_told_to_stop(
    run: Callable[..., Seen], home: Path, volunteer: Volunteer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no socket, so that it hears a signal, and then a second one."""
    monkeypatch.setattr(leave, "OVERDUE_SECONDS", 0.1)
    peer, process = volunteer(signals=2)
    seen = run("leave", "--home", home, "--within", "0.3s")
    assert seen.code == 0 and "is asked to leave within 0 s" in seen.out and f"{peer} has left" in seen.out
    assert process.wait(5) == 0


LEAVER = VOLUNTEER.replace(
    "sys.exit(",
    """from ftnode.node.owner.left_note import note_left
from ftnode.protocol.holder.own_departure import HandedOver
note_left(home, identity.peer_id, HandedOver((0, 2), (), (3,)))
sys.exit(""",
)


def test_it_says_what_became_of_the_stages(run: Callable[..., Seen], home: Path) -> None:
    with starting(LEAVER, home) as start:
        (peer, process), (other, second) = start(1), start(1)
        seen = run("leave", "--home", home, "--peer", peer[-8:])
        assert f"{peer} has left after" in seen.out and "others have the head and stage 2" in seen.out
        assert "stage 3 is not handed over" in seen.out and process.wait(5) == 0
        told = json.loads(run("leave", "--home", home, "--json").out)
        fate = {"handed_over": [0, 2], "under_way": [], "left_out": [3], "gone": [], "on_disk": []}
        assert told["stages"] == {other: fate}
        assert second.wait(5) == 0


def test_what_an_earlier_life_said_is_not_told(run: Callable[..., Seen], home: Path, volunteer: Volunteer) -> None:
    peer, process = volunteer()
    note_left(home, peer, HandedOver((1,)))  # by this process
    told = json.loads(run("leave", "--home", home, "--json").out)
    assert list(told["left"]) == [peer] and told["stages"] == {} and process.wait(5) == 0
    assert read_left(home, peer, os.getpid()) == HandedOver((1,))
    forget_left(home, peer)
    assert read_left(home, peer, os.getpid()) is None


@pytest.mark.parametrize(
    ("fate", "text"),
    [
        (HandedOver(), ""),
        (HandedOver((0, 2)), "others have the head and stage 2"),
        (HandedOver((), (3,)), "stage 3 was being handed over"),
        (
            HandedOver((), (), (1, 3)),
            "stage 1 and stage 3 are not handed over, and come back as if this node was killed",
        ),
        (HandedOver(gone=(0, 1)), "nobody else was in the run: the head and stage 1 are gone with this node"),
        (HandedOver(on_disk=(2,)), "nobody else was in the run, and this disk has stage 2"),
    ],
)
def test_one_line_says_it(fate: HandedOver, text: str) -> None:
    assert told_fate(fate) == text
