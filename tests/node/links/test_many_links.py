"""More peers than a node makes links to: who is no member gives way, the one that was talked to longest ago first."""

from __future__ import annotations

from typing import Any, cast

import pytest
import trio
import trio.testing

from ftnode.node.links import transport
from ftnode.node.links.attention import Attention
from ftnode.node.links.link import Link, LinkBroken
from ftnode.node.links.transport import LinkEvent, Transport
from ftnode.node.machine.tensor_slots import Arena
from ftnode.protocol.words.events import LinkDown, LinkUp
from ftnode.protocol.words.types import Peer
from tests.node.links.linked_node import BOUNDARY_BYTES, SIZES, word
from tests.node.links.test_redials import NoP2pd

MEMBERS = [Peer(f"member {number}", 1) for number in range(4)]
STRANGERS = [Peer(f"stranger {number}", 1) for number in range(3)]


class Stays(Link):
    """Comes up, until it is ended from here."""

    async def run(self, dial: Any, on_up: Any, ask_first: bool = False, pause: float = 0.0) -> LinkBroken:
        with self.scope:
            on_up()
            await trio.sleep_forever()
        assert self._verdict is not None
        return self._verdict


async def settled() -> None:
    for _ in range(5):
        await trio.testing.wait_all_tasks_blocked()


def test_strangers_give_way_to_whoever_comes_and_members_never(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[LinkEvent] = []

    def up() -> set[Peer]:
        found = set[Peer]()
        for event in events:
            if isinstance(event, LinkUp):
                found.add(event.peer)
            elif isinstance(event, LinkDown):
                found.discard(event.peer)
        return found

    async def main() -> None:
        attention = Attention(lambda peer: peer in MEMBERS)
        arena = Arena(BOUNDARY_BYTES, 1)
        made = Transport(cast(Any, NoP2pd()), arena, "run", 1, SIZES, events.append, attention=attention)
        async with trio.open_nursery() as nursery:
            await made.start(nursery)
            for peer in STRANGERS:
                made.dial(peer)
            made.send(STRANGERS[0], word("it is talked to again"), None)
            for peer in MEMBERS[:2]:  # in one turn, before any task has run
                made.dial(peer)
            await settled()
            assert up() == {STRANGERS[0], *MEMBERS[:2]}
            made.dial(STRANGERS[1])
            await settled()
            assert up() == {STRANGERS[1], *MEMBERS[:2]}, "none of them is dialled again by itself"
            made.dial(MEMBERS[2])
            await settled()
            assert up() == {*MEMBERS[:3]}
            for peer in (MEMBERS[3], STRANGERS[0]):
                made.dial(peer)
                await settled()
                assert events[-1] == LinkDown(peer, False, "there are 3 links already")
            assert up() == {*MEMBERS[:3]}
            nursery.cancel_scope.cancel()

    monkeypatch.setattr(transport, "Link", Stays)
    monkeypatch.setattr(transport, "LINKS_MAX", 3)
    trio.run(main)
