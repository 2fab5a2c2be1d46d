"""What a relay is asked and how it answers, of libp2p's specification circuit-v2."""

from __future__ import annotations

from typing import Final

HOP_PROTOCOL: Final = "/libp2p/circuit/relay/0.2.0/hop"
OK: Final = 100
REFUSALS: Final = {
    200: "it refuses",
    201: "it has no room",
    202: "it does not relay for us",
    203: "it cannot reach that peer",
    204: "that peer has no place there",
    400: "it does not understand us",
}


def refusal(status: int) -> str:
    """Of a status that is not OK."""
    return REFUSALS.get(status, f"it refuses with status {status}")
