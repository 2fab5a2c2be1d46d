"""One link: our two outgoing streams to one life of a peer, each with its bounded queue and its writer.

A link is dialled once and breaks once; the transport makes the next one. The other direction of a stream carries the
handshake's answer only, so its end means that the peer, or its p2pd, is gone: a killed process is noticed at once.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

from ftnode.node.home.identity import peer_id_bytes
from ftnode.node.links.listening import KINDS, socket_address
from ftnode.node.links.p2pd import P2pd, P2pdError
from ftnode.node.links.streams import STREAM_ERRORS, FrameReader, carry_bulk, write_all, write_frame, write_now
from ftnode.node.links.undigested import asking
from ftnode.node.machine.tensor_slots import Arena
from ftnode.protocol.wire.frames import (
    CONTROL_LANE,
    PROBE_LANE,
    STEP_PROTOCOL,
    TENSOR_LANE,
    Hello,
    Refusal,
    Welcome,
    clean_reason,
    read_greeting,
)
from ftnode.protocol.words.errors import PeerError
from ftnode.protocol.words.types import Handle, Peer

log = logging.getLogger(__name__)

DIAL_SECONDS: Final = 5.0
HANDSHAKE_SECONDS: Final = 5.0
WRITE_SECONDS: Final = 30.0
"""Per frame; 1 MB/s carries 30 MB in it."""
REFUSAL_PROBE_SECONDS: Final = 0.5
REFUSAL_PAUSES_SECONDS: Final = (0.0, 0.03, 0.1)
HANDSHAKE_TRY_SECONDS: Final = 0.2
HANDSHAKE_PAUSE_SECONDS: Final = 0.03
"""A p2pd outlives its node by some milliseconds: it then answers the dial and drops the stream."""
QUEUE_FRAMES_MAX: Final = {CONTROL_LANE: 1024, TENSOR_LANE: 256}
"""Per lane. Whoever lets that much pile up is not reading."""


class LinkBroken(Exception):
    """Why a link cannot be made or went down. `refused` as in the event LinkDown; `denied`: a Refusal said so."""

    def __init__(self, reason: str, refused: bool = False, denied: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.refused = refused
        self.denied = denied


@dataclass(slots=True)
class Frame:
    """A message in a queue: what is still to be written. Its tensor stays pinned until it is written or dropped."""

    head: bytes
    rest: list[memoryview]
    handle: Handle | None

    @property
    def untouched(self) -> bool:
        """Not a byte of it is written yet."""
        return len(self.rest) == 2 and len(self.rest[0]) == len(self.head)


@dataclass(slots=True)
class Lane:
    """`stream` is None until the link is up. The first frame of the queue may be half written."""

    stream: trio.SocketStream | None = None
    queue: deque[Frame] = field(default_factory=deque)
    filled: trio.Event = field(default_factory=trio.Event)
    tensors: dict[Handle, Frame] = field(default_factory=dict)
    """The newest frame of the queue with each tensor."""


class Link:
    """Outgoing half of the traffic with `peer`. `up` is True between a successful dial and the break."""

    def __init__(self, peer: Peer, arena: Arena) -> None:
        self.peer = peer
        self.up = False
        self.scope = trio.CancelScope()
        self._verdict: LinkBroken | None = None
        self._arena = arena
        self._lanes = {CONTROL_LANE: Lane(), TENSOR_LANE: Lane()}

    def put(self, head: bytes, handle: Handle | None, payload_bytes: int = 0) -> None:
        """Queue a frame, tensors on their own lane: so many bytes of the slot `handle` follow the head. Breaks the link
        when the queue is full.

        A tensor that still waits is not queued again: resends would pile up where the line is slow.
        """
        name = CONTROL_LANE if handle is None else TENSOR_LANE
        lane = self._lanes[name]
        if handle is not None and self._waits(lane, head, handle):
            return
        if len(lane.queue) >= QUEUE_FRAMES_MAX[name]:
            self.fail(LinkBroken(f"{len(lane.queue)} frames wait on the {name} lane: the peer does not read"))
            return
        rest = [memoryview(head)]
        if handle is not None:
            self._arena.pin(handle)
            rest.append(self._arena.view(handle)[:payload_bytes])
        frame = Frame(head, rest, handle)
        if lane.stream is not None and not lane.queue and self._write_at_once(lane.stream, frame):
            return
        lane.queue.append(frame)
        if handle is not None:
            lane.tensors[handle] = frame
        lane.filled.set()

    def _waits(self, lane: Lane, head: bytes, handle: Handle) -> bool:
        """Whether the tensor is on its way under this header. One that says less by now is replaced where it can be:
        a tensor is sent again under every new view."""
        frame = lane.tensors.get(handle)
        if frame is not None and frame.untouched:
            frame.head, frame.rest[0] = head, memoryview(head)
        return frame is not None and frame.head == head

    def _write_at_once(self, stream: trio.SocketStream, frame: Frame) -> bool:
        """Most frames fit the socket's buffer, and then no task has to wake up for them."""
        try:
            written = write_now(stream, frame.rest)
        except OSError as error:
            self.fail(LinkBroken(f"cannot write: {describe(error)}"))
            return False
        if written:
            self._done_with(frame)
        return written

    def fail(self, verdict: LinkBroken) -> None:
        """Break the link from outside, with this as its reason."""
        self._verdict = self._verdict or verdict
        self.scope.cancel()

    async def run(self, dial: LinkDialer, on_up: Callable[[], None], ask_first: bool = False) -> LinkBroken:
        """Dial, say `on_up`, carry frames until the link breaks; returns why. Queued frames are dropped then.

        `ask_first`: probe whether this life answers, for there is a link to another one, and the peer would take our
        lanes for that one's, opened anew.
        """
        try:
            with self.scope:
                if ask_first:
                    (await dial.stream(self.peer, PROBE_LANE)).socket.close()
                for name, lane in self._lanes.items():
                    lane.stream = await dial.stream(self.peer, name)
                    if name == TENSOR_LANE:
                        carry_bulk(lane.stream)
                self.up = True
                on_up()
                async with trio.open_nursery() as nursery:
                    for lane in self._lanes.values():
                        assert lane.stream is not None
                        nursery.start_soon(self._write, lane.stream, lane)
                        nursery.start_soon(self._watch, lane.stream)
        except LinkBroken as broken:
            self._verdict = self._verdict or broken
        finally:
            self.up = False
            self._close()
        return self._verdict or LinkBroken("closed")

    async def _write(self, stream: trio.SocketStream, lane: Lane) -> None:
        try:
            while True:
                if not lane.queue:
                    lane.filled = trio.Event()
                    await lane.filled.wait()
                frame = lane.queue[0]
                with trio.fail_after(WRITE_SECONDS) as patience:
                    await write_all(stream, frame.rest, patience)
                lane.queue.popleft()
                self._done_with(frame, lane)
        except STREAM_ERRORS as error:
            self.fail(LinkBroken(f"cannot write: {describe(error)}"))

    async def _watch(self, stream: trio.SocketStream) -> None:
        try:
            data = await stream.receive_some(1)
        except STREAM_ERRORS as error:
            self.fail(LinkBroken(f"the stream broke: {describe(error)}"))
        else:
            self.fail(LinkBroken("it sent bytes where nothing may come" if data else "the stream ended"))

    def _close(self) -> None:
        for lane in self._lanes.values():
            if lane.stream is not None:
                lane.stream.socket.close()
                lane.stream = None
            while lane.queue:
                self._done_with(lane.queue.popleft(), lane)

    def _done_with(self, frame: Frame, lane: Lane | None = None) -> None:
        frame.rest.clear()
        if lane is not None and frame.handle is not None and lane.tensors.get(frame.handle) is frame:
            del lane.tensors[frame.handle]
        if frame.handle is not None:
            self._arena.unpin(frame.handle)


@dataclass(frozen=True, slots=True)
class LinkDialer:
    """How streams to peers are opened: our side of the handshake, and where everybody can be dialled."""

    p2pd: P2pd
    run: str
    nonce: int
    addresses: Callable[[], tuple[str, ...]]
    """Ours, as of now."""
    known: Callable[[str], tuple[str, ...]]
    """Of a PeerId: where it may be dialled, as far as we know."""
    learn: Callable[[str, int, tuple[str, ...]], None]
    """Called with (PeerId, nonce, addresses) of every Welcome."""

    async def connect(self, peer_id: str) -> None:
        """Raises LinkBroken; `refused` when every address of the peer that may be dialled refuses TCP connections."""
        known = self.known(peer_id)
        try:
            peer_id_bytes(peer_id)  # ids come from other peers' messages as well
        except ValueError as error:
            raise LinkBroken(str(error)) from None
        try:
            await self.p2pd.connect(peer_id, known, DIAL_SECONDS)
        except P2pdError as error:
            # p2pd keeps its own counsel about an address that just failed ("dial backoff", 5 s), so we ask ourselves.
            met = all(self.p2pd.gate.has_met(peer_id, address) for address in error.dialled)
            pauses = REFUSAL_PAUSES_SECONDS if met else REFUSAL_PAUSES_SECONDS[:1]
            refused = "peer id mismatch" in str(error) or await refuses(error.dialled, pauses)
            raise LinkBroken("its address refuses" if refused else clean_reason(str(error)), refused) from None

    async def stream(self, peer: Peer, lane: str) -> trio.SocketStream:
        """A stream to this life of the peer, handshake done. Raises LinkBroken."""
        give_up = trio.current_time() + HANDSHAKE_TRY_SECONDS
        while True:
            try:
                return await self._try_stream(peer, lane)
            except EOFError as error:
                if trio.current_time() > give_up:
                    raise LinkBroken(f"it ends the stream before the handshake: {clean_reason(str(error))}") from None
            await trio.sleep(HANDSHAKE_PAUSE_SECONDS)

    async def _try_stream(self, peer: Peer, lane: str) -> trio.SocketStream:
        await self.connect(peer.id)
        try:
            stream = await self.p2pd.open(peer.id, STEP_PROTOCOL, HANDSHAKE_SECONDS)
        except P2pdError as error:
            if "protocols not supported" in str(error):
                reason = f"it does not speak {STEP_PROTOCOL}: it is in no run, or its version is another"
                raise LinkBroken(reason, denied=True) from None
            raise EOFError(clean_reason(str(error))) from None  # its p2pd went between the two calls, or will say why
        try:
            await self._shake_hands(peer, stream, lane)
        except BaseException:
            stream.socket.close()
            raise
        return stream

    async def _shake_hands(self, peer: Peer, stream: trio.SocketStream, lane: str) -> None:
        reader = FrameReader(stream)
        try:
            with asking(peer.id, STEP_PROTOCOL), trio.fail_after(HANDSHAKE_SECONDS):
                await write_frame(stream, Hello(self.run, self.nonce, self.addresses(), lane))
                greeting = read_greeting(*await reader.header())
        except (EOFError, ConnectionError, trio.BrokenResourceError) as error:
            raise EOFError("the stream ended") from error
        except (PeerError, *STREAM_ERRORS) as error:
            raise LinkBroken(f"handshake failed: {describe(error)}") from None
        if isinstance(greeting, Refusal):
            raise LinkBroken(clean_reason(greeting.reason), refused=not greeting.retry, denied=True)
        if not isinstance(greeting, Welcome):
            raise LinkBroken("handshake failed: a Hello in answer to a Hello")
        self.learn(peer.id, greeting.nonce, greeting.addresses)
        if greeting.nonce != peer.nonce:
            raise LinkBroken("another life of it answers", refused=True)


async def refuses(addresses: Sequence[str], pauses: Sequence[float] = REFUSAL_PAUSES_SECONDS) -> bool:
    """Whether every address refuses TCP connections, so that nobody listens there. False when one is of another
    kind, accepts or says nothing for half a second.

    While the kernel takes a killed process apart, its port may accept, reset, or swallow the SYN, whose repetition
    would come a second later. So we ask after each of the `pauses`, and one clear refusal counts. A peer that we have
    never met was not killed just now: asking once is enough, and spares others what a liar names.
    """
    clear = False

    async def ask(wait: float) -> None:
        nonlocal clear
        await trio.sleep(wait)
        if await _all_refuse(addresses):
            clear = True
            scope.cancel()

    with trio.move_on_after(REFUSAL_PROBE_SECONDS) as scope:
        async with trio.open_nursery() as nursery:
            for wait in pauses:
                nursery.start_soon(ask, wait)
    return clear


async def _all_refuse(addresses: Sequence[str]) -> bool:
    verdicts: list[bool] = []

    async def ask(address: str) -> None:
        target = socket_address(address)
        if target is None or target[1] != KINDS["tcp"]:
            verdicts.append(False)
            return
        try:
            stream = await trio.open_tcp_stream(target[2], target[3])
        except OSError as error:
            causes = error.__cause__.exceptions if isinstance(error.__cause__, BaseExceptionGroup) else [error]
            verdicts.append(all(isinstance(cause, ConnectionRefusedError) for cause in causes))
        else:
            stream.socket.close()
            verdicts.append(False)

    async with trio.open_nursery() as nursery:
        for address in addresses:
            nursery.start_soon(ask, address)
    return len(verdicts) > 0 and all(verdicts)


def describe(error: BaseException) -> str:
    """A few words for a reason."""
    return "too slow" if isinstance(error, trio.TooSlowError) else clean_reason(str(error) or type(error).__name__)
