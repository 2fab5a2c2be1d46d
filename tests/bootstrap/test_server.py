"""A real meeting point, started as a user starts it: found, watched, killed, and back under the same name."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import pytest
import trio

from ftnode.bootstrap import server
from ftnode.node.directory.directory import RecordKeeper, SwarmDirectory
from ftnode.node.home.identity import BOOTSTRAP_NAME, take_identity
from ftnode.node.links.addresses import parse_peer, remembered_peers
from ftnode.node.links.p2pd import P2pd
from ftnode.node.owner.join_options import RUNNING_FOLDER, Running, note_running, running_nodes
from ftnode.node.watch.status import STATUS_PROTOCOL, Speaker, SwarmStatus, status_handler
from ftnode.protocol.words.errors import UserError
from ftnode.protocol.words.events import Directory, DirectoryLost
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.types import Peer
from tests.node.watch.watching import COMMAND, finished

RUN = "0123456789abcdef"


@dataclass
class Point:
    process: trio.Process
    address: str
    said: bytes
    """On stdout, until it told how to join."""

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


async def start_point(
    nursery: trio.Nursery, home: Path, listen: str = "/ip4/127.0.0.1/tcp/0", notify: str = "", announce: str = "",
    options: Sequence[str] = (),
) -> Point:  # fmt: skip
    command = [sys.executable, "-m", "ftnode.node.cli", "bootstrap", "--listen", listen, "--home", str(home), *options]
    command += ["--announce", announce] if announce else []
    environment = {**os.environ, "NOTIFY_SOCKET": notify}
    process: trio.Process = await nursery.start(
        partial(trio.run_process, command, stdout=subprocess.PIPE, check=False, env=environment)
    )
    assert process.stdout is not None
    said = b""
    with trio.fail_after(20):
        while b"to join:" not in said:
            chunk = await process.stdout.receive_some()
            assert chunk, f"it ended and said {said.decode()!r}"
            said += chunk
    lines = said.decode().splitlines()
    address = next(line.removeprefix("address: ") for line in lines if line.startswith("address: "))
    assert any(line.endswith(f"--peer {address}") for line in lines)
    return Point(process, address, said)


async def gone(processes: list[psutil.Process]) -> None:
    _, alive = await trio.to_thread.run_sync(psutil.wait_procs, processes, 10)
    assert alive == []


@dataclass
class Volunteer:
    directory: SwarmDirectory
    peer_id: str
    events: trio.MemoryReceiveChannel[Directory | DirectoryLost]

    async def wait_for_others(self, count: int) -> None:
        with trio.fail_after(30):
            while True:
                self.directory.search()
                event = await self.events.receive()
                if isinstance(event, Directory) and len(event.presences) == count:
                    return


@asynccontextmanager
async def volunteer(nursery: trio.Nursery, folder: Path, name: str, start: str) -> AsyncIterator[Volunteer]:
    """What of a node the meeting point sees: a presence, and answers for watchers."""
    identity = take_identity(folder, name)
    p2pd = await P2pd.start(nursery, identity.path)
    try:
        addresses = await p2pd.addresses()
        status = SwarmStatus(Speaker(p2pd.peer_id, "0", "cpu", "volunteer"), run=RUN, name="tiny")
        await p2pd.serve(STATUS_PROTOCOL, status_handler(lambda: status))
        peer = Peer(p2pd.peer_id, 1)
        send, receive = trio.open_memory_channel[Directory | DirectoryLost](100)
        directory = SwarmDirectory(
            RecordKeeper(RUN, "tiny", peer, 10.0), p2pd, identity.sign, [parse_peer(start)], send.send_nowait
        )
        directory.announce(Presence(peer, addresses, "", -1, 1, True, (), (), (), 1.0))
        nursery.start_soon(directory.run)
        yield Volunteer(directory, p2pd.peer_id, receive)
    finally:
        p2pd.close()
        identity.release()


async def ask(home: Path, address: str, wanted: str) -> None:
    """`ftnode status --peer ADDRESS --json` until the one who answers is `wanted`."""
    with trio.fail_after(30):
        while True:
            done = await finished(COMMAND, "status", "--peer", address, "--json", "--home", str(home))
            if done.returncode == 0 and json.loads(done.stdout)["speaker"]["peer"] == wanted:
                return


def test_a_meeting_point_is_found_killed_and_back(tmp_path: Path) -> None:
    home = tmp_path / "point"

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            point = await start_point(nursery, home)
            assert [node.addresses[0] for node in running_nodes(home)] == [point.address]
            async with volunteer(nursery, tmp_path, "a", point.address) as first:
                await ask(tmp_path / "watcher", point.address, first.peer_id)
                assert any(first.peer_id in peer for peer in remembered_peers(home))

                children = point.children()
                assert len(children) == 2
                point.process.kill()
                await gone(children)
                listen = parse_peer(point.address).addresses[0]
                back = await start_point(nursery, home, listen)
                assert back.address == point.address, "same port, same PeerId"
                async with volunteer(nursery, tmp_path, "b", back.address) as second:
                    await second.wait_for_others(1)
                    await first.wait_for_others(1)

                children = back.children()
                back.process.terminate()
                with trio.fail_after(5):
                    assert await back.process.wait() == 0
                await gone(children)
                assert running_nodes(home) == ()
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_it_tells_the_name_that_it_was_given(tmp_path: Path) -> None:
    """Behind a forwarded port, say: the name is what people get, and this machine's own status needs neither."""
    home = tmp_path / "point"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            named = f"/dns4/localhost/tcp/{port}"
            point = await start_point(nursery, home, f"/ip4/127.0.0.1/tcp/{port}", announce=named)
            assert point.address.startswith(f"{named}/p2p/")
            (note,) = running_nodes(home)
            assert note.addresses == (point.address, point.address.replace("/dns4/localhost/", "/ip4/127.0.0.1/"))
            await ask(tmp_path / "watcher", point.address, parse_peer(point.address).peer_id)
            point.process.terminate()

    trio.run(main)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_stops_when_asked_at_once(number: signal.Signals, tmp_path: Path) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            point = await start_point(nursery, tmp_path)
            children = point.children()
            point.process.send_signal(number)
            with trio.fail_after(5):
                assert await point.process.wait() == 0
            await gone(children)

    trio.run(main)


def test_it_ends_with_its_terminal_as_when_it_is_asked(tmp_path: Path) -> None:
    """What it would say then nobody can read."""
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "ftnode.node.cli", "bootstrap", "--listen", "/ip4/127.0.0.1/tcp/0"]
    with subprocess.Popen(
        [*command, "--home", str(tmp_path), "--metrics", "none"], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE
    ) as process:
        os.close(theirs)
        said = b""
        while b"to join:" not in said:
            said += os.read(ours, 4096)
        os.close(ours)
        process.send_signal(signal.SIGHUP)
        assert process.communicate(timeout=20) == (None, b"") and process.returncode == 0
    assert running_nodes(tmp_path) == () and list((tmp_path / "running").iterdir()) == []


async def told(ear: trio.socket.SocketType) -> str:
    """To the service manager, until there is a status."""
    said = ""
    with trio.fail_after(20):
        while "STATUS=" not in said:
            said += (await ear.recv(4096)).decode()
    return said


@asynccontextmanager
async def service_manager(folder: Path) -> AsyncIterator[tuple[trio.socket.SocketType, str]]:
    with trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_DGRAM) as ear:
        await ear.bind(str(folder / "notify"))
        yield ear, str(folder / "notify")


def test_a_note_that_it_left_when_it_was_killed_is_not_its_state(tmp_path: Path) -> None:
    """The process that it names is another one meanwhile: ours."""
    identity = take_identity(tmp_path, BOOTSTRAP_NAME)
    identity.release()
    note_running(tmp_path, Running(os.getpid(), identity.peer_id, "", (), leaving=True))

    async def main() -> None:
        async with trio.open_nursery() as nursery, service_manager(tmp_path) as (ear, notify):
            point = await start_point(nursery, tmp_path, notify=notify)
            assert await told(ear) == "READY=1\nSTATUS=meeting point"
            point.process.terminate()

    trio.run(main)


def test_it_goes_on_where_its_note_cannot_be_written(tmp_path: Path) -> None:
    """As on a full disk: one line, and it serves; a service manager hears of it all the same."""
    (tmp_path / RUNNING_FOLDER).write_text("a file is where the folder should be")

    async def main() -> None:
        async with trio.open_nursery() as nursery, service_manager(tmp_path) as (ear, notify):
            point = await start_point(nursery, tmp_path, notify=notify)
            assert "READY=1" in await told(ear)
            await ask(tmp_path / "watcher", point.address, parse_peer(point.address).peer_id)
            point.process.terminate()
            with trio.fail_after(5):
                assert await point.process.wait() == 0
            said = point.said.decode()
            assert said.count("cannot write to") == 1 and "it goes on" in said

    trio.run(main)


def test_a_port_in_use_is_said_in_one_line(tmp_path: Path) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            point = await start_point(nursery, tmp_path / "first")
            listen = parse_peer(point.address).addresses[0]
            command = [sys.executable, "-m", "ftnode.node.cli", "bootstrap", "--listen", listen]
            done = await trio.run_process(
                [*command, "--home", str(tmp_path / "second")], capture_stdout=True, capture_stderr=True, check=False
            )
            assert done.returncode == 69
            assert b"in use" in done.stderr
            assert len(done.stderr.decode().splitlines()) == 1
            nursery.cancel_scope.cancel()

    trio.run(main)


@pytest.mark.parametrize(("code", "ends"), [(errno.ENOSPC, False), (errno.EDQUOT, False), (errno.EPIPE, True)])
def test_a_disk_that_takes_no_line_ends_no_meeting_point(
    code: int, ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its note of itself cannot be written either, and that is said. At the start, and without a reader, it ends."""

    def say(line: str) -> None:
        raise OSError(code, os.strerror(code))

    (tmp_path / RUNNING_FOLDER).write_text("in the way")
    notes: list[server.RunningNote] = []
    real = server.RunningNote

    def noted(home: Path, tell: Callable[[str, str], None]) -> server.RunningNote:
        notes.append(real(home, tell))
        return notes[-1]

    async def refused(*arguments: object, **options: object) -> None:
        notes[0].write(Running(os.getpid(), "peer", "", ()))
        raise UserError("it went on", 69)

    monkeypatch.setattr(server, "RunningNote", noted)
    monkeypatch.setattr(server.P2pd, "start", refused)
    identity = take_identity(tmp_path, BOOTSTRAP_NAME)
    wishes = server.Wishes((), tmp_path)
    try:
        if ends:
            with pytest.raises(ExceptionGroup, match="nursery"):
                trio.run(server._serve, identity, wishes, say)
        else:
            assert str(trio.run(server._serve, identity, wishes, say)) == "it went on"
    finally:
        identity.release()
