"""Small states to keep, and processes that end themselves in the middle of keeping one."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ftnode.models.config import ModelConfig
from ftnode.node.snapshots.disk import Disk
from ftnode.node.snapshots.format import DataPosition, KeptSnapshot, Lineal, StageIndex, StageState
from ftnode.node.snapshots.store import SnapshotStore
from ftnode.node.snapshots.write import DiskAllowance, write_snapshot
from ftnode.protocol.words.types import Attempt, Version

RUN = "ab" * 16
MODEL = ModelConfig(dim=32, heads=2, layers=4, context=8, hidden=48)
STAGES = 2
STATE_BYTES = 3 * MODEL.number_bytes * MODEL.stage_parameters(STAGES, 1)
ALLOWANCE = DiskAllowance(keep=2, limit_bytes=10**9, spared_bytes=0)
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["ftnode.node.snapshots.write"])


def about(
    step: int, stage: int = 1, model: ModelConfig = MODEL, commit: str = "", optimiser: str = "adam"
) -> StageIndex:
    version = Version(step, commit or f"{step:024x}", Attempt(3, 1))
    return StageIndex(
        RUN, stage, STAGES, version, Lineal("ee" * 8, 1, 7, 4), StageState(2.5, 1.1, step - 1),
        DataPosition("cd" * 32, 5, step + 1), model, optimiser, "", {}, 0, 0.0, "0.1.0",
    )  # fmt: skip


def state_of(step: int, size: int = STATE_BYTES) -> bytes:
    return random.Random(step).randbytes(size)


def keep(
    home: Path, step: int, stage: int = 1, disk: Disk | None = None, allowance: DiskAllowance = ALLOWANCE,
    held: tuple[int, ...] = (), **fields: Any,
) -> KeptSnapshot:  # fmt: skip
    made = about(step, stage, **fields)
    size = made.plan.size(stage, "all")
    store = SnapshotStore(home, RUN, disk)
    return write_snapshot(store, memoryview(state_of(step, size)), made, allowance, held)


class Counted(Disk):
    """Calls `at` before every operation with its name and number, from 0; of a write, half is done by then."""

    def __init__(self) -> None:
        self.operations: list[str] = []

    def at(self, name: str, number: int) -> None:
        """For what may go wrong there."""

    def make_folder(self, path: Path) -> None:
        self._step("make_folder")
        super().make_folder(path)

    def create(self, path: Path) -> int:
        self._step("create")
        return super().create(path)

    def reserve(self, descriptor: int, size: int) -> None:
        self._step("reserve")
        super().reserve(descriptor, size)

    def write(self, descriptor: int, content: memoryview | bytes, offset: int) -> None:
        half = len(content) // 2
        super().write(descriptor, memoryview(content)[:half], offset)
        self._step("write")
        super().write(descriptor, memoryview(content)[half:], offset + half)

    def sync(self, descriptor: int) -> None:
        self._step("sync")
        super().sync(descriptor)

    def sync_folder(self, path: Path) -> None:
        self._step("sync_folder")
        super().sync_folder(path)

    def rename(self, path: Path, name: Path) -> None:
        self._step("rename")
        super().rename(path, name)

    def unlink(self, name: str, folder: int) -> None:
        self._step("unlink")
        super().unlink(name, folder)

    def _step(self, name: str) -> None:
        self.operations.append(name)
        self.at(name, len(self.operations) - 1)


class Deadly(Counted):
    """Ends the process at one operation, as a kill would."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def at(self, name: str, number: int) -> None:
        if number == self._number:
            os.kill(os.getpid(), signal.SIGKILL)


def keep_and_die(home: Path, step: int, operation: int, held: tuple[int, ...]) -> None:
    """Target of a process."""
    keep(home, step, disk=Deadly(operation), held=held)


def keep_when_told(home: Path, step: int, link: Connection) -> None:
    """Target of a process: says when it begins, and when it is done."""
    state = memoryview(state_of(step, STATE_BYTES))
    store, made = SnapshotStore(home, RUN), about(step)
    link.send("begun")
    write_snapshot(store, state, made, ALLOWANCE, ())
    link.send("done")
