"""Whether a node keeps snapshots, by its manifest and its owner, and what it takes for that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ftnode.node.compute.group import ComputeGroup
from ftnode.node.compute.state_shape import StateShape
from ftnode.node.driver.driver import Driver
from ftnode.node.links.seals import Seals
from ftnode.node.machine import host_memory
from ftnode.node.machine.snapshot_memory import SnapshotMemory
from ftnode.node.owner.join_options import JoinConfig
from ftnode.node.snapshots.roll_book import RollBook
from ftnode.node.snapshots.saver import SnapshotSaver, about_of
from ftnode.node.snapshots.store import SnapshotStore
from ftnode.node.snapshots.write import GIGABYTE, DiskAllowance
from ftnode.node.weights.known_snapshots import KnownSnapshots
from ftnode.protocol.picture import Picture
from ftnode.protocol.words.settings import Settings

HOST_RESERVE_BYTES: Final = 1 << 30
"""What a copy of a card's stages leaves to all others on the host."""


def keeps_snapshots(config: JoinConfig) -> bool:
    """Where the manifest asks for them, unless the owner does not want any."""
    return config.manifest.recovery.snapshot_every > 0 and config.keep_snapshots > 0


def saver_for(
    config: JoinConfig, memory: SnapshotMemory, compute: ComputeGroup, look: Callable[[], Picture],
    say: Callable[..., None],
) -> SnapshotSaver:  # fmt: skip
    """And say what will be kept where."""
    manifest = config.manifest
    every = manifest.recovery.snapshot_every if keeps_snapshots(config) else 0
    store = SnapshotStore(config.home, manifest.run_id)
    if every:
        say(
            "snapshot", f"every {every} steps this node's stages are kept in {store.folder}: the last "
            f"{config.keep_snapshots}, at most {config.snapshot_bytes_max / GIGABYTE:g} GB",
        )  # fmt: skip
    allowance = DiskAllowance(config.keep_snapshots, config.snapshot_bytes_max)
    return SnapshotSaver(
        store, memory, compute.post, about_of(manifest), every, allowance, lambda: look().view,
        lambda: look().versions, say,
        host_has_room if config.on_card else lambda size: True,
    )  # fmt: skip


def host_has_room(size: int) -> bool:
    """For a copy that no plan has counted, since the stages lie on a card."""
    available = host_memory.available()
    return not size or available is None or available >= size + HOST_RESERVE_BYTES


def known_snapshots(
    config: JoinConfig, shape: StateShape, driver: Driver, saver: SnapshotSaver, say: Callable[..., None]
) -> KnownSnapshots:
    """What is on this disk counts where the manifest asks for snapshots, also when the owner wants no more of them. The
    saver, and the driver's installer and donor, use it from now on."""
    manifest = config.manifest
    store = SnapshotStore(config.home, manifest.run_id) if manifest.recovery.snapshot_every else None
    known = KnownSnapshots(store, shape, driver.deliver, say)
    saver.on_kept = known.tell
    for part in (driver.installer, driver.donor):
        if part is not None:
            part.disk = known
    return known


def roll_book(
    config: JoinConfig, settings: Settings, seals: Seals, driver: Driver, say: Callable[..., None]
) -> RollBook | None:
    """None where the manifest asks for no snapshots."""
    manifest = config.manifest
    if not manifest.recovery.snapshot_every:
        return None
    return RollBook(config.home, manifest.run_id, settings, seals, driver.deliver, say)


def copies_bytes(config: JoinConfig) -> tuple[int, int]:
    """Memory besides the stages themselves, (per block stage held, once): copies of others' stages, and where the
    weights lie in the same memory, the copy of our own that is on its way to the disk, and parts of sums that are kept
    to be shown. The head has no more of these than what counts here as its copies, which its holders do not keep."""
    each, once = config.manifest.copies_bytes
    if keeps_snapshots(config) and not config.on_card:
        each += config.manifest.stage_state_bytes
    if not config.on_card:
        each += config.manifest.shown_parts_bytes
    return each, once
