"""One peer of the matrix of routers, in a process and a network namespace of its own; routers.py gives the orders.

    python -m ftnode.lab.routers.peer HOME LISTEN POINT       POINT: full multiaddr of the meeting point

It says where it can be reached as soon as it knows, `{"peer": ..., "reach": ..., "addresses": [...]}`. Each line
`{"peer": ..., "addresses": [...], "bytes": ...}` on its standard input has it dial that peer as a node does and send it
so many bytes; the answer is `{"seconds": ..., "way": ..., "rate": ..., "why": ...}`. It ends with its standard input.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import trio

from ftnode.node.home.identity import take_identity
from ftnode.node.links.addresses import PeerAddress, parse_peer
from ftnode.node.links.dial_back import KNOCK_PROTOCOL, knock_handler
from ftnode.node.links.link import LinkBroken, LinkDialer
from ftnode.node.links.p2pd import P2pd, P2pdError
from ftnode.node.links.punch import PUNCH_PROTOCOL, Puncher
from ftnode.node.links.punch_rules import way_to
from ftnode.node.links.reachability import Reach, Reachability
from ftnode.node.links.streams import STREAM_ERRORS, read_exactly

SINK_PROTOCOL: Final = "/ftnode/lab/sink/1"
"""Takes eight bytes that say how many come, and those, and answers with one."""
LENGTH_BYTES: Final = 8
PIECE: Final = bytes(1 << 16)
LOOK_SECONDS: Final = 0.5
READY_SECONDS: Final = 30.0
SEND_SECONDS: Final = 60.0


async def sink(_peer_id: str, stream: trio.SocketStream) -> None:
    with trio.fail_after(SEND_SECONDS):
        left = int.from_bytes(await read_exactly(stream, LENGTH_BYTES), "big")
        while left:
            left -= len(await read_exactly(stream, min(left, len(PIECE))))
        await stream.send_all(b"\0")
    await stream.aclose()


class LabPeer:
    """The parts of a node that find and dial others, and a sink."""

    def __init__(self, p2pd: P2pd, point: PeerAddress) -> None:
        self.p2pd = p2pd
        self.puncher = Puncher(p2pd, lambda: self.reachability.relays)
        self.reachability = Reachability(p2pd, [point], lambda reach: None, self.puncher.rules)
        self.known: dict[str, tuple[str, ...]] = {}
        p2pd.gate.give([point])
        self.dialer = LinkDialer(
            p2pd, "", 0, tuple, lambda peer_id: self.known.get(peer_id, ()), lambda *said: None, self.puncher.reach,
            self.reachability.offers.way,
        )  # fmt: skip

    async def ready(self) -> Reach:
        """As soon as the meeting point has said whether it gets through, and has given a place if not."""
        await self.p2pd.serve(SINK_PROTOCOL, sink)
        await self.p2pd.serve(PUNCH_PROTOCOL, self.puncher.handler)
        await self.p2pd.serve(KNOCK_PROTOCOL, knock_handler(self.p2pd))
        with trio.fail_after(READY_SECONDS):
            while True:
                reach = await self.reachability.look()
                if reach.kind in ("direct", "relay"):
                    return reach
                await trio.sleep(LOOK_SECONDS)

    async def dial(self, peer_id: str, addresses: Sequence[str], size: int) -> dict[str, Any]:
        self.known[peer_id] = tuple(addresses)
        began = trio.current_time()
        try:
            await self.dialer.connect(peer_id)
            seconds = trio.current_time() - began
            way = way_to(peer_id, await self.p2pd.connections(), addresses) or "relayed"
            why = self.puncher.rules.trouble if way == "relayed" else ""
            return {"seconds": seconds, "way": way, "rate": await self._rate(peer_id, size), "why": why}
        except (LinkBroken, P2pdError, *STREAM_ERRORS) as error:
            return {"seconds": trio.current_time() - began, "way": "none", "rate": 0.0, "why": str(error)}

    async def _rate(self, peer_id: str, size: int) -> float:
        """Bytes a second of so many."""
        stream = await self.p2pd.open(peer_id, SINK_PROTOCOL, 5.0)
        began = trio.current_time()
        with trio.fail_after(SEND_SECONDS):
            await stream.send_all(size.to_bytes(LENGTH_BYTES, "big"))
            left = size
            while left:
                piece = PIECE[:left]
                await stream.send_all(piece)
                left -= len(piece)
            await read_exactly(stream, 1)
        await stream.aclose()
        return size / (trio.current_time() - began)


async def serve(home: Path, listen: str, point: PeerAddress) -> None:
    identity = take_identity(home)
    async with trio.open_nursery() as nursery:
        p2pd = await P2pd.start(nursery, identity.path, listen=[listen])
        try:
            peer = LabPeer(p2pd, point)
            reach = await peer.ready()
            print(
                json.dumps({"peer": p2pd.peer_id, "reach": reach.kind, "addresses": list(reach.addresses)}), flush=True
            )
            while line := await trio.to_thread.run_sync(sys.stdin.readline):
                order = json.loads(line)
                found = await peer.dial(order["peer"], order["addresses"], order["bytes"])
                print(json.dumps(found), flush=True)
        finally:
            p2pd.close()
            identity.release()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(serve, Path(sys.argv[1]), sys.argv[2], parse_peer(sys.argv[3]))
