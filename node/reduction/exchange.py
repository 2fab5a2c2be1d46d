"""One reduction: pieces out to their owners, sums back, over a stream to and from each of them.

Reduce-scatter and all-gather (Rabenseifner 2004) in one: the gradient is cut into a piece per contributor, everybody
sends the owner of a piece what it has of it, and the owner gives everybody the sum as it grows. Both travel in chunks,
encoded as the manifest says (encoding.py). In shared memory the sum takes the place of what we contributed, which
compute still has: the owner cannot have summed what it was not sent, so no number is overwritten that is still needed.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import hypot, sqrt
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from ftnode.node.links.link import describe
from ftnode.node.links.side_messages import say
from ftnode.node.links.streams import read_into, write_all
from ftnode.node.links.undigested import asking
from ftnode.node.ports import StreamOpener
from ftnode.node.reduction.part_bounds import (
    HOPELESS,
    SIZE_MAX,
    PartBounds,
    SignedParts,
    Weighed,
    dot,
    least_cut_off,
    squared,
    sum_bound,
    told_norm,
)
from ftnode.node.reduction.part_seals import PartDigest, PartSeals
from ftnode.node.reduction.piece_sum import PieceSum
from ftnode.node.reduction.shown_parts import ShownParts
from ftnode.node.reduction.wire import (
    FAULTS,
    IDLE_SECONDS,
    REDUCE_PROTOCOL,
    SIGNATURE_BYTES,
    ReduceReply,
    ReduceRequest,
    TurnedAway,
    ask,
    group_hash,
    request_for,
)
from ftnode.protocol.step.group import CONTRIBUTORS_MAX
from ftnode.protocol.words.effects import Reduce
from ftnode.protocol.words.errors import LocalError, PeerError
from ftnode.protocol.words.types import Attempt, Peer

if TYPE_CHECKING:
    from ftnode.node.reduction.encoding import Encoding, Numbers, Piece
    from ftnode.node.reduction.sketch import Sketch

log = logging.getLogger(__name__)

STILL_SECONDS: Final = 5.0
"""Who owes us bytes of a sum and gives none for so long is named to the core: five round trips of a very slow line."""
PAUSE_SECONDS: Final = 0.05
PAUSE_SECONDS_MAX: Final = 2.0


class Noted(NamedTuple):
    """What one gave, as far as we see it. `parts`: which numbers of the gradient these are. `beside`: of a piece that
    was added up again, the norm of its sum, since encoding rounds that."""

    sketch: Sketch
    parts: list[tuple[int, int]]
    beside: float = 0.0
    others: SignedParts | None = None
    """What others gave to such a piece, some of which its owner may have cut off."""


RelayOf = Callable[[trio.SocketStream], str]
"""PeerId of the relay that carries a stream; empty for a direct one."""


@dataclass(slots=True)
class _Guest:
    """A task that reads or writes the shared memory."""

    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    ended: trio.Event = field(default_factory=trio.Event)


class Exchange:
    """`task.group` has us in it and somebody who contributes. Nothing touches `memory` before `open`."""

    def __init__(
        self, task: Reduce, run: str, me: Peer, memory: memoryview, encoding: Encoding, streams: StreamOpener,
        before: Exchange | None, relay_of: RelayOf = lambda stream: "", seals: PartSeals | None = None,
    ) -> None:  # fmt: skip
        """`memory`: of the numbers of `encoding`. `before`: a cancelled one that may touch it for a moment yet.
        `seals`: in a run with checks."""
        counts = dict(task.group)
        self.contributors = tuple(peer for peer, count in task.group if count)
        if me not in counts or len(counts) != len(task.group) or not 0 < len(self.contributors) <= CONTRIBUTORS_MAX:
            raise LocalError(f"a group that cannot reduce: {task.group}")
        self.task, self.count = task, counts[me]
        self.group = group_hash(task.group)
        self.complete = False
        """The sum is here, whole, and was staged. Others may still be fetching theirs."""
        self.refused: tuple[Peer, str] | None = None
        """Whose sum of its piece cannot be that of the group's parts, and why."""
        self.over = False
        self.opened = trio.Event()
        self.sum: PieceSum | None = None
        """Of our piece, once it is open; None for who contributes nothing."""
        self.relayed = Counter[str]()
        """PeerId → bytes of parts and sums that came to us through this relay."""
        self._run, self._me, self._streams, self._before, self._relay_of = run, me, streams, before, relay_of
        self._pieces = pieces_of(memory, len(self.contributors), encoding, (run, task.stage, task.step))
        self._checked = self.contributors.index(task.checked) if task.checked in self.contributors else -1
        """Of what this one gives a note is taken."""
        self._sketch: Sketch | None = None
        self._counts = tuple(count for _, count in task.group if count)
        self._norms = [0.0] * len(self._pieces)
        """Of what we contribute to each piece."""
        self._shares = [1.0] * len(self._pieces)
        """As much of that counts."""
        self._sum_squares = [0.0] * len(self._pieces)
        """Of each piece's sum, of what came."""
        self._own_dots = [0.0] * len(self._pieces)
        """Of each piece's sum, as far as it came, and what we contribute to it."""
        self._own_squares = [0.0] * len(self._pieces)
        """Of what the owner of each piece gave to it, of what came, where of two it cut our part off."""
        self._have = [0] * len(self._pieces)
        """Bytes of each piece's sum that came."""
        self._gave = [0] * len(self._pieces)
        """Bytes of our part of each piece that left the memory, where the sum comes to stand."""
        self._seals = seals
        self._given: dict[int, PartDigest] = {}
        """Of what we gave to each piece."""
        self._taken: dict[int, PartDigest] = {}
        """Of what each contributor gave to ours."""
        self.parts = ShownParts(task, run, me, self.contributors, self._pieces, streams, seals)
        self._moved: dict[Peer, float] = {}
        """Since when what others owe us stands still: their parts of our piece, and the sums of theirs."""
        self._guests: dict[Peer, _Guest] = {}
        self._gathering = trio.CancelScope()

    @property
    def order(self) -> tuple[int, int, Attempt]:
        """A later one replaces an earlier one."""
        return self.task.view, self.task.step, self.task.attempt

    # Life.

    async def measure(self) -> None:
        """Before `open`: how large is what we contribute, which is in the memory by now."""
        if not self.count or len(self.contributors) == 1:
            return
        for place, piece in enumerate(self._pieces):
            at, square = 0, 0.0
            while at < piece.bytes:
                square += squared(piece.chunk(at))
                at = piece.end(at)
                await trio.lowlevel.checkpoint()
            self._norms[place] = told_norm(sqrt(square))

    def open(self) -> None:
        """What we contribute is in the memory now, and measured."""
        if self._checked >= 0:
            from ftnode.node.reduction.sketch import Sketch

            self._sketch = Sketch(secrets.randbits(64))
        if self.count:
            ours = self.contributors.index(self._me)
            bounds = None
            if len(self.contributors) > 1:
                whole = told_norm(hypot(*self._norms))
                bounds = PartBounds(self._counts, ours, self._norms[ours], whole)
            noted = self._checked, self._sketch
            self.sum = PieceSum(self._pieces[ours], len(self.contributors), ours, noted, bounds)
        self.opened.set()
        self._moved = dict.fromkeys(self.contributors, trio.current_time())

    def owed(self) -> tuple[tuple[Peer, ...], tuple[Peer, ...]]:
        """Who has not given for STILL_SECONDS what we can expect: parts of our piece, and sums of their pieces.

        A contributor that is ahead of others owes nothing: it may send no more before they have come so far."""
        if not self.opened.is_set() or self.complete:
            return (), ()
        before = trio.current_time() - STILL_SECONDS
        others = ((k, peer) for k, peer in enumerate(self.contributors) if peer != self._me)
        still = [(k, peer) for k, peer in others if self._moved[peer] < before]
        own = self.sum
        parts = tuple(peer for k, peer in still if own is not None and not own.whole and own.taken(k) == own.done)
        return parts, tuple(peer for k, peer in still if self._have[k] < self._pieces[k].bytes)

    def noted(self) -> Noted | None:
        """What whom we check has given: its part of the piece that we add up. Where nobody else holds the stage, it is
        the sum of its own piece, too, less what we gave to that."""
        seen = [self.contributors.index(self._me)] if self.count else []
        seen += [self._checked] if self._alone_with() else []
        if self._sketch is None or not self.complete or not seen:
            return None
        return Noted(self._sketch, [self._range(place) for place in seen])

    def weighed(self) -> list[tuple[Peer, Weighed]]:
        """What we saw of the others' parts of our piece, once the sum is whole."""
        if self.sum is None or self.sum.bounds is None or not self.sum.whole:
            return []
        found = self.sum.bounds.weighed()
        named = [(self.contributors[each.contributor], each) for each in found]
        return [(peer, each) for peer, each in named if peer != self._me]

    def sums_seen(self) -> list[tuple[Peer, Weighed]]:
        """What others made of their pieces, beside what we gave to these. `size`: of the sum, of our part of it, over
        what that is in our own piece; `cosine`: of both. Of two contributors a piece has no other witness."""
        if self.sum is None or self.sum.bounds is None or not self.complete or len(self.contributors) <= 2:
            return []
        ours = self.contributors.index(self._me)
        usual = self.sum.bounds.sum_norm / self._norms[ours] if self._norms[ours] else 0.0
        found = list[tuple[Peer, Weighed]]()
        for piece, owner in enumerate(self.contributors):
            norm, own = sqrt(self._sum_squares[piece]), self._norms[piece]
            if piece == ours or not (0.0 < norm < HOPELESS and 0.0 < own < HOPELESS and 0.0 < usual < HOPELESS):
                continue
            cosine = max(-1.0, min(1.0, self._own_dots[piece] / (norm * own)))
            found.append((owner, Weighed(piece, min(norm / own / usual, SIZE_MAX), cosine, 1.0)))
        return found

    def _alone_with(self) -> bool:
        """Nobody else holds the stage than whom we check and we: what it gave to its own piece is the sum of that, less
        our part."""
        return self._checked >= 0 and len(self.task.group) == 2

    def cancel(self) -> None:
        self.over = True
        self.parts.forget()
        for guest in self._guests.values():
            guest.scope.cancel()

    async def alone(self) -> None:
        """Until nothing before this exchange touches the memory any more."""
        if self._before is not None:
            await self._before.gone()
            self._before = None

    async def gone(self) -> None:
        """After `cancel`: until nothing of this exchange, or before it, touches the memory any more."""
        await self.alone()
        for guest in list(self._guests.values()):
            await guest.ended.wait()

    @contextmanager
    def visit(self, peer: Peer) -> Iterator[None]:
        """Touching the memory on behalf of a peer, until `cancel`."""
        guest = self._guests[peer] = _Guest()
        if self.over:
            guest.scope.cancel()
        try:
            with guest.scope:
                yield
        finally:
            guest.ended.set()
            if self._guests.get(peer) is guest:
                del self._guests[peer]

    def _came(self, stream: trio.SocketStream, count: int) -> None:
        relay = self._relay_of(stream)
        if relay:
            self.relayed[relay] += count

    # As one who gets the sum.

    async def gather(self) -> None:
        """Until the whole sum is in the memory, or a part of it is refused. Never, when somebody is gone: then it is
        cancelled."""
        with self._gathering:
            await self._gather()

    async def _gather(self) -> None:
        async with trio.open_nursery() as nursery:
            for piece, owner in enumerate(self.contributors):
                if owner != self._me:
                    nursery.start_soon(self._fetch, piece, owner)
            if self.sum is not None:
                await self.sum.work()

    async def _fetch(self, piece: int, owner: Peer) -> None:
        """One piece's sum, over as many streams as it takes."""
        pause = PAUSE_SECONDS
        while self._have[piece] < self._pieces[piece].bytes:
            before = self._have[piece]
            try:
                with asking(owner.id, REDUCE_PROTOCOL, FAULTS):
                    await self._talk(piece, owner)
                return
            except FAULTS as error:
                log.info("piece %d of stage %d from %s: %s", piece, self.task.stage, owner, describe(error))
                if isinstance(error, PeerError):
                    self._streams.strike(owner.id, str(error))
                if isinstance(error, TurnedAway) and not error.retry:
                    await trio.sleep_forever()  # until another view takes this one's place
            pause = PAUSE_SECONDS if self._have[piece] > before else min(2 * pause, PAUSE_SECONDS_MAX)
            await trio.sleep(pause)

    async def _talk(self, piece: int, owner: Peer) -> None:
        part = self._pieces[piece]
        stream = await self._streams.open(owner.id, REDUCE_PROTOCOL)
        try:
            have, norm = self._have[piece], self._norms[piece]
            reply = await ask(stream, request_for(self.task, self._run, self._me.nonce, piece, have, norm))
            if not isinstance(reply, ReduceReply) or not part.begins(reply.taken):
                raise PeerError("an answer to a ReduceRequest that is none")
            if self.count and (reply.taken < have or (have and reply.share != self._shares[piece])):
                raise PeerError("a sum of what it says that it does not have")
            self._shares[piece], self._gave[piece] = reply.share, reply.taken

            async def contribute() -> None:
                if self.count:
                    await self._give(piece, reply.taken, stream)

            async def collect() -> None:
                room = part.room()
                while (at := self._have[piece]) < part.bytes:
                    content = room[: part.end(at) - at]
                    with trio.fail_after(IDLE_SECONDS):
                        await read_into(stream, content)
                    if self.count and part.end(at) > self._gave[piece]:
                        raise PeerError("a sum of what we have not given yet")  # it would come to be what we give
                    part.check(content)
                    numbers = part.decode(at, content)
                    if self._sketch is not None and piece == self._checked and self._alone_with():
                        self._sketch.add(part.position(at), *self._owners_part(piece, numbers, part.chunk(at)))
                    self._take_no_more(piece, owner, numbers)
                    self._own_dots[piece] += dot(numbers, part.chunk(at)) if self.count else 0.0
                    self._own_squares[piece] += self._owners_square(piece, numbers, part.chunk(at))
                    part.chunk(at)[:] = numbers
                    self._have[piece] = part.end(at)
                    self._was_cut_off(piece, owner)
                    self._came(stream, len(content))
                    self._moved[owner] = trio.current_time()
                    await trio.lowlevel.checkpoint()

            await side_by_side(contribute, collect)
        finally:
            stream.socket.close()

    def _owners_part(self, piece: int, numbers: Numbers, own: Numbers) -> tuple[Numbers, Numbers | None]:
        """What the other one of two gave to its own piece, as a difference: of the sum, and what our part was in it."""
        if not self.count:
            return numbers, None
        share = self._shares[piece]
        if share == 1.0:
            return numbers, own
        again = 1.0 + (1.0 - share) * self.count / self._counts[piece]  # part_bounds.py: the mean in our place
        kind = numbers.dtype.type
        return numbers * kind(1 / again), own * kind(share / again)

    def _owners_square(self, piece: int, numbers: Numbers, own: Numbers) -> float:
        """Of the norm of that, where our part was cut off; else 0.0."""
        if self._shares[piece] == 1.0 or not self.count or len(self.contributors) != 2:
            return 0.0
        given, ours = self._owners_part(piece, numbers, own)
        return squared(given if ours is None else given - ours)

    def _was_cut_off(self, piece: int, owner: Peer) -> None:
        """Of two, the owner of a piece may take less of our part only where its own is far smaller. Else it would have
        our work counted for nothing, and a check of its own part would see nothing of it."""
        if self._have[piece] < self._pieces[piece].bytes or self._shares[piece] == 1.0 or self.refused is not None:
            return
        least = least_cut_off(sqrt(self._own_squares[piece]), self._counts[piece], self.count)
        if len(self.contributors) == 2 and self._norms[piece] < least:
            self.refused = owner, f"{owner} cut our part of {self._norms[piece]:.2g} off; {least:.2g} is the least"
            self._gathering.cancel()

    def _take_no_more(self, piece: int, owner: Peer, numbers: Numbers) -> None:
        """We stop when the sum of a piece is too large for what we gave to it."""
        if not self.count or self.refused is not None:
            return
        self._sum_squares[piece] += squared(numbers)
        ours, size = self.contributors.index(self._me), sqrt(self._sum_squares[piece])
        bound = sum_bound(self._norms, self._counts, ours, piece)
        if bound < size < HOPELESS:
            self.refused = owner, f"the sum that {owner} made has a norm of {size:.2g}; {bound:.2g} is the most"
            self._gathering.cancel()

    async def _give(self, piece: int, at: int, stream: trio.SocketStream) -> None:
        """What we contribute to a piece; every chunk has its deadline, and after it others have their turn."""
        part, ours = self._pieces[piece], self.contributors.index(self._me)
        digest = self._given.setdefault(piece, PartDigest())
        while at < part.bytes:
            await trio.lowlevel.checkpoint()
            content, end = part.encode(at, part.chunk(at), ours), part.end(at)
            parts, self._gave[piece] = [content], end
            if self._seals is not None:
                digest.add(at, content)
                if piece == self._checked:
                    self.parts.keep(piece, ours, at, content)
                if end == part.bytes:
                    signature = self._seals.sign(self.task, piece, digest.digest(), self._norms[piece])
                    parts.append(memoryview(signature))
                    if piece == self._checked:
                        self.parts.signed(piece, ours, signature, self._norms[piece])
            with trio.fail_after(IDLE_SECONDS):
                await write_all(stream, parts)
            at = end

    # As the owner of a piece.

    async def serve(self, sender: Peer, request: ReduceRequest, stream: trio.SocketStream) -> None:
        """Another member's stream: its contribution in, the sum out. A new one of the same member takes its place.

        Raises one of FAULTS.
        """
        while (earlier := self._guests.get(sender)) is not None:
            earlier.scope.cancel()
            await earlier.ended.wait()
        with self.visit(sender):
            with trio.fail_after(IDLE_SECONDS):
                await self.opened.wait()
            own = self.sum
            if own is None or not own.piece.begins(request.have):
                raise PeerError("a ReduceRequest for what is not here")
            contributes = sender in self.contributors
            source = self.contributors.index(sender) if contributes else -1
            share = 1.0
            if contributes and own.bounds is not None:
                own.bounds.tell(source, request.norm)
                share = own.bounds.share(source) if len(self.contributors) == 2 else 1.0
            await say(stream, ReduceReply(own.taken(source) if contributes else 0, share if share == share else 1.0))

            async def take() -> None:
                while contributes:
                    with trio.fail_after(IDLE_SECONDS):
                        room = await own.room(source)
                        await read_into(stream, room)
                    if not room:
                        return
                    if self._seals is not None:
                        await self._signed(sender, source, own, room, stream)
                    own.filled(source)
                    self._came(stream, len(room))
                    self._moved[sender] = trio.current_time()
                    await trio.lowlevel.checkpoint()

            async def give() -> None:
                at = request.have
                while at < own.piece.bytes:
                    with trio.fail_after(IDLE_SECONDS):
                        while own.done <= at:
                            await own.grown.wait()
                    while at < own.done:
                        end = own.piece.end(at)
                        with trio.fail_after(IDLE_SECONDS):
                            await write_all(stream, [own.content[at:end]])
                        at = end

            await side_by_side(take, give)

    async def _signed(
        self, sender: Peer, source: int, own: PieceSum, room: memoryview, stream: trio.SocketStream
    ) -> None:
        """The next chunk of a contribution is here. After the last one comes its signature. Raises one of FAULTS."""
        assert self._seals is not None
        at, digest = own.taken(source), self._taken.setdefault(source, PartDigest())
        last, signature = at + len(room) == own.piece.bytes, bytearray(SIGNATURE_BYTES)
        piece = self.contributors.index(self._me)
        self.parts.keep(piece, source, at, room)
        if not last:
            digest.add(at, room)
            return
        with trio.fail_after(IDLE_SECONDS):
            await read_into(stream, memoryview(signature))
        norm = own.bounds.told(source) if own.bounds is not None else 0.0
        if not self._seals.is_by(sender, self.task, piece, digest.digest(room), norm, bytes(signature)):
            raise PeerError("a part of a sum with a signature that is not its own")
        self.parts.signed(piece, source, bytes(signature), norm)

    # For who does another one's visits again.

    async def ask_for_part(self, owner: Peer, of: Peer) -> Noted:
        """What one contributor gave to the piece of another one, as it shows it (rules 50, 52). Raises TurnedAway."""
        if owner not in self.contributors or of not in self.contributors:
            raise TurnedAway("it adds nothing up", retry=False)
        from ftnode.node.reduction.sketch import Sketch

        place, sketch = self.contributors.index(owner), Sketch(secrets.randbits(64))
        await self._sketch_part(sketch, place, (await self.parts.fetch(place, of, (owner,))).chunks)
        return Noted(sketch, [self._range(place)])

    def may_add_up(self, owner: Peer, attempt: Attempt) -> bool:
        """Others keep what was given to its piece, and the sum is here."""
        here = self.complete and not self.over and self.task.attempt == attempt
        return here and self.parts.keeps and owner in self.contributors and owner != self._me

    def has_made(self, piece: int) -> bool:
        """The sum of a piece is whole, and it is ours to add up."""
        return self.sum is not None and self.sum.whole and self.contributors[piece : piece + 1] == (self._me,)

    async def add_up_again(self, owner: Peer, key: int, holders: Sequence[Peer], patient: bool = False) -> Noted:
        """What one gave to its own piece: the sum that it made, less what all others gave to it, as one of `holders`
        shows that (rule 42). Only where we `may_add_up`. Raises TurnedAway."""
        from ftnode.node.reduction.sketch import Sketch

        place, sketch, square, at = self.contributors.index(owner), Sketch(key), 0.0, 0
        piece, signed = self._pieces[place], SignedParts(self._counts, place)
        for k, of in enumerate(self.contributors):
            if of != owner:
                shown = await self.parts.fetch(place, of, holders, patient)
                signed.add(k, shown.norm, await self._sketch_part(sketch, place, shown.chunks, -1))
        while at < piece.bytes:
            sketch.add(piece.position(at), piece.chunk(at))
            square += squared(piece.chunk(at))
            at = piece.end(at)
            await trio.lowlevel.checkpoint()
        return Noted(sketch, [self._range(place)], sqrt(square), signed)

    async def _sketch_part(self, sketch: Sketch, place: int, contents: Sequence[bytes], times: int = 1) -> float:
        """The square of its norm."""
        piece, at, square = self._pieces[place], 0, 0.0
        for content in contents:
            numbers = piece.decode(at, memoryview(content))
            square += squared(numbers)
            sketch.add(piece.position(at), times * numbers)
            at = piece.end(at)
            await trio.lowlevel.checkpoint()
        return square

    def _range(self, place: int) -> tuple[int, int]:
        piece = self._pieces[place]
        return piece.first, piece.first + len(piece.numbers)


def pieces_of(memory: memoryview, count: int, encoding: Encoding, sum_name: tuple[object, ...]) -> list[Piece]:
    """One for each contributor, as equal as can be."""
    from ftnode.node.reduction.encoding import Piece  # nodes that reduce in no group do without numpy

    size = encoding.dtype.itemsize
    bounds = [size * (len(memory) // size * i // count) for i in range(count + 1)]
    return [Piece(memory[bounds[i] : bounds[i + 1]], encoding, (*sum_name, i), bounds[i] // size) for i in range(count)]


async def side_by_side(*parts: Callable[[], Awaitable[None]]) -> None:
    """All at once; the first failure ends the others and is raised as it is."""
    failures: list[BaseException] = []

    async def guarded(part: Callable[[], Awaitable[None]]) -> None:
        try:
            await part()
        except FAULTS as error:
            failures.append(error)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for part in parts:
            nursery.start_soon(guarded, part)
    if failures:
        raise failures[0]
