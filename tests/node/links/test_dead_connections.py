"""Connections that lead nowhere any more: whom to test, what a test says, and what is closed."""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import trio

from ftnode.node.home.identity import take_identity
from ftnode.node.links import dead_connections
from ftnode.node.links.addresses import PeerAddress
from ftnode.node.links.dead_connections import (
    LOST_BEATS,
    QUIET_BEATS,
    SEEN_PROTOCOL,
    DeadConnections,
    Echo,
    Silences,
    answers,
    ask_place,
    dead_ones,
    drop_doubled,
    in_use,
    is_ours,
    seen_handler,
)
from ftnode.node.links.p2pd import P2pd, P2pdError
from ftnode.protocol.words.events import LinkUp, Received
from tests.node.links.line import Line
from tests.node.links.linked_node import Node, eventually, limited, node, word

BEAT = 2.0
RELAY = "12D3KooWQPgLiPPAdpzcmTiKSHRZk2X9t1kqiKU67Va7BBDCBpMf"
DEAD, PAUSED, FINE = Echo(answered=False, found=True), Echo(answered=False, found=False), Echo(True, False)
FULL_LINE = Echo(answered=False, found=True, acknowledged=True)
V6_LOOPBACK = ("/ip6/::1/tcp/0",)


def test_who_is_late_is_tested_once_a_beat_until_a_lease_is_over() -> None:
    silences, tested = Silences(BEAT), list[tuple[str, float]]()
    silences.heard("late", 0.0)
    for tick in range(200):
        now = tick / 10
        silences.heard("regular", now)
        tested += [(peer_id, now) for peer_id in silences.quiet({"late", "regular", "never heard"}, now)]
    moments = [now for _, now in tested]
    assert {peer_id for peer_id, _ in tested} == {"late"}
    assert moments[0] == QUIET_BEATS * BEAT
    assert all(later - earlier >= BEAT for earlier, later in pairwise(moments))
    assert moments[-1] < LOST_BEATS * BEAT


def test_a_broken_link_is_reason_enough_and_strangers_are_none() -> None:
    silences = Silences(BEAT)
    for peer_id in ("member", "stranger"):
        silences.heard(peer_id, 0.0)
        silences.broken(peer_id)
    assert silences.quiet({"member"}, 0.1) == ("member",)
    assert silences.quiet({"member", "stranger"}, 0.2) == (), "once, and who was no member is forgotten"


@pytest.mark.parametrize(
    ("members", "relays", "moved", "found"),
    [
        ({"a": DEAD}, {}, False, ((), ("a",))),
        ({"a": PAUSED}, {}, False, ((), ())),
        ({"a": FULL_LINE}, {}, False, ((), ())),
        ({"a": FULL_LINE}, {RELAY: DEAD}, False, ((RELAY,), ())),
        ({"a": FINE}, {}, False, ((), ())),
        ({"a": PAUSED}, {RELAY: FINE}, False, ((), ())),
        ({"a": PAUSED, "b": FINE}, {RELAY: DEAD}, False, ((RELAY,), ("a",))),
        ({"a": PAUSED, "b": FINE}, {RELAY: FINE}, True, ((), ("a",))),
        ({}, {RELAY: PAUSED}, False, ((), ())),
    ],
)
def test_what_tests_say(
    members: dict[str, Echo],
    relays: dict[str, Echo],
    moved: bool,
    found: tuple[tuple[str, ...], tuple[str, ...]],
) -> None:
    """A peer that is paused keeps its connection, unless it is we who have moved."""
    assert dead_ones(members, relays, moved) == found


def test_addresses_in_use_are_those_of_direct_ways_to_other_machines() -> None:
    own = (
        "/ip4/127.0.0.1/tcp/4101",
        "/ip6/::1/tcp/4101",
        "/ip6/2a44:77::2/tcp/4101",
        "/dns4/example.org/tcp/4101",
        f"/ip4/44.77.0.1/tcp/4101/p2p/{RELAY}/p2p-circuit",
    )
    assert in_use(own, ("44.77.0.9",)) == {"2a44:77::2", "44.77.0.9"}


def test_an_address_is_ours_while_it_can_be_bound() -> None:
    assert is_ours("127.0.0.1") and is_ours("::1")
    assert not is_ours("192.0.2.7") and not is_ours("2001:db8::7")


class FakeP2pd:
    """Connections by PeerId, and what was closed."""

    def __init__(self, connections: dict[str, list[str]], own: tuple[str, ...]) -> None:
        self.ends, self.closed = connections, list[str]()
        self.gate = type("Gate", (), {"own": own})()

    async def connections(self) -> tuple[tuple[str, str], ...]:
        return tuple((peer_id, end) for peer_id, ends in self.ends.items() for end in ends)

    async def peers(self) -> tuple[str, ...]:
        return tuple(peer_id for peer_id, ends in self.ends.items() if ends)

    async def disconnect(self, peer_id: str, it_comes: bool = False) -> None:
        self.closed.append(peer_id)
        self.ends[peer_id] = []

    async def connect(self, *_: object) -> None:
        raise P2pdError("not in this test")


def watcher(p2pd: FakeP2pd, moves: list[str], members: Collection[str] = ()) -> DeadConnections:
    return DeadConnections(p2pd, [], BEAT, lambda: members, tuple, lambda: moves.append("moved"))  # type: ignore[arg-type]


def test_when_an_address_of_ours_goes_all_connections_to_other_machines_are_closed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, moves = {"2a44:77::2"}, list[str]()
    monkeypatch.setattr(dead_connections, "is_ours", lambda host: host in ours)
    p2pd = FakeP2pd(
        {"far": ["/ip6/2a44:77::9/tcp/1"], "here": ["/ip6/::1/tcp/1"]}, ("/ip6/2a44:77::2/tcp/4101", "/ip6/::1/tcp/1")
    )

    async def main() -> None:
        found = watcher(p2pd, moves)
        await found.look()
        assert p2pd.closed == [] and not moves
        ours.clear()
        ours.add("2a44:77::99")
        await found.look()
        assert p2pd.closed == ["far"] and moves == ["moved"]
        await found.look()  # p2pd names the old address for some seconds
        assert p2pd.closed == ["far"] and moves == ["moved"]

    trio.run(main)


def test_connections_stay_while_there_is_no_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """p2pd would dial for every stream that is opened, and then not again for five seconds."""
    ours, moves = {"192.0.2.2"}, list[str]()
    monkeypatch.setattr(dead_connections, "is_ours", lambda host: host in ours)
    monkeypatch.setattr(dead_connections, "source_of", lambda host: next(iter(ours), ""))
    p2pd = FakeP2pd({"far": ["/ip4/192.0.2.9/tcp/1"]}, ("/ip4/192.0.2.2/tcp/4101",))
    given = PeerAddress("far", ("/ip4/192.0.2.9/tcp/1",))

    async def main() -> None:
        found = DeadConnections(p2pd, [given], BEAT, tuple, tuple, lambda: moves.append("moved"))  # type: ignore[arg-type]
        await found.look()
        ours.clear()
        for _ in range(3):
            await found.look()
        assert p2pd.closed == [] and not moves
        ours.add("192.0.2.99")
        await found.look()
        assert p2pd.closed == ["far"] and moves == ["moved"]
        await found.look()
        assert p2pd.closed == ["far"] and moves == ["moved"]

    trio.run(main)


@pytest.mark.parametrize(("ends", "closed"), [([], []), (["/ip4/44.77.0.2/tcp/1"], []), (["old", "new"], ["it"])])
def test_only_doubled_connections_are_closed(ends: list[str], closed: list[str]) -> None:
    async def main() -> None:
        p2pd = FakeP2pd({"it": ends, "other": ["one", "two"]}, ())
        assert await drop_doubled(p2pd, "it") == bool(closed)  # type: ignore[arg-type]
        assert p2pd.closed == closed

    trio.run(main)


@pytest.fixture
def identities(tmp_path: Path) -> Iterator[list[Path]]:
    taken = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir(mode=0o700)
        taken.append(take_identity(tmp_path / name))
    yield [identity.path for identity in taken]
    for identity in taken:
        identity.release()


def test_a_peer_that_asks_hears_where_it_is_seen_and_p2pd_answers_by_itself(identities: list[Path]) -> None:
    """On ::1, with real p2pd's. Who is not connected answers nothing, and is not dialled to find out."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            one = await P2pd.start(nursery, identities[0], listen=V6_LOOPBACK)
            other = await P2pd.start(nursery, identities[1], listen=V6_LOOPBACK)
            try:
                await other.serve(SEEN_PROTOCOL, seen_handler(other))
                peer = PeerAddress(other.peer_id, await other.addresses())
                one.gate.give([peer])
                place = await ask_place(one, peer, 5.0)
                assert place == (await one.addresses())[0], "p2pd dials from where it listens"
                assert await answers(one, other.peer_id, 5.0)
                ends = [end for _, end in await one.connections()]
                test = await dead_connections.test_connection(one, other.peer_id, ends, 5.0)
                assert test.answered and not test.dead
                other.process.send_signal(signal.SIGSTOP)
                try:
                    while await answers(one, other.peer_id, 0.2):
                        pass  # until all of its threads have stopped
                    test = await dead_connections.test_connection(one, other.peer_id, ends, 0.5)
                    assert not test.answered and not test.found and not test.dead
                finally:
                    other.process.send_signal(signal.SIGCONT)
                other.close()
                with trio.fail_after(5):
                    while await one.connections():
                        await trio.lowlevel.checkpoint()
                assert await dead_connections.test_connection(one, other.peer_id, [], 0.5) == PAUSED
                assert await ask_place(one, peer, 0.5) == ""
            finally:
                one.close()
                other.close()
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_connection_that_carries_nothing_is_told_from_a_peer_that_is_paused(
    identities: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two stands a line that stops carrying; the listener answers on any new connection. The line's own end
    still acknowledges, as the kernel of a peer does whose line is full."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            one = await P2pd.start(nursery, identities[0], listen=())
            other = await P2pd.start(nursery, identities[1], listen=V6_LOOPBACK)
            try:
                port = int((await other.addresses())[0].split("/")[4])
                line = await Line.open(nursery, port)
                one.gate.give([PeerAddress(other.peer_id, (line.address,))])
                await one.connect(other.peer_id, (line.address,), 5.0)
                ends = [end for _, end in await one.connections()]
                assert ends == [line.address]
                assert not (await dead_connections.test_connection(one, other.peer_id, ends, 2.0)).dead
                line.cut()
                assert await dead_connections.test_connection(one, other.peer_id, ends, 2.0) == FULL_LINE
                monkeypatch.setattr(dead_connections, "acknowledged", lambda host, port: False)
                assert (await dead_connections.test_connection(one, other.peer_id, ends, 2.0)).dead
            finally:
                one.close()
                other.close()
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_who_dials_anew_has_the_old_connection_closed_on_the_other_side(tmp_path: Path) -> None:
    """p2pd would go on to use the old one there, which carries nothing."""

    async def main() -> None:
        async with (
            node(tmp_path, listen=V6_LOOPBACK) as mover,
            node(tmp_path, 2, listen=V6_LOOPBACK) as stayer,
            trio.open_nursery() as nursery,
        ):
            where = await stayer.p2pd.addresses()
            line = await Line.open(nursery, int(where[0].split("/")[4]))
            mover.p2pd.gate.give([PeerAddress(stayer.peer.id, (line.address, *where))])
            await mover.p2pd.connect(stayer.peer.id, (line.address,), 5.0)
            await mover.meet(stayer)
            await stayer.meet(mover)
            line.cut()
            await mover.p2pd.disconnect(stayer.peer.id)
            assert await mover.next(LinkUp) == LinkUp(stayer.peer)
            with trio.fail_after(4):
                await stayer.next(LinkUp)
                stayer.transport.send(mover.peer, word("here you are"), None)
                assert (await mover.next(Received)).message == word("here you are")
            await eventually(lambda: stayer_has_one(stayer))
            nursery.cancel_scope.cancel()

    limited(main)


async def stayer_has_one(stayer: Node) -> bool:
    return len(await stayer.p2pd.connections()) == 1
