"""What the owner's limits make of a line: a gate for each direction that is limited."""

from __future__ import annotations

from collections.abc import Collection

from ftnode.node.links.bandwidth import Bandwidth, Gate
from ftnode.node.owner.limits import Limits


def bandwidth_of(limits: Limits, urgent: Collection[str]) -> Bandwidth | None:
    """None where nothing is limited. `urgent`: protocols whose words never wait behind tensors."""
    if not limits.up and not limits.down:
        return None
    return Bandwidth(Gate(limits.up) if limits.up else None, Gate(limits.down) if limits.down else None, urgent)
