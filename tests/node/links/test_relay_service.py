"""A relay of ours with real p2pd's: whom it relays for, and who is cut off."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio

from ftnode.node.home.identity import peer_id_bytes, take_identity
from ftnode.node.links import p2pd_messages as messages
from ftnode.node.links import relay_service
from ftnode.node.links.addresses import PeerAddress
from ftnode.node.links.p2pd import LOOPBACK, P2pd, P2pdError
from ftnode.node.links.relay import reserve
from ftnode.node.links.relay_choice import Offer
from ftnode.node.links.relay_offers import RelayOffers, ask, read_offer
from ftnode.node.links.relay_rules import MEMBER, STRANGER, Terms
from ftnode.node.links.relay_service import Offered, RelayService
from ftnode.node.links.relay_words import HOP_PROTOCOL, NO_PLACE, NO_ROOM, OK
from ftnode.node.links.streams import STREAM_ERRORS, read_exactly
from ftnode.protocol.words.errors import PeerError
from tests.node.links.linked_node import limited

SINK = "/ftnode/test/sink/1"
PIECE = bytes(1 << 16)


@asynccontextmanager
async def host(folder: Path, name: str, listen: Sequence[str] = ()) -> AsyncIterator[P2pd]:
    home = folder / name
    home.mkdir()
    identity = take_identity(home)
    async with trio.open_nursery() as nursery:
        p2pd = await P2pd.start(nursery, identity.path, listen=listen)
        try:
            yield p2pd
        finally:
            p2pd.close()
            identity.release()
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def relayed(
    folder: Path, terms: Callable[[str], Terms], why_not: Callable[[], str] = str
) -> AsyncIterator[tuple[P2pd, P2pd, P2pd, RelayService]]:
    """A relay, one that has a place there where it may, and one who wants to reach it."""
    async with (
        host(folder, "relay", LOOPBACK) as relay,
        host(folder, "hidden") as hidden,
        host(folder, "caller") as caller,
    ):
        service = RelayService(relay, why_not, terms)
        await service.serve()
        at = PeerAddress(relay.peer_id, await relay.addresses())
        for each in (hidden, caller):
            each.gate.give([at])
            await each.connect(relay.peer_id, at.addresses, 5)
        yield relay, hidden, caller, service


async def place_of(hidden: P2pd, relay: P2pd) -> tuple[str, ...]:
    return (await reserve(hidden, PeerAddress(relay.peer_id, await relay.addresses()))).addresses


async def send_until_cut_off(caller: P2pd, hidden: P2pd, most: int) -> int:
    """Bytes that came through, up to about so many."""
    got = 0

    async def sink(_peer: str, stream: trio.SocketStream) -> None:
        nonlocal got
        with trio.move_on_after(20):
            while data := await stream.receive_some(1 << 18):
                got += len(data)

    await hidden.serve(SINK, sink)
    stream = await caller.open(hidden.peer_id, SINK, 5)
    try:
        with trio.move_on_after(20):
            while got < most:
                await stream.send_all(PIECE)
    except STREAM_ERRORS:
        pass
    await stream.aclose()
    return got


def test_a_stranger_that_sends_without_end_is_cut_off(tmp_path: Path) -> None:
    """The planted bug: a relay that forwards for strangers without limit."""
    limit = 1 << 20
    little = replace(STRANGER, bytes_an_hour=float(limit))

    async def main() -> None:
        strangers: set[str] = set()
        async with relayed(tmp_path, lambda peer: little if peer in strangers else MEMBER) as (
            relay, hidden, caller, service,
        ):  # fmt: skip
            strangers.add(caller.peer_id)
            place = await place_of(hidden, relay)
            await caller.connect(hidden.peer_id, place, 5)
            assert await send_until_cut_off(caller, hidden, 50 * limit) <= limit
            with pytest.raises(P2pdError):
                await caller.connect(hidden.peer_id, place, 5)
            assert not await caller.is_connected(hidden.peer_id)
            assert relay.peer_id in await caller.peers(), "nothing else of it is touched"
            assert service.rules.rate(trio.current_time()) > 0

    limited(main)


def test_a_member_is_relayed_for_beyond_that(tmp_path: Path) -> None:
    async def main() -> None:
        async with relayed(tmp_path, lambda peer: MEMBER) as (relay, hidden, caller, _):
            await caller.connect(hidden.peer_id, await place_of(hidden, relay), 5)
            assert await send_until_cut_off(caller, hidden, 50 << 20) >= 50 << 20

    limited(main)


SECRET = b"what nobody but the two of them reads"


def test_a_relay_neither_reads_nor_changes_what_it_carries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ends shake hands through their circuit. So it has other bytes than they do, and one bit of them that it
    turns ends the link."""
    passed, got, spoils = bytearray(), bytearray(), False
    honest = relay_service.write_all

    async def write_all(stream: trio.SocketStream, parts: list[memoryview], *patience: trio.CancelScope) -> None:
        piece = bytearray(b"".join(parts))
        passed.extend(piece)
        piece[-1] ^= spoils
        await honest(stream, [memoryview(piece)], *patience)

    async def take(_peer: str, stream: trio.SocketStream) -> None:
        while data := await stream.receive_some(1 << 18):
            got.extend(data)

    async def main() -> None:
        nonlocal spoils
        async with relayed(tmp_path, lambda peer: MEMBER) as (relay, hidden, caller, _):
            await hidden.serve(SINK, take)
            await caller.connect(hidden.peer_id, await place_of(hidden, relay), 5)
            stream = await caller.open(hidden.peer_id, SINK, 5)
            await stream.send_all(100 * SECRET)
            with trio.fail_after(5):
                while len(got) < 100 * len(SECRET):
                    await trio.sleep(0)
            assert got == 100 * SECRET and len(passed) > len(got) and SECRET not in passed
            spoils = True
            await stream.send_all(SECRET)
            with trio.fail_after(5):
                while await caller.is_connected(hidden.peer_id):
                    pass
            assert got == 100 * SECRET, "nothing of it arrives"

    monkeypatch.setattr(relay_service, "write_all", write_all)
    limited(main)


def test_a_circuit_ends_when_its_time_is_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with relayed(tmp_path, lambda peer: replace(MEMBER, seconds=0.5)) as (relay, hidden, caller, _):
            await caller.connect(hidden.peer_id, await place_of(hidden, relay), 5)
            with trio.fail_after(5):
                while await caller.is_connected(hidden.peer_id):
                    pass

    limited(main)


def test_who_asks_for_many_circuits_at_once_gets_no_more_than_its_limit(tmp_path: Path) -> None:
    """The planted bug: circuits that count only once p2pd has said where both ends are."""
    limit, asked = 2, 12
    statuses: list[int] = []

    async def ask_for_one(caller: P2pd, relay: P2pd, hidden: P2pd) -> None:
        stream = await caller.open(relay.peer_id, HOP_PROTOCOL, 5)
        await stream.send_all(messages.circuit(peer_id_bytes(hidden.peer_id)))
        answer = await messages.read_message(partial(read_exactly, stream))
        statuses.append(messages._parsed(messages.HopMessage(), answer).status)

    async def main() -> None:
        async with relayed(tmp_path, lambda peer: replace(MEMBER, circuits=limit)) as (relay, hidden, caller, service):
            await place_of(hidden, relay)
            async with trio.open_nursery() as nursery:
                for _ in range(asked):
                    nursery.start_soon(ask_for_one, caller, relay, hidden)
            assert Counter(statuses) == {OK: limit, NO_ROOM: asked - limit}
            await caller.disconnect(relay.peer_id)
            with trio.fail_after(10):
                while service.rules._circuits:
                    await trio.lowlevel.checkpoint()
            await ask_for_nothing(service, caller, hidden)

    limited(main)


async def ask_for_nothing(service: RelayService, caller: P2pd, hidden: P2pd) -> None:
    """A caller that is not connected any more gets no circuit, and none counts."""
    ours, theirs = trio.socket.socketpair()
    await service._join(caller.peer_id, hidden.peer_id, trio.SocketStream(ours))
    answer = await messages.read_message(partial(read_exactly, trio.SocketStream(theirs)))
    assert messages._parsed(messages.HopMessage(), answer).status == NO_PLACE
    assert not service.rules._circuits and not service.rules._pairs and not service._open


def test_no_place_for_strangers_and_none_where_nobody_relays(tmp_path: Path) -> None:
    async def main() -> None:
        objection = ""
        async with relayed(tmp_path, lambda peer: STRANGER, lambda: objection) as (relay, hidden, caller, service):
            with pytest.raises(P2pdError, match="does not relay for us"):
                await place_of(hidden, relay)
            service.rules._terms = lambda peer: MEMBER
            place = await place_of(hidden, relay)
            objection = "its line is slow"
            with pytest.raises(P2pdError, match="does not relay for us"):
                await place_of(hidden, relay)
            with pytest.raises(P2pdError):
                await caller.connect(hidden.peer_id, place, 5)
            assert await ask(caller, relay.peer_id) is None

    limited(main)


def test_a_peer_that_is_gone_has_no_place_any_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with relayed(tmp_path, lambda peer: MEMBER) as (relay, hidden, caller, _):
            place = await place_of(hidden, relay)
            await hidden.disconnect(relay.peer_id)
            with trio.fail_after(5):
                while hidden.peer_id in await relay.peers():
                    pass
            with pytest.raises(P2pdError):
                await caller.connect(hidden.peer_id, place, 5)

    limited(main)


def test_what_a_relay_offers(tmp_path: Path) -> None:
    async def main() -> None:
        async with relayed(tmp_path, lambda peer: MEMBER) as (relay, hidden, caller, _):
            await place_of(hidden, relay)
            offers = RelayOffers(caller)
            await offers.look(0.0)
            assert list(offers.known) == [relay.peer_id]
            assert offers.known[relay.peer_id].places == 1
            own = await ask(hidden, relay.peer_id)
            assert own is not None and own.places == 0, "its own does not count"
            await caller.disconnect(relay.peer_id)
            await offers.look(1.0)
            assert offers.known == {}

    limited(main)


def test_nonsense_costs_its_stream_and_a_strike(tmp_path: Path) -> None:
    async def main() -> None:
        async with relayed(tmp_path, lambda peer: MEMBER) as (relay, hidden, caller, _):
            strikes, struck = trio.open_memory_channel[str](4)
            relay.strike = lambda peer, reason: strikes.send_nowait(peer)
            for sent in (b"\x02\x08\x05", b"\x03abc", b"\xff\xff\xff\xff\xff\xff", b"\x02\x08\x01"):
                stream = await caller.open(relay.peer_id, HOP_PROTOCOL, 5)
                await stream.send_all(sent)
                assert await stream.receive_some(10) == b""
                await stream.aclose()
                assert await struck.receive() == caller.peer_id
            assert not strikes.statistics().current_buffer_used
            await caller.connect(hidden.peer_id, await place_of(hidden, relay), 5)

    limited(main)


@pytest.mark.parametrize(("places", "rate"), [(-1, 0.0), (0, -1.0), (0, float("nan")), (0, float("inf"))])
def test_offers_that_cannot_be(places: int, rate: float) -> None:
    with pytest.raises(PeerError):
        read_offer(Offered("", places, rate, ()), 0.1)
    assert read_offer(Offered("no", places, rate, ()), 0.1) is None
    assert read_offer(Offered("", 3, 5.0, (("p", 2.0),)), 0.1) == Offer(0.1, 3, 5.0, {"p": 2.0})
    with pytest.raises(PeerError):
        read_offer(Offered("", 3, 5.0, (("p", -2.0),)), 0.1)
