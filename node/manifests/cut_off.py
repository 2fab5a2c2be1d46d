"""Whom a newer list cuts off while nobody else holds their stages: what an author should know before the swarm has it.

Who is cut off hands nothing over, so such a stage is rebuilt of its neighbours, and the run halts where no block stage
is left.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ftnode.node.manifests.book import saved
from ftnode.node.manifests.vouching import Vouching
from ftnode.node.watch.status import SwarmStatus
from ftnode.protocol.manifest.parse import Manifest


def cut_off(manifest: Manifest, home: Path) -> Callable[[str], bool]:
    """Whether a peer that takes part may not any more by this manifest. Where volunteers vouch, only the manifest and
    the vouchers that this home knows can tell: a peer of which it knows neither is taken to stay."""
    before = saved(home, manifest.run_id)
    now, then = _admission(manifest, home), _admission(before[0], home) if before is not None else None
    if manifest.membership.join != "vouched":
        return lambda peer: not now(peer)
    return lambda peer: then is not None and then(peer) and not now(peer)


def _admission(manifest: Manifest, home: Path) -> Callable[[str], bool]:
    membership = manifest.membership
    vouching = Vouching(manifest.run_id, membership, home)
    return lambda peer: membership.join == "open" or peer in membership.peers or bool(vouching.chain(peer))


def stages_that_go(status: SwarmStatus, gone: Callable[[str], bool]) -> dict[int, tuple[str, ...]]:
    """Stages that only such peers hold, each with them."""
    holders: dict[int, list[str]] = {}
    for row in status.stages:
        if row.peer:
            holders.setdefault(row.stage, []).append(row.peer)
    return {stage: tuple(peers) for stage, peers in sorted(holders.items()) if all(map(gone, peers))}
