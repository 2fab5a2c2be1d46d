"""`ftnode dashboard` as a process of its own, against real p2pds that answer what they are given."""

from __future__ import annotations

import json
import signal
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgpack
import pytest
import trio
import trio.testing

from ftnode.node.home.identity import take_identity
from ftnode.node.links.addresses import PeerAddress, full_addresses
from ftnode.node.links.p2pd import P2pd
from ftnode.node.watch import dashboard_live
from ftnode.node.watch.dashboard_feed import Feed
from ftnode.node.watch.dashboard_live import CURVES_MAX, LOOK_SECONDS, SwarmWatcher
from ftnode.node.watch.history import (
    HISTORY_PROTOCOL,
    CommitRow,
    History,
    HistoryRequest,
    NoteRow,
    ValidationRow,
    encode_history,
    history_handler,
    read_request,
)
from ftnode.node.watch.status import (
    STATUS_PROTOCOL,
    CommitPoint,
    Member,
    Speaker,
    StageRow,
    SwarmStatus,
    status_handler,
)
from tests.node.virtual_time import passed
from tests.node.watch.watching import running

PROGRAM = """
import sys
from ftnode.node.cli.main import main
code = main(sys.argv[1:])
heavy = {name.split(".")[0] for name in sys.modules} & {"torch", "hivemind", "numpy"}
assert not heavy, heavy
sys.exit(code)
"""
EVIL = "<img src=x onerror=alert(1)>"


class Node:
    """A real p2pd whose status and history are as set; `asked` counts both."""

    def __init__(self, p2pd: P2pd, address: str) -> None:
        self.p2pd, self.address = p2pd, address
        self.looked, self.read = trio.Event(), trio.Event()
        self._looks = 0
        self.status = SwarmStatus(
            Speaker(p2pd.peer_id, "0", "cpu", "volunteer"), run="run1", name=EVIL, step=3, steps=9, loss=2.0,
            lineage="l", view=1, state="training", stages=(StageRow(0, p2pd.peer_id, "training", 0, 3, 1, 0, 0.1),),
            commits=tuple(CommitPoint(step, 2.0, 0.5) for step in (1, 2, 3)),
        )  # fmt: skip
        self.history = History("run1", "l", "1")

    def member(self) -> Member:
        return Member("run1", "", self.p2pd.peer_id, (self.address.rpartition("/p2p/")[0],))

    def snapshot(self) -> SwarmStatus:
        self._looks += 1
        if self._looks == 3:
            self.looked.set()
        return self.status

    def tell(self, request: HistoryRequest) -> History:
        if request.notes >= len(self.history.notes):
            self.read.set()
        return replace(
            self.history,
            commits=tuple(row for row in self.history.commits if row.step > request.commits),
            validations=tuple(row for row in self.history.validations if row.step > request.validations),
            notes=tuple(row for row in self.history.notes if row.number > request.notes),
        )


async def start(nursery: trio.Nursery, folder: Path, name: str, *, with_history: bool) -> Node:
    p2pd = await P2pd.start(nursery, take_identity(folder, name).path)
    node = Node(p2pd, full_addresses(p2pd.peer_id, await p2pd.addresses())[0])
    await p2pd.serve(STATUS_PROTOCOL, status_handler(node.snapshot))
    if with_history:
        await p2pd.serve(HISTORY_PROTOCOL, history_handler(node.tell))
    return node


class Dashboard:
    """What a page would be told."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def look(self) -> dict[str, Any]:
        def fetch() -> dict[str, Any]:
            with urllib.request.urlopen(f"{self.url}look", timeout=10) as answer:
                found: dict[str, Any] = json.load(answer)
                return found

        return await trio.to_thread.run_sync(fetch)


def with_dashboard(
    folder: Path, test: Callable[[Dashboard, list[Node]], Awaitable[None]], *with_history: bool, members: bool = False
) -> None:
    """Nodes with or without a history; the dashboard is told of the first. It must end cleanly by Ctrl-C."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nodes = [await start(nursery, folder, f"n{n}", with_history=has) for n, has in enumerate(with_history)]
            if members:
                for node in nodes:
                    told = tuple(one.member() for one in nodes)
                    node.status, node.history = replace(node.status, members=told), replace(node.history, members=told)
            arguments = ("--listen", "127.0.0.1:0", "--home", str(folder), "--peer", nodes[0].address)
            try:
                async with running(PROGRAM, "dashboard", *arguments) as page:
                    with trio.fail_after(60):
                        line = (await page.stdout.receive_some()).decode()
                        await test(Dashboard(line.split(" is at ")[1].split(";")[0]), nodes)
                        page.process.send_signal(signal.SIGINT)
                        code = await page.ended()
                    assert (code, await page.stderr.receive_some()) == (0, b"")
            finally:
                for node in nodes:
                    node.p2pd.close()
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_the_past_of_several_peers_becomes_one(tmp_path: Path) -> None:
    async def test(dashboard: Dashboard, nodes: list[Node]) -> None:
        first, second = nodes
        first.history = replace(
            first.history, commits=(CommitRow(3, 2.0, 64, 0.5, False),),
            notes=(NoteRow(1, 5.0, 3, "view", "view 1"), NoteRow(2, 4.0, 3, "lost", EVIL)),
        )  # fmt: skip
        second.history = replace(
            second.history, commits=tuple(CommitRow(step, 2.0, 64, 0.5, False) for step in (1, 2, 3)),
            validations=(ValidationRow(2, 1.5),), notes=(NoteRow(1, 5.0, 3, "view", "view 1"),),
        )  # fmt: skip
        first.read, second.read = trio.Event(), trio.Event()
        await first.read.wait()
        await second.read.wait()
        told = await dashboard.look()
        fine = sorted(row[0] for row in told["commits"]["rows"] if row[2] == 64)
        assert (fine, told["validations"]["rows"]) == ([1, 2, 3], [[2, 1.5]])
        assert sorted(row[3:5] for row in told["notes"]["rows"]) == [["lost", EVIL], ["view", "view 1"]]
        assert told["status"]["stages"][0]["state"] == "training"
        assert told["trouble"] == ""

    with_dashboard(tmp_path, test, True, True, members=True)


@pytest.mark.fresh
def test_a_node_of_before_has_a_page_all_the_same(tmp_path: Path) -> None:
    async def test(dashboard: Dashboard, nodes: list[Node]) -> None:
        await nodes[0].looked.wait()
        told = await dashboard.look()
        assert told["status"]["step"] == 3
        assert [row[0] for row in told["commits"]["rows"]] == [1, 2, 3]
        assert (told["notes"]["rows"], told["trouble"]) == ([], "")

    with_dashboard(tmp_path, test, False)


def test_a_run_that_is_founded_anew_is_read_from_its_beginning(tmp_path: Path) -> None:
    async def test(dashboard: Dashboard, nodes: list[Node]) -> None:
        (node,) = nodes
        rows = tuple(CommitRow(step, 2.0, 64, 0.5, False) for step in (1, 2, 3))
        note = (NoteRow(1, 5.0, 3, "view", "view 1"),)
        node.history, node.read = replace(node.history, commits=rows, notes=note), trio.Event()
        await node.read.wait()
        before = (await dashboard.look())["generation"]
        node.history = replace(node.history, lineage="m", notes=())
        node.status = replace(node.status, lineage="m")
        told = await dashboard.look()
        while told["generation"] == before or not any(row[2] for row in told["commits"]["rows"]):
            told = await dashboard.look()
        assert sorted(row[0] for row in told["commits"]["rows"] if row[2]) == [1, 2, 3]

    with_dashboard(tmp_path, test, True)


def test_when_the_watched_peer_dies_another_is_watched(tmp_path: Path) -> None:
    async def test(dashboard: Dashboard, nodes: list[Node]) -> None:
        await nodes[0].looked.wait()
        nodes[0].p2pd.close()
        await nodes[1].looked.wait()
        told = await dashboard.look()
        assert told["status"]["speaker"]["peer"] == nodes[1].p2pd.peer_id

    with_dashboard(tmp_path, test, True, True, members=True)


def test_a_peer_that_tells_garbage_costs_itself_only(tmp_path: Path) -> None:
    async def test(dashboard: Dashboard, nodes: list[Node]) -> None:
        nodes[0].history = replace(nodes[0].history, commits=(CommitRow(1, 2.0, -1, 0.5, False),))
        await nodes[0].looked.wait()
        told = await dashboard.look()
        assert told["status"]["step"] == 3
        assert told["commits"]["rows"] == [[step, 2.0, 0, 0.5, False] for step in (1, 2, 3)]

    with_dashboard(tmp_path, test, True)


def test_who_is_left_goes_on_with_the_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all that are followed a few tell it. When these have gone, those who are left have to."""
    peers = [PeerAddress(f"peer {number}", ("/ip4/192.0.2.1/tcp/1",)) for number in range(CURVES_MAX + 1)]
    commits, asked = [CommitRow(1, 2.0, 64, 0.5, False)], set[str]()

    @asynccontextmanager
    async def opened(_host: object, peer: PeerAddress, *_: object) -> AsyncIterator[str]:
        yield peer.peer_id

    async def ask(stream: str, request: bytes, _max: int) -> bytes:
        asked.add(stream)
        places = read_request(msgpack.unpackb(request))
        return encode_history(History("run1", "l", "1", tuple(row for row in commits if row.step > places.commits)))

    async def main() -> list[int]:
        feed = Feed("live")
        watcher = SwarmWatcher(cast(Any, None), peers, feed)
        async with trio.open_nursery() as nursery:
            watcher._members = tuple(peers)
            watcher._choose(nursery)
            await passed(3 * LOOK_SECONDS)
            assert asked == {peer.peer_id for peer in peers}
            watcher._members = (peers[-1],)
            watcher._choose(nursery)
            commits.append(CommitRow(2, 2.0, 64, 0.5, False))
            await passed(3 * LOOK_SECONDS)
            nursery.cancel_scope.cancel()
        return [row[0] for row in feed.look("", 0, 0, 0)["commits"]["rows"]]

    monkeypatch.setattr(dashboard_live, "open_stream", opened)
    monkeypatch.setattr(dashboard_live, "_ask", ask)
    assert trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0)) == [1, 2]


@pytest.mark.parametrize("listen", ["127.0.0.1", "0.0.0.0"])
def test_nobody_answers(listen: str, tmp_path: Path) -> None:
    """The page says so; a page for everybody comes with a warning."""

    async def main() -> None:
        peer = take_identity(tmp_path, "gone").peer_id
        arguments = ("--listen", f"{listen}:0", "--home", str(tmp_path), "--peer", f"/ip4/127.0.0.1/tcp/1/p2p/{peer}")
        async with running(PROGRAM, "dashboard", *arguments) as page:
            with trio.fail_after(60):
                line = (await page.stdout.receive_some()).decode()
                dashboard = Dashboard(line.split(" is at ")[1].split(";")[0].replace("0.0.0.0", "127.0.0.1"))
                trouble = ""
                while not trouble:
                    trouble = (await dashboard.look())["trouble"]
                page.process.send_signal(signal.SIGTERM)
                code = await page.ended()
            said = await page.stderr.receive_some()
        assert "no peer answered" in trouble and "Connection refused" in trouble
        assert code == 0
        assert (b"warning" in said) == (listen == "0.0.0.0")

    trio.run(main)
