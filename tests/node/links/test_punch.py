"""A direct connection with a word from a relay, on loopback: who is told what, and who is not."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from ftnode.node.links import punch
from ftnode.node.links.addresses import PeerAddress
from ftnode.node.links.punch import PUNCH_PROTOCOL, Ask, No, Opened, Puncher, Wanted, shake_hands
from ftnode.node.links.relay import reserve
from ftnode.node.links.relay_service import RelayService
from ftnode.node.links.side_messages import hear, say
from ftnode.protocol.words.events import LinkUp
from tests.node.links.linked_node import Node, eventually, limited, node


@asynccontextmanager
async def three(folder: Path) -> AsyncIterator[tuple[Node, Node, Node]]:
    """A point, and two that have a place at it and know nothing of each other but that."""
    async with node(folder, 1) as point, node(folder, 2) as one, node(folder, 3) as other:
        where = PeerAddress(point.peer.id, await point.p2pd.addresses())
        for each in (one, other):
            each.p2pd.gate.give([where])
            each.relays.add(point.peer.id)
            await each.p2pd.connect(point.peer.id, where.addresses, 5)
        yield point, one, other


async def circuit_of(point: Node) -> str:
    return f"{(await point.p2pd.addresses())[0]}/p2p/{point.peer.id}/p2p-circuit"


async def ends(here: Node, there: Node) -> list[str]:
    return [address for owner, address in await here.p2pd.connections() if owner == there.peer.id]


def reached(one: Node, other: Node) -> bool:
    """Whether the last try of one with the other brought a connection, and no router is said to have been opened: on
    this machine there is none."""
    assert not one.puncher.rules.punched
    return one.puncher.rules.way(other.peer.id) == "direct"


def test_a_link_to_a_peer_behind_a_relay_is_direct(tmp_path: Path) -> None:
    async def main() -> None:
        async with three(tmp_path) as (point, one, other):
            one.transport.know(other.peer.id, other.with_card((await circuit_of(point),)))
            one.transport.dial(other.peer)
            assert await one.next(LinkUp) == LinkUp(other.peer)
            (end,) = await ends(one, other)
            assert end == (await other.p2pd.addresses())[0]
            assert reached(one, other)

    limited(main)


def test_both_may_ask_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with three(tmp_path) as (point, one, other):
            circuit = await circuit_of(point)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one.puncher.reach, other.peer.id, [circuit])
                nursery.start_soon(other.puncher.reach, one.peer.id, [circuit])
            assert await ends(one, other) and await ends(other, one)
            await eventually(lambda: both_reached(one, other))  # who is asked knows a moment after who asks

    limited(main)


async def both_reached(one: Node, other: Node) -> bool:
    await trio.lowlevel.checkpoint()
    return reached(one, other) and reached(other, one)


def test_when_nothing_comes_through_it_ends_and_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def deaf(_self: Puncher, _peer_id: str, _addresses: object) -> bool:
        await trio.lowlevel.checkpoint()
        return False

    monkeypatch.setattr(Puncher, "_dial", deaf)

    async def main() -> None:
        async with three(tmp_path) as (point, one, other):
            circuit = await circuit_of(point)
            await one.puncher.reach(other.peer.id, [circuit])
            assert await ends(one, other) == []
            assert one.puncher.rules.trouble == "neither router let the other's packets in"
            with trio.fail_after(0.05):
                await one.puncher.reach(other.peer.id, [circuit])

    limited(main)


@asynccontextmanager
async def a_circuit(folder: Path) -> AsyncIterator[tuple[Node, Node, str]]:
    """Between two that could have a direct connection."""
    async with three(folder) as (point, one, other):
        await RelayService(point.p2pd).serve()
        await reserve(other.p2pd, PeerAddress(point.peer.id, await point.p2pd.addresses()))
        circuit = await circuit_of(point)
        await one.p2pd.connect(other.peer.id, (circuit,), 5)
        assert await ends(one, other) == [circuit]
        yield one, other, circuit


def test_a_circuit_gives_way_to_a_direct_connection_when_it_may(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_circuit(tmp_path) as (one, other, circuit):
            await one.puncher.reach(other.peer.id, [circuit])
            assert await ends(one, other) == [circuit], "not unasked, in the middle of a step"
            await one.puncher.reach(other.peer.id, [circuit], instead=True)
            assert await ends(one, other) == [(await other.p2pd.addresses())[0]]
            assert reached(one, other)

    limited(main)


def test_a_circuit_stays_as_long_as_nothing_comes_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def dropped(*_arguments: object) -> bool:
        await trio.lowlevel.checkpoint()
        return False

    monkeypatch.setattr(punch, "shake_hands", dropped)

    async def main() -> None:
        async with a_circuit(tmp_path) as (one, other, circuit):
            broken: list[str] = []
            for each in (one, other):
                monkeypatch.setattr(each.p2pd, "disconnect", broken.append)
            await one.puncher.reach(other.peer.id, [circuit], instead=True)
            assert await ends(one, other) == [circuit] and broken == []
            assert one.puncher.rules.trouble == "neither router let the other's packets in"

    limited(main)


def test_a_stranger_learns_nothing_and_has_nobody_dialled(tmp_path: Path) -> None:
    async def main() -> None:
        async with three(tmp_path) as (point, one, other):
            other.puncher._admits = lambda peer_id: peer_id != one.peer.id
            stream = await one.p2pd.open(point.peer.id, PUNCH_PROTOCOL, 5)
            await say(stream, Ask(other.peer.id))
            assert await hear(stream, {"No": No, "Opened": Opened}, 1024) == No("it may not take part")

            with socket.create_server(("127.0.0.1", 0)) as foreign:
                foreign.setblocking(False)
                await one.p2pd.connect(other.peer.id, await other.p2pd.addresses(), 5)
                stream = await one.p2pd.open(other.peer.id, PUNCH_PROTOCOL, 5)
                await say(stream, Wanted(point.peer.id, f"/ip4/127.0.0.1/tcp/{foreign.getsockname()[1]}"))
                assert await hear(stream, {"No": No}, 1024) == No("it is no relay of ours")
                stream = await point.p2pd.open(other.peer.id, PUNCH_PROTOCOL, 5)
                await say(stream, Wanted(point.peer.id, "/ip4/192.168.1.1/tcp/4101"))
                assert await hear(stream, {"No": No}, 1024) == No("that address is not dialled")
                with pytest.raises(BlockingIOError):
                    foreign.accept()

    limited(main)


def test_nonsense_costs_its_stream_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with three(tmp_path) as (point, one, other):
            for sent in (b"\xff" * 8, b"\x00\x00\x00\x01\xc1", b"\x00\x00\x00\x05\x92\xa3Ask\x01"):
                stream = await one.p2pd.open(point.peer.id, PUNCH_PROTOCOL, 5)
                await stream.send_all(sent)
                assert await stream.receive_some(10) == b""
                await stream.aclose()
            await one.puncher.reach(other.peer.id, [await circuit_of(point)])
            assert await ends(one, other)

    limited(main)


def test_a_first_packet_comes_from_the_port_where_we_listen_and_nothing_follows(tmp_path: Path) -> None:
    async def main() -> None:
        async with node(tmp_path) as here:
            own = await here.p2pd.addresses()
            with socket.create_server(("127.0.0.1", 0)) as there:
                assert await shake_hands(own, f"/ip4/127.0.0.1/tcp/{there.getsockname()[1]}", 0.15)
                there.settimeout(2)
                opened, who = there.accept()
                assert who[1] == int(own[0].split("/")[4])
                with opened, pytest.raises(ConnectionResetError):
                    opened.recv(1)

    limited(main)
