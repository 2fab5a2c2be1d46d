"""A real meeting point relays as its owner wants it to, and within what its line may carry."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from ftnode.node.links.addresses import PeerAddress, parse_peer
from ftnode.node.links.p2pd import P2pd, P2pdError
from ftnode.node.links.relay import reserve
from ftnode.node.links.relay_offers import ask
from tests.bootstrap.test_server import start_point
from tests.node.links.test_relay_service import SINK, host

UP = 1e5
"""Bytes a second: 800 kbit/s."""
SENT = 250_000


@asynccontextmanager
async def around(folder: Path, *options: str) -> AsyncIterator[tuple[PeerAddress, P2pd, P2pd]]:
    """A meeting point with these options, and two who are connected to it and listen nowhere."""
    async with trio.open_nursery() as nursery:
        point = await start_point(nursery, folder / "point", options=options)
        at = parse_peer(point.address)
        async with host(folder, "hidden") as hidden, host(folder, "caller") as caller:
            for each in (hidden, caller):
                each.gate.give([at])
                await each.connect(at.peer_id, at.addresses, 5)
            yield at, hidden, caller
        point.process.terminate()


def seconds_of(folder: Path, *options: str) -> float:
    """How long it takes SENT bytes to come through the meeting point."""

    async def main() -> float:
        arrived = trio.Event()

        async def sink(_peer: str, stream: trio.SocketStream) -> None:
            got = 0
            while data := await stream.receive_some(1 << 18):
                got += len(data)
                if got >= SENT:
                    arrived.set()

        with trio.fail_after(30):
            async with around(folder, *options) as (at, hidden, caller):
                await hidden.serve(SINK, sink)
                await caller.connect(hidden.peer_id, (await reserve(hidden, at)).addresses, 10)
                began = trio.current_time()
                stream = await caller.open(hidden.peer_id, SINK, 10)
                await stream.send_all(bytes(SENT))
                await arrived.wait()
                seconds = trio.current_time() - began
                await stream.aclose()
        return seconds

    return trio.run(main)


@pytest.mark.parametrize("direction", ["--up", "--down"])
def test_what_it_relays_stays_within_what_its_owner_gives(tmp_path: Path, direction: str) -> None:
    assert seconds_of(tmp_path, "--relay", "on", direction, "800kbit") > 0.7 * SENT / UP


def test_without_a_limit_it_relays_as_fast_as_it_can(tmp_path: Path) -> None:
    """What the test above holds against."""
    assert seconds_of(tmp_path) < 0.5 * SENT / UP


@pytest.mark.parametrize("options", [("--relay", "off"), ("--up", "800kbit")])
def test_it_does_not_relay_where_its_owner_says_no_or_its_line_is_slow(tmp_path: Path, options: list[str]) -> None:
    async def main() -> None:
        with trio.fail_after(30):
            async with around(tmp_path, *options) as (at, hidden, caller):
                with pytest.raises(P2pdError, match="does not relay for us"):
                    await reserve(hidden, at)
                assert await ask(caller, at.peer_id) is None

    trio.run(main)
