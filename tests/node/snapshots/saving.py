"""A node that trains and saves, in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio
import trio.testing

from ftnode.models.config import ModelConfig
from ftnode.node.compute.config import ComputeConfig
from ftnode.node.compute.state_shape import state_numbers
from ftnode.node.machine.snapshot_memory import SnapshotMemory
from ftnode.node.ports import ComputeError
from ftnode.node.snapshots.disk import Disk
from ftnode.node.snapshots.saver import About, SnapshotSaver
from ftnode.node.snapshots.store import SnapshotStore
from ftnode.node.snapshots.write import DiskAllowance
from ftnode.protocol.words.types import Attempt, Peer, Version
from ftnode.protocol.words.view import Lineage, View
from tests.node.compute.computing import ATTEMPT, STAGES, Refused, direct, train
from tests.node.snapshots.keeping import RUN

ME = Peer("12D3KooWme", 1)
VIEW = View(RUN, Lineage("ee" * 8, 1, 4), 5, "", ME, ((ME,),) * (STAGES + 1), (ME,), (0, 2, 3, 4), "")
ALLOWANCE = DiskAllowance(2, 10**9, 0)


def model_of(config: ComputeConfig) -> ModelConfig:
    return ModelConfig(
        config.dim, config.heads, config.layers, config.context, config.hidden, precision=config.precision
    )


def version(step: int) -> Version:
    return Version(step, f"c{step}", Attempt(*ATTEMPT))


class Node:
    """Compute, memory and saver of a node that holds everything."""

    def __init__(
        self, home: Path, config: ComputeConfig, disk: Disk | None = None, every: int = 2,
        fits: Callable[[int], bool] = lambda size: True,
    ) -> None:  # fmt: skip
        self.said: list[str] = []
        self.held = set(range(STAGES + 1))
        self.memory = SnapshotMemory(state_numbers(config), config.number_bytes)
        self.compute = direct(config, snapshots=self.memory)
        self.store = SnapshotStore(home, RUN, disk)
        about = About(RUN, STAGES, model_of(config), config.optimiser, "cd" * 32, 5, 1000)
        self.saver = SnapshotSaver(
            self.store,
            self.memory,
            self.post,
            about,
            every,
            ALLOWANCE,
            lambda: VIEW,
            lambda: self.held,
            lambda _, text, **__: self.said.append(text),
            fits,
        )

    def post(self, op: str, answer: Callable[[Any], None], **fields: Any) -> None:
        try:
            answer(self.compute.call(op, **fields))
        except Refused as refused:
            answer(ComputeError(refused.kind, str(refused), refused.stage))

    def train(self, step: int) -> dict[str, Any]:
        done = train(self.compute, step)
        for stage in range(STAGES + 1):
            self.saver.applied(stage, version(step))
        return done


async def settled(node: Node, count: int) -> None:
    """Until so many lines were said."""
    with trio.fail_after(20):
        while len(node.said) < count:
            await trio.testing.wait_all_tasks_blocked(0.001)
