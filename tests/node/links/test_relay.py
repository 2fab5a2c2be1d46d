"""Volunteers that nobody can dial: a place at a relay, links through it, and how a node finds out what it needs."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from ftnode.node.directory.records import ADDRESS_BYTES_MAX, ADDRESSES_MAX
from ftnode.node.home.identity import take_identity
from ftnode.node.links import dial_back, reachability
from ftnode.node.links import p2pd_messages as messages
from ftnode.node.links.addresses import PeerAddress, is_dialable
from ftnode.node.links.bandwidth import Bandwidth, Gate
from ftnode.node.links.dial_back import KNOCK_PROTOCOL, ask, host_of, knock, knock_handler
from ftnode.node.links.link import refuses
from ftnode.node.links.listening import address_bytes
from ftnode.node.links.p2pd import LOOPBACK, P2pd, P2pdError
from ftnode.node.links.reachability import (
    ANNOUNCED_MAX,
    Reach,
    Reachability,
    across,
    believed,
    needs_relay,
    on_this_machine,
    reach_of,
)
from ftnode.node.links.relay import RelayPlace, circuits, reserve
from ftnode.node.links.relay_service import RelayService
from ftnode.protocol.words.events import LinkDown, LinkUp, Received
from tests.node.links.linked_node import BOUNDARY_BYTES, Node, limited, node, send_tensor, word

ID = "12D3KooWQPgLiPPAdpzcmTiKSHRZk2X9t1kqiKU67Va7BBDCBpMf"
OTHER = "12D3KooWNYfYW2B8HBPp7iis6qZP7BnRSD1BTF99BLCVQHkD56P7"
OURS = ("/ip4/192.0.2.1/tcp/1",)
RELAYED = f"/ip4/192.0.2.2/tcp/2/p2p/{ID}/p2p-circuit"
PLACE = RelayPlace(ID, (RELAYED,))


@asynccontextmanager
async def peer(home: Path, relays: bool = False, listen: Sequence[str] = LOOPBACK) -> AsyncIterator[P2pd]:
    """Somebody who answers knocks; a meeting point relays as well."""
    identity = take_identity(home)
    async with trio.open_nursery() as nursery:
        p2pd = await P2pd.start(nursery, identity.path, listen=listen)
        try:
            if relays:
                await RelayService(p2pd).serve()
            await p2pd.serve(KNOCK_PROTOCOL, knock_handler(p2pd))
            yield p2pd
        finally:
            p2pd.close()
            identity.release()
            nursery.cancel_scope.cancel()


async def where(p2pd: P2pd) -> PeerAddress:
    return PeerAddress(p2pd.peer_id, await p2pd.addresses())


async def take_place(hidden: Node, point: P2pd) -> Reach:
    hidden.p2pd.gate.give([await where(point)])
    reach = await Reachability(hidden.p2pd, [await where(point)], lambda reach: None).look()
    hidden.transport.move(hidden.with_card(reach.addresses))
    return reach


def test_messages_and_tensors_both_ways_through_a_relay(tmp_path: Path) -> None:
    async def main() -> None:
        async with peer(tmp_path, True) as point, node(tmp_path, 1, listen=()) as hidden, node(tmp_path, 2) as third:
            assert await hidden.p2pd.addresses() == ()
            reach = await take_place(hidden, point)
            assert reach.kind == "relay"
            (address,) = reach.addresses
            (direct,) = await point.addresses()
            assert address == f"{direct}/p2p/{point.peer_id}/p2p-circuit"
            assert is_dialable(address)

            third.transport.know(hidden.peer.id, hidden.with_card(reach.addresses))
            third.transport.dial(hidden.peer)
            assert await third.next(LinkUp) == LinkUp(hidden.peer)
            assert (hidden.p2pd.peer_id, address) in await third.p2pd.connections()
            hidden.transport.send(third.peer, word("there"), None)
            assert (await third.next(Received)).message == word("there")
            for number in range(4):  # far more than the 128 KB of a relay that limits its circuits
                for sender, receiver in ((third, hidden), (hidden, third)):
                    send_tensor(sender, receiver, number)
                    got = await receiver.next(Received)
                    assert got.sender == sender.peer and got.handle is not None and got.relay == point.peer_id
                    assert len(receiver.arena.view(got.handle)) == BOUNDARY_BYTES
                    receiver.arena.release(got.handle)

    limited(main)


def test_who_carries_a_stream_is_known_at_both_of_its_ends(tmp_path: Path) -> None:
    """Also where there are limits. The relay has streams of its own with both, which nobody carries."""
    protocol, seen = "/test/1", trio.open_memory_channel[str](3)

    async def main() -> None:
        async with peer(tmp_path, True) as point, node(tmp_path, 1, listen=()) as hidden, node(tmp_path, 2) as third:
            hidden.p2pd.bandwidth = Bandwidth(Gate(1e9), Gate(1e9))

            async def handle(peer_id: str, stream: trio.SocketStream) -> None:
                await stream.send_all(b"!")
                await seen[0].send(hidden.p2pd.relay_of(stream))

            third.transport.know(hidden.peer.id, hidden.with_card((await take_place(hidden, point)).addresses))
            await hidden.p2pd.serve(protocol, handle)
            stream = await third.transport.open(hidden.peer.id, protocol)
            with trio.fail_after(5):
                assert await stream.receive_some(1) == b"!"
                assert [third.p2pd.relay_of(stream), await seen[1].receive()] == [point.peer_id] * 2
                stream = await point.open(hidden.peer.id, protocol, 5)
                assert [point.relay_of(stream), await seen[1].receive()] == ["", ""]

    limited(main)


def test_two_that_nobody_can_dial_meet_through_the_relay(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            peer(tmp_path, True) as point,
            node(tmp_path, 1, listen=()) as one,
            node(tmp_path, 2, listen=()) as two,
        ):
            await take_place(one, point)
            two.transport.know(one.peer.id, one.with_card((await take_place(one, point)).addresses))
            await take_place(two, point)
            send_tensor(two, one, 1)
            assert (await one.next(Received)).sender == two.peer
            send_tensor(one, two, 1)
            assert (await two.next(Received)).sender == one.peer

    limited(main)


def test_a_killed_peer_behind_a_relay_is_noticed_but_never_called_refused(tmp_path: Path) -> None:
    """The relay still answers there, and the peer may come back to it."""

    async def main() -> None:
        async with peer(tmp_path, True) as point, node(tmp_path, 1, listen=()) as hidden, node(tmp_path, 2) as third:
            reach = await take_place(hidden, point)
            third.transport.know(hidden.peer.id, hidden.with_card(reach.addresses))
            third.transport.dial(hidden.peer)
            await third.next(LinkUp)
            os.kill(hidden.p2pd.process.pid, signal.SIGKILL)
            for _ in range(2):  # the link, then its one redial
                down = await third.next(LinkDown)
                assert (down.peer, down.refused) == (hidden.peer, False)
            assert not await refuses(reach.addresses)

    limited(main)


def test_a_volunteer_is_no_relay(tmp_path: Path) -> None:
    """Every libp2p host relays a little; its own answer says how little."""

    async def main() -> None:
        async with peer(tmp_path) as other, node(tmp_path, listen=()) as hidden:
            with pytest.raises(P2pdError, match="131072 bytes per circuit"):
                hidden.p2pd.gate.give([await where(other)])
                await reserve(hidden.p2pd, await where(other))
            reach = await take_place(hidden, other)
            assert (reach.kind, reach.addresses) == ("nobody", ())
            assert "we listen nowhere" in reach.reason and "131072" in reach.reason

    limited(main)


def test_who_can_be_dialled_needs_no_relay(tmp_path: Path) -> None:
    async def main() -> None:
        async with peer(tmp_path, True) as point, node(tmp_path) as here:
            reach = await take_place(here, point)
            assert (reach.kind, reach.addresses) == ("direct", await here.p2pd.addresses())
            assert point.peer_id in reach.reason and reach.addresses[0] in reach.reason

    limited(main)


def test_a_relay_that_goes_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachability, "LOOK_SECONDS", 0.2)
    send, heard = trio.open_memory_channel[Reach](10)

    async def main() -> None:
        async with node(tmp_path / "hidden", listen=()) as hidden, trio.open_nursery() as nursery:
            async with peer(tmp_path / "point", True) as point:
                address = await where(point)
                hidden.p2pd.gate.give([address])
                looks = Reachability(hidden.p2pd, [address], send.send_nowait)
                nursery.start_soon(looks.run)
                while (await heard.receive()).kind != "relay":
                    pass
            while (await heard.receive()).kind != "nobody":
                pass
            async with peer(tmp_path / "point", True, address.addresses):
                with trio.fail_after(15):  # p2pd waits some seconds before it dials an address again that has failed
                    while (await heard.receive()).kind != "relay":
                        pass
            nursery.cancel_scope.cancel()

    (tmp_path / "hidden").mkdir()
    (tmp_path / "point").mkdir()
    limited(main)


def test_a_knock_says_which_address_is_open_and_tries_no_other_host(tmp_path: Path) -> None:
    async def main() -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            shut = f"/ip4/127.0.0.1/tcp/{closed.getsockname()[1]}"
            async with peer(tmp_path) as here, peer(tmp_path) as there:
                (own,) = await here.addresses()
                (foreign,) = await there.addresses()
                assert await ask(here, await where(there), [shut]) == ""
                assert await ask(here, await where(there), [shut, own]) == own
                assert await ask(here, await where(there), [foreign]) == "", "somebody else answers there"

                async def tried(addresses: list[object], *hosts: str) -> str:
                    return await knock(there.gate, here.peer_id, addresses, [f"/ip4/{host}/tcp/1" for host in hosts])

                assert await tried([own], "127.0.0.1") == own
                assert await tried([own.replace("127.0.0.1", "0.0.0.0")], "127.0.0.1") == own
                assert await tried([own.replace("127.0.0.1", "127.0.0.2")], "127.0.0.1") == "", "at no other host"
                assert await tried([own], "192.0.2.1") == ""
                assert await tried([own]) == ""
                assert await tried([3, None, "", "/ip4/127.0.0.1", RELAYED], "127.0.0.1") == ""

    limited(main)


def test_nonsense_for_a_knock_costs_its_stream_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with peer(tmp_path) as here, peer(tmp_path) as there:
            await here.connect(there.peer_id, await there.addresses(), 5)
            for sent in (b"\xff" * 8, b"\x00\x00\x00\x01\xc1", b"\x00\x00\x00\x01\x05"):
                stream = await here.open(there.peer_id, KNOCK_PROTOCOL, 5)
                await stream.send_all(sent)
                assert await stream.receive_some(10) == b""
                await stream.aclose()
            assert await ask(here, await where(there), await here.addresses()) in await here.addresses()

    limited(main)


def test_the_host_of_an_address() -> None:
    assert host_of("/ip4/192.0.2.1/tcp/1") == "192.0.2.1"
    assert [host_of(other) for other in (RELAYED, "/ip4/192.0.2.1/udp/1/quic-v1", "nonsense", "")] == [""] * 4


@pytest.mark.parametrize(
    ("own", "answers", "places", "kind", "announced"),
    [
        ((), {}, (), "nobody", ()),
        ((), {}, (PLACE,), "relay", (RELAYED,)),
        (OURS, {}, (), "unknown", OURS),
        (OURS, {ID: OURS[0]}, (), "direct", OURS),
        (OURS, {ID: OURS[0], OTHER: OURS[0]}, (PLACE,), "direct", OURS),
        (OURS, {ID: ""}, (), "nobody", OURS),
        (OURS, {ID: ""}, (PLACE,), "relay", (RELAYED, *OURS)),
        (OURS, {ID: OURS[0], OTHER: ""}, (PLACE,), "relay", (RELAYED, *OURS)),
    ],
)
def test_what_the_answers_mean(
    own: tuple[str, ...], answers: dict[str, str], places: tuple[RelayPlace, ...], kind: str, announced: tuple[str, ...]
) -> None:
    reach = reach_of(own, answers, places, "")
    assert (reach.kind, reach.addresses) == (kind, announced)
    assert needs_relay(own, answers) == (kind in ("relay", "nobody"))
    assert str(reach).startswith(f"{kind}: ")


GOT, NOT = {ID: OURS[0]}, {ID: ""}


@pytest.mark.parametrize(
    ("before", "told", "again", "found"),
    [
        ({}, GOT, False, (GOT, False)),
        ({}, NOT, False, (NOT, True)),
        (NOT, NOT, True, (NOT, False)),
        (NOT, NOT, False, (NOT, False)),
        (NOT, GOT, False, (GOT, False)),
        (GOT, NOT, False, (GOT, True)),
        (GOT, NOT, True, (NOT, False)),
        (GOT, {**GOT, OTHER: ""}, False, (GOT, True)),
        ({**GOT, OTHER: ""}, NOT, False, (NOT, True)),
    ],
)
def test_who_is_only_busy_for_a_moment_does_not_make_us_unreachable(
    before: dict[str, str], told: dict[str, str], again: bool, found: tuple[dict[str, str], bool]
) -> None:
    assert believed(before, told, again) == found


HERE, THERE = PeerAddress(ID, ("/ip4/127.0.0.1/tcp/1",)), PeerAddress(ID, ("/ip4/192.0.2.1/tcp/1",))


def test_what_is_on_one_machine() -> None:
    assert on_this_machine(("/ip4/127.0.0.1/tcp/2", "/ip6/::1/tcp/2"), [HERE]) and on_this_machine(HERE.addresses, [])
    assert not on_this_machine((), [HERE]), "who listens nowhere is found through a relay alone"
    assert not on_this_machine(HERE.addresses, [THERE]) and not on_this_machine(OURS, [HERE])


def test_on_one_machine_nobody_takes_a_place_because_another_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its peers would look for it behind a router, and would not notice at once that it is gone."""

    async def main() -> None:
        async with peer(tmp_path, True) as point, node(tmp_path, 1) as here:
            here.p2pd.gate.give([await where(point)])
            listens = dial_back.listens
            own = Reachability(here.p2pd, [await where(point)], lambda reach: None)
            monkeypatch.setattr(dial_back, "listens", nobody_in_time)
            reach = await own.look()
            assert (reach.kind, reach.addresses) == ("unknown", await here.p2pd.addresses())
            assert not own.relays
            monkeypatch.setattr(dial_back, "listens", listens)
            assert (await own.look()).kind == "direct", "it is asked again with the next look"
            monkeypatch.setattr(dial_back, "listens", nobody_in_time)
            own.renew()
            assert (await own.look()).kind == "direct"

    limited(main)


async def nobody_in_time(_peer: str, _host: str, _port: int) -> bool:
    await trio.sleep_forever()
    return False


FOUR, SIX = ("/ip4/192.0.2.1/tcp/4101", "/ip4/127.0.0.1/tcp/4101"), ("/ip6/2606:4700::2/tcp/4101",)
BRIDGE = f"/ip6/2606:4700::1/tcp/2/p2p/{ID}/p2p-circuit"
BOTH = RelayPlace(ID, (RELAYED, BRIDGE))


@pytest.mark.parametrize(
    ("own", "places", "found"),
    [
        (FOUR, (BOTH,), (BRIDGE,)),
        (SIX, (BOTH,), (RELAYED,)),
        ((*FOUR, *SIX), (BOTH,), ()),
        (FOUR, (PLACE,), ()),
        ((), (BOTH,), ()),
        (("/ip4/127.0.0.1/tcp/4101", "/ip6/::1/tcp/4101"), (BOTH,), ()),
    ],
)
def test_who_has_one_kind_of_ip_is_reached_by_the_other_through_a_relay_that_has_both(
    own: tuple[str, ...], places: tuple[RelayPlace, ...], found: tuple[str, ...]
) -> None:
    assert across(own, places) == found
    if own:
        reach = reach_of(own, {ID: own[0]}, places, "")
        assert (reach.kind, reach.addresses) == ("direct", (*own, *found))
        assert ("alone" in reach.reason) == bool(found)


def test_the_way_across_stays_among_many_addresses() -> None:
    reach = reach_of(tuple(f"/ip4/192.0.2.1/tcp/{port}" for port in range(1, 40)), {ID: "x"}, (BOTH,), "")
    assert len(reach.addresses) == ANNOUNCED_MAX and BRIDGE in reach.addresses


def test_what_is_announced_fits_a_record() -> None:
    many = tuple(f"/ip4/192.0.2.1/tcp/{port}" for port in range(40))
    crowded = RelayPlace(ID, tuple(f"/ip4/192.0.2.2/tcp/{port}/p2p/{ID}/p2p-circuit" for port in range(40)))
    reach = reach_of(many, {ID: ""}, (crowded,), "")
    assert len(reach.addresses) == ANNOUNCED_MAX <= ADDRESSES_MAX
    assert any("p2p-circuit" in address for address in reach.addresses)
    assert max(len(address) for address in reach.addresses) <= ADDRESS_BYTES_MAX


def test_a_relays_answer_as_the_spec_has_it() -> None:
    # HopMessage: type STATUS, reservation {expire, addrs}, limit {duration, data}, status
    answer = bytes.fromhex("0802" + "1a08" + "0888011203" + "040102" + "2206" + "0878108080" + "08" + "2864")
    assert messages.reserve().hex() == "020800"
    assert messages.read_reservation(answer) == messages.Reservation(100, 136, (b"\x04\x01\x02",), 120, 131072)
    with pytest.raises(ValueError):
        messages.read_reservation(b"\x12\x05ab")


def test_addresses_of_others_in_a_relays_answer_are_left_out() -> None:
    relay = PeerAddress(ID, ("/ip4/192.0.2.2/tcp/2",))
    public = (address_bytes(f"/ip4/198.51.100.1/tcp/9/p2p/{ID}"), address_bytes(f"/ip4/1.1.1.1/tcp/1/p2p/{OTHER}"))
    assert circuits(relay, (*public, b"\xff")) == (RELAYED, f"/ip4/198.51.100.1/tcp/9/p2p/{ID}/p2p-circuit")
