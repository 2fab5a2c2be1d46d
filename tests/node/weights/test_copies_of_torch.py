"""A head and a shadow that were really trained, through a keeper's memory into another compute process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from ftnode.models.config import PRECISIONS
from ftnode.node.compute.client import ComputeProcess
from ftnode.node.compute.config import ComputeConfig
from ftnode.node.compute.state_shape import shape_of
from ftnode.node.machine.tensor_slots import Arena
from ftnode.node.ports import ComputePort
from ftnode.node.weights.copies import CopyStore
from ftnode.node.weights.copy_fetching import CopyFetcher
from ftnode.node.weights.donor import Exported, StateDonor
from ftnode.node.weights.installer import Installer
from ftnode.node.weights.source import Borrower
from ftnode.protocol.words.effects import Install, Keep
from ftnode.protocol.words.events import Installed
from ftnode.protocol.words.messages import Donor, Plan
from ftnode.protocol.words.types import Attempt, LentCopy, Peer, Rung, Version
from tests.node.compute.computing import ATTEMPT, CONFIG, Direct, Port, direct, train
from tests.node.weights.lending import SETTINGS, Network

Restart = Callable[[], Awaitable[None]]
VERSIONS = {step: Version(step, f"c{step}", Attempt(*ATTEMPT)) for step in (1, 2, 3)}


class Node:
    """What moves weights, around a compute of one's choice. `network` needs hosts with a `peer` and a `donor`."""

    def __init__(self, name: str, config: ComputeConfig, arena: Arena, compute: ComputePort, network: Network) -> None:
        self.peer, self.arena, self.compute = Peer(name, 1), arena, compute
        self.copies = CopyStore()
        self.exported: list[Exported] = []
        self.lent: list[LentCopy] = []
        self.donor = StateDonor(
            "run", arena, compute, lambda who, why: None, self.exported.append, copies=self.copies,
            on_lent=self.lent.append,
        )  # fmt: skip
        borrower = Borrower(self.peer, SETTINGS, arena, network, self.donor, shape_of(config))
        self.keeper = CopyFetcher("run", borrower)
        self.installer = Installer("run", SETTINGS, arena, compute, borrower)
        network.hosts[name] = self  # type: ignore[assignment]

    async def state(self, stage: int, step: int) -> tuple[dict[str, Any], bytes]:
        """Everything that the compute process has of a stage: weights and both moments."""
        begun = await self.compute.call("export_begin", stage=stage, step=step, parts="all")
        handle, data = self.arena.take(), b""
        for index in range(begun["chunks"]):
            slot = self.arena.slot(handle)
            answer = await self.compute.call("export_chunk", export=begun["export"], index=index, slot=slot)
            data += bytes(self.arena.view(handle)[: answer["length"]])
        self.arena.release(handle)
        await self.compute.call("export_end", export=begun.pop("export"))
        return begun, data


def swarm(
    text: Path, main: Callable[[Direct, Node, Node, Node, Restart], Awaitable[None]], precision: str = "float32"
) -> None:
    """A holder of everything that computes when it is told, a keeper without compute, a newcomer with a process."""
    slot_bytes = CONFIG.slot_bytes // 4 * PRECISIONS[precision]
    config = replace(CONFIG, data=str(text), precision=precision, boundary=precision, slot_bytes=slot_bytes)
    trained = direct(config)

    async def bounded() -> None:
        with trio.fail_after(90):
            async with trio.open_nursery() as nursery:
                network = Network(nursery)
                arena = Arena(config.slot_bytes, config.slots)
                up, ups = trio.open_memory_channel[Any](9)
                process = ComputeProcess(config, arena, up.send_nowait, lambda reason: None, lambda stage, reason: None)
                nursery.start_soon(process.run)
                await ups.receive()

                async def restart() -> None:
                    process.restart("a fault of ours")
                    await ups.receive()

                holder = Node("holder", config, trained.arena, Port(trained), network)
                keeper = Node("keeper", config, Arena(config.slot_bytes, config.slots), Port(trained), network)
                newcomer = Node("newcomer", config, arena, process, network)
                await main(trained, holder, keeper, newcomer, restart)
                nursery.cancel_scope.cancel()

    trio.run(bounded)


async def keep(keeper: Node, stage: int, step: int, parts: str, encoding: str) -> None:
    effect = Keep(Donor(stage, Peer("holder", 1), ()), VERSIONS[step], parts, encoding, -1)
    fetched = await keeper.keeper.fetch(effect)
    assert fetched.copy is not None, fetched.event
    keeper.copies.held[stage] = fetched.copy


async def take(newcomer: Node, holder: Node, stage: int, rung: Rung, step: int, base: int) -> Installed:
    donors = (Donor(stage, Peer("keeper", 1), ()),)
    plan = Plan(stage, newcomer.peer, rung, donors, 1.0, "kept", VERSIONS[step], told=(holder.lent[-1].digest,))
    outcome = await newcomer.installer.install(Install(plan, VERSIONS[base]))
    assert isinstance(outcome.event, Installed), outcome.event
    assert outcome.copy_step == step
    return outcome.event


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_head_comes_back_as_it_was_though_its_holder_went_on(precision: str, text_file: Path) -> None:
    async def main(trained: Direct, holder: Node, keeper: Node, newcomer: Node, restart: Restart) -> None:
        train(trained, 1)
        train(trained, 2)
        before, state = await holder.state(0, 2)
        begin = trained.backend.export_chunk  # type: ignore[attr-defined]

        def commit_first(**fields: Any) -> dict[str, Any]:
            trained.backend.export_chunk = begin  # type: ignore[attr-defined]
            train(trained, 3)
            return begin(**fields)  # type: ignore[no-any-return]

        trained.backend.export_chunk = commit_first  # type: ignore[attr-defined]
        await keep(keeper, 0, 2, "all", "raw")
        with pytest.raises(Exception, match="of step 3, not 2"):
            await holder.state(0, 2)
        event = await take(newcomer, holder, 0, Rung.HEAD, 2, 3)
        after, rebuilt = await newcomer.state(0, 3)
        assert rebuilt == state and event.digest == before["digest"] == after["digest"]
        assert (after["step_count"], after["rate_factor"], after["norm_squared"]) == (2, 1.0, before["norm_squared"])
        assert np.frombuffer(rebuilt[len(rebuilt) // 3 :], precision).any(), "moments of an optimiser that has worked"

    swarm(text_file, main, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("encoding", "tolerance"), [("bfloat16", 2**-8), ("int8", 1 / 254)])
def test_a_shadow_is_nearly_what_was_lost_and_outlives_compute(
    encoding: str, tolerance: float, precision: str, text_file: Path
) -> None:
    async def main(trained: Direct, holder: Node, keeper: Node, newcomer: Node, restart: Restart) -> None:
        train(trained, 1)
        _, state = await holder.state(2, 1)
        lost = np.frombuffer(state[: len(state) // 3], precision)
        await keep(newcomer, 2, 1, "weights", encoding)
        await restart()
        assert newcomer.copies.held[2].size < 0.6 * lost.nbytes
        keeper.copies.held = newcomer.copies.held
        event = await take(newcomer, holder, 2, Rung.SHADOW, 1, 1)
        after, rebuilt = await newcomer.state(2, 1)
        weights, moments = np.split(np.frombuffer(rebuilt, precision), [lost.size])
        assert 0 < np.abs(weights - lost).max() <= tolerance * np.abs(lost).max()
        assert not moments.any() and after["step_count"] == 0
        assert event.digest == after["digest"] == holder.exported[0].digest == keeper.exported[0].digest

    swarm(text_file, main, precision)
