"""A transport with its p2pd and arena, for tests of what goes between two of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import trio
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from ftnode.node.home.identity import Sign, take_identity
from ftnode.node.links.address_cards import card_signer
from ftnode.node.links.attention import Attention
from ftnode.node.links.p2pd import LOOPBACK, P2pd
from ftnode.node.links.punch import PUNCH_PROTOCOL, Puncher
from ftnode.node.links.seals import cannot_sign
from ftnode.node.links.transport import LinkEvent, Transport
from ftnode.node.machine.tensor_slots import Arena
from ftnode.node.manifests.book import ManifestBook
from ftnode.protocol.manifest.boundary import BoundaryBytes
from ftnode.protocol.words.events import LinkUp, Received
from ftnode.protocol.words.messages import Boundary, Suspect
from ftnode.protocol.words.types import Attempt, Direction, Peer

BOUNDARY_BYTES = 300_000  # more than a reader's buffer and a socket's
SCALE_BYTES, TOKEN_BYTES = 1000, 200
VOCABULARY = 20_000
SIZES = BoundaryBytes(BOUNDARY_BYTES, BOUNDARY_BYTES, SCALE_BYTES, 0, TOKEN_BYTES, VOCABULARY)
Kind = TypeVar("Kind")


class Node:
    """A transport with its p2pd and arena, and the events that it delivered."""

    def __init__(
        self,
        p2pd: P2pd,
        nonce: int,
        run: str,
        slots: int,
        book: ManifestBook | None = None,
        attention: Attention | None = None,
        with_card: Callable[[tuple[str, ...]], tuple[str, ...]] = tuple,
        sign: Sign | None = None,
    ) -> None:
        self.p2pd = p2pd
        self.with_card = with_card
        self.peer = Peer(p2pd.peer_id, nonce)
        self.arena = Arena(BOUNDARY_BYTES, slots)
        self.refusals: list[str] = []
        self.relays: set[str] = set()
        """Whose word on where to dial counts."""
        self.puncher = Puncher(p2pd, lambda: self.relays)
        self._send, self.events = trio.open_memory_channel[LinkEvent](5000)
        self.transport = Transport(
            p2pd,
            self.arena,
            run,
            nonce,
            SIZES,
            self._send.send_nowait,
            lambda peer, reason: self.refusals.append(reason),
            book=book,
            attention=attention,
            with_card=with_card,
            punch=self.puncher.reach,
            sign=sign or cannot_sign,
            signs_tensors=sign is not None,
        )

    async def next(self, kind: type[Kind]) -> Kind:
        """The next event of a kind; others are passed over."""
        with trio.fail_after(10):
            while True:
                event = await self.events.receive()
                if isinstance(event, Received):
                    self.transport.handled(event)
                if isinstance(event, kind):
                    return event

    async def signed(self) -> tuple[str, ...]:
        """Where it listens, with its card."""
        return self.with_card(await self.p2pd.addresses())

    async def meet(self, other: Node) -> None:
        self.transport.know(other.peer.id, await other.signed())
        self.transport.dial(other.peer)
        assert await self.next(LinkUp) == LinkUp(other.peer)


@asynccontextmanager
async def node(
    home: Path,
    nonce: int = 1,
    run: str = "run",
    slots: int = 4,
    listen: Sequence[str] = LOOPBACK,
    book: ManifestBook | None = None,
    attention: Attention | None = None,
    signs: bool = False,
) -> AsyncIterator[Node]:
    """`signs`: boundary tensors, and looks at the signatures of others' ones."""
    identity = take_identity(home)
    async with trio.open_nursery() as nursery:
        p2pd = await P2pd.start(nursery, identity.path, listen=listen)
        try:
            with_card = card_signer(identity.peer_id, identity.sign)
            made = Node(p2pd, nonce, run, slots, book, attention, with_card, identity.sign if signs else None)
            await made.transport.start(nursery)
            await p2pd.serve(PUNCH_PROTOCOL, made.puncher.handler)
            yield made
        finally:
            p2pd.close()
            identity.release()
            nursery.cancel_scope.cancel()


async def eventually(holds: Callable[[], Awaitable[bool]], seconds: float = 3.0) -> None:
    """What another process tells arrives a moment later. Raises trio.TooSlowError when it does not."""
    with trio.fail_after(seconds):
        while not await holds():
            await trio.sleep(0)


def limited(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with trio.fail_after(40):
            await main()

    trio.run(bounded)


def boundary(peer: Peer, microbatch: int = 0) -> Boundary:
    return Boundary("l", 0, 1, Attempt(0, 0), microbatch, 1, Direction.FORWARD, (peer,))


def word(text: str) -> Suspect:
    """Any control message."""
    return Suspect("l", 0, Peer("x", 1), "silent", text)


def send_tensor(sender: Node, to: Node, microbatch: int) -> None:
    handle = sender.arena.take()
    sender.transport.send(to.peer, boundary(to.peer, microbatch), handle)
    sender.arena.release(handle)


@asynccontextmanager
async def with_rsa_key(folder: Path) -> AsyncIterator[P2pd]:
    """A p2pd with a key of another kind than ours, as hivemind's own nodes have one."""
    made, kind = generate_private_key(65537, 2048), PrivateFormat.TraditionalOpenSSL
    key = made.private_bytes(Encoding.DER, kind, NoEncryption())
    path = folder / "rsa"
    path.write_bytes(b"\x08\x00\x12" + bytes([len(key) & 0x7F | 0x80, len(key) >> 7]) + key)
    async with trio.open_nursery() as nursery:
        p2pd = await P2pd.start(nursery, path)
        try:
            yield p2pd
        finally:
            p2pd.close()
            nursery.cancel_scope.cancel()
