"""Members of a group that reduce one tiny stage: torch without a process, streams from socket pairs or a real p2pd."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import numpy as np
import trio

from ftnode.node.compute.config import ComputeConfig
from ftnode.node.compute.state_shape import gradient_numbers
from ftnode.node.links.link import LinkBroken
from ftnode.node.machine.gradient_memory import GradientMap, GradientMemory
from ftnode.node.ports import ComputeError, StreamOpener
from ftnode.node.reduction.encoding import encoding_of
from ftnode.node.reduction.exchange import pieces_of
from ftnode.node.reduction.part_seals import PartSeals
from ftnode.node.reduction.piece_sum import WHOSE_SUM
from ftnode.node.reduction.reductions import Reductions
from ftnode.node.reduction.wire import REDUCE_PROTOCOL
from ftnode.protocol.words.effects import Reduce
from ftnode.protocol.words.types import Attempt, Peer
from tests.node.compute.computing import CONFIG, Direct, Port, direct

Floats = np.ndarray[Any, np.dtype[np.float32]] | np.ndarray[Any, np.dtype[np.float64]]
STAGE, ATTEMPT = 1, Attempt(0, 1)
GROUP_CONFIG = replace(CONFIG, microbatches=8)
WIDE_CONFIG = replace(GROUP_CONFIG, precision="float64", boundary="float64", slot_bytes=2 * GROUP_CONFIG.slot_bytes)
NUMBERS = gradient_numbers(GROUP_CONFIG)


class Member:
    """`learner`: without weights of the stage."""

    def __init__(
        self, peer: Peer, streams: StreamOpener, learner: bool = False, config: ComputeConfig = GROUP_CONFIG,
        encoding: str = "exact", seals: PartSeals | None = None,
    ) -> None:  # fmt: skip
        self.peer, self.dtype = peer, np.dtype(config.precision)
        self.memory = GradientMemory(NUMBERS, config.number_bytes)
        stages = range(0) if learner else range(STAGE, STAGE + 1)
        self.compute: Direct = direct(config, stages, GradientMap(self.memory.descriptor, NUMBERS, config.number_bytes))
        self.relay = ""
        """Who carries every stream to and from this member."""
        self.reductions = Reductions(
            "run", peer, self.memory, Port(self.compute), streams, encoding=encoding, relay_of=lambda _: self.relay,
            seals=seals,
        )  # fmt: skip
        self.answers: list[dict[str, Any] | ComputeError] = []
        self.answered = trio.Event()

    def accumulate(self, *microbatches: int, step: int = 1, attempt: Attempt = ATTEMPT) -> None:
        """The gradients of some microbatches: numbers that are theirs alone."""
        for microbatch in microbatches:
            chance = np.random.default_rng(microbatch + 100 * step)
            for slot in (0, 1):
                numbers = np.frombuffer(self.compute.arena._map.view(slot), self.dtype)
                numbers[:] = chance.standard_normal(len(numbers), self.dtype)
            self.compute.call(
                "backward", stage=STAGE, step=step, attempt=list(attempt), microbatch=microbatch, visit=STAGE,
                gradient=0, input=1, output=2, recompute=True,
            )  # fmt: skip

    @property
    def stage(self) -> Any:
        return self.compute.backend._stages[STAGE]  # type: ignore[attr-defined]

    def accumulated(self) -> Floats:
        return self.stage.gradient.numpy().copy()  # type: ignore[no-any-return]

    def summed(self) -> Floats:
        return np.frombuffer(self.memory.view(STAGE), self.dtype).copy()

    def start(self, task: Reduce) -> None:
        self.answered = trio.Event()

        def answered(answer: dict[str, Any] | ComputeError) -> None:
            self.answers.append(answer)
            self.answered.set()

        self.reductions.start(task, answered)

    async def answer(self) -> dict[str, Any]:
        await self.answered.wait()
        found = self.answers[-1]
        assert isinstance(found, dict), found
        return found

    def apply(self, step: int, attempt: Attempt = ATTEMPT) -> str:
        answer = self.compute.call(
            "apply", stage=STAGE, step=step, commit=f"c{step}", attempt=list(attempt), skipped=False
        )
        return str(answer["digest"])


class Wires:
    """Opens streams to members by name; takes the place of the transports of all of them."""

    def __init__(self, nursery: trio.Nursery, config: ComputeConfig = GROUP_CONFIG, encoding: str = "exact") -> None:
        self.nursery, self.config, self.encoding = nursery, config, encoding
        self.members: dict[str, Member] = {}
        self.seals: Callable[[str], PartSeals | None] = lambda name: None
        self.answers: dict[str, Callable[[trio.SocketStream], Awaitable[None]]] = {}
        """Peers that do something else than a member would."""
        self.struck: list[str] = []

    def member(self, name: str, learner: bool = False) -> Member:
        made = Member(Peer(name, 1), _From(self, name), learner, self.config, self.encoding, self.seals(name))
        self.members[name] = made
        made.reductions.begin(self.nursery)
        return made

    def lies_twice(self, name: str, asker: str, lie: Callable[[trio.SocketStream], Awaitable[None]]) -> None:
        """The member answers its next two streams with a lie, and `asker` as an honest one from then on."""
        honest, lies = self.members.pop(name), 0

        async def answer(stream: trio.SocketStream) -> None:
            nonlocal lies
            lies += 1
            await (honest.reductions.serve(asker, stream) if lies > 2 else lie(stream))

        self.answers[name] = answer

    async def open(self, sender: str, to: str) -> trio.SocketStream:
        await trio.lowlevel.checkpoint()
        if to not in self.members and to not in self.answers:
            raise LinkBroken("nobody is there")
        ours, theirs = trio.socket.socketpair()
        self.nursery.start_soon(self._serve, sender, to, trio.SocketStream(theirs))
        return trio.SocketStream(ours)

    async def _serve(self, sender: str, to: str, stream: trio.SocketStream) -> None:
        async with stream:
            if to in self.answers:
                await self.answers[to](stream)
            else:
                await self.members[to].reductions.serve(sender, stream)


class _From:
    """What one member has of the wires."""

    def __init__(self, wires: Wires, name: str) -> None:
        self.wires, self.name = wires, name

    async def open(self, peer_id: str, protocol: str) -> trio.SocketStream:
        assert protocol == REDUCE_PROTOCOL
        return await self.wires.open(self.name, peer_id)

    def strike(self, peer_id: str, reason: str) -> None:
        self.wires.struck.append(reason)


def run(
    main: Callable[[Wires], Awaitable[None]], config: ComputeConfig = GROUP_CONFIG, encoding: str = "exact"
) -> None:
    """`main` with wires of its own, and 30 s."""

    async def bounded() -> None:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                await main(Wires(nursery, config, encoding))
                nursery.cancel_scope.cancel()

    trio.run(bounded)


def group(*shares: tuple[Member | Peer, int]) -> tuple[tuple[Peer, int], ...]:
    return tuple((who.peer if isinstance(who, Member) else who, count) for who, count in shares)


def task(members: tuple[tuple[Peer, int], ...], view: int = 0, step: int = 1, attempt: Attempt = ATTEMPT) -> Reduce:
    return Reduce(STAGE, step, attempt, view, members)


def encoded_sum(parts: list[Floats], encoding: str, step: int = 1) -> Floats:
    """The sum that everybody must have, to the bit, when it travels like this."""
    total, count = in_order(parts), len(parts)
    if encoding == "exact":
        return total
    made = encoding_of(encoding, total.itemsize)
    cut = [pieces_of(memoryview(part).cast("B"), count, made, ("run", STAGE, step)) for part in (*parts, total)]
    for owner, piece in enumerate(cut[-1]):
        at = 0
        while at < piece.bytes:
            heard = [cut[k][owner].chunk(at) for k in range(count)]
            for k in set(range(count)) - {owner}:
                heard[k] = piece.decode(at, piece.encode(at, heard[k], k))
            piece.chunk(at)[:] = piece.decode(at, piece.encode(at, in_order(heard), WHOSE_SUM))
            at = piece.end(at)
    return total


def in_order(parts: list[Floats]) -> Floats:
    """The sum that everybody must have, to the bit."""
    total = parts[0].copy()
    for part in parts[1:]:
        total = total + part
    return total
