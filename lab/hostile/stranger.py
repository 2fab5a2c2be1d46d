"""A stranger: a libp2p peer with an identity of its own that speaks every protocol of ftnode and keeps no rule.

It has what a node has for the wire (p2pd, links, a directory process) and no core: what it says comes from an attack.
"""

from __future__ import annotations

import hashlib
import secrets
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import trio

from ftnode.lab.hostile.forgeries import NONCE_BITS, Alias, SignedRecord
from ftnode.models.config import ModelConfig
from ftnode.models.state_plan import StatePlan
from ftnode.node.compute.config import CHUNK_BYTES_MAX
from ftnode.node.compute.state_shape import StateShape
from ftnode.node.directory.link import DirectoryDown, DirectoryLink
from ftnode.node.home.identity import take_identity
from ftnode.node.links.addresses import parse_peers
from ftnode.node.links.p2pd import P2pd
from ftnode.node.links.streams import STREAM_ERRORS, FrameReader, write_frame
from ftnode.node.links.transport import LinkEvent, Transport
from ftnode.node.machine.tensor_slots import Arena
from ftnode.protocol.manifest.parse import Manifest
from ftnode.protocol.wire.frames import (
    CONTROL_LANE,
    STATE_PROTOCOL,
    STEP_PROTOCOL,
    Hello,
    StateChunk,
    StateHeader,
    StateHistory,
    StateRequest,
    read_greeting,
    read_transfer,
)
from ftnode.protocol.words.errors import UserError
from ftnode.protocol.words.events import Received
from ftnode.protocol.words.messages import Message
from ftnode.protocol.words.types import INITIAL_ATTEMPT, Peer, Version

DIAL_SECONDS: Final = 5.0
MEET_SECONDS: Final = 60.0
STORES_AT_ONCE: Final = 8
SLOTS: Final = 4

Hear = Callable[[Peer, Message], None]
"""Called with every message that somebody sends to the stranger; must not block."""


class Stranger:
    """`target`s below are full multiaddrs of a volunteer."""

    def __init__(self, p2pd: P2pd, alias: Alias, manifest: Manifest, addresses: tuple[str, ...]) -> None:
        self.p2pd, self.alias, self.manifest, self.addresses = p2pd, alias, manifest, addresses
        self.hear: Hear = lambda sender, message: None
        self.lent: list[int] = []
        """The stages that somebody has fetched from us."""
        self.directory: DirectoryLink | None = None
        arena = Arena(manifest.boundary_bytes.largest, SLOTS)

        def deliver(event: LinkEvent) -> None:
            if isinstance(event, Received):
                self.transport.handled(event)
                if event.handle is not None:
                    arena.release(event.handle)
                self.hear(event.sender, event.message)

        self.transport = Transport(
            p2pd, arena, manifest.run_id, alias.peer.nonce, manifest.boundary_bytes, deliver, with_card=alias.signed
        )  # fmt: skip

    @property
    def peer(self) -> Peer:
        return self.alias.peer

    # What it says on links.

    def know(self, targets: Sequence[str]) -> None:
        """Where volunteers can be dialled."""
        self.p2pd.gate.give(parse_peers(targets))

    def say(self, to: Iterable[Peer], message: Message) -> None:
        """On a link, which is made where there is none. Nobody knows whether it arrives."""
        for peer in to:
            self.transport.send(peer, message, None)

    async def greet(self, target: str, addresses: tuple[str, ...]) -> trio.SocketStream:
        """A control stream whose Hello names `addresses` as ours, behind the answer to it. Raises P2pdError and one of
        STREAM_ERRORS."""
        (volunteer,) = parse_peers([target])
        await self.p2pd.connect(volunteer.peer_id, volunteer.addresses, DIAL_SECONDS)
        stream = await self.p2pd.open(volunteer.peer_id, STEP_PROTOCOL, DIAL_SECONDS)
        with trio.fail_after(DIAL_SECONDS):
            await write_frame(stream, Hello(self.manifest.run_id, self.peer.nonce, addresses, CONTROL_LANE))
            read_greeting(*await FrameReader(stream).header())
        return stream

    async def leave(self, target: str) -> None:
        """Close all connections to a volunteer."""
        await self.p2pd.disconnect(parse_peers([target])[0].peer_id)

    # What it writes into the directory.

    async def write(self, records: Iterable[SignedRecord]) -> int:
        """Store records; how many somebody took. Raises LocalError when there is no directory."""
        assert self.directory is not None
        directory, taken, limit = self.directory, 0, trio.CapacityLimiter(STORES_AT_ONCE)

        async def store(one: SignedRecord) -> None:
            nonlocal taken
            try:
                answer = await directory.call(
                    "store", key=one.key, subkey=one.subkey, record=one.record, expiration=one.expires, also=()
                )
            except DirectoryDown:
                return
            finally:
                limit.release_on_behalf_of(one)
            taken += bool(answer.get("stored"))

        async with trio.open_nursery() as nursery:
            for one in records:
                await limit.acquire_on_behalf_of(one)
                nursery.start_soon(store, one)
        return taken

    # What it lends.

    async def lend(self) -> None:
        """From now on be a donor: whatever state is asked for, it is zeros."""
        await self.p2pd.serve(STATE_PROTOCOL, self._lend)

    async def _lend(self, peer_id: str, stream: trio.SocketStream) -> None:
        try:
            with trio.fail_after(DIAL_SECONDS):
                request = read_transfer(*await FrameReader(stream).header(), 0)
            assert isinstance(request, StateRequest)
            await self._send_zeros(stream, request)
        except STREAM_ERRORS:
            await trio.lowlevel.checkpoint()

    async def _send_zeros(self, stream: trio.SocketStream, request: StateRequest) -> None:
        shape = state_shape(self.manifest)
        lengths = shape.lengths(request.stage, request.parts, "raw")
        version = Version(request.step, request.commit, INITIAL_ATTEMPT)
        size = shape.size(request.stage, request.parts)
        await write_frame(stream, StateHeader(version, 0.0, len(lengths), size, "", 0, 1.0, "raw"))
        for index, length in enumerate(lengths):
            zeros = bytes(length)
            chunk = StateChunk(index, hashlib.blake2b(zeros, digest_size=16).digest())
            await write_frame(stream, chunk, memoryview(zeros))
        if request.since >= 0:
            await write_frame(stream, StateHistory(()))
        self.lent.append(request.stage)


def state_shape(manifest: Manifest) -> StateShape:
    """As volunteers with room for boundary tensors only have it."""
    model = ModelConfig.of(manifest.model)
    chunk = min(manifest.boundary_bytes.largest, CHUNK_BYTES_MAX) // model.number_bytes * model.number_bytes
    plan = StatePlan(model, manifest.pipeline.stages, manifest.optimiser.kind)
    return StateShape(plan.numbers, chunk, model.number_bytes)


@asynccontextmanager
async def open_stranger(manifest: Manifest, meeting_point: str = "") -> AsyncIterator[Stranger]:
    """A stranger on loopback; with the full multiaddr of a meeting point it has a directory, too.

    Raises UserError (69) when the directory cannot be reached.
    """
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ftnode-lab-")))
        identity = take_identity(home)
        stack.callback(identity.release)
        p2pd = await P2pd.start(nursery, identity.path)
        stack.callback(p2pd.close)
        alias = Alias(identity.key, Peer(identity.peer_id, secrets.randbits(NONCE_BITS)))
        stranger = Stranger(p2pd, alias, manifest, alias.signed(await p2pd.addresses()))
        await stranger.transport.start(nursery)
        if meeting_point:
            stranger.directory = await _join_directory(p2pd, meeting_point, home, nursery)
        try:
            yield stranger
        finally:
            nursery.cancel_scope.cancel()


async def _join_directory(p2pd: P2pd, meeting_point: str, home: Path, nursery: trio.Nursery) -> DirectoryLink:
    link = DirectoryLink(
        p2pd, parse_peers([meeting_point]), log_path=home / "directory.log", on_lost=lambda reason: None
    )
    nursery.start_soon(link.run)
    with trio.move_on_after(MEET_SECONDS):
        await link.up.wait()
        await link.meet_all()
    if not link.met:
        raise UserError("the stranger finds no directory; is the meeting point up?", 69)
    return link
