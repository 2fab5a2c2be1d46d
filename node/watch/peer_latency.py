"""How this node reaches others: directly, through routers or through a relay, how long an answer takes, and which
version answers.

`/ftnode/who/1`: whoever opens a stream sends an empty frame and gets one msgpack map, `version`, `role`, `device` and
`clock`, and of a volunteer what it does with its time (time_use.py) and its name (name_card.py). Only peers that we are
connected to anyway are asked, a few at a time, and nothing depends on the answers: they are for `ftnode status -v`,
`ftnode peers`, `ftnode credits` and the dashboard.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgpack
import trio

from ftnode.node.home.name_card import NameCard
from ftnode.node.links.p2pd import P2pd, P2pdError
from ftnode.node.links.side_messages import read_frame, write_frame
from ftnode.node.links.streams import STREAM_ERRORS, StreamHandler, at_most
from ftnode.node.links.undigested import asking
from ftnode.node.watch.clock_offset import ClockOffset
from ftnode.node.watch.status import FORMAT as STATUS_FORMAT
from ftnode.node.watch.status import REPLY_BYTES_MAX, STATUS_PROTOCOL, Speaker, SwarmStatus, decode_status
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
    """direct, punched, relayed or none."""
    address: str = ""
    """The other end of the connection."""
    latency: float | None = None
    """Seconds from a question to its answer, over an open stream."""
    version: str = ""
    role: str = ""
    use: TimeUse | None = None
    """Of its time, as of the last round."""
    clock: ClockOffset | None = None
    """As of its last answer."""


UNCONNECTED: Final = Acquaintance("none")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a peer says of itself."""

    version: str
    role: str
    device: str
    use: TimeUse | None = None
    clock: ClockOffset | None = None
    name: str = ""
    name_card: str = ""


class Acquaintances:
    """Which way leads to each peer, and what the connected ones say of themselves. `wanted` says of whom anything is to
    be known, the most important first; `punched` whose routers, or ours, had to be opened (punch.py)."""

    def __init__(
        self, p2pd: P2pd, wanted: Callable[[], Sequence[str]],
        named: Callable[[str, str, str], None] = lambda peer, name, card: None,
        punched: Callable[[], Collection[str]] = tuple,
    ) -> None:  # fmt: skip
        """`named` hears what each peer calls itself."""
        self._p2pd, self._wanted, self._named, self._punched = p2pd, wanted, named, punched
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
        paths = paths_of(await self._p2pd.connections(), self._punched())
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
            said: dict[str, Any] = {"use": None, "clock": None}
            async with limit:
                try:
                    latency, answer = await who(self._p2pd, peer)
                    said = {"version": answer.version, "role": answer.role, "use": answer.use, "clock": answer.clock}
                    self._named(peer, answer.name, answer.name_card)
                except (P2pdError, PeerError) as error:
                    log.info("%s does not say who it is: %s", peer, error)
            met = self.known.get(peer, UNCONNECTED)
            if met != UNCONNECTED:
                self.known[peer] = replace(met, latency=latency, **said)

        async with trio.open_nursery() as nursery:
            for peer in peers:
                nursery.start_soon(ask, peer)


def paths_of(connections: Sequence[tuple[str, str]], punched: Collection[str] = ()) -> dict[str, tuple[str, str]]:
    """PeerId → (path, address) out of (PeerId, address); of several connections one without a relay counts."""
    found: dict[str, tuple[str, str]] = {}
    for peer, address in connections:
        direct = "punched" if peer in punched else "direct"
        path = "relayed" if "/p2p-circuit" in address else direct
        if peer not in found or path == direct:
            found[peer] = path, address
    return found


async def who(p2pd: P2pd, peer: str) -> tuple[float, Answer]:
    """Seconds that the answer took, and what it says. Raises P2pdError without an answer, PeerError for nonsense."""
    stream = await p2pd.open(peer, WHO_PROTOCOL, ANSWER_SECONDS)
    try:
        with asking(peer, WHO_PROTOCOL), trio.fail_after(ANSWER_SECONDS):
            began, asked = trio.current_time(), time.time()
            await write_frame(stream, b"")
            data = await read_frame(stream.receive_some, ANSWER_BYTES_MAX)
            took = trio.current_time() - began
            return took, read_answer(data, asked + took / 2, took / 2)
    except STREAM_ERRORS as error:
        raise P2pdError(f"no answer to who it is: {error or type(error).__name__}") from None
    finally:
        await trio.aclose_forcefully(stream)


async def status_of(p2pd: P2pd, peer: str) -> SwarmStatus | None:
    """What a peer tells watchers; None when it does not answer, or says nonsense."""
    try:
        stream = await p2pd.open(peer, STATUS_PROTOCOL, ANSWER_SECONDS)
    except P2pdError as error:
        log.info("%s tells no status: %s", peer, error)
        return None
    try:
        with asking(peer, STATUS_PROTOCOL), trio.fail_after(ANSWER_SECONDS):
            await write_frame(stream, msgpack.packb({"format": STATUS_FORMAT}))
            return decode_status(await read_frame(stream.receive_some, REPLY_BYTES_MAX))
    except (PeerError, *STREAM_ERRORS) as error:
        log.info("%s tells no status: %s", peer, error or type(error).__name__)
        return None
    finally:
        await trio.aclose_forcefully(stream)


def read_answer(data: bytes, now: float = 0.0, doubt: float = 0.0) -> Answer:
    """`now`: our wall clock at the moment of the answer, give or take `doubt` seconds. Raises PeerError."""
    found = decode(data, ANSWER_LIMITS)
    words = {}
    for name in ("version", "role", "device"):
        word = found.get(name) if isinstance(found, dict) else None
        if not isinstance(word, str):
            raise PeerError(f"no word about its {name}")
        words[name] = clean_reason(word)[:WORD_MAX]
    assert isinstance(found, dict)
    told, clock = found.get("clock"), None
    if isinstance(told, float) and math.isfinite(told):
        clock = ClockOffset(told - now, doubt)
    name, card = (word if isinstance(word := found.get(key), str) else "" for key in ("name", "name_card"))
    return Answer(words["version"], words["role"], words["device"], read_told(found), clock, name, card)


def who_handler(
    speaker: Callable[[], Speaker], wall_clock: Callable[[], float] = time.time,
    use: Callable[[], TimeUse | None] = lambda: None, card: NameCard | None = None,
) -> StreamHandler:  # fmt: skip
    """Answers whoever asks, once per stream. `use`: of our time; `card`: our name."""
    named = {} if card is None else {"name": card.name, "name_card": card.text}

    async def handle(peer_id: str, stream: trio.SocketStream) -> None:
        try:
            with trio.fail_after(ANSWER_SECONDS):
                if await read_frame(stream.receive_some, 0):
                    raise PeerError("a question with words")
                me = speaker()
                answer = {"version": me.version, "role": me.role, "device": me.device, "clock": wall_clock()}
                await write_frame(stream, msgpack.packb(answer | named | told(use())))
        except (PeerError, *STREAM_ERRORS) as error:
            log.info("%s asked who we are, without an answer: %s", peer_id, error or type(error).__name__)
        finally:
            await trio.aclose_forcefully(stream)

    return at_most(ASKERS_MAX, handle)
