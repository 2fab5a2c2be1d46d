"""Peers whose links break as soon as they are up: dialled at once for a few times, and then less and less."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from ftnode.node.links import transport
from ftnode.node.links.link import Link, LinkBroken
from ftnode.node.links.redials import AT_ONCE, FORGOTTEN_SECONDS, PAUSE_SECONDS_MAX, SHORT_SECONDS, Redials
from ftnode.node.links.transport import LinkEvent, Transport
from ftnode.node.machine.tensor_slots import Arena
from ftnode.protocol.words.events import LinkDown, LinkUp
from ftnode.protocol.words.types import Peer
from tests.node.links.linked_node import BOUNDARY_BYTES, SIZES
from tests.node.virtual_time import passed

PEER = Peer("12D3KooWBtg3aaRMjxwedh83aGiUkwSxDwUZkzuJcfaqUmo7R3pq", 1)
MINUTE = 60.0


class Ended(Link):
    """Every link comes up, and the other side ends it at once."""

    async def run(self, dial: Any, on_up: Any, ask_first: bool = False, pause: float = 0.0) -> LinkBroken:
        await passed(pause)
        on_up()
        return LinkBroken("the stream ended")


class NoP2pd:
    peer_id = "12D3KooWQPgLiPPAdpzcmTiKSHRZk2X9t1kqiKU67Va7BBDCBpMf"
    gate = SimpleNamespace(given=lambda peer_id: (), has_met=lambda peer_id, address: False)

    async def addresses(self) -> tuple[str, ...]:
        return ()

    async def ends(self, peer_id: str) -> list[str]:
        return []

    async def serve(self, *_: object) -> None:
        pass


def test_a_peer_that_ends_every_link_is_dialled_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would have a node do nothing but shake hands."""
    events: list[LinkEvent] = []

    def deliver(event: LinkEvent) -> None:
        events.append(event)
        assert len(events) < 1000, "it is dialled again and again"

    async def main() -> None:
        made = Transport(cast(Any, NoP2pd()), Arena(BOUNDARY_BYTES, 1), "run", 1, SIZES, deliver)
        async with trio.open_nursery() as nursery:
            await made.start(nursery)
            made.dial(PEER)
            await passed(MINUTE)
            nursery.cancel_scope.cancel()

    monkeypatch.setattr(transport, "Link", Ended)
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    ups = sum(isinstance(event, LinkUp) for event in events)
    assert AT_ONCE < ups < AT_ONCE + 10 + MINUTE / PAUSE_SECONDS_MAX
    assert sum(isinstance(event, LinkDown) for event in events) == ups


def test_who_stays_or_comes_back_later_is_dialled_at_once() -> None:
    redials, now = Redials(), 0.0
    for _ in range(20):
        now += redials.pause("flaps", now)
        redials.ended("flaps", 0.0, now)
    assert redials.pause("flaps", now) == PAUSE_SECONDS_MAX and redials.pause("another", now) == 0.0
    assert redials.pause("flaps", now + FORGOTTEN_SECONDS) == 0.0
    redials.ended("flaps", SHORT_SECONDS, now)
    assert redials.pause("flaps", now) == 0.0
