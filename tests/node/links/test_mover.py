"""Whose circuits are moved, and when: with real p2pd's on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
import trio
import trio.testing

from ftnode.node.links.addresses import PeerAddress
from ftnode.node.links.connections import circuits_of
from ftnode.node.links.mover import LOOK_SECONDS, Mover
from ftnode.node.links.p2pd import P2pdError
from ftnode.node.links.relay import reserve
from ftnode.node.links.relay_choice import Offer, relay_in
from ftnode.node.links.relay_offers import RelayOffers
from ftnode.node.links.relay_service import RelayService
from tests.node.links.linked_node import Node, limited, node

CIRCUIT = "/ip4/192.0.2.1/tcp/1/p2p/12D3KooWQPgLiPPAdpzcmTiKSHRZk2X9t1kqiKU67Va7BBDCBpMf/p2p-circuit"


def test_only_circuits_of_peers_that_have_nothing_better() -> None:
    assert circuits_of(
        [("a", CIRCUIT), ("b", "/ip4/192.0.2.2/tcp/1"), ("c", CIRCUIT), ("c", "/ip4/192.0.2.3/tcp/1")]
    ) == {"a": CIRCUIT}


class Always(Random):
    def random(self) -> float:
        return 0.0


@asynccontextmanager
async def two_relays(folder: Path) -> AsyncIterator[tuple[Node, Node, list[str]]]:
    """The one with the smaller PeerId, another one that listens nowhere, and their circuits through either relay."""
    async with (
        node(folder, 1) as first, node(folder, 2) as second,
        node(folder, 3, listen=()) as one, node(folder, 4, listen=()) as other,
    ):  # fmt: skip
        small, large = sorted((one, other), key=lambda each: each.peer.id)
        circuits = []
        for relay in (first, second):
            await RelayService(relay.p2pd).serve()
            at = PeerAddress(relay.peer.id, await relay.p2pd.addresses())
            for each in (one, other):
                each.p2pd.gate.give([at])
                await each.p2pd.connect(relay.peer.id, at.addresses, 5)
                circuits.append((await reserve(each.p2pd, at)).addresses[0])
        yield small, large, circuits[::2]


def mover_of(here: Node, there: Node, circuits: list[str], loads: tuple[float, float]) -> Mover:
    offers = RelayOffers(here.p2pd)
    first, second = map(relay_in, circuits)
    offers.known = {first: Offer(0.1, 1, loads[0], {there.peer.id: 1e6}), second: Offer(0.1, 1, loads[1])}
    return Mover(
        here.p2pd, here.puncher, offers, lambda: [there.peer.id], lambda peer: tuple(circuits), trio.Event, Always(1)
    )


def test_a_circuit_through_a_busy_relay_ends_for_one_through_another(tmp_path: Path) -> None:
    async def main() -> None:
        async with two_relays(tmp_path) as (small, large, circuits):
            await small.p2pd.connect(large.peer.id, circuits[:1], 5)
            await mover_of(small, large, circuits, (1e6, 0.0)).look()
            assert await small.p2pd.is_connected(large.peer.id), "it is alone there"
            await mover_of(large, small, circuits, (3e6, 0.0)).look()
            assert await small.p2pd.is_connected(large.peer.id), "the other one looks after it"
            mover = mover_of(small, large, circuits, (3e6, 0.0))
            await mover.look()
            assert not await small.p2pd.is_connected(large.peer.id)
            await small.p2pd.connect(large.peer.id, await mover._offers.way(circuits), 5)
            assert circuits_of(await small.p2pd.connections()) == {large.peer.id: circuits[1]}

    limited(main)


def test_a_p2pd_that_does_not_answer_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with two_relays(tmp_path) as (small, large, circuits):
            await small.p2pd.connect(large.peer.id, circuits[:1], 5)
            mover = mover_of(small, large, circuits, (0.0, 0.0))

            async def silent(*_arguments: object, **_options: object) -> None:
                await trio.lowlevel.checkpoint()
                raise P2pdError("no answer within 5 s")

            monkeypatch.setattr(small.puncher, "reach", silent)
            await mover.look()
            assert await small.p2pd.is_connected(large.peer.id)

    limited(main)


def test_it_waits_for_a_steps_end() -> None:
    looks: list[float] = []

    class Looking(Mover):
        async def look(self) -> None:
            await trio.lowlevel.checkpoint()
            looks.append(trio.current_time())
            raise P2pdError("it goes on after that")

    async def main() -> None:
        ended, nobody = trio.Event(), cast(Any, None)
        mover = Looking(nobody, nobody, nobody, tuple, lambda peer: (), lambda: ended, Random(1))
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(mover.run)
            with trio.move_on_after(LOOK_SECONDS + 1):
                await trio.sleep_forever()
            assert looks == []
            ended.set()
            with trio.move_on_after(3 * LOOK_SECONDS):
                await trio.sleep_forever()
            nursery.cancel_scope.cancel()
        assert len(looks) >= 2 and looks[0] >= began + LOOK_SECONDS

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
