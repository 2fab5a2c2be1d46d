"""One peer of the reduction benchmark, as a process of its own: ours, or hivemind's averager on the same numbers.

    python -m ftnode.lab.parts.reduction_peers KIND INDEX NUMBERS [ENCODING MEGABITS]

It prints what others need to find it, as a line of JSON, and takes orders as lines of JSON. Both kinds copy their
gradient into the shared memory that is reduced, exchange it, and print the seconds that this took.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import trio

from ftnode.node.home.identity import take_identity
from ftnode.node.links.addresses import PeerAddress
from ftnode.node.links.bandwidth import Bandwidth, Gate
from ftnode.node.links.p2pd import P2pd
from ftnode.node.links.transport import Transport
from ftnode.node.machine.gradient_memory import GradientMemory
from ftnode.node.machine.tensor_slots import Arena
from ftnode.node.reduction.reductions import Reductions
from ftnode.node.reduction.wire import REDUCE_PROTOCOL
from ftnode.protocol.manifest.boundary import BoundaryBytes
from ftnode.protocol.words.effects import Reduce
from ftnode.protocol.words.types import Attempt, Peer

log = logging.getLogger(__name__)

RUN = "bench"
NONCE = 1
MATCHMAKING_SECONDS = 2.0
FAILED_SECONDS = 60.0


def say(value: Any) -> None:
    print(json.dumps(value), flush=True)


def gradient_of(index: int, numbers: int) -> Any:
    return np.random.default_rng(index).standard_normal(numbers, dtype=np.float32)


class Gradient:
    """A compute process that has one gradient, and nothing else to do."""

    def __init__(self, memory: GradientMemory, gradient: Any) -> None:
        self.place = np.frombuffer(memory.view(0), dtype=np.float32)
        self.gradient = gradient

    async def call(self, op: str, **fields: Any) -> dict[str, Any]:
        if op == "reduce_open":
            self.place[:] = self.gradient
        return {"norm_squared": 0.0, "gradient": "", "covered": [], "fault": ""}


async def ours(index: int, numbers: int, encoding: str, megabits: float) -> None:
    """Orders: {"know": [[peer id, addresses], ...]}, {"reduce": view, "group": [peer id, ...]}, {"digest": true}."""
    numbers_of_ours = gradient_of(index, numbers)
    memory = GradientMemory([numbers], numbers_of_ours.itemsize)
    gradient = Gradient(memory, numbers_of_ours)
    with tempfile.TemporaryDirectory() as home:
        async with trio.open_nursery() as nursery:
            p2pd = await P2pd.start(nursery, take_identity(Path(home)).path, bandwidth=line_of(megabits))
            transport = Transport(p2pd, Arena(64, 1), RUN, NONCE, BoundaryBytes(64, 64), lambda event: None)
            await transport.start(nursery)
            me = Peer(p2pd.peer_id, NONCE)
            reductions = Reductions(RUN, me, memory, gradient, transport, encoding=encoding)
            reductions.begin(nursery)
            await p2pd.serve(REDUCE_PROTOCOL, reductions.serve)
            say([p2pd.peer_id, await p2pd.addresses()])
            while line := await trio.to_thread.run_sync(sys.stdin.readline):
                order = json.loads(line)
                for peer_id, addresses in order.get("know", []):
                    p2pd.gate.give([PeerAddress(peer_id, tuple(addresses))])
                if "reduce" in order:
                    _start(reductions, order["reduce"], order["group"])
                if "digest" in order:
                    say(hashlib.blake2b(memory.view(0), digest_size=16).hexdigest())
            p2pd.close()
            nursery.cancel_scope.cancel()


def line_of(megabits: float) -> Bandwidth | None:
    """So many a second, each way."""
    rate = 1e6 * megabits / 8
    return Bandwidth(Gate(rate), Gate(rate)) if megabits else None


def _start(reductions: Reductions, view: int, group: list[str]) -> None:
    started = time.perf_counter()
    members = tuple((Peer(peer_id, NONCE), 1) for peer_id in group)
    reductions.start(
        Reduce(0, 1, Attempt(0, 1), view, members), lambda answer: say([view, time.perf_counter() - started])
    )


def hivemind(index: int, numbers: int) -> None:
    """Orders: {"join": addresses of the first, or none, "peers": n}, then {"round": true}, which is answered when the
    group has met, and {"go": true}, which is timed: only the all-reduce, since groups of ours do not have to meet."""
    import hivemind as library
    import torch
    from hivemind.averaging.control import AveragingStage

    gradient = torch.from_numpy(gradient_of(index, numbers))
    order = json.loads(sys.stdin.readline())
    first, peers = order["join"], order["peers"]
    dht = library.DHT(initial_peers=first, start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"], use_auto_relay=False)
    averager = library.DecentralizedAverager(
        [torch.zeros(numbers)], dht, start=True, prefix="bench", target_group_size=peers, min_group_size=peers,
        min_matchmaking_time=MATCHMAKING_SECONDS, request_timeout=1.0,
    )  # fmt: skip
    say([str(address) for address in dht.get_visible_maddrs()])
    while line := sys.stdin.readline():
        if "round" not in json.loads(line):
            continue
        control = averager.step(timeout=FAILED_SECONDS, wait=False, require_trigger=True, allow_retries=False)
        while control.stage != AveragingStage.AWAITING_TRIGGER and not control.done():
            time.sleep(0.01)
        say("met" if not control.done() else "failed")
        sys.stdin.readline()  # go
        started = time.perf_counter()
        try:
            with averager.get_tensors() as tensors:
                tensors[0].copy_(gradient)
            control.allow_allreduce()
            done = control.result(FAILED_SECONDS) is not None
        except Exception:
            log.exception("the round failed")
            done = False
        say(time.perf_counter() - started if done else None)
    averager.shutdown()
    dht.shutdown()


if __name__ == "__main__":
    if sys.argv[1] == "ours":
        trio.run(ours, int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], float(sys.argv[5]))
    else:
        hivemind(int(sys.argv[2]), int(sys.argv[3]))
