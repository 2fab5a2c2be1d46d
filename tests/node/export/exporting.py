"""Holders that export to readers over socket pairs, with compute in plain Python and no p2pd."""

from __future__ import annotations

import io
import struct
from collections.abc import Awaitable, Callable, Sequence

import pytest
import trio
import trio.testing

from ftnode.node.data.shard_lending import ShardLender
from ftnode.node.data.shard_wire import DATA_PROTOCOL
from ftnode.node.export.client import ModelReader, TakenModel, WantedModel
from ftnode.node.export.server import ExportServer
from ftnode.node.export.wire import EXPORT_PROTOCOL, Holders, Place
from ftnode.node.home.identity import peer_id_text
from ftnode.node.links.addresses import PeerAddress
from ftnode.node.links.p2pd import P2pdError
from ftnode.node.watch.status import STATUS_PROTOCOL, Speaker, SwarmStatus, encode_status, serve_status
from ftnode.protocol.words.errors import UserError
from ftnode.protocol.words.types import Attempt, Peer, Version
from tests.node.weights.lending import BASE, NUMBERS, Host

RUN = "run"
STEPS = 20
ADDRESS = ("/ip4/127.0.0.1/tcp/1",)
STAGE_BYTES = 4 * NUMBERS
NOW = 0.01
"""No second attempt."""
WANTED = WantedModel(RUN, STEPS, (STAGE_BYTES,) * 3, 4)
Answer = Callable[[trio.SocketStream], Awaitable[None]]


def peer_id(number: int) -> str:
    return peer_id_text(bytes.fromhex("002408011220") + bytes([number]) * 32)


def version(step: int, commit: str = "") -> Version:
    return Version(step, commit or f"c{step}", Attempt(1, step))


class Holder:
    """A member with a stage (or none), that answers readers."""

    def __init__(
        self, number: int, stage: int | None, at: Version = BASE, numbers: int = NUMBERS, run: str = RUN
    ) -> None:
        self.id = peer_id(number)
        self.host = Host(self.id, slots=6)
        self.host.peer = Peer(self.id, 1)
        self.stage = stage
        self.told: Holders | None = None
        self.written: list[int] = []
        self.on_written: Callable[[], object] = lambda: None
        self.answer: Answer | None = None
        """Instead of what an ExportServer would."""
        if stage is not None:
            self.host.holds(stage, 100.0 * stage, 1.0, at, numbers)
        self.run = run
        self.lender: ShardLender | None = None
        self.server = ExportServer(
            run, STEPS, self.host.arena, self.host.compute, self.host._version, self.host.donor.next_advance,
            lambda: self.told, self._written,
        )  # fmt: skip

    def _written(self, who: str, step: int) -> None:
        self.written.append(step)
        self.on_written()

    def advance(self, at: Version) -> None:
        """A commit: the stage has other weights."""
        assert self.stage is not None
        _, numbers, norm, count = self.host.compute.stages[self.stage]
        self.host.compute.stages[self.stage] = (at, [number + 1 for number in numbers], norm, count)
        self.host.donor.advanced()

    def frozen(self) -> set[int]:
        """Steps whose weights compute keeps for readers."""
        return {0 if at is None else at.step for _, _, at in self.host.compute.exports.values()}


class Swarm:
    """Takes the place of p2pd: opens streams to holders by PeerId."""

    def __init__(self, nursery: trio.Nursery, *holders: Holder) -> None:
        self.nursery = nursery
        self.holders = {holder.id: holder for holder in holders}
        self.unreachable: set[str] = set()
        self.never: set[str] = set()
        """Dialling them takes for ever."""
        self.dialled: list[str] = []
        self.words: dict[str, SwarmStatus | bytes] = {}
        """What a peer says instead of `status`."""
        self.status = SwarmStatus(
            Speaker(holders[0].id, "0", "cpu", "volunteer"), run=holders[0].run, name="trial", steps=STEPS
        )

    def tell(self, step: int, seconds: float, *without: int) -> None:
        """What every member says of the run: who holds what, and where it is."""
        places = tuple(
            Place(holder.stage, 0, holder.id, ADDRESS)
            for holder in self.holders.values()
            if holder.stage is not None and holder.stage not in without
        )
        for holder in self.holders.values():
            holder.told = Holders(holder.run, step, seconds, places)

    @property
    def peers(self) -> tuple[PeerAddress, ...]:
        return tuple(PeerAddress(name, ADDRESS) for name in list(self.holders)[:1])

    async def connect(self, peer_id: str, addresses: Sequence[str], seconds: float) -> None:
        await trio.lowlevel.checkpoint()
        assert all(address.startswith("/ip4/127.") for address in addresses)
        self.dialled.append(peer_id)
        if peer_id in self.never:
            await trio.sleep_forever()
        if peer_id in self.unreachable or peer_id not in self.holders:
            raise P2pdError("all dials failed")

    async def open(self, peer_id: str, protocol: str, seconds: float) -> trio.SocketStream:
        await trio.lowlevel.checkpoint()
        ours, theirs = trio.socket.socketpair()
        self.nursery.start_soon(self._serve, self.holders[peer_id], protocol, trio.SocketStream(theirs))
        return trio.SocketStream(ours)

    async def _serve(self, holder: Holder, protocol: str, stream: trio.SocketStream) -> None:
        async with stream:
            if protocol == STATUS_PROTOCOL:
                words = self.words.get(holder.id, self.status)
                if isinstance(words, bytes):
                    await stream.send_all(words)
                else:
                    await serve_status(stream, lambda: encode_status(words))
            elif protocol == DATA_PROTOCOL:
                if holder.lender is not None:
                    await holder.lender.serve("12D3KooWreader", stream)
            elif holder.answer is not None:
                await holder.answer(stream)
            else:
                assert protocol == EXPORT_PROTOCOL
                await holder.server.serve("12D3KooWreader", stream)


def three(nursery: trio.Nursery, step: int = 5) -> tuple[Swarm, list[Holder]]:
    holders = [Holder(stage + 1, stage, version(step)) for stage in range(3)]
    swarm = Swarm(nursery, *holders)
    swarm.tell(step, 0.0)
    return swarm, holders


def run(main: Callable[[trio.Nursery], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                await main(nursery)
                nursery.cancel_scope.cancel()

    trio.run(bounded)


class Disk:
    """Where stages go."""

    def __init__(self) -> None:
        self.stages: dict[int, io.BytesIO] = {}
        self.kept: list[TakenModel] = []

    def open(self, stage: int) -> io.BytesIO:
        self.stages[stage] = io.BytesIO()
        return self.stages[stage]

    def numbers(self, stage: int) -> list[float]:
        data = self.stages[stage].getvalue()
        return list(struct.unpack(f"<{len(data) // 4}f", data))


async def take(swarm: Swarm, disk: Disk, seconds: float = NOW, wanted: WantedModel = WANTED) -> TakenModel:
    return await ModelReader(swarm, wanted, disk.open).take(swarm.peers, seconds, disk.kept.append)


async def refused(swarm: Swarm, code: int, *says: str, wanted: WantedModel = WANTED) -> None:
    disk = Disk()
    with pytest.raises(UserError) as caught:
        await take(swarm, disk, wanted=wanted)
    assert caught.value.exit_code == code, caught.value
    assert all(part in str(caught.value) for part in says), caught.value
    assert not disk.kept
    await trio.testing.wait_all_tasks_blocked()
    for holder in swarm.holders.values():
        assert not holder.host.compute.exports and holder.host.arena.free == holder.host.arena.slots


async def silent(stream: trio.SocketStream) -> None:
    await trio.sleep_forever()
