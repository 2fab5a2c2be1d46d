"""Tensors that go to one peer: in the order in which it needs them, each once, and no more on its way than the line
takes at once (flow_window.py).

A tensor is here from `put` until the peer's receipt covers it. While it is, a resend of it adds nothing: it waits in
our queue, or in a buffer below us. Receipts come back on the stream, `RECEIPT` each.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

import trio

from ftnode.node.links.flow_window import FlowWindow
from ftnode.node.links.sending_pace import SharedLine
from ftnode.node.links.streams import RECEIPT, PeerStream, read_exactly, write_all
from ftnode.node.machine.tensor_slots import Arena
from ftnode.protocol.words.messages import Boundary
from ftnode.protocol.words.types import Direction, Handle

TENSORS_MAX: Final = 256
"""Whoever lets that many pile up is not reading."""
STILL_SECONDS: Final = 30.0
"""Without a byte written or a receipt, while there is something to send: the peer does not read."""


class Outbound(NamedTuple):
    """`sending`: tensors are on their way; `full`: one waits for those before it, or is being written."""

    sending: bool
    full: bool


Urgency = tuple[bool, int]
"""Lower goes first."""


def urgency_of(boundary: Boundary) -> Urgency:
    """Backward before forward and early microbatches before late ones, as the peer will run them (rule 28)."""
    return boundary.direction is Direction.FORWARD, boundary.microbatch


@dataclass(slots=True)
class Tensor:
    """What is still to be written of it. `end`: where it ends in the stream, once it is written."""

    head: bytes
    rest: list[memoryview]
    handle: Handle
    urgency: Urgency
    end: int = 0

    @property
    def untouched(self) -> bool:
        """Not a byte of it is written yet."""
        return len(self.rest) == 2 and len(self.rest[0]) == len(self.head)


class TensorLane:
    """The tensors of one link. Its memory stays pinned until it is written or dropped."""

    def __init__(self, arena: Arena, line: SharedLine) -> None:
        self._arena, self._line = arena, line
        self._queue: list[tuple[Urgency, int, Tensor]] = []
        self._serial = 0
        self._writing: Tensor | None = None
        self._written: deque[Tensor] = deque()
        """In the order of the stream, without a receipt for their end."""
        self._newest: dict[Handle, Tensor] = {}
        """Of all that are here, the newest with each handle."""
        self._window = FlowWindow()
        self._news = trio.Event()
        """Something was put, or a receipt came."""

    def __len__(self) -> int:
        """How many wait."""
        return len(self._queue)

    @property
    def outbound(self) -> Outbound:
        """At this moment."""
        full = bool(self._queue) or self._writing is not None
        return Outbound(full or self._window.sent > self._window.received, full)

    def put(self, head: bytes, handle: Handle, payload_bytes: int, urgency: Urgency) -> bool:
        """Queue a tensor, unless it is here under this header. One that says less by now is replaced where it can be: a
        tensor is sent again under every new view. False when there is no room."""
        known = self._newest.get(handle)
        if known is not None and known.untouched:
            known.head, known.rest[0] = head, memoryview(head)
        if known is not None and known.head == head:
            return True
        if len(self._queue) >= TENSORS_MAX:
            return False
        self._arena.pin(handle)
        tensor = Tensor(head, [memoryview(head), self._arena.view(handle)[:payload_bytes]], handle, urgency)
        self._newest[handle] = tensor
        self._serial += 1
        heapq.heappush(self._queue, (urgency, self._serial, tensor))
        self._news.set()
        return True

    async def write(self, stream: PeerStream) -> None:
        """Write what is most urgent, at the line's pace, as long as the stream lives. Raises one of STREAM_ERRORS."""
        while True:
            while not self._queue:
                await self._wait_for_news()
            with self._line.sending():
                while self._queue:
                    self._writing = heapq.heappop(self._queue)[2]
                    while self._writing.rest:
                        await self._write_piece(stream, self._writing)
                    self._done_writing(self._writing)

    async def _write_piece(self, stream: PeerStream, tensor: Tensor) -> None:
        with trio.fail_after(STILL_SECONDS):
            while self._window.room <= 0:
                await self._wait_for_news()
        piece = cut(tensor.rest, await self._line.turn(self._window.room))
        self._window.send(sum(map(len, piece)), trio.current_time())
        with trio.fail_after(STILL_SECONDS) as patience:
            await write_all(stream, piece, patience)

    def _done_writing(self, tensor: Tensor) -> None:
        tensor.end = self._window.sent
        self._writing = None
        self._written.append(tensor)
        self._arena.unpin(tensor.handle)

    async def listen(self, stream: PeerStream) -> None:
        """Take receipts until the stream ends. Raises ValueError for a wrong one, and one of STREAM_ERRORS."""
        while True:
            received, microseconds = RECEIPT.unpack(await read_exactly(stream, RECEIPT.size))
            before, now = self._window.received, trio.current_time()
            came_at = self._window.receipt(received, microseconds / 1e6, now)
            self._line.pace.came(received - before, came_at, now, self._window.queued)
            while self._written and self._written[0].end <= received:
                self._forget(self._written.popleft())
            self._news.set()

    async def _wait_for_news(self) -> None:
        self._news = trio.Event()
        await self._news.wait()

    def _forget(self, tensor: Tensor) -> None:
        if self._newest.get(tensor.handle) is tensor:
            del self._newest[tensor.handle]

    def drop(self) -> None:
        """The link is down: nothing more is written."""
        unwritten = [tensor for _, _, tensor in self._queue] + [tensor for tensor in [self._writing] if tensor]
        self._queue.clear()
        self._writing = None
        self._newest.clear()
        self._written.clear()
        for tensor in unwritten:
            tensor.rest.clear()
            self._arena.unpin(tensor.handle)


def cut(rest: list[memoryview], size: int) -> list[memoryview]:
    """Take the first `size` bytes out of `rest`, or all that there are."""
    found: list[memoryview] = []
    while rest and size > 0:
        found.append(rest[0][:size])
        size -= len(found[-1])
        if len(found[-1]) == len(rest[0]):
            rest.pop(0)
        else:
            rest[0] = rest[0][len(found[-1]) :]
    return found
