"""A member of a group in a process of its own, to be killed by tests: it contributes, and never sums up its own piece.

python reducing_peer.py HOME NONCE NUMBERS ENCODING

It prints [peer id, addresses] as JSON, and wants to hear [[peer id, nonce, count, addresses], ...], the group.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import trio

from ftnode.node.home.identity import take_identity
from ftnode.node.links.addresses import PeerAddress
from ftnode.node.links.p2pd import P2pd
from ftnode.node.links.transport import Transport
from ftnode.node.machine.gradient_memory import GradientMemory
from ftnode.node.machine.tensor_slots import Arena
from ftnode.node.reduction.reductions import Reductions
from ftnode.node.reduction.wire import REDUCE_PROTOCOL
from ftnode.protocol.words.effects import Reduce
from ftnode.protocol.words.types import Attempt, Peer


class Gradient:
    """A compute process of one gradient: the same number everywhere."""

    def __init__(self, memory: GradientMemory, value: float) -> None:
        self.memory, self.value = memory, value

    @property
    def numbers(self) -> Any:
        return np.frombuffer(self.memory.view(0), dtype=np.float32)

    async def call(self, op: str, **fields: Any) -> dict[str, Any]:
        if op == "reduce_open" and fields["count"]:
            self.numbers[:] = self.value
        return {"norm_squared": 1.0, "gradient": "", "covered": [], "fault": ""}


async def main(home: Path, nonce: int, numbers: int, encoding: str) -> None:
    memory = GradientMemory([numbers], 4)
    async with trio.open_nursery() as nursery:
        p2pd = await P2pd.start(nursery, take_identity(home).path)
        transport = Transport(p2pd, Arena(64, 1), "run", nonce, 64, lambda event: None)
        await transport.start(nursery)

        async def never(peer_id: str, stream: trio.SocketStream) -> None:
            await trio.sleep_forever()

        await p2pd.serve(REDUCE_PROTOCOL, never)
        print(json.dumps([p2pd.peer_id, await p2pd.addresses()]), flush=True)
        members = json.loads(await trio.to_thread.run_sync(sys.stdin.readline))
        for peer_id, _, _, addresses in members:
            p2pd.gate.give([PeerAddress(peer_id, tuple(addresses))])
        group = tuple((Peer(peer_id, life), count) for peer_id, life, count, _ in members)
        me = Peer(p2pd.peer_id, nonce)
        reductions = Reductions("run", me, memory, Gradient(memory, 4.0), transport, encoding=encoding)
        reductions.begin(nursery)
        reductions.start(Reduce(0, 1, Attempt(0, 1), 0, group), lambda answer: None)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
