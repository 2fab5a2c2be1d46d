"""What a service manager hears: a real datagram socket, a virtual clock."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from ftnode.node.owner.join_options import RUNNING_FOLDER, Running
from ftnode.node.owner.running_note import RunningNote
from ftnode.node.owner.systemd import State, Supervisor, state_of


@pytest.fixture
def ear(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.setblocking(False)
        yield listening


def heard(ear: socket.socket) -> list[str]:
    found = []
    while True:
        try:
            found.append(ear.recv(4096).decode())
        except BlockingIOError:
            return found


def tell(environment: dict[str, str], states: list[State | None], seconds: float = 0.0) -> None:
    """`states`: one a second; the last one stays."""

    async def main() -> None:
        with trio.move_on_after(seconds or len(states) - 0.5):
            await Supervisor(environment).run(lambda: states.pop(0) if len(states) > 1 else states[0])

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_service_manager_hears_that_we_are_ready_and_that_we_stop(ear: socket.socket) -> None:
    working, stopping = State("volunteer\nWATCHDOG=trigger \x1b[2J"), State("hands over", stopping=True)
    tell({"NOTIFY_SOCKET": ear.getsockname()}, [None, working, working, stopping, stopping])
    assert heard(ear) == ["READY=1\nSTATUS=volunteer WATCHDOG=trigger ?[2J", "STOPPING=1\nSTATUS=hands over"]


def test_an_abstract_socket_is_one_too() -> None:
    name = f"ftnode-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name}")
        listening.setblocking(False)
        tell({"NOTIFY_SOCKET": f"@{name}"}, [State("here")])
        assert heard(listening) == ["READY=1\nSTATUS=here"]


@pytest.mark.parametrize("place", ["", "relative", "/nobody/listens/here"])
def test_where_nobody_listens_nothing_happens(place: str) -> None:
    tell({"NOTIFY_SOCKET": place}, [State("here")])


def test_signs_of_life_come_in_half_the_watchdogs_time(ear: socket.socket) -> None:
    watched = {"NOTIFY_SOCKET": ear.getsockname(), "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": str(os.getpid())}
    tell(watched, [State("here")], seconds=1.75)
    assert heard(ear) == ["WATCHDOG=1\nREADY=1\nSTATUS=here", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1"]


@pytest.mark.parametrize("environment", [{"WATCHDOG_USEC": "4000000", "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "often"}])
def test_another_processs_watchdog_is_not_ours(environment: dict[str, str]) -> None:
    assert Supervisor(environment).watchdog_seconds == 0


@pytest.mark.parametrize("blocked", [False, True])
def test_what_a_node_notes_of_itself_is_its_state(tmp_path: Path, blocked: bool) -> None:
    """Also where the disk takes no note."""
    if blocked:
        (tmp_path / RUNNING_FOLDER).write_text("a file is where the folder should be")
    note = RunningNote(tmp_path, lambda kind, text: None)
    assert state_of(note.last) is None
    for noted, text, stopping in (
        (Running(os.getpid(), "12D3KooWnode", "ab" * 32, ()), "volunteer of run abababababab", False),
        (Running(os.getpid(), "12D3KooWnode", "ab" * 32, (), paused="until 07:00"), "paused: until 07:00", False),
        (Running(os.getpid(), "12D3KooWnode", "ab" * 32, (), leaving=True), "hands over", True),
        (Running(os.getpid(), "12D3KooWnode", "", ()), "meeting point", False),
    ):
        note.write(noted)
        assert state_of(note.last) == State(text, stopping)
