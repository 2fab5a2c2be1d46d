"""A swarm of peers that only answer watchers, in one process: `python -m ftnode.lab.parts.watch_responders COUNT`.

Each is a real p2pd with an identity of its own. Their statuses tell of one run that COUNT peers hold and that goes on
with every question. Prints the addresses as one line of JSON, and ends when its stdin does.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import trio

from ftnode.node.home.identity import take_identity
from ftnode.node.links.addresses import full_addresses
from ftnode.node.links.p2pd import P2pd
from ftnode.node.watch.stage_summary import summarize
from ftnode.node.watch.status import (
    COMMITS_MAX,
    STATUS_PROTOCOL,
    CommitPoint,
    PeerRow,
    RecoveryRow,
    Speaker,
    StageRow,
    SwarmStatus,
    status_handler,
)

STAGES = 8
STEPS = 20_000
AT_ONCE = 4
"""p2pds that start side by side."""


def status_of(speaker: str, peers: list[str], step: int) -> SwarmStatus:
    """A run of STAGES block stages and a head, its holders dealt out evenly, with a full curve."""
    rows = tuple(
        StageRow(number % (STAGES + 1), peer, "training", 1, step, 5, number % 3, 0.4, 900.0)
        for number, peer in sorted(enumerate(peers), key=lambda pair: (pair[0] % (STAGES + 1), pair[0]))
    )
    told = tuple(
        PeerRow(row.peer, "holder", (row.stage,), ("/ip4/192.0.2.7/tcp/31337",), "direct", 0.021, "0.1.0", 0.4)
        for row in rows
    )
    return SwarmStatus(
        Speaker(speaker, "0.1.0", "cpu", "volunteer"), run="0" * 64, name="fake", step=step, steps=STEPS, loss=2.5,
        validation=2.4, validation_step=step, perplexity=11.0, tokens_per_second=12345.0, eta_seconds=3600.0,
        leader=peers[0], lineage="0" * 32, view=9, state="training", stages=rows, volunteers=len(peers),
        recoveries=tuple(
            RecoveryRow(2, at, "blend", 1, peers[0], peers[1], "both neighbours are there", 0.6, 900_000, 2.4, 2.5)
            for at in range(100, 600, 100)
        ),
        commits=tuple(CommitPoint(at, 2.5, 0.3) for at in range(step - COMMITS_MAX, step)),
        commit_age=0.4, clock=time.time(), summaries=summarize(rows, lambda stage: 0.4), peers=told,
    )  # fmt: skip


async def serve(number: int) -> None:
    """Until stdin ends."""
    async with trio.open_nursery() as nursery:
        with TemporaryDirectory(prefix="ftnode-lab-") as folder:
            p2pds: list[P2pd] = []
            limit = trio.CapacityLimiter(AT_ONCE)

            async def start(name: str) -> None:
                async with limit:
                    p2pds.append(await P2pd.start(nursery, take_identity(Path(folder), name).path))

            try:
                async with trio.open_nursery() as starting:
                    for name in range(number):
                        starting.start_soon(start, f"peer-{name}")
                peers, steps = [p2pd.peer_id for p2pd in p2pds], count(COMMITS_MAX)
                for p2pd in p2pds:
                    me = p2pd.peer_id
                    handler = status_handler(lambda me=me: status_of(me, peers, next(steps)))  # type: ignore[misc]
                    await p2pd.serve(STATUS_PROTOCOL, handler)
                addresses = [full_addresses(p2pd.peer_id, await p2pd.addresses())[0] for p2pd in p2pds]
                print(json.dumps(addresses), flush=True)
                await trio.lowlevel.wait_readable(sys.stdin.fileno())  # it ended, as nobody writes there
            finally:
                for p2pd in p2pds:
                    p2pd.close()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(serve, int(sys.argv[1]))
