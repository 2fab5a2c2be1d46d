"""What comes in from peers: frames into events, tensors into slots, and no more of either than we can handle.

A peer may have a bounded backlog of events that the driver has not handled. Beyond it we read no further from that
peer, and its own queue fills up instead of ours. How much a peer may say at all is told in attention.py. A tensor that
there is no room for is read and dropped: it was not acknowledged, so it comes again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Final

import trio

from ftnode.node.links.attention import Attention
from ftnode.node.links.peer_lines import PeerLog
from ftnode.node.links.streams import STRANGER_HEADER_MAX, TURN_SECONDS, FrameReader
from ftnode.node.links.tensor_seals import TensorSeals
from ftnode.node.machine.tensor_slots import RESERVED_SLOTS, Arena
from ftnode.protocol.manifest.boundary import BoundaryBytes
from ftnode.protocol.step.task_order import COMPUTE_AHEAD
from ftnode.protocol.wire.frames import HEADER_BYTES_MAX, TENSOR_LANE, check_payload, read_message
from ftnode.protocol.words.errors import LocalError, PeerError
from ftnode.protocol.words.events import Received
from ftnode.protocol.words.messages import Boundary, Message
from ftnode.protocol.words.types import Peer

log = logging.getLogger(__name__)

FRAME_SECONDS: Final = 30.0
"""From a frame's first byte to its last; a tensor has what SLOW_BYTES_A_SECOND take besides."""
SLOW_BYTES_A_SECOND: Final = 1e5
"""A thin line that several peers share."""
IDLE_SECONDS: Final = 600.0
"""An inbound stream that carries nothing for this long is closed; its owner redials when it has something to say."""
TURN_FRAMES: Final = 64
"""So many frames of one stream, and the other tasks have their turn."""
BACKLOG_MAX: Final = 64
"""Of one peer, in small messages."""
TENSOR_COST: Final = 8
"""A tensor holds a slot: BACKLOG_MAX / TENSOR_COST of one peer may wait, and one more be on its way in."""
HEADER_BYTES_PER_COST: Final = 4096
COMPUTE_RESERVE: Final = 2 * COMPUTE_AHEAD + RESERVED_SLOTS
"""Slots that tensors from others leave to the outputs of our own tasks and to transfers of state."""


@dataclass(slots=True)
class _Waiting:
    """`total` is the sum of `costs`, which stand in the order of delivery. `fewer` is there while somebody waits."""

    costs: deque[int] = field(default_factory=deque)
    total: int = 0
    fewer: trio.Event | None = None


class Backlog:
    """By PeerId, what was delivered and is not handled yet."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Waiting] = {}

    def add(self, peer_id: str, cost: int) -> None:
        waiting = self._waiting.setdefault(peer_id, _Waiting())
        waiting.costs.append(cost)
        waiting.total += cost

    def handled(self, peer_id: str) -> None:
        """The oldest event of the peer is. Raises LocalError when none waits."""
        waiting = self._waiting.get(peer_id)
        if waiting is None:
            raise LocalError(f"an event of {peer_id} was handled that was never delivered")
        waiting.total -= waiting.costs.popleft()
        if not waiting.costs:
            del self._waiting[peer_id]
        if waiting.fewer is not None:
            waiting.fewer.set()
            waiting.fewer = None

    def full(self, peer_id: str) -> bool:
        waiting = self._waiting.get(peer_id)
        return waiting is not None and waiting.total >= BACKLOG_MAX

    async def room(self, peer_id: str) -> None:
        """Until the peer's backlog is not full."""
        while self.full(peer_id):
            waiting = self._waiting[peer_id]
            if waiting.fewer is None:
                waiting.fewer = trio.Event()
            await waiting.fewer.wait()


class Intake:
    """Reads streams whose handshake is done."""

    def __init__(
        self,
        arena: Arena,
        boundary_bytes: BoundaryBytes,
        deliver: Callable[[Received], None],
        may_send_tensors: Callable[[Peer], bool],
        attention: Attention,
        check: Callable[[Peer, Message], str],
        seals: TensorSeals | None = None,
    ) -> None:
        """`check` says why a message is dropped, or nothing; it raises PeerError for false signatures. `seals`: in runs
        in which tensors are signed."""
        self.backlog = Backlog()
        self._arena = arena
        self._boundary_bytes = boundary_bytes
        self._deliver_event = deliver
        self._may_send_tensors = may_send_tensors
        self._attention = attention
        self._told = PeerLog(log)
        self._check = check
        self._seals = seals

    async def receive_all(self, sender: Peer, lane: str, reader: FrameReader, relay: str = "") -> None:
        """Deliver frames until the stream ends. `relay`: PeerId of who carries it, if anybody does. Raises PeerError
        (Flood, when a stranger says too much), and one of STREAM_ERRORS at the end."""
        frames, turn_ends, told = 0, trio.current_time() + TURN_SECONDS, False
        with trio.CancelScope() as scope:
            while True:
                if self.backlog.full(sender.id):
                    scope.deadline = inf
                    await self.backlog.room(sender.id)
                now = trio.current_time()
                if frames >= TURN_FRAMES or now > turn_ends:
                    await trio.lowlevel.checkpoint()
                    frames, now = 0, trio.current_time()
                    turn_ends = now + TURN_SECONDS
                scope.deadline = now + IDLE_SECONDS
                await reader.wait()
                scope.deadline = trio.current_time() + FRAME_SECONDS
                announced = await reader.announced()
                scope.deadline = inf
                await self._turn(sender, lane, *announced)
                scope.deadline = trio.current_time() + FRAME_SECONDS + sum(announced) / SLOW_BYTES_A_SECOND
                dropped = await self._receive(sender, lane, reader, relay)
                frames += 1
                if dropped and not told:
                    told = True
                    self._told.say(logging.WARNING, sender.id, f"what {sender} sends is dropped: {dropped}")
        raise trio.TooSlowError

    async def _turn(self, sender: Peer, lane: str, header_bytes: int, payload_bytes: int) -> None:
        """Until we may attend to the frame that has begun."""
        if lane != TENSOR_LANE:
            await self._attention.word(sender, header_bytes)
        elif not self._attention.knows(sender):
            await self._attention.stranger_tensor(header_bytes + payload_bytes)

    async def _receive(self, sender: Peer, lane: str, reader: FrameReader, relay: str) -> str:
        """One frame; a tensor goes straight into a slot. Why it was dropped instead, or ""."""
        member = self._may_send_tensors(sender)
        header, payload_bytes = await reader.header(HEADER_BYTES_MAX if member else STRANGER_HEADER_MAX)
        message = read_message(header, payload_bytes, self._boundary_bytes)
        cost = 1 + len(header) // HEADER_BYTES_PER_COST
        if not isinstance(message, Boundary):
            if lane == TENSOR_LANE:
                raise PeerError(f"{type(message).__name__} on the tensor lane")
            unheard = self._check(sender, message)
            if not unheard:
                self._deliver(sender, message, None, cost)
            return unheard
        if lane != TENSOR_LANE:
            raise PeerError(f"a tensor on the {lane} lane")
        if not member:
            await reader.skip(payload_bytes)
            return "it is no member of the run, as far as we know"
        if self._arena.free <= min(COMPUTE_RESERVE, self._arena.slots - 1):
            await reader.skip(payload_bytes)
            return f"no slot for it, {self._arena.free} of {self._arena.slots} are free"
        handle = self._arena.take()
        content = self._arena.view(handle)[:payload_bytes]
        try:
            await reader.payload(content)
            check_payload(message, content, self._boundary_bytes)
            if self._seals is not None:
                message = await self._seals.checked(message, content)
        except BaseException:
            self._arena.release(handle)
            raise
        self._deliver(sender, message, handle, cost + TENSOR_COST, relay)
        return ""

    def _deliver(self, sender: Peer, message: Message, handle: int | None, cost: int, relay: str = "") -> None:
        self.backlog.add(sender.id, cost)
        self._deliver_event(Received(sender, message, handle, relay))
