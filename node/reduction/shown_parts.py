"""What members gave to pieces of one sum, kept as it travelled, with their signatures, and shown to others.

The owner of a piece sees all parts of it, and is alone to. So in a run with checks it keeps them until the next sum of
the stage, or until it holds the stage no longer, where three or more reduce together. Whoever does its visits again
asks for them and adds the piece up again: what the owner made of it, less what the others have signed, is what its own
visits give (rule 42). It keeps what it was shown, so that a third can be shown the same (rules 50 and 52). Nobody can
show what somebody else has not signed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from ftnode.node.links.link import describe
from ftnode.node.links.side_messages import say
from ftnode.node.links.streams import read_into, write_all
from ftnode.node.links.undigested import asking
from ftnode.node.ports import StreamOpener
from ftnode.node.reduction.part_seals import PartDigest, PartSeals
from ftnode.node.reduction.wire import (
    FAULTS,
    IDLE_SECONDS,
    REDUCE_PROTOCOL,
    PartReply,
    PartRequest,
    TurnedAway,
    ask,
    part_request_for,
)
from ftnode.protocol.words.effects import Reduce
from ftnode.protocol.words.errors import PeerError
from ftnode.protocol.words.types import Peer

if TYPE_CHECKING:
    from ftnode.node.reduction.encoding import Piece

SHOWN_TIMES: Final = 8
"""Each part to each peer: for a check of its own, for the leader, and each of these thrice more, where lines break."""
PAUSES: Final = (0.0, 0.25, 0.5, 1.0, 2.0)
"""Seconds before each try: the sum may not be whole there. Who has more time goes on with the last of them."""


class Shown(NamedTuple):
    """What one gave to a piece: its chunks, and the norm that it told of them before."""

    chunks: list[bytes]
    norm: float


class ShownParts:
    """Of one exchange. `pieces`: of the gradient, in the order of `contributors`, whose part of each is meant."""

    def __init__(
        self, task: Reduce, run: str, me: Peer, contributors: Sequence[Peer], pieces: Sequence[Piece],
        streams: StreamOpener, seals: PartSeals | None,
    ) -> None:  # fmt: skip
        """`seals`: in a run with checks."""
        self._task, self._run, self._me, self._contributors = task, run, me, contributors
        self._pieces, self._streams, self._seals = pieces, streams, seals
        self.over = False
        """Nobody wants to see anything of this sum any more."""
        self._kept: dict[tuple[int, int], list[bytes]] = {}
        """(piece, contributor) → its chunks, and these their signatures, with the norms that these are of, too."""
        self._signatures: dict[tuple[int, int], PartReply] = {}
        self._shown = Counter[tuple[Peer, int, int]]()

    @property
    def keeps(self) -> bool:
        """Of two holders each knows what the other gave, and there is no third to show it to."""
        return self._seals is not None and len(self._task.group) > 2

    def forget(self) -> None:
        """It is over, and what was kept with it. What is being shown at this moment still is."""
        self.over = True
        self._kept.clear()
        self._signatures.clear()

    def keep(self, piece: int, of: int, at: int, content: bytes | memoryview) -> None:
        """The chunk that begins at byte `at`; one that comes again takes the place of what came before."""
        if self.keeps and not self.over:
            self._kept.setdefault((piece, of), [])[at // self._pieces[piece].end(0) :] = [bytes(content)]

    def signed(self, piece: int, of: int, signature: bytes, norm: float) -> None:
        """All chunks are here."""
        if self.keeps and not self.over:
            self._signatures[piece, of] = PartReply(signature, norm)

    async def show(self, asker: Peer, request: PartRequest, stream: trio.SocketStream) -> None:
        """What one gave to a piece. Raises one of FAULTS."""
        of = self._contributors.index(request.of) if request.of in self._contributors else -1
        place = request.piece, of
        if place not in self._signatures:
            raise TurnedAway("nothing of it was kept", retry=False)
        self._shown[asker, *place] += 1
        if self._shown[asker, *place] > SHOWN_TIMES:
            raise TurnedAway("it was shown before", retry=False)
        reply, contents = self._signatures[place], self._kept[place]
        await say(stream, reply)
        for content in contents:
            with trio.fail_after(IDLE_SECONDS):
                await write_all(stream, [memoryview(content)])

    async def fetch(self, piece: int, of: Peer, holders: Sequence[Peer], patient: bool = False) -> Shown:
        """What one gave to a piece: of our own, or as the first of `holders` shows it that does. `patient`: until we
        are cancelled, as long as it may be a broken line. Raises TurnedAway."""
        at, why = self._contributors.index(of), "it is nobody's piece"
        if (piece, at) in self._signatures:
            return Shown(self._kept[piece, at], self._signatures[piece, at].norm)
        for holder in holders:
            found = await self._ask_again(holder, piece, of, patient)
            if not isinstance(found, str):
                return found
            why = f"{holder} shows nothing that {of} gave: {found}"
        raise TurnedAway(why, retry=False)

    async def _ask_again(self, holder: Peer, piece: int, of: Peer, patient: bool) -> Shown | str:
        """Until it shows the part; or why it does not."""
        why, pauses = "", chain(PAUSES, repeat(PAUSES[-1]) if patient else ())
        for pause in pauses:
            await trio.sleep(pause)
            if self.over:
                break
            try:
                with asking(holder.id, REDUCE_PROTOCOL, FAULTS):
                    return await self._ask(holder, piece, of)
            except PeerError as error:
                self._streams.strike(holder.id, str(error))
                return describe(error)
            except FAULTS as error:
                why = describe(error)
                if isinstance(error, TurnedAway) and not error.retry:
                    break
        return why

    async def _ask(self, holder: Peer, piece: int, of: Peer) -> Shown:
        if self._seals is None:
            raise TurnedAway("it signs nothing", retry=False)
        part, digest, found = self._pieces[piece], PartDigest(), list[bytes]()
        stream = await self._streams.open(holder.id, REDUCE_PROTOCOL)
        try:
            reply = await ask(stream, part_request_for(self._task, self._run, self._me.nonce, piece, of))
            if not isinstance(reply, PartReply):
                raise PeerError("an answer to a PartRequest that is none")
            room, at = part.room(), 0
            while at < part.bytes:
                content = room[: part.end(at) - at]
                with trio.fail_after(IDLE_SECONDS):
                    await read_into(stream, content)
                part.check(content)
                digest.add(at, content)
                found.append(bytes(content))
                at = part.end(at)
                await trio.lowlevel.checkpoint()
        finally:
            stream.socket.close()
        if not self._seals.is_by(of, self._task, piece, digest.digest(), reply.norm, reply.signature):
            raise PeerError(f"a part of a sum that {of} has not signed")
        if self._contributors[piece] == self._task.checked and not self.over:  # a third may want to see it of us
            place = piece, self._contributors.index(of)
            self._kept[place], self._signatures[place] = found, reply
        return Shown(found, reply.norm)
