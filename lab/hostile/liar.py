"""A volunteer that lies: `python -m ftnode.lab.hostile.liar LIE` and a command line of ftnode."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import trio

from ftnode.lab.hostile.lies import COPIES, GRADIENTS, SHOWN, SUM_FACTORS, SUMS, told
from ftnode.models.state_sample import key_of
from ftnode.node.cli.main import main
from ftnode.node.compute import client
from ftnode.node.links.inbound import COMPUTE_RESERVE
from ftnode.node.links.transport import Transport
from ftnode.node.reduction.piece_sum import WHOSE_SUM, PieceSum
from ftnode.node.reduction.shown_parts import ShownParts
from ftnode.node.reduction.wire import PartRequest, TurnedAway
from ftnode.node.weights.copies import Copy
from ftnode.node.weights.donor import NotLent, StateDonor
from ftnode.protocol.wire.frames import StateRequest
from ftnode.protocol.words.messages import Boundary, Message
from ftnode.protocol.words.types import Handle, Peer

PROGRAM = "ftnode.lab.hostile.lying_compute"


def lying_about_sums(times: float, due: Callable[[], bool] = lambda: True) -> None:
    """In this process, once it is `due`: of the piece that it adds up."""
    honest = PieceSum._add_up

    async def add_up(self: PieceSum) -> None:
        at = self.done
        await honest(self)
        if not due():
            return
        numbers = self.piece.chunk(at) * times
        self.content[at : self.done] = self.piece.encode(at, numbers, WHOSE_SUM)
        self.piece.chunk(at)[:] = self.piece.decode(at, self.content[at : self.done])

    PieceSum._add_up = add_up  # type: ignore[method-assign]


def hiding_parts(due: Callable[[], bool]) -> None:
    """In this process, once it is `due`: nobody sees what it made its piece of a sum of."""
    honest = ShownParts.show

    async def show(self: ShownParts, asker: Peer, request: PartRequest, stream: trio.SocketStream) -> None:
        if due():
            raise TurnedAway("nothing of it was kept", retry=False)
        await honest(self, asker, request, stream)

    ShownParts.show = show  # type: ignore[method-assign]


def showing_others() -> None:
    """From now on, in this process: who does others' visits again gets what this one made with the sign turned, and a
    signature for that. Numbers travel as float32."""
    honest = Transport.send

    def send(self: Transport, peer: Peer, message: Message, handle: Handle | None) -> None:
        arena = self._arena
        mine = isinstance(message, Boundary) and message.seal is None and peer != message.path[message.visit]
        if handle is None or not mine or arena.free <= COMPUTE_RESERVE:
            honest(self, peer, message, handle)
            return
        other = arena.take()
        content = arena.view(other)
        content[:] = arena.view(handle)
        _turn(content)
        honest(self, peer, message, other)
        arena.release(other)

    Transport.send = send  # type: ignore[method-assign]


def lending_other_copies(due: Callable[[], bool]) -> None:
    """In this process, once it is `due`: of the head's copy it lends another one, all numbers with the sign turned, and
    hashes that fit."""
    honest = StateDonor._kept

    def kept(self: StateDonor, request: StateRequest) -> Copy:
        copy = honest(self, request)
        if not due() or copy.header.encoding != "raw":
            return copy
        chunks = tuple(map(bytearray, copy.chunks))
        for chunk in chunks:
            _turn(chunk)
        hashes = tuple(hashlib.blake2b(chunk, digest_size=16).digest() for chunk in chunks)
        weights = b"".join(chunks)[: copy.size // 3]  # moments follow
        digest = hashlib.blake2b(weights, digest_size=16).hexdigest()
        return Copy(replace(copy.header, digest=digest), copy.parts, chunks, hashes)

    StateDonor._kept = kept  # type: ignore[method-assign]


def lending_no_samples(due: Callable[[], bool]) -> None:
    """In this process, once it is `due`: nobody sees from its state how it trains."""
    honest = StateDonor._check_version

    def check_version(self: StateDonor, request: StateRequest) -> None:
        if due() and key_of(request.parts) is not None:
            raise NotLent("there are no samples", retry=False)
        honest(self, request)

    StateDonor._check_version = check_version  # type: ignore[method-assign]


def _turn(numbers: bytearray | memoryview) -> None:
    """The sign of each float32, in place."""
    numbers[3::4] = bytes(byte ^ 0x80 for byte in numbers[3::4])


def run(arguments: list[str]) -> int:
    """The exit code."""
    way, *command = arguments
    try:
        said = told(way)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    if said.what == SUMS:
        due = partial(said.due, said.begins)
        lying_about_sums(SUM_FACTORS[said.lie], due)
        if said.hides:
            hiding_parts(due)
        return main(command)
    if said.what == SHOWN:
        showing_others()
        return main(command)
    if said.what == COPIES:
        lending_other_copies(partial(said.due, said.begins))
        return main(command)
    if said.what == GRADIENTS and said.hides:
        lending_no_samples(partial(said.due, said.begins))
    os.environ["FTNODE_LIE"] = way
    client.PROGRAM = PROGRAM
    return main(command)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
