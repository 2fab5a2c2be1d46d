"""Who gives up in the middle of a record breaks no connection that others use."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from ftnode.node.watch import whole_records
from tests.node.watch.test_light_client import TINY, Peers, with_peers
from tests.node.watch.watching import finished

GIVING_UP = """
import sys
import trio
from libp2p.peer.id import ID
from ftnode.node.links.addresses import parse_peers
from ftnode.node.watch import light_client
from ftnode.node.watch.light_client import ask_status, open_stream, with_host
if sys.argv[1] == "cut off":  # the planted bug
    light_client.whole = lambda secure: secure
(peer,) = parse_peers(sys.argv[2:])
async def ask(host, scope):
    with scope:
        async with open_stream(host, peer, 10) as stream:
            await ask_status(stream)
async def ask_and_give_up(host):
    await ask(host, trio.CancelScope())
    (first,) = host.get_network().get_connections(ID.from_base58(peer.peer_id))
    for wait in range(40):
        scope = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, host, scope)
            for _ in range(wait):
                await trio.lowlevel.checkpoint()
            scope.cancel()
    await ask(host, trio.CancelScope())
    (last,) = host.get_network().get_connections(ID.from_base58(peer.peer_id))
    assert last is first, "all over one connection"
with_host(ask_and_give_up)
"""


@pytest.mark.parametrize("records", ["whole", "cut off"])
def test_a_connection_outlives_those_who_give_up(records: str, tmp_path: Path) -> None:
    async def test(peers: Peers) -> None:
        address = await peers.start("a", TINY)
        with trio.fail_after(60):
            done = await finished(GIVING_UP, records, address)
        assert (done.returncode == 0) == (records == "whole"), done.stderr.decode()[-2000:]

    with_peers(tmp_path, test)


def test_what_takes_too_long_closes_its_connection() -> None:
    closed: list[float] = []

    async def never(_data: bytes) -> None:
        await trio.sleep_forever()

    async def close() -> None:
        await trio.lowlevel.checkpoint()
        closed.append(trio.current_time())

    async def main() -> None:
        began = trio.current_time()
        with trio.move_on_after(0.5), pytest.raises(TimeoutError):
            await whole_records.uncut(never, close)(b"data")
        assert closed == [began + whole_records.RECORD_SECONDS]

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
