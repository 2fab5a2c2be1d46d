"""The owner of a piece that sends its sum before it has our part: the sum stands where our part is read from, so that
we would sign numbers of its own choice as ours (rule 50)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
import trio

from ftnode.node.links.side_messages import say
from ftnode.node.reduction import encoding
from ftnode.node.reduction.encoding import encoding_of
from ftnode.node.reduction.exchange import FAULTS, Exchange, pieces_of
from ftnode.node.reduction.part_seals import PartDigest
from ftnode.node.reduction.wire import SIGNATURE_BYTES, ReduceReply, ReduceRequest, hear
from ftnode.protocol.words.effects import Reduce
from ftnode.protocol.words.types import Attempt, Peer
from tests.node.reduction.test_shown_parts import seals_of

LIAR, HONEST, THIRD = Peer("a", 1), Peer("b", 1), Peer("c", 1)
TASK = Reduce(1, 1, Attempt(0, 1), 0, ((LIAR, 1), (HONEST, 1), (THIRD, 1)))
NUMBERS = 3 * 40_000
"""More than a socket holds."""
SECONDS = 5.0


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "CHUNK_BYTES", 1024)


class Wires:
    """To the liar; nobody else is there."""

    def __init__(self, nursery: trio.Nursery, liar: Callable[[trio.SocketStream], Awaitable[None]]) -> None:
        self._nursery, self._liar = nursery, liar
        self.struck: list[str] = []

    def strike(self, peer_id: str, reason: str) -> None:
        assert peer_id == LIAR.id
        self.struck.append(reason)
        self._nursery.cancel_scope.cancel()

    async def open(self, peer_id: str, protocol: str) -> trio.SocketStream:
        if peer_id != LIAR.id:
            await trio.sleep_forever()
        ours, theirs = trio.socket.socketpair()
        self._nursery.start_soon(self._liar, trio.SocketStream(theirs))
        return trio.SocketStream(ours)


class Forgetful(list[int]):
    """A list that has nothing to say against any sum."""

    def __getitem__(self, key: Any) -> Any:
        return 1 << 60


def signed_by_the_honest(kind: str, forgets: bool = False, chunks_before: int = 0) -> tuple[float, list[str]]:
    """How far what the honest one signs is from the liar's numbers, as a share of them; inf: it signs nothing. And what
    the liar is struck for. `chunks_before`: so much of the sum has come by an earlier stream."""
    numbers = np.random.default_rng(1).standard_normal(NUMBERS).astype(np.float32)
    lie = np.random.default_rng(2).standard_normal(NUMBERS).astype(np.float32)
    how = encoding_of(kind, 4)
    piece = pieces_of(memoryview(bytearray(lie.tobytes())), 3, how, ("run", 1, 1))[0]
    found, done = [np.inf], trio.Event()

    async def liar(stream: trio.SocketStream) -> None:
        try:
            request = await hear(stream)
            assert isinstance(request, ReduceRequest)
            await say(stream, ReduceReply(0, 1.0))
            for at in range(request.have, piece.bytes, piece.end(0)):
                await stream.send_all(bytes(piece.encode(at, piece.chunk(at), -1)))
            found[0] = await told(stream, request.norm)
            done.set()
        except (trio.BrokenResourceError, *FAULTS):
            await stream.aclose()

    async def told(stream: trio.SocketStream, norm: float) -> float:
        digest, parts = PartDigest(), []
        for at in range(0, piece.bytes, piece.end(0)):
            content = memoryview(await exactly(stream, piece.end(at) - at))
            digest.add(at, content)
            parts.append(np.array(piece.decode(at, content)))
        signature = bytes(await exactly(stream, SIGNATURE_BYTES))
        if not seals_of("a").is_by(HONEST, TASK, 0, digest.digest(), norm, signature):
            return float(np.inf)
        given, wanted = np.concatenate(parts), lie[: NUMBERS // 3]
        return float(np.linalg.norm(given - wanted) / np.linalg.norm(wanted))

    async def main() -> list[str]:
        with trio.move_on_after(SECONDS):
            async with trio.open_nursery() as nursery:
                wires: Any = Wires(nursery, liar)
                exchange = Exchange(
                    TASK, "run", HONEST, memoryview(bytearray(numbers.tobytes())), how, wires, None, seals=seals_of("b")
                )
                if forgets:
                    exchange._gave = Forgetful(exchange._gave)
                exchange._have[0] = chunks_before * piece.end(0)
                await exchange.measure()
                exchange.open()
                nursery.start_soon(exchange.gather)
                await done.wait()
                nursery.cancel_scope.cancel()
        return wires.struck

    struck = trio.run(main)
    return found[0], struck


async def exactly(stream: trio.SocketStream, size: int) -> bytearray:
    data = bytearray()
    while len(data) < size:
        more = await stream.receive_some(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


@pytest.mark.parametrize("kind", ["exact", "int8"])
def test_a_sum_that_comes_before_our_part_is_refused(kind: str) -> None:
    away, struck = signed_by_the_honest(kind)
    assert away == np.inf and struck == ["a sum of what we have not given yet"]


def test_who_has_sent_a_part_of_the_sum_has_our_part_of_it() -> None:
    """It may not say, over another stream, that it needs that again: the sum stands there by now."""
    away, struck = signed_by_the_honest("exact", chunks_before=2)
    assert away == np.inf and struck == ["a sum of what it says that it does not have"]


def test_planted_nobody_notes_what_it_has_given() -> None:
    """Then an honest one signs what is nearer to the liar's numbers than to its own."""
    away, struck = signed_by_the_honest("int8", forgets=True)
    assert away < 0.5 and not struck
