"""`ftnode doctor RUN`: what this machine would give that run, measured as `ftnode join` does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ftnode.node.cli.doctor_checkup import FAILED, OK, Check
from ftnode.node.compute.devices import decide
from ftnode.node.compute.first_report import first_report
from ftnode.node.compute.orders import compute_configs
from ftnode.node.home.identity import home_to_read
from ftnode.node.home.waiting import spoken
from ftnode.node.life.snapshot_setup import copies_bytes
from ftnode.node.machine.device_choice import CONTEXT_BYTES
from ftnode.node.manifests.joining import find_run
from ftnode.node.owner.announcements import activations_at_once, activations_text, live_here, room_on
from ftnode.node.owner.join_options import JoinConfig
from ftnode.node.owner.limits import Limits
from ftnode.node.owner.offer import Offer, offer_of
from ftnode.protocol.words.errors import UserError

if TYPE_CHECKING:
    from ftnode.protocol.manifest.parse import Manifest

GIGABYTE = 1e9


def offer_checks(
    run: str, device: str, limits: Limits, home: str | None, timeout: float
) -> tuple[list[Check], Offer | None]:
    """Lines of the checkup, and the same for programs; None when nothing could be measured. `run`: as ftnode join takes
    it, signed or not, since nothing is joined. Raises UserError when there is no such run."""
    manifest, text, _ = find_run(run, home_to_read(home, needed=False), timeout, allow_unsigned=True)
    try:
        chosen = decide(device, manifest.stage_state_bytes + CONTEXT_BYTES)
        config = _joining(manifest, text, chosen.names, limits, home)
        with spoken("one microbatch to be computed"):
            ready = first_report(compute_configs(config))
    except UserError as error:
        cause, _, fix = str(error).partition("; ")
        return [Check("device", FAILED, cause, fix)], None
    copies = copies_bytes(config)
    live = activations_at_once(ready, manifest.pipeline.live_activations, copies)
    room, _, _ = room_on(ready, config.hold, live, copies, head=True)
    offer = offer_of(manifest, ready, room, config.hold, limits.up, copies, live)
    checks = [Check("device", OK, chosen.why)] if chosen.why else []
    for each in offer.devices:
        told = (
            f"{each.name}: {each.precision}, about {each.tokens_per_second:,.0f} tokens/s per stage; "
            f"{each.memory_free / GIGABYTE:.1f} GB free, a stage takes {each.stage_bytes / GIGABYTE:.2f} GB"
        )
        checks.append(Check("measured", OK, told))
    kept = live_here(live, manifest.pipeline.live_activations)
    if kept >= 0:
        checks.append(Check("measured", OK, activations_text(kept)))
    if offer.too_small:
        fix = "free some memory, give more (--vram), or choose a run with smaller stages"
        return [*checks, Check("offer", FAILED, offer.too_small, fix)], offer
    return [*checks, *(Check("offer", OK, told) for told, _ in offer.lines)], offer


def _joining(manifest: Manifest, text: str, devices: str, limits: Limits, home: str | None) -> JoinConfig:
    """As `ftnode join` would be told by somebody who gives all that there is."""
    return JoinConfig(
        manifest=manifest, manifest_text=text, peers=(), hold=manifest.pipeline.stages + 1, data=None, device=devices,
        threads=os.cpu_count() or 1, listen=(), announce=(), home=Path(home or "."), timeout=0.0,
        log_directory=Path(), dump_rebuilds=False, hash_every=0, compute_backend="torch", forward_seconds=0.0,
        backward_seconds=0.0, json=False, limits=limits,
    )  # fmt: skip
