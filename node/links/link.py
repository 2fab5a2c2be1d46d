"""One link: our two outgoing streams to one life of a peer, each with its bounded queue and its writer.

A link is dialled once and breaks once; the transport makes the next one. The other direction of a stream carries the
handshake's answer, and receipts for tensors (tensor_lane.py). Its end means that the peer, or its p2pd, is gone: a
killed process is noticed at once.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

from ftnode.node.home.identity import peer_id_bytes
from ftnode.node.links.listening import KINDS, socket_address
from ftnode.node.links.p2pd import P2pd, P2pdError
from ftnode.node.links.sending_pace import SharedLine
from ftnode.node.links.streams import STREAM_ERRORS, FrameReader, carry_bulk, write_all, write_frame, write_now
from ftnode.node.links.tensor_lane import Outbound, TensorLane, Urgency
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
"""Per control frame."""
REFUSAL_PROBE_SECONDS: Final = 0.5
REFUSAL_PAUSES_SECONDS: Final = (0.0, 0.03, 0.1)
HANDSHAKE_TRY_SECONDS: Final = 0.2
HANDSHAKE_PAUSE_SECONDS: Final = 0.03
"""A p2pd outlives its node by some milliseconds: it then answers the dial and drops the stream."""
CONTROL_FRAMES_MAX: Final = 1024
"""Whoever lets that many pile up is not reading."""


class LinkBroken(Exception):
    """Why a link cannot be made or went down. `refused` as in the event LinkDown; `denied`: a Refusal said so."""

    def __init__(self, reason: str, refused: bool = False, denied: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.refused = refused
        self.denied = denied


@dataclass(slots=True)
class Lane:
    """Control frames. `stream` is None until the link is up. The first frame of the queue may be half written."""

    stream: trio.SocketStream | None = None
    queue: deque[list[memoryview]] = field(default_factory=deque)
    filled: trio.Event = field(default_factory=trio.Event)


class Link:
    """Outgoing half of the traffic with `peer`. `up` is True between a successful dial and the break."""

    def __init__(self, peer: Peer, arena: Arena, line: SharedLine) -> None:
        self.peer = peer
        self.up = False
        self.scope = trio.CancelScope()
        self._verdict: LinkBroken | None = None
        self._control = Lane()
        self._tensors = TensorLane(arena, line)
        self._streams: list[trio.SocketStream] = []

    @property
    def outbound(self) -> Outbound:
        """Of its tensors. A link that is not up carries none."""
        return self._tensors.outbound if self.up else Outbound(False, False)

    def put(self, head: bytes) -> None:
        """Queue a control frame. Breaks the link when the queue is full."""
        lane, frame = self._control, [memoryview(head)]
        if len(lane.queue) >= CONTROL_FRAMES_MAX:
            self._fail_unread(len(lane.queue), CONTROL_LANE)
        elif lane.stream is None or lane.queue or not self._write_at_once(lane.stream, frame):
            lane.queue.append(frame)
            lane.filled.set()

    def put_tensor(self, head: bytes, handle: Handle, payload_bytes: int, urgency: Urgency) -> None:
        """Queue a tensor, so many bytes of the slot `handle`, or leave it at that when it is on its way. Breaks the
        link when the queue is full."""
        if not self._tensors.put(head, handle, payload_bytes, urgency):
            self._fail_unread(len(self._tensors), TENSOR_LANE)

    def _fail_unread(self, frames: int, lane: str) -> None:
        self.fail(LinkBroken(f"{frames} frames wait on the {lane} lane: the peer does not read"))

    def _write_at_once(self, stream: trio.SocketStream, frame: list[memoryview]) -> bool:
        """Most frames fit the socket's buffer, and then no task has to wake up for them."""
        try:
            return write_now(stream, frame)
        except OSError as error:
            self.fail(LinkBroken(f"cannot write: {describe(error)}"))
            return False

    def fail(self, verdict: LinkBroken) -> None:
        """Break the link from outside, with this as its reason."""
        self._verdict = self._verdict or verdict
        self.scope.cancel()

    async def run(
        self, dial: LinkDialer, on_up: Callable[[], None], ask_first: bool = False, pause: float = 0.0
    ) -> LinkBroken:
        """Dial after `pause` seconds, say `on_up`, carry frames until the link breaks; returns why. Queued frames are
        dropped then.

        `ask_first`: probe whether this life answers, for there is a link to another one, and the peer would take our
        lanes for that one's, opened anew.
        """
        try:
            with self.scope:
                if pause:
                    await trio.sleep(pause)
                if ask_first:
                    (await dial.stream(self.peer, PROBE_LANE)).socket.close()
                control, tensors = await self._open(dial, CONTROL_LANE), await self._open(dial, TENSOR_LANE)
                carry_bulk(tensors, up=True)
                self._control.stream, self.up = control, True
                on_up()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._writing, self._write, control)
                    nursery.start_soon(self._writing, self._tensors.write, tensors)
                    nursery.start_soon(self._watch, control)
                    nursery.start_soon(self._listen, tensors)
        except LinkBroken as broken:
            self._verdict = self._verdict or broken
        finally:
            self.up = False
            self._close()
        return self._verdict or LinkBroken("closed")

    async def _open(self, dial: LinkDialer, lane: str) -> trio.SocketStream:
        stream = await dial.stream(self.peer, lane)
        self._streams.append(stream)
        return stream

    async def _writing(self, write: Callable[[trio.SocketStream], Awaitable[None]], stream: trio.SocketStream) -> None:
        try:
            await write(stream)
        except STREAM_ERRORS as error:
            self.fail(LinkBroken(f"cannot write: {describe(error)}"))

    async def _write(self, stream: trio.SocketStream) -> None:
        lane = self._control
        while True:
            if not lane.queue:
                lane.filled = trio.Event()
                await lane.filled.wait()
            with trio.fail_after(WRITE_SECONDS) as patience:
                await write_all(stream, lane.queue[0], patience)
            lane.queue.popleft()

    async def _listen(self, stream: trio.SocketStream) -> None:
        """Receipts for tensors; their end means what it means on the other lane."""
        try:
            await self._tensors.listen(stream)
        except (ValueError, *STREAM_ERRORS) as error:
            self.fail(LinkBroken(f"the stream broke: {describe(error)}"))

    async def _watch(self, stream: trio.SocketStream) -> None:
        try:
            data = await stream.receive_some(1)
        except STREAM_ERRORS as error:
            self.fail(LinkBroken(f"the stream broke: {describe(error)}"))
        else:
            self.fail(LinkBroken("it sent bytes where nothing may come" if data else "the stream ended"))

    def _close(self) -> None:
        for stream in self._streams:
            stream.socket.close()
        self._streams.clear()
        self._control.stream = None
        self._control.queue.clear()
        self._tensors.drop()


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
    punch: Callable[[str, Sequence[str]], Awaitable[None]]
    """Called with (PeerId, addresses) before a peer is dialled: it may have a direct connection then (punch.py)."""
    way: Callable[[Sequence[str]], Awaitable[tuple[str, ...]]]
    """Of a peer's addresses those to dial first (relay_choice.py)."""

    async def connect(self, peer_id: str) -> None:
        """Raises LinkBroken; `refused` when every address of the peer that may be dialled refuses TCP connections."""
        known = self.known(peer_id)
        try:
            peer_id_bytes(peer_id)  # ids come from other peers' messages as well
        except ValueError as error:
            raise LinkBroken(str(error)) from None
        try:
            await self.p2pd.arrival(peer_id)
            await self.punch(peer_id, known)
            await self._dial(peer_id, known)
        except P2pdError as error:
            # p2pd keeps its own counsel about an address that just failed ("dial backoff", 5 s), so we ask ourselves.
            met = all(self.p2pd.gate.has_met(peer_id, address) for address in error.dialled)
            pauses = REFUSAL_PAUSES_SECONDS if met else REFUSAL_PAUSES_SECONDS[:1]
            refused = error.another or await refuses(error.dialled, pauses)
            raise LinkBroken("its address refuses" if refused else clean_reason(str(error)), refused) from None

    async def _dial(self, peer_id: str, known: tuple[str, ...]) -> None:
        """Through one of its relays, and through any when that fails. Raises P2pdError."""
        first = await self.way(known)
        try:
            await self.p2pd.connect(peer_id, first, DIAL_SECONDS)
        except P2pdError:
            if len(first) == len(known):
                raise
            await self.p2pd.connect(peer_id, known, DIAL_SECONDS)

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
