"""A peer in a process of its own, to be killed by tests: it acknowledges every Boundary with a Stored.

python transport_peer.py HOME RUN NONCE BOUNDARY_BYTES    prints [peer id, addresses] as JSON
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import trio

from ftnode.node.home.identity import take_identity
from ftnode.node.links.p2pd import P2pd
from ftnode.node.links.transport import LinkEvent, Transport
from ftnode.node.machine.tensor_slots import Arena
from ftnode.protocol.manifest.boundary import BoundaryBytes
from ftnode.protocol.words.events import Received
from ftnode.protocol.words.messages import Boundary, Stored


async def main(home: Path, run: str, nonce: int, boundary_bytes: int) -> None:
    arena = Arena(boundary_bytes, 4)

    def deliver(event: LinkEvent) -> None:
        if isinstance(event, Received):
            transport.handled(event)
        if isinstance(event, Received) and isinstance(event.message, Boundary) and event.handle is not None:
            arena.release(event.handle)
            asked = event.message
            answer = Stored(asked.lineage, asked.step, asked.attempt, asked.microbatch, asked.visit, asked.direction)
            transport.send(event.sender, answer, None)

    async with trio.open_nursery() as nursery:
        p2pd = await P2pd.start(nursery, take_identity(home).path)
        transport = Transport(p2pd, arena, run, nonce, BoundaryBytes(boundary_bytes, boundary_bytes), deliver)
        await transport.start(nursery)
        print(json.dumps([p2pd.peer_id, await p2pd.addresses()]), flush=True)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
