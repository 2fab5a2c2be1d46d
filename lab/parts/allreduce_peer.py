"""One peer of the reduction benchmark that runs hivemind's `AllReduceRunner` itself, on a group that it is told.

    python -m ftnode.lab.parts.allreduce_peer INDEX NUMBERS DESCRIPTOR

There is no averager, no DHT of hivemind's and no matchmaking: a P2P, one runner per round, and its handlers in a
namespace of that round. The tensor lies in shared memory, so that the parent sees what each peer ends up with.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from typing import Any

import numpy as np

from ftnode.lab.parts.reduction_peers import gradient_of, say
from ftnode.node.machine.gradient_memory import GradientMap

log = logging.getLogger(__name__)

SENDER_SECONDS = 5.0
"""What the runner waits for a sender's next part. hivemind's Optimizer would have it at 15, its matchmaking time."""
REDUCER_SECONDS = 2 * SENDER_SECONDS
"""What it waits for a reducer's next part: twice as long, as in hivemind's averager."""
GIVEN_UP_SECONDS = 20.0
"""A runner that has not ended by then is cancelled: both of its own deadlines can have passed, one after the other."""


class Runs:
    """Rounds of one peer, each with a runner of its own."""

    def __init__(self, p2p: Any, gradient: Any, place: Any) -> None:
        self._p2p, self._gradient, self._place = p2p, gradient, place
        self._runner: Any = None
        self._namespace = ""

    async def prepare(self, number: int, group: list[str]) -> None:
        """A runner that others can reach. `group`: peer ids; the i-th reduces the i-th of equal pieces."""
        from hivemind.averaging.allreduce import AllReduceRunner
        from hivemind.p2p import PeerID

        if self._runner is not None:
            await self._runner.remove_p2p_handlers(self._p2p, namespace=self._namespace)
        self._namespace = f"round-{number}"
        self._runner = AllReduceRunner(
            p2p=self._p2p, servicer_type=AllReduceRunner, prefix=self._namespace, group_id=self._namespace.encode(),
            tensors=[self._place], weight=1.0, ordered_peer_ids=[PeerID.from_base58(peer_id) for peer_id in group],
            peer_fractions=(1 / len(group),) * len(group), sender_timeout=SENDER_SECONDS,
            reducer_timeout=REDUCER_SECONDS,
        )  # fmt: skip
        await self._runner.add_p2p_handlers(self._p2p, namespace=self._namespace)

    async def go(self) -> dict[str, Any]:
        """Average, as hivemind's averager does: each difference is added to the tensor as it comes. `banned` senders,
        and `missing` numbers that no reducer gave, are what the runner itself knows of a loss."""
        began, fault = time.perf_counter(), ""
        try:
            async with asyncio.timeout(GIVEN_UP_SECONDS):
                self._place.copy_(self._gradient)
                async for difference in self._runner:
                    self._place.add_(difference)
        except Exception as error:
            log.exception("the round failed")
            fault = repr(error)
        seconds = time.perf_counter() - began
        missing = self._runner.tensor_part_container.failed_size
        return {"seconds": seconds, "fault": fault, "banned": len(self._runner.banned_senders), "missing": missing}


async def serve(index: int, numbers: int, descriptor: int) -> None:
    """Orders: {"join": addresses of peers that are there}, answered by [peer id, addresses, process id of p2pd]; then
    {"prepare": number, "group": [peer id, ...]}, answered by the number when others may call, and {"go": true},
    answered by what `go` gives."""
    import torch
    from hivemind.p2p import P2P

    place = torch.from_numpy(np.frombuffer(GradientMap(descriptor, [numbers], 4).view(0), dtype=np.float32))
    gradient = torch.from_numpy(gradient_of(index, numbers))
    join = json.loads(sys.stdin.readline())["join"]
    p2p = await P2P.create(initial_peers=join, nat_port_map=False, auto_nat=False, use_relay=False)
    try:
        addresses = [str(address) for address in await p2p.get_visible_maddrs()]
        say([str(p2p.peer_id), addresses, p2p._child.pid])
        runs = Runs(p2p, gradient, place)
        while line := await asyncio.to_thread(sys.stdin.readline):
            order = json.loads(line)
            if "prepare" in order:
                await runs.prepare(order["prepare"], order["group"])
                say(order["prepare"])
            if "go" in order:
                say(await runs.go())
    finally:
        await p2p.shutdown()


if __name__ == "__main__":
    asyncio.run(serve(*map(int, sys.argv[1:])))
