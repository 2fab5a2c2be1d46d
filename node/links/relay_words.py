"""What a relay is asked and how it answers, of libp2p's specification circuit-v2."""

from __future__ import annotations

from typing import Final

HOP_PROTOCOL: Final = "/libp2p/circuit/relay/0.2.0/hop"
STOP_PROTOCOL: Final = "/libp2p/circuit/relay/0.2.0/stop"
OK: Final = 100
REFUSED: Final = 200
NO_ROOM: Final = 201
NOT_FOR_YOU: Final = 202
NOT_REACHED: Final = 203
NO_PLACE: Final = 204
REFUSALS: Final = {
    REFUSED: "it refuses",
    NO_ROOM: "it has no room",
    NOT_FOR_YOU: "it does not relay for us",
    NOT_REACHED: "it cannot reach that peer",
    NO_PLACE: "that peer has no place there",
    400: "it does not understand us",
}


def refusal(status: int) -> str:
    """Of a status that is not OK."""
    return REFUSALS.get(status, f"it refuses with status {status}")
