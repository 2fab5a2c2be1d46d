"""What the driver and the transfer of weights ask of the adapters, so that each can be tested against a fake."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

import trio

from ftnode.protocol.words.errors import FtnodeError
from ftnode.protocol.words.events import Received
from ftnode.protocol.words.messages import Message
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.types import Handle, Peer
from ftnode.protocol.words.view import View

REASON_TEXT_MAX: Final = 500
"""Reasons travel in messages, whose texts have a limit."""


class ComputeError(FtnodeError):
    """The compute process says no. `kind`: oom, invalid; fault: numbers are not as they should be; broken: whatever
    nobody expects; layers: first weights are not what they should be; unreadable: a disk does not give a snapshot out
    just now; lost: it is gone, or what it had of the stage is (docs/explanation/architecture.md)."""

    def __init__(self, kind: str, reason: str, stage: int = -1) -> None:
        reason = reason[:REASON_TEXT_MAX]
        super().__init__(f"{kind}: {reason}")
        self.kind = kind
        self.reason = reason
        self.stage = stage


class LayersMissing(FtnodeError):
    """Layers of the model that a run begins with cannot be had here, and why."""


class ComputePort(Protocol):
    """The compute process. Commands are carried out in the order of the calls."""

    async def call(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send one command and wait for its answer's fields. Raises ComputeError, of kind `lost` as soon as the
        process is gone or the adapter closes: some callers cannot be cancelled while they wait."""
        ...


class StreamOpener(Protocol):
    """What the transfer of weights needs of the transport."""

    async def open(self, peer_id: str, protocol: str) -> trio.SocketStream:
        """A stream of another protocol to a known peer. Raises LinkBroken."""
        ...

    def strike(self, peer_id: str, reason: str) -> None: ...


class TransportPort(Protocol):
    """Links to peers. Nothing here blocks: results come as LinkUp, LinkDown and Received."""

    def send(self, peer: Peer, message: Message, handle: Handle | None) -> None:
        """Queue a message; the tensor `handle` follows a Boundary. Dials when there is no link."""
        ...

    def dial(self, peer: Peer) -> None:
        """Make a link; LinkUp or LinkDown follows, also when there is one already."""
        ...

    def handled(self, event: Received) -> None:
        """This event was dealt with, or dropped; without it nothing more is read from the sender."""
        ...

    def know(self, peer_id: str, addresses: Sequence[str]) -> None:
        """Remember where a peer can be dialled. `addresses`: as the peer signed them, with its card."""
        ...

    def strike(self, peer_id: str, reason: str) -> None:
        """The peer sent what the protocol forbids; several in a minute and it is banned for one."""
        ...


class DirectoryPort(Protocol):
    """The DHT. Results of `search` come as Directory or DirectoryLost."""

    def announce(self, presence: Presence) -> None: ...

    def publish_view(self, view: View | None) -> None: ...

    def search(self) -> None: ...


class Admission(Protocol):
    """Who may take part in the run."""

    @property
    def refusal(self) -> str:
        """What a peer is told that may not."""
        ...

    def admits(self, peer_id: str) -> bool: ...

    def stranger_in(self, views: Iterable[View]) -> str:
        """A peer that one of the views names and that may take no part, or nothing."""
        ...

    def names_stranger(self, peer_id: str) -> None:
        """This peer has named somebody who may take no part, as far as is known here."""
        ...

    def has_lied(self, peer_id: str) -> None:
        """The peer was let go as a liar, or banned."""
        ...
