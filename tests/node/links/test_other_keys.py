"""Peers with keys of another kind than ours: p2pd lets them in, and names them among those that it is connected to."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import trio

from ftnode.node.links import attention
from ftnode.node.links.attention import Attention, Budget
from ftnode.node.links.dead_connections import drop
from ftnode.node.links.p2pd import P2pdError
from ftnode.node.links.relay_offers import RelayOffers
from ftnode.node.links.streams import STREAM_ERRORS, write_frame
from ftnode.protocol.wire.frames import CONTROL_LANE, STEP_PROTOCOL, Hello
from tests.node.links.linked_node import limited, node, with_rsa_key


def test_nobody_hears_them_and_they_end_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by a flood of greetings, for which a peer is cut off, nor by being there when connections are looked at
    or closed."""

    async def main() -> None:
        strangers = Attention(lambda peer: False)
        async with (
            node(tmp_path, attention=strangers) as here, node(tmp_path, 2) as other, with_rsa_key(tmp_path) as there,
        ):  # fmt: skip
            addresses, heard = await here.p2pd.addresses(), b""
            for _ in range(8):
                with suppress(P2pdError, *STREAM_ERRORS):
                    await there.connect(here.peer.id, addresses, 5)
                    stream = await there.open(here.peer.id, STEP_PROTOCOL, 5)
                    await write_frame(stream, Hello("run", 1, (), CONTROL_LANE))
                    with trio.fail_after(5):
                        heard += await stream.receive_some(1)
                    await stream.aclose()
            await there.connect(here.peer.id, addresses, 5)
            assert there.peer_id in await here.p2pd.peers() and heard == b"", "it gets no Welcome"
            offers = RelayOffers(here.p2pd)
            await offers.look(trio.current_time())
            assert not offers.known
            await drop(here.p2pd, there.peer_id)
            assert there.peer_id not in await here.p2pd.peers()
            await other.meet(here)

    monkeypatch.setattr(attention, "STRANGER", Budget(0.1, 1 << 20, 4, 1 << 20))
    limited(main)
