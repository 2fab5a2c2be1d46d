"""What the first line of a trace says of the node that writes it."""

from __future__ import annotations

import time
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from ftnode.node.owner.join_options import JoinConfig
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Peer


def trace_header(
    config: JoinConfig, me: Peer, addresses: tuple[str, ...], settings: Settings, chance: int
) -> dict[str, Any]:
    """`chance`: the seed of the core's."""
    return {
        "peer": list(me),
        "run": config.manifest.run_id,
        "settings": asdict(settings),
        "precision": config.manifest.model.precision,
        "chance": chance,
        "addresses": list(addresses),
        "hold": config.hold,
        "site": config.site,
        "wall": time.time(),
        "version": version("ftnode"),
    }
