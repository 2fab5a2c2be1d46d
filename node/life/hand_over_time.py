"""Whether what a node may hold passes through its own limit in the time that going away gives it."""

from __future__ import annotations

from math import ceil

from ftnode.node.home.duration import duration
from ftnode.node.links.bandwidth import OVERHEAD
from ftnode.node.owner.limits import rate_text
from ftnode.protocol.manifest.parse import Manifest, settings


def states_bytes(manifest: Manifest, stages: int, head: bool) -> int:
    """Whoever takes over the `stages` largest stages that a node may hold, with the head if it may, learns so many."""
    blocks = [manifest.stage_state_bytes] * manifest.pipeline.stages
    return sum(sorted(blocks + [manifest.head_state_bytes] * head, reverse=True)[:stages])


def too_slow(manifest: Manifest, up: float, stages: int, head: bool, pause_seconds: float) -> str:
    """What to say to the owner; empty when it passes. `up`: bytes per second, 0 for no limit. `pause_seconds`: of
    --hand-over. Nothing else is counted that goes through the same limit, so that it may take longer."""
    size = states_bytes(manifest, stages, head)
    if not up or not size:
        return ""
    needed = size * OVERHEAD / up
    leave_seconds = settings(manifest).hand_over_seconds * stages
    slow = [
        f"{what} gives it {duration(seconds)}"
        for what, seconds in (("a pause", pause_seconds), ("leaving", leave_seconds))
        if needed > seconds
    ]
    if not slow:
        return ""
    held = "a stage" if stages == 1 else f"{stages} stages"
    ways = ["a higher --up"]
    learnt = states_bytes(manifest, 1, head) * OVERHEAD / up <= settings(manifest).install_seconds
    if needed > pause_seconds and learnt:  # else nobody waits for one stage, however long the pause does
        ways = [f"--hand-over {ceil(needed)}", *ways, *(["a lower --hold"] if stages > 1 else [])]
    return (
        f"to hand over {held} takes {duration(needed)} at --up {rate_text(up)} ({size / 1e6:.0f} MB) and more while it "
        f"trains: {' and '.join(slow)}, and what only this node holds then is rebuilt by others; "
        f"give {', or '.join(ways)}"
    )
