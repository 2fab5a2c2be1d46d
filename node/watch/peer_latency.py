"""How this node reaches others: directly or through a relay, how long an answer takes, and which version answers.

`/ftnode/who/1`: whoever opens a stream sends an empty frame and gets one msgpack map, `version`, `role`, `device` and
`clock`, and of a volunteer what it does with its time (time_use.py). Only peers that we are connected to anyway are
asked, a few at a time, and nothing depends on the answers: they are for `ftnode status -v`, `ftnode peers` and the
dashboard.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgpack
import trio

from ftnode.node.links.p2pd import P2pd, P2pdError
from ftnode.node.links.side_messages import read_frame, write_frame
from ftnode.node.links.streams import STREAM_ERRORS, StreamHandler, at_most
from ftnode.node.links.undigested import asking
from ftnode.node.watch.status import Speaker
from ftnode.node.watch.time_use import TimeUse, read_told, told
from ftnode.protocol.wire.decoder import Limits, decode
from ftnode.protocol.wire.frames import clean_reason
from ftnode.protocol.words.errors import PeerError

log = logging.getLogger(__name__)

WHO_PROTOCOL: Final = "/ftnode/who/1"
ROUND_SECONDS: Final = 15.0
GLANCE_SECONDS: Final = 2.0
ANSWER_SECONDS: Final = 5.0
ANSWER_BYTES_MAX: Final = 1024
ANSWER_LIMITS: Final = Limits(size=ANSWER_BYTES_MAX, entries=32)
"""Later versions may say more."""
WORD_MAX: Final = 64
"""Letters of a version, role or device."""
ASKED_AT_ONCE: Final = 8
PEERS_MAX: Final = 256
ASKERS_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class Acquaintance:
    """What is known of a peer besides what the protocol needs."""

    path: str
    """direct, relayed or none."""
    address: str = ""
    """The other end of the connection."""
    latency: float | None = None
    """Seconds from a question to its answer, over an open stream."""
    version: str = ""
    role: str = ""
    use: TimeUse | None = None
    """Of its time, as of the last round."""


UNCONNECTED: Final = Acquaintance("none")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a peer says of itself."""

    version: str
    role: str
    device: str
    use: TimeUse | None = None


class Acquaintances:
    """Which way leads to each peer, and what the connected ones say of themselves. `wanted` says of whom anything is to
    be known, the most important first."""

    def __init__(self, p2pd: P2pd, wanted: Callable[[], Sequence[str]]) -> None:
        self._p2pd, self._wanted = p2pd, wanted
        self.known: dict[str, Acquaintance] = {}

    async def run(self) -> None:
        """Look at the connections every GLANCE_SECONDS, and ask who is newly connected; ask all every ROUND_SECONDS. A
        look that our own p2pd does not answer is made up for at the next glance."""
        next_round = trio.current_time()
        while True:
            try:
                if trio.current_time() >= next_round:
                    await self.look()
                    next_round = trio.current_time() + ROUND_SECONDS
                else:
                    await self._ask(await self._see())
            except P2pdError as error:
                log.info("no look at the connections: %s", error)
            await trio.sleep(GLANCE_SECONDS)

    async def look(self) -> None:
        """One round; whoever does not answer keeps its path and loses its latency. Raises P2pdError when our own p2pd
        does not answer."""
        await self._see()
        await self._ask([peer for peer, met in self.known.items() if met.path != UNCONNECTED.path])

    async def _see(self) -> list[str]:
        """Bring all paths up to date; who is newly connected. Raises P2pdError."""
        paths = paths_of(await self._p2pd.connections())
        wanted, before = tuple(dict.fromkeys(self._wanted()))[:PEERS_MAX], self.known
        self.known = dict.fromkeys(wanted, UNCONNECTED)
        for peer in [peer for peer in wanted if peer in paths]:
            path, address = paths[peer]
            self.known[peer] = replace(before.get(peer, UNCONNECTED), path=path, address=address)
        return [peer for peer in wanted if peer in paths and before.get(peer, UNCONNECTED) == UNCONNECTED]

    async def _ask(self, peers: Sequence[str]) -> None:
        """Each answer is known as soon as it comes."""
        limit = trio.CapacityLimiter(ASKED_AT_ONCE)

        async def ask(peer: str) -> None:
            latency: float | None = None
            said: dict[str, Any] = {"use": None}
            async with limit:
                try:
                    latency, answer = await who(self._p2pd, peer)
                    said = {"version": answer.version, "role": answer.role, "use": answer.use}
                except (P2pdError, PeerError) as error:
                    log.info("%s does not say who it is: %s", peer, error)
            met = self.known.get(peer, UNCONNECTED)
            if met != UNCONNECTED:
                self.known[peer] = replace(met, latency=latency, **said)

        async with trio.open_nursery() as nursery:
            for peer in peers:
                nursery.start_soon(ask, peer)


def paths_of(connections: Sequence[tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """PeerId → (path, address) out of (PeerId, address); of several connections a direct one counts."""
    found: dict[str, tuple[str, str]] = {}
    for peer, address in connections:
        path = "relayed" if "/p2p-circuit" in address else "direct"
        if peer not in found or path == "direct":
            found[peer] = path, address
    return found


async def who(p2pd: P2pd, peer: str) -> tuple[float, Answer]:
    """Seconds that the answer took, and what it says. Raises P2pdError without an answer, PeerError for nonsense."""
    stream = await p2pd.open(peer, WHO_PROTOCOL, ANSWER_SECONDS)
    try:
        with asking(peer, WHO_PROTOCOL), trio.fail_after(ANSWER_SECONDS):
            began = trio.current_time()
            await write_frame(stream, b"")
            data = await read_frame(stream.receive_some, ANSWER_BYTES_MAX)
            return trio.current_time() - began, read_answer(data)
    except STREAM_ERRORS as error:
        raise P2pdError(f"no answer to who it is: {error or type(error).__name__}") from None
    finally:
        await trio.aclose_forcefully(stream)


def read_answer(data: bytes) -> Answer:
    """Raises PeerError."""
    found = decode(data, ANSWER_LIMITS)
    words = {}
    for name in ("version", "role", "device"):
        word = found.get(name) if isinstance(found, dict) else None
        if not isinstance(word, str):
            raise PeerError(f"no word about its {name}")
        words[name] = clean_reason(word)[:WORD_MAX]
    assert isinstance(found, dict)
    return Answer(words["version"], words["role"], words["device"], read_told(found))


def who_handler(
    speaker: Callable[[], Speaker], wall_clock: Callable[[], float] = time.time,
    use: Callable[[], TimeUse | None] = lambda: None,
) -> StreamHandler:  # fmt: skip
    """Answers whoever asks, once per stream. `use`: of our time."""

    async def handle(peer_id: str, stream: trio.SocketStream) -> None:
        try:
            with trio.fail_after(ANSWER_SECONDS):
                if await read_frame(stream.receive_some, 0):
                    raise PeerError("a question with words")
                me = speaker()
                answer = {"version": me.version, "role": me.role, "device": me.device, "clock": wall_clock()}
                await write_frame(stream, msgpack.packb(answer | told(use())))
        except (PeerError, *STREAM_ERRORS) as error:
            log.info("%s asked who we are, without an answer: %s", peer_id, error or type(error).__name__)
        finally:
            await trio.aclose_forcefully(stream)

    return at_most(ASKERS_MAX, handle)
