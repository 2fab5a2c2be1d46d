"""Peers that lend and fetch weights without torch or a network: compute in plain Python, streams from socket pairs."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import trio

from ftnode.node.arena import Arena
from ftnode.node.link import LinkBroken
from ftnode.node.ports import ComputeError
from ftnode.node.state_donor import Exported, StateDonor
from ftnode.protocol.types import Attempt, Peer, Version
from ftnode.protocol.wire import STATE_PROTOCOL

CHUNK = 64  # bytes: 16 numbers
BASE = Version(5, "c5", Attempt(1, 2))
NUMBERS = 40  # two and a half chunks


class FakeCompute:
    """Stages as lists of float32 numbers, with the commands of docs/architecture.md that move them."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.stages: dict[int, tuple[Version, list[float], float, int]] = {}
        """Version, numbers, ω and step count."""
        self.installing: dict[int, tuple[Version, list[float]]] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.fails = ""
        self.hangs = ""

    async def call(self, op: str, **fields: Any) -> dict[str, Any]:
        self.calls.append((op, fields))
        await trio.lowlevel.checkpoint()
        if op == self.hangs:
            await trio.sleep_forever()
        if op == self.fails:
            raise ComputeError("oom", f"{op} does not fit", fields["stage"])
        answer: dict[str, Any] = getattr(self, op)(**fields)
        return answer

    def initialise(self, stage: int, commit: str) -> dict[str, Any]:
        self.stages[stage] = (Version(0, commit, Attempt(-1, 0)), [0.0] * NUMBERS, 0.0, 0)
        return {"digest": digest(self.stages[stage][1])}

    def install_begin(
        self, stage: int, step: int, commit: str, attempt: list[int], parts: str, rate_factor: float
    ) -> dict[str, Any]:
        self.installing[stage] = (Version(step, commit, Attempt(*attempt)), [0.0] * NUMBERS)
        return {"chunks": math.ceil(4 * NUMBERS / CHUNK), "bytes": 4 * NUMBERS}

    def install_chunk(self, stage: int, index: int, weight: float, slot: int, length: int) -> dict[str, Any]:
        numbers = self.installing[stage][1]
        start = index * CHUNK // 4
        chunk = struct.unpack(f"<{length // 4}f", self.slot(slot)[:length])
        for offset, number in enumerate(chunk):
            numbers[start + offset] += weight * number
        return {}

    def install_end(self, stage: int, step_count: int, norm_squared: float) -> dict[str, Any]:
        version, numbers = self.installing.pop(stage)
        self.stages[stage] = (version, numbers, norm_squared, step_count)
        return {"digest": digest(numbers), "blend_seconds": 0.25}

    def export_begin(self, stage: int, step: int, parts: str) -> dict[str, Any]:
        if stage not in self.stages or self.stages[stage][0].step != step:
            raise ComputeError("invalid", "not at that step", stage)
        version, numbers, norm, count = self.stages[stage]
        return {
            "version": [version.step, version.commit, list(version.attempt)],
            "norm_squared": norm,
            "rate_factor": 1.1,
            "chunks": math.ceil(4 * len(numbers) / CHUNK),
            "bytes": 4 * len(numbers),
            "digest": digest(numbers),
            "step_count": count,
        }

    def export_chunk(self, stage: int, index: int, slot: int) -> dict[str, Any]:
        numbers = self.stages[stage][1][index * CHUNK // 4 : (index + 1) * CHUNK // 4]
        data = struct.pack(f"<{len(numbers)}f", *numbers)
        self.slot(slot)[: len(data)] = data
        return {"length": len(data), "hash": hashlib.blake2b(data, digest_size=16).hexdigest()}

    def slot(self, slot: int) -> memoryview:
        return self.arena._map.view(slot)


def digest(numbers: list[float]) -> str:
    return hashlib.blake2b(struct.pack(f"<{len(numbers)}f", *numbers), digest_size=16).hexdigest()


class Host:
    """One peer's compute and donor."""

    def __init__(self, name: str, folder: Path | None = None, slots: int = 6) -> None:
        self.peer = Peer(name, 1)
        self.arena = Arena(CHUNK, slots)
        self.compute = FakeCompute(self.arena)
        self.exported: list[Exported] = []
        self.struck: list[str] = []
        self.members = {"newcomer"}
        self.donor = StateDonor(
            "run", self.arena, self.compute, lambda who, why: self.struck.append(why), self.exported.append, folder,
            allowed=lambda peer_id: peer_id in self.members, held=self._version,
        )  # fmt: skip

    def _version(self, stage: int) -> Version | None:
        return self.compute.stages[stage][0] if stage in self.compute.stages else None

    def holds(self, stage: int, start: float, omega: float, version: Version = BASE, numbers: int = NUMBERS) -> Host:
        self.compute.stages[stage] = (version, [start + n for n in range(numbers)], omega, version.step)
        return self


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
