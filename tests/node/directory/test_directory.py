"""What a participant keeps in the directory, on virtual time with a fake link; and the real thing, over p2pd."""

from __future__ import annotations

import math
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio
import trio.testing

from ftnode.node.directory import link as link_module
from ftnode.node.directory.directory import UNHEARD_SECONDS, RecordKeeper, SwarmDirectory, lifetime_of
from ftnode.node.directory.link import RESTART_SECONDS, DirectoryDown, DirectoryLink
from ftnode.node.directory.record_store import key_hash, place_of
from ftnode.node.directory.records import RUNS_KEY, Claim, Statement, key_of, sign_record
from ftnode.node.home.identity import any_peer_id_bytes, take_identity
from ftnode.node.links.addresses import PeerAddress
from ftnode.node.links.p2pd import P2pd
from ftnode.protocol.words.events import Directory, DirectoryLost
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.types import Peer
from tests.node.directory.signers import RUN, Signer, presence, signer, view

A, B, C = signer(1), signer(2), signer(3)
START = 1_700_000_000.0
LIFETIME = 30.0


class FakeLink:
    """A directory that stores at once and never forgets. `down`: why it fails, or empty."""

    def __init__(self) -> None:
        self.up, self.tried = trio.Event(), trio.Event()
        self.met: set[str] = set()
        self.given: tuple[PeerAddress, ...] = ()
        self.doors: tuple[str, ...] = ()
        self.unreachable: dict[str, str] = {}
        self.introduced: list[PeerAddress] = []
        self.stores: list[tuple[float, str]] = []
        self.records: dict[str, dict[str, tuple[bytes, float]]] = {}
        self.down = ""
        self.heard = 1
        """How many others answer a question."""
        self.meetings = 0

    @property
    def connected(self) -> bool:
        return bool(self.met) or not self.given

    async def run(self) -> None:
        self.up.set()
        await trio.sleep_forever()

    async def meet_all(self) -> None:
        self.meetings += 1
        self.tried.set()

    def introduce(self, peer: PeerAddress) -> bool:
        self.introduced.append(peer)
        return False

    async def call(self, op: str, **fields: Any) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        if self.down:
            raise DirectoryDown(self.down)
        if op == "get":
            items = [[who, *item] for who, item in self.records.get(fields["key"], {}).items()]
            return {"items": items, "heard": self.heard}
        assert op == "store"
        self.stores.append((trio.current_time(), fields["key"]))
        self.records.setdefault(fields["key"], {})[fields["subkey"]] = (fields["record"], fields["expiration"])
        return {"stored": True}

    def put(self, who: Signer, body: Presence | Claim, life: float = LIFETIME) -> None:
        """A record of another peer, made now."""
        made = int((START + trio.current_time()) * 1000)
        record = sign_record(Statement(RUN, who.peer, made, made + int(life * 1000), body), who.sign)
        self.records.setdefault(key_of(RUN, type(body)), {})[who.peer.id] = (record, (made + int(life * 1000)) / 1000)


class Bench:
    """A directory of A on a fake link; `events` has what it reported, in order."""

    def __init__(self) -> None:
        self.link = FakeLink()
        send, self.events = trio.open_memory_channel[Directory | DirectoryLost](math.inf)
        self.known: list[tuple[str, tuple[str, ...]]] = []
        self.directory = SwarmDirectory(
            RecordKeeper(RUN, "tiny", A.peer, LIFETIME), None, A.sign, (), send.send_nowait,
            wall_clock=lambda: START + trio.current_time(), link=self.link,
            know=lambda peer, addresses: self.known.append((peer, addresses)),
        )  # type: ignore[arg-type]  # fmt: skip

    def times(self, kind: type) -> list[float]:
        return [round(at, 1) for at, key in self.link.stores if key == key_of(RUN, kind)]

    async def look(self) -> Directory | DirectoryLost:
        self.directory.search()
        with trio.fail_after(60):
            return await self.events.receive()


def on_virtual_time(test: Callable[[Bench], Any]) -> None:
    async def main() -> None:
        bench = Bench()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.directory.run)
            await test(bench)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def until(seconds: float) -> None:
    """Of virtual time."""
    with trio.move_on_after(seconds):
        await trio.sleep_forever()


@pytest.mark.parametrize(("lease", "lifetime"), [(1.0, 10.0), (5.0, 15.0), (10.0, 30.0), (100.0, 90.0)])
def test_lifetimes_follow_the_lease(lease: float, lifetime: float) -> None:
    assert lifetime_of(lease) == lifetime


def test_records_are_written_at_once_and_renewed_every_third() -> None:
    async def test(bench: Bench) -> None:
        bench.directory.announce(presence(A))
        await until(25)
        times = bench.times(Presence)
        assert times[0] == 0
        assert all(later - earlier <= 11 for earlier, later in pairwise(times))
        assert 3 <= len(times) <= 4
        assert set(bench.link.records) == {key_of(RUN, Presence), RUNS_KEY}

    on_virtual_time(test)


def test_a_change_is_written_promptly_and_many_changes_together() -> None:
    async def test(bench: Bench) -> None:
        bench.directory.announce(presence(A))
        await until(5)
        for capacity in range(2, 50):
            bench.directory.announce(presence(A, capacity=capacity))
        await until(1)
        assert len(bench.times(Presence)) == 2
        assert bench.times(Presence)[1] <= 5.5

    on_virtual_time(test)


def test_a_claim_carries_the_view_and_goes_when_we_leave_it() -> None:
    async def test(bench: Bench) -> None:
        bench.directory.publish_view(view(A, B))
        bench.directory.announce(presence(A))
        await until(1)
        found = await bench.directory.read(key_of(RUN, Claim))
        assert [statement.body for statement in found] == [Claim((0,), presence(A).addresses, view(A, B))]
        bench.directory.publish_view(view(B))
        count = len(bench.times(Claim))
        await until(LIFETIME + 1)
        assert len(bench.times(Claim)) == count
        assert await bench.directory.read(key_of(RUN, Claim)) == []

    on_virtual_time(test)


def test_a_search_tells_of_the_others_once() -> None:
    async def test(bench: Bench) -> None:
        bench.directory.announce(presence(A))
        await until(1)
        for who in (B, C):
            bench.link.put(who, presence(who))
            bench.link.put(who, Claim(view(B, C).stages_of(who.peer), (), view(B, C)))
        found = await bench.look()
        assert found == Directory(tuple(sorted([presence(B), presence(C)], key=lambda p: p.peer)), (view(B, C),))
        assert {peer.peer_id for peer in bench.link.introduced} == {B.peer.id, C.peer.id}

    on_virtual_time(test)


def test_holders_can_be_dialled_by_their_claims_alone() -> None:
    """Over full lines their presences may not have come to whom a newcomer asks."""

    async def test(bench: Bench) -> None:
        held, whole = ("/ip4/127.0.0.1/tcp/9",), view(B, C)
        bench.link.put(B, Claim(whole.stages_of(B.peer), held, whole))
        assert await bench.look() == Directory((), (whole,))
        assert bench.known == [(B.peer.id, held)]
        assert not bench.link.introduced, "nobody is met for that"

    on_virtual_time(test)


def test_the_dead_and_the_forged_are_left_out() -> None:
    async def test(bench: Bench) -> None:
        bench.link.put(B, presence(B), life=10)
        bench.link.put(C, presence(C), life=20)
        record, expiration = bench.link.records[key_of(RUN, Presence)][C.peer.id]
        bench.link.records[key_of(RUN, Presence)][C.peer.id] = (record[:-1] + bytes([record[-1] ^ 1]), expiration)
        assert await bench.look() == Directory((presence(B),), ())
        await until(11)
        assert await bench.look() == Directory((), ())

    on_virtual_time(test)


def test_a_directory_that_fails_is_lost_and_found_again() -> None:
    async def test(bench: Bench) -> None:
        bench.directory.announce(presence(A))
        bench.link.down = "no answer"
        await until(3)
        assert await bench.look() == DirectoryLost("no answer")
        bench.link.down = ""
        await until(3)
        assert bench.times(Presence)
        assert isinstance(await bench.look(), Directory)

    on_virtual_time(test)


def test_an_empty_directory_proves_nothing_while_nobody_is_met() -> None:
    async def test(bench: Bench) -> None:
        bench.link.given = (PeerAddress(B.peer.id, ("/ip4/127.0.0.1/tcp/9",)),)
        bench.link.unreachable = {B.peer.id: "connection refused"}
        lost = await bench.look()
        assert isinstance(lost, DirectoryLost)
        assert "connection refused" in lost.reason
        before = bench.link.meetings
        await until(10)
        assert bench.link.meetings > before + 5, "it goes on trying every second"
        bench.link.met.add(B.peer.id)
        assert isinstance(await bench.look(), Directory)

    on_virtual_time(test)


def test_an_empty_directory_proves_nothing_while_nobody_answers() -> None:
    """A newcomer on a busy machine would found a run of its own, beside the one that it cannot see yet."""

    async def test(bench: Bench) -> None:
        bench.link.given = (PeerAddress(B.peer.id, ("/ip4/127.0.0.1/tcp/9",)),)
        bench.link.met.add(B.peer.id)
        bench.link.heard = 0
        lost = await bench.look()
        assert isinstance(lost, DirectoryLost) and "nobody whom the directory knows answers" in lost.reason
        before = bench.link.meetings
        await until(3)
        assert bench.link.meetings > before, "they are met again"
        bench.link.put(B, presence(B))
        assert isinstance(await bench.look(), Directory), "what others have given us to keep is known without them"
        bench.link.records.clear()
        assert isinstance(await bench.look(), DirectoryLost)
        await until(UNHEARD_SECONDS)
        assert await bench.look() == Directory((), ()), "they are gone"
        bench.link.heard = 1
        assert await bench.look() == Directory((), ())
        bench.link.heard = 0
        assert isinstance(await bench.look(), DirectoryLost)

    on_virtual_time(test)


def test_the_first_peer_of_all_has_nobody_to_hear() -> None:
    async def test(bench: Bench) -> None:
        bench.link.heard = 0
        assert await bench.look() == Directory((), ())

    on_virtual_time(test)


class NoDialer:
    control_maddr = "/unix/none"
    offline = False

    async def connect(self, peer_id: str, addresses: object, seconds: float) -> None:
        raise AssertionError("there is nobody to dial")

    async def is_connected(self, peer_id: str) -> bool:
        return False


class Node:
    """A real p2pd with a real directory process."""

    def __init__(self, p2pd: P2pd, directory: SwarmDirectory, events: Any, addresses: tuple[str, ...]) -> None:
        self.p2pd, self.directory, self.events = p2pd, directory, events
        self.address = PeerAddress(p2pd.peer_id, addresses)

    async def wait_for(self, wanted: Callable[[Directory | DirectoryLost], bool], seconds: float = 20) -> float:
        """Search until an event is as wanted; how long that took."""
        start = trio.current_time()
        with trio.fail_after(seconds):
            while True:
                self.directory.search()
                if wanted(await self.events.receive()):
                    return trio.current_time() - start

    def enter(self, run: str) -> None:
        """Look for another run."""
        self.directory.membership = replace(self.directory.membership, run=run)

    def join(self, run: str) -> None:
        self.enter(run)
        peer = self.directory.membership.peer
        self.directory.announce(Presence(peer, self.address.addresses, "", -1, 1, True, (), (), (), 1.0))

    def sees(self, *others: Node) -> Callable[[Directory | DirectoryLost], bool]:
        ids = {node.p2pd.peer_id for node in others}
        return lambda event: isinstance(event, Directory) and {one.peer.id for one in event.presences} == ids


@asynccontextmanager
async def real_node(tmp_path: Path, nursery: trio.Nursery, name: str, *peers: PeerAddress, tells: bool = True) -> Any:
    identity = take_identity(tmp_path, name)
    p2pd = await P2pd.start(nursery, identity.path)
    try:
        addresses = await p2pd.addresses()
        send, receive = trio.open_memory_channel[Directory | DirectoryLost](100)
        peer = Peer(p2pd.peer_id, 1)
        membership = RecordKeeper(RUN, "tiny", peer, 10.0)
        log_path = tmp_path / f"{name}.log"
        directory = SwarmDirectory(membership, p2pd, identity.sign, peers, send.send_nowait, log_path=log_path)
        if tells:
            directory.announce(Presence(peer, addresses, "", -1, 1, True, (), (), (), 1.0))
        nursery.start_soon(directory.run)
        yield Node(p2pd, directory, receive, addresses)
    finally:
        p2pd.close()
        identity.release()


def directory_processes() -> list[psutil.Process]:
    """Those that live; what an earlier test of this worker left to be reaped has no command line."""
    children = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in children if "ftnode.node.directory.process" in " ".join(child.cmdline())]


def test_a_record_in_the_directory_is_no_reason_to_dial() -> None:
    class Connected(NoDialer):
        there: frozenset[str] = frozenset()

        async def is_connected(self, peer_id: str) -> bool:
            return peer_id in self.there

    async def main() -> None:
        dialer, asked = Connected(), []
        link = DirectoryLink(dialer, [], log_path=None, on_lost=lambda reason: None)

        async def call(op: str, **fields: Any) -> dict[str, Any]:
            asked.append(fields["peer"])
            return {"met": True}

        link.call = call  # type: ignore[method-assign, assignment]
        for peer in (B.peer, C.peer):
            assert link.introduce(PeerAddress(peer.id, ("/ip4/127.0.0.1/tcp/40000",)))
        await link.meet_all()
        assert asked == [] and link.met == set()
        assert link.introduce(PeerAddress(B.peer.id, ("/ip4/127.0.0.1/tcp/40000",))), "it may be there by now"
        dialer.there = frozenset({B.peer.id})
        await link.meet_all()
        assert asked == [B.peer.id] and link.met == {B.peer.id}

    trio.run(main)


def test_two_real_directories_find_each_other_and_survive(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            trio.open_nursery() as nursery,
            real_node(tmp_path, nursery, "a") as first,
            real_node(tmp_path, nursery, "b", first.address) as second,
        ):
            await first.wait_for(first.sees(second))
            await second.wait_for(second.sees(first))
            assert (await first.directory.link.call("status"))["peers"] == 1

            victims = directory_processes()
            assert len(victims) == 2
            victims[0].send_signal(signal.SIGKILL)
            lost = [await first.wait_for(lambda event: isinstance(event, DirectoryLost))]
            await first.wait_for(first.sees(second))
            assert lost[0] < 5

            async with real_node(tmp_path, nursery, "c", second.address) as third:
                await third.wait_for(third.sees(first, second))
                await first.wait_for(first.sees(second, third))
                first.p2pd.close()  # the peer that everybody started from, and its records with it
                gone = await third.wait_for(third.sees(second))
                assert gone < 15, "records of the dead vanish within their lifetime of 10 s"
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert directory_processes() == []


NEAREST = 5
"""So many peers keep a record."""


def far_run(nodes: list[Node], far: Node) -> str:
    """A run of whose presences this one is not among the nearest."""

    def distance(node: Node, key: bytes) -> int:
        place = place_of(any_peer_id_bytes(node.p2pd.peer_id))
        return int.from_bytes(place, "big") ^ int.from_bytes(key, "big")

    for number in count():
        key = key_hash(key_of(f"{number:032x}", Presence))
        if far not in sorted(nodes, key=lambda node: distance(node, key))[:NEAREST]:
            return f"{number:032x}"
    raise AssertionError


@pytest.mark.parametrize(
    ("asks", "planted"),
    [("bootstrap", False), ("member", False), ("bootstrap", True)],
    ids=["of a bootstrap peer", "of a member", "bootstrap peers have only what is near"],
)
def test_a_newcomer_finds_a_swarm_through_whoever_is_not_near_its_records(
    tmp_path: Path, asks: str, planted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is given one peer, and is connected to nobody else. Where a bootstrap peer had only what is near, a newcomer
    saw nobody and started the run anew, beside six that trained it."""
    if planted:
        monkeypatch.setattr(DirectoryLink, "doors", ())

    async def main() -> None:
        async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
            door = await stack.enter_async_context(real_node(tmp_path, nursery, "door", tells=False))
            members = [
                await stack.enter_async_context(real_node(tmp_path, nursery, f"m{n}", door.address, tells=False))
                for n in range(NEAREST + 1)
            ]
            asked = door if asks == "bootstrap" else members[0]
            run = far_run([door, *members], asked)
            with trio.fail_after(60):
                for member in members:  # whose directory has not begun answers nobody
                    await member.directory.link.tried.wait()
            for member in members:
                for other in members:
                    if other is not member:
                        assert await member.p2pd.connect(other.p2pd.peer_id, other.address.addresses, 5.0) is None
                        assert await member.directory.link.meet(other.address, False)
            for member in members:
                member.join(run)
            for member in members:
                await member.wait_for(member.sees(*(other for other in members if other is not member)))
            newcomer = await stack.enter_async_context(real_node(tmp_path, nursery, "n", asked.address, tells=False))
            newcomer.enter(run)
            if planted:
                await newcomer.wait_for(lambda event: event == Directory((), ()))
            else:
                await newcomer.wait_for(newcomer.sees(*members))
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_real_one_whose_neighbour_stands_still_does_not_say_that_there_is_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery, real_node(tmp_path, nursery, "a", tells=False) as first:
            await first.wait_for(lambda event: isinstance(event, Directory))
            (process,) = directory_processes()
            async with real_node(tmp_path, nursery, "b", first.address) as second:
                await second.wait_for(lambda event: event == Directory((), ()))
                process.suspend()
                await second.wait_for(lambda event: isinstance(event, DirectoryLost))
                process.resume()
                await second.wait_for(lambda event: event == Directory((), ()))
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_strangers_cannot_break_it(tmp_path: Path) -> None:
    """A plain hivemind node sends what the library underneath does not survive."""

    async def main() -> None:
        async with trio.open_nursery() as nursery, real_node(tmp_path, nursery, "a") as node:
            await node.wait_for(lambda event: isinstance(event, Directory))
            before = directory_processes()[0].pid
            target = str(node.address)
            script = Path(__file__).with_name("hostile_stranger.py")
            with trio.fail_after(60):
                said = await trio.run_process(
                    [sys.executable, str(script), target, key_of(RUN, Presence)], capture_stdout=True
                )
            assert said.stdout.decode().split() == ["False"] * 5 + ["attacked"]
            status = await node.directory.link.call("status")
            assert (status["records"], status["peers"]) == (2, 0), "our own two records, nothing of a stranger's"
            assert [process.pid for process in directory_processes()] == [before]
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_command_that_fails_is_reported_with_back_off(tmp_path: Path) -> None:
    starts: list[float] = []

    async def main() -> None:
        link: DirectoryLink

        def lost(reason: str) -> None:
            assert "ended at its start (exit status 3)" in reason
            starts.append(trio.current_time())
            if len(starts) == 3:
                scope.cancel()

        link = DirectoryLink(
            NoDialer(), (), log_path=None, on_lost=lost, command=(sys.executable, "-c", "raise SystemExit(3)")
        )
        with trio.fail_after(20), trio.CancelScope() as scope:
            await link.run()

    trio.run(main)
    assert starts[1] - starts[0] >= RESTART_SECONDS
    assert starts[2] - starts[1] >= 2 * RESTART_SECONDS


DIES = """
import socket, sys
from pathlib import Path
lives = Path(sys.argv[1])
lives.write_text(lives.read_text() + "x")
if len(lives.read_text()) <= 8:
    sys.exit(3)
ours = socket.socket(fileno=int(sys.argv[2]))
ready = bytes([0x81, 0xa5]) + b"ready" + bytes([0xc3])
ours.sendall(len(ready).to_bytes(4, "big") + ready)
ours.recv(1)
"""


def test_it_is_started_again_for_as_long_as_the_node_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(link_module, "RESTART_SECONDS", 0.01)
    monkeypatch.setattr(link_module, "RESTART_SECONDS_MAX", 0.04)
    lives = tmp_path / "lives"
    lives.write_text("")
    troubles: list[str] = []

    async def main() -> None:
        command = (sys.executable, "-c", DIES, str(lives))
        link = DirectoryLink(
            NoDialer(), (), log_path=None, on_lost=lambda _: troubles.append(link.trouble), command=command
        )
        assert link.trouble == "", "it has not started yet, which is no trouble"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            with trio.fail_after(30):
                while not link.up.is_set():  # a new event after each death
                    await trio.lowlevel.checkpoint()
            assert link.trouble == ""
            nursery.cancel_scope.cancel()

    trio.run(main)
    waits = [record.args[1] for record in caplog.records if "starting it again" in record.msg]  # type: ignore[index]
    assert waits == [0.01, 0.02] + 6 * [0.04]
    assert len(troubles) == 8 and all(
        "its directory to be back" in told and "(exit status 3)" in told for told in troubles
    )


def test_a_life_of_some_minutes_ends_the_growth_of_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    lives = [1.0, 1.0, link_module.STEADY_SECONDS + 1, 1.0]
    at: list[float] = []

    async def live(link: DirectoryLink) -> str:
        at.append(trio.current_time())
        if not lives:
            await trio.sleep_forever()
        await until(lives.pop(0))
        return "it died"

    monkeypatch.setattr(DirectoryLink, "_live_once", live)

    async def main() -> None:
        link = DirectoryLink(NoDialer(), (), log_path=None, on_lost=lambda _: None)
        with trio.move_on_after(1000):
            await link.run()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    steady = link_module.STEADY_SECONDS
    assert [round(later - earlier, 3) for earlier, later in pairwise(at)] == [2.0, 3.0, steady + 2, 3.0]


def test_without_network_it_is_not_asked(tmp_path: Path) -> None:
    """It would dial in vain, and p2pd would then refuse for some seconds to dial again."""

    async def main() -> None:
        async with trio.open_nursery() as nursery, real_node(tmp_path, nursery, "a") as node:
            await node.wait_for(lambda event: isinstance(event, Directory))
            node.p2pd.offline = True
            with pytest.raises(DirectoryDown, match="no network"):
                await node.directory.link.call("status")
            node.p2pd.offline = False
            assert await node.directory.link.call("status")
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_real_one_that_is_killed_six_times_is_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "RESTART_SECONDS", 0.05)
    monkeypatch.setattr(link_module, "RESTART_SECONDS_MAX", 0.1)

    async def main() -> None:
        async with trio.open_nursery() as nursery, real_node(tmp_path, nursery, "a") as node:
            for _ in range(6):
                await node.wait_for(lambda event: isinstance(event, Directory))
                (victim,) = directory_processes()
                victim.send_signal(signal.SIGKILL)
                await node.wait_for(lambda event: isinstance(event, DirectoryLost))
            await node.wait_for(lambda event: isinstance(event, Directory))
            nursery.cancel_scope.cancel()

    trio.run(main)


SILENT = """
import socket, sys
ours = socket.socket(fileno=int(sys.argv[1]))
ready = bytes([0x81, 0xa5]) + b"ready" + bytes([0xc3])
ours.sendall(len(ready).to_bytes(4, "big") + ready)
while ours.recv(65536):
    pass
"""


def test_a_process_that_answers_nothing_is_started_again() -> None:
    reasons: list[str] = []

    async def main() -> None:
        link = DirectoryLink(
            NoDialer(), (), log_path=None, on_lost=reasons.append, command=(sys.executable, "-c", SILENT)
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            with trio.fail_after(20):
                first = link.up
                await first.wait()
                for _ in range(3):
                    assert reasons == []
                    with pytest.raises(DirectoryDown, match="did not answer"):
                        await link.call("status", seconds=0.1)
                while link.up is first:
                    await trio.lowlevel.checkpoint()
                await link.up.wait()
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert reasons == ["the directory process died (-9)"]
