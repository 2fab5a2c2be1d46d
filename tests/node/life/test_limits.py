"""What a life of the node gets of its owner's limits."""

from __future__ import annotations

import trio

from ftnode.node.life.lives import URGENT
from ftnode.node.owner.limits import Limits
from ftnode.node.owner.line_limits import bandwidth_of
from ftnode.protocol.wire.frames import STATE_PROTOCOL, STEP_PROTOCOL


def test_only_what_is_limited_has_a_gate() -> None:
    async def main() -> None:
        assert bandwidth_of(Limits(), URGENT) is None
        up = bandwidth_of(Limits(up=1e6), URGENT)
        assert up is not None and up.up is not None and up.down is None
        assert STEP_PROTOCOL in up.urgent and STATE_PROTOCOL not in up.urgent

    trio.run(main)
