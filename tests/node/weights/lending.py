"""Peers that lend and fetch weights without torch or a network: compute in plain Python, streams from socket pairs."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import trio

from ftnode.node.compute.state_shape import StateShape
from ftnode.node.links.link import LinkBroken
from ftnode.node.machine.tensor_slots import Arena
from ftnode.node.ports import ComputeError
from ftnode.node.weights.copies import CopyStore
from ftnode.node.weights.copy_fetching import CopyFetcher
from ftnode.node.weights.donor import Exported, StateDonor
from ftnode.node.weights.installer import Installer
from ftnode.node.weights.source import Borrower
from ftnode.protocol.wire.frames import STATE_PROTOCOL
from ftnode.protocol.words.messages import Commit
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Attempt, LentCopy, Peer, Version

CHUNK = 64  # bytes: 16 numbers
BASE = Version(5, "c5", Attempt(1, 2))
NUMBERS = 40  # two and a half chunks
SETTINGS = Settings(run="run", stages=4, steps=3000, microbatches=2, window=2)
Stage = tuple[Version, list[float], float, int]
"""Version, numbers, ω and step count."""


class FakeCompute:
    """Stages as lists of float32 numbers, with the commands of docs/explanation/architecture.md that move them."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.stages: dict[int, Stage] = {}
        self.moments: dict[int, list[float]] = {}
        """Of both moments, where they are not zero."""
        self.exports: dict[int, tuple[int, list[float], Version | None]] = {}
        """Stage, its state when the export began, and of which version it has to stay; None: it is frozen."""
        self.installing: dict[int, tuple[Version, list[float]]] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.kept: dict[int, list[float]] = {}
        """By donor's stage, what is kept of it to be tried."""
        self.fails = ""
        self.fails_by = "oom"
        self.hangs = ""

    async def call(self, op: str, **fields: Any) -> dict[str, Any]:
        self.calls.append((op, fields))
        await trio.lowlevel.checkpoint()
        if op == self.hangs:
            await trio.sleep_forever()
        if op == self.fails:
            raise ComputeError(self.fails_by, f"{op} does not fit", fields.get("stage", -1))
        answer: dict[str, Any] = getattr(self, op)(**fields)
        return answer

    def initialise(
        self, stage: int, commit: str, first: object = None, step: int = 0, attempt: Sequence[int] = (-1, 0)
    ) -> dict[str, Any]:
        self.stages[stage] = (Version(step, commit, Attempt(*attempt)), [0.0] * NUMBERS, 0.0, 0)
        return {"digest": digest(self.stages[stage][1])}

    def install_begin(
        self, stage: int, step: int, commit: str, attempt: list[int], parts: str, rate_factor: float,
        first: object = None, tried: Sequence[int] = (),
    ) -> dict[str, Any]:  # fmt: skip
        self.kept = {each: list[float]() for each in tried}
        count = numbers_of(stage, parts)
        self.installing[stage] = (Version(step, commit, Attempt(*attempt)), [0.0] * count)
        return {"chunks": math.ceil(4 * count / CHUNK), "bytes": 4 * count}

    def install_chunk(
        self, stage: int, index: int, weight: float, slot: int, length: int, encoding: str, lender: int = -1
    ) -> dict[str, Any]:
        numbers = self.installing[stage][1]
        start = index * CHUNK // 4
        chunk = struct.unpack(f"<{length // 4}f", self.slot(slot)[:length])
        if not all(map(math.isfinite, chunk)):
            raise ComputeError("fault", "a number that is not finite", stage)
        for offset, number in enumerate(chunk):
            numbers[start + offset] += weight * number
        if lender in self.kept:
            self.kept[lender] += chunk
        return {}

    def install_end(self, stage: int, step_count: int, norm_squared: float) -> dict[str, Any]:
        version, numbers = self.installing.pop(stage)
        numbers, self.moments[stage] = numbers[:NUMBERS], numbers[NUMBERS:]
        self.stages[stage] = (version, numbers, norm_squared, step_count)
        return {"digest": digest(numbers), "blend_seconds": 0.25}

    def export_begin(self, stage: int, step: int, parts: str, encoding: str, freeze: bool) -> dict[str, Any]:
        if stage not in self.stages or self.stages[stage][0].step != step:
            raise ComputeError("invalid", "not at that step", stage)
        version, numbers, norm, count = self.stages[stage]
        export = len(self.calls)
        moments = self.moments.get(stage) or [0.0] * (2 * len(numbers))
        state = numbers + (moments if parts == "all" else [])
        self.exports[export] = (stage, state, None if freeze else version)
        return {
            "export": export,
            "version": [version.step, version.commit, list(version.attempt)],
            "norm_squared": norm,
            "rate_factor": 1.1,
            "chunks": math.ceil(4 * len(state) / CHUNK),
            "bytes": 4 * len(state),
            "weight_bytes": 4 * len(numbers),
            "digest": digest(numbers),
            "step_count": count,
        }

    def export_chunk(self, export: int, index: int, slot: int) -> dict[str, Any]:
        stage, state, version = self.exports[export]
        if version not in (None, self.stages[stage][0]):
            raise ComputeError("invalid", "the weights have moved on", stage)
        numbers = state[index * CHUNK // 4 : (index + 1) * CHUNK // 4]
        data = struct.pack(f"<{len(numbers)}f", *numbers)
        self.slot(slot)[: len(data)] = data
        return {"length": len(data), "hash": hashlib.blake2b(data, digest_size=16).hexdigest()}

    def export_end(self, export: int) -> dict[str, Any]:
        del self.exports[export]
        return {}

    def slot(self, slot: int) -> memoryview:
        return self.arena._map.view(slot)


def numbers_of(stage: int, parts: str) -> int:
    return {"weights": NUMBERS, "optimiser": 2 * NUMBERS, "all": 3 * NUMBERS}[parts]


def digest(numbers: list[float]) -> str:
    return hashlib.blake2b(struct.pack(f"<{len(numbers)}f", *numbers), digest_size=16).hexdigest()


class Host:
    """One peer's compute and donor."""

    def __init__(self, name: str, folder: Path | None = None, slots: int = 6) -> None:
        self.peer = Peer(name, 1)
        self.arena = Arena(CHUNK, slots)
        self.compute = FakeCompute(self.arena)
        self.copies = CopyStore()
        self.commits: list[Commit] = []
        self.settings = SETTINGS
        self.exported: list[Exported] = []
        self.lent: list[LentCopy] = []
        self.struck: list[str] = []
        self.members = {"newcomer"}
        self.donor = StateDonor(
            "run", self.arena, self.compute, lambda who, why: self.struck.append(why), self.exported.append, folder,
            copies=self.copies, allowed=lambda peer_id: peer_id in self.members, held=self._version,
            history=lambda since: tuple(commit for commit in self.commits if commit.step > since),
            on_lent=self.lent.append,
        )  # fmt: skip

    def _version(self, stage: int) -> Version | None:
        return self.compute.stages[stage][0] if stage in self.compute.stages else None

    def holds(self, stage: int, start: float, omega: float, version: Version = BASE, numbers: int = NUMBERS) -> Host:
        self.compute.stages[stage] = (version, [start + n for n in range(numbers)], omega, version.step)
        self.compute.moments[stage] = [start + 0.5 * n for n in range(2 * numbers)]
        return self

    def borrower(self, network: Network, shape: StateShape | None = None) -> Borrower:
        shape = shape or StateShape(numbers_of, CHUNK)
        return Borrower(self.peer, self.settings, self.arena, network, self.donor, shape)

    def installer(self, network: Network, folder: Path | None = None, since: int = -1) -> Installer:
        return Installer("run", self.settings, self.arena, self.compute, self.borrower(network), lambda: since, folder)

    def keeper(self, network: Network) -> CopyFetcher:
        return CopyFetcher("run", self.borrower(network))


class Network:
    """Opens streams to hosts by name; takes the place of the transport."""

    def __init__(self, nursery: trio.Nursery, *hosts: Host) -> None:
        self.nursery = nursery
        self.hosts = {host.peer.id: host for host in hosts}
        self.struck: list[str] = []
        self.answers: dict[str, Callable[[trio.SocketStream], Awaitable[None]]] = {}
        """Peers that do something else than a StateDonor would."""

    async def open(self, peer_id: str, protocol: str) -> trio.SocketStream:
        assert protocol == STATE_PROTOCOL
        if peer_id not in self.hosts and peer_id not in self.answers:
            raise LinkBroken("its address refuses", refused=True)
        ours, theirs = trio.socket.socketpair()
        self.nursery.start_soon(self._serve, peer_id, trio.SocketStream(theirs))
        return trio.SocketStream(ours)

    async def _serve(self, peer_id: str, stream: trio.SocketStream) -> None:
        async with stream:
            if peer_id in self.answers:
                await self.answers[peer_id](stream)
            else:
                await self.hosts[peer_id].donor.serve("newcomer", stream)

    def strike(self, peer_id: str, reason: str) -> None:
        self.struck.append(reason)
