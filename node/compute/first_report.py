"""What the compute processes of a machine report before they do anything else, without a node around them."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from ftnode.node.compute.client import START_SECONDS
from ftnode.node.compute.config import ComputeConfig
from ftnode.node.compute.group import ComputeGroup, Ready
from ftnode.node.machine.tensor_slots import Arena
from ftnode.protocol.words.errors import UserError

ERRORS = "volunteer"


def first_report(configs: Sequence[ComputeConfig]) -> tuple[Ready, ...]:
    """Start them, hear them, and end them: of each device what its dry microbatch said. Raises UserError (69)."""
    return trio.run(_heard, configs)


async def _heard(configs: Sequence[ComputeConfig]) -> tuple[Ready, ...]:
    arena = Arena(configs[0].slot_bytes, configs[0].slots)
    found: list[tuple[Ready, ...]] = []
    lost: list[str] = []
    settled = trio.Event()

    def ready(reports: tuple[Ready, ...]) -> None:
        found.append(reports)
        settled.set()

    def gone(reason: str) -> None:
        lost.append(group.refusal or reason)
        settled.set()

    group = ComputeGroup(configs, arena, ready, gone, lambda *stage_lost: None)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(group.run)
            with trio.move_on_after(START_SECONDS):
                await settled.wait()
            nursery.cancel_scope.cancel()
    finally:
        arena.close()
    if not found:
        devices = ",".join(config.device for config in configs)
        why = lost[0] if lost else f"no answer within {START_SECONDS:.0f} s"
        raise UserError(f"cannot compute on {devices}: {why}; choose another --device or --vram", 69)
    return found[0]
