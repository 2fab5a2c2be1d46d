"""What a participant keeps in the directory and reads from it: the DirectoryPort on top of the directory process.

`announce` and `publish_view` say what should stand there; a task writes it at once and again every third of its
lifetime, so that two writes may fail and a dead node's records are gone after `lifetime_seconds`. The process may die
and come back in between: the next write goes to the new one. `search` answers with one event, never blocks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import trio

from ftnode.node.directory.link import CALL_SECONDS, Dialer, DirectoryDown, DirectoryLink
from ftnode.node.directory.record_store import check, key_hash
from ftnode.node.directory.records import Claim, RunNotice, Statement, claimants, key_of, next_sequence, sign_record
from ftnode.node.home.identity import Sign, verify
from ftnode.node.links.address_cards import bare
from ftnode.node.links.addresses import PeerAddress
from ftnode.node.links.undigested import asking
from ftnode.protocol.words.errors import PeerError
from ftnode.protocol.words.events import Directory, DirectoryLost
from ftnode.protocol.words.records import LIFETIME_SECONDS_MAX, Presence
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import View

log = logging.getLogger(__name__)

LEASES_PER_LIFETIME = 3
LIFETIME_SECONDS_MIN = 10.0
"""Below this the records would cost more than what they say, and clocks differ by seconds."""
RENEWALS_PER_LIFETIME = 3
WRITE_SECONDS_MIN = 0.25
"""Changes that come faster are written together."""
RETRY_SECONDS = 1.0
SEARCH_SECONDS_MIN = 0.2
UNHEARD_SECONDS = 60.0
"""When nobody answers for so long, the others are gone, and an empty directory is the truth."""
TO_CHECK = "; check the address, that the peer runs, and firewalls in between"
Body = Presence | Claim | RunNotice
Report = Callable[[Directory | DirectoryLost], None]


def lifetime_of(lease_seconds: float) -> float:
    """How long records of a run live: long enough for a few lost writes, not much longer than its holders' silence."""
    return min(LIFETIME_SECONDS_MAX, max(LIFETIME_SECONDS_MIN, LEASES_PER_LIFETIME * lease_seconds))


@dataclass(frozen=True, slots=True)
class RecordKeeper:
    """Who keeps records, of which run, for how long."""

    run: str
    name: str
    """Of the run, for people."""
    peer: Peer
    lifetime_seconds: float


class SwarmDirectory:
    """Start `run` in a nursery; everything else is synchronous and for the trio thread.

    `report` gets a Directory per search, or DirectoryLost when the process died, does not answer, or knows nobody
    (then an empty directory proves nothing, least of all that the run does not exist): nobody was met yet, or nobody
    has answered since UNHEARD_SECONDS. `know` is told where holders can
    be dialled by their claims, PeerId and addresses.
    """

    def __init__(
        self,
        membership: RecordKeeper,
        dialer: Dialer,
        sign: Sign,
        peers: Iterable[PeerAddress],
        report: Report,
        *,
        log_path: Path | None = None,
        remember: Callable[[tuple[PeerAddress, ...]], None] | None = None,
        know: Callable[[str, tuple[str, ...]], None] = lambda peer, addresses: None,
        wall_clock: Callable[[], float] = time.time,
        link: DirectoryLink | None = None,
        words: Callable[[], str] = str,
    ) -> None:
        """`words`: what a notice says of the run, as of now."""
        self.membership = membership
        self.link = link or DirectoryLink(dialer, peers, log_path=log_path, on_lost=self._lost)
        self._sign = sign
        self._report = report
        self._remember, self._know = remember, know
        self._wall_clock, self._words = wall_clock, words
        self._bodies: dict[type, Body] = {}
        self._sequence = 0
        self._changed = trio.Event()
        self._wanted = trio.Event()
        self._strangers = trio.Event()
        self._unheard_since: float | None = None

    def announce(self, presence: Presence) -> None:
        """Keep this presence alive, and with it the notice that the run exists."""
        self._put(presence)
        self._put(RunNotice(self.membership.name, bare(presence.addresses)))
        claim = self._bodies.get(Claim)
        if isinstance(claim, Claim):
            self._put(Claim(claim.stages, presence.addresses, claim.view))

    def publish_view(self, view: View | None) -> None:
        """Keep the view's certificate and our claim to our stages of it alive, where we are one of those that do; a
        view that we left is withdrawn."""
        me = self.membership.peer
        if view is None or me not in claimants(view):
            self._bodies.pop(Claim, None)  # what stands there expires
            return
        presence = self._bodies.get(Presence)
        self._put(Claim(view.stages_of(me), presence.addresses if presence else (), view))

    def search(self) -> None:
        """Read the directory soon; searches that wait already are answered together."""
        self._wanted.set()

    def withdraw(self) -> None:
        """Keep nothing alive any more: we are leaving, and what stands there may expire."""
        self._bodies.clear()

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.link.run)
            nursery.start_soon(self._meet_forever)
            nursery.start_soon(self._write_forever)
            nursery.start_soon(self._search_forever)

    @property
    def renew_seconds(self) -> float:
        return self.membership.lifetime_seconds / RENEWALS_PER_LIFETIME

    def _put(self, body: Body) -> None:
        if self._bodies.get(type(body)) != body:
            self._bodies[type(body)] = body
            self._changed.set()

    def _lost(self, reason: str) -> None:
        self._report(DirectoryLost(reason))

    async def _meet_forever(self) -> None:
        """A given peer that came back is met within a third of a lifetime; while nobody is met, every second."""
        while True:
            await self.link.up.wait()
            self._strangers = trio.Event()
            alone = not self.link.met
            await self.link.meet_all()
            if self.link.met and alone:
                self._changed.set()  # what we wrote so far, only we have
            await trio.sleep(RETRY_SECONDS)
            if self.link.connected:
                with trio.move_on_after(self.renew_seconds):
                    await self._strangers.wait()

    async def _write_forever(self) -> None:
        while True:
            await self.link.up.wait()
            self._changed = trio.Event()
            written = all([await self._write(body) for body in tuple(self._bodies.values())])
            with trio.move_on_after(self.renew_seconds if written else RETRY_SECONDS):
                await self._changed.wait()
            await trio.sleep(WRITE_SECONDS_MIN)

    async def _write(self, body: Body) -> bool:
        member = self.membership
        if isinstance(body, RunNotice):
            body = replace(body, words=self._words())
        self._sequence = next_sequence(self._sequence, int(self._wall_clock() * 1000))
        expires_ms = self._sequence + int(member.lifetime_seconds * 1000)
        statement = Statement(member.run, member.peer, self._sequence, expires_ms, body)
        try:
            record = sign_record(statement, self._sign)
        except ValueError as error:
            log.warning("%s not written: %s", type(body).__name__, error)
            return True  # trying again would not make it smaller
        key = key_of(member.run, type(body))
        try:
            answer = await self.link.call(
                "store",
                key=key,
                subkey=member.peer.id,
                record=record,
                expiration=expires_ms / 1000,
                also=self.link.doors,
            )
        except DirectoryDown as error:
            log.info("%s not written: %s", type(body).__name__, error)
            return False
        if not answer.get("stored"):
            log.warning("nobody took our %s; is this machine's clock right?", type(body).__name__)
        return bool(answer.get("stored"))

    async def _search_forever(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            self._report(await self._look())
            await trio.sleep(SEARCH_SECONDS_MIN)

    async def _look(self) -> Directory | DirectoryLost:
        run = self.membership.run
        with trio.move_on_after(CALL_SECONDS):  # a search at the start waits for the start
            await self.link.up.wait()
            await self.link.tried.wait()
        try:
            presences, heard = await self._ask(key_of(run, Presence))
            claims, more_heard = await self._ask(key_of(run, Claim))
        except DirectoryDown as error:
            return DirectoryLost(str(error))
        if not self.link.connected:
            return DirectoryLost(unreachable_text(self.link))
        me = self.membership.peer.id
        others = [(one.peer.id, one.body) for one in presences if one.peer.id != me and isinstance(one.body, Presence)]
        claimers = [(one.peer.id, one.body) for one in claims if one.peer.id != me and isinstance(one.body, Claim)]
        if self._unheard(bool(others or claimers), heard + more_heard):
            self._strangers.set()  # those given are met again, in whose absence the directory asks nobody
            return DirectoryLost(f"nobody whom the directory knows answers{TO_CHECK}")
        self._introduce([(peer, body.addresses) for peer, body in others])
        for peer, claim in claimers:
            self._know(peer, claim.addresses)  # where a holder's presence does not come through, its claim may
        views = {claim.view.digest(): claim.view for _, claim in claimers}
        return Directory(tuple(presence for _, presence in others), tuple(views.values()))

    def _unheard(self, found: bool, heard: int) -> bool:
        """Whether an answer with nothing in it proves nothing: those who would know have not answered, for lack of
        time or network."""
        if found or heard or not self.link.given:
            self._unheard_since = None
            return False
        if self._unheard_since is None:
            self._unheard_since = trio.current_time()
        return trio.current_time() - self._unheard_since < UNHEARD_SECONDS

    async def read(self, key: str) -> list[Statement]:
        """The live, verified statements under a key. Raises DirectoryDown."""
        return (await self._ask(key))[0]

    async def _ask(self, key: str) -> tuple[list[Statement], int]:
        return await _statements(self.link, key, int(self._wall_clock() * 1000))

    def _introduce(self, others: list[tuple[str, tuple[str, ...]]]) -> None:
        """Peers that the directory tells of are met too: the DHT must hold together when the bootstrap peer dies."""
        for peer, addresses in others:
            if self.link.introduce(PeerAddress(peer, addresses)):
                self._strangers.set()
        if self._remember is not None:
            self._remember(tuple(PeerAddress(peer, bare(addresses)) for peer, addresses in others))


async def read_statements(link: DirectoryLink, key: str, now_ms: int) -> list[Statement]:
    """The live statements under a key, each verified here again, ordered by peer. Raises DirectoryDown."""
    return (await _statements(link, key, now_ms))[0]


async def _statements(link: DirectoryLink, key: str, now_ms: int) -> tuple[list[Statement], int]:
    """And how many others have answered."""
    answer = await link.call("get", key=key)
    items: list[Any] = answer.get("items") or []
    found = []
    for item in items:
        match item:
            case [str(subkey), bytes(record), float(expiration)]:
                try:
                    with asking(subkey[:60], "the directory"):
                        found.append(check(key_hash(key), subkey, record, expiration, now_ms, verify))
                except PeerError as error:
                    log.info("record of %s ignored: %s", subkey[:60], error)
    return sorted(found, key=lambda statement: statement.peer), int(answer.get("heard") or 0)


def unreachable_text(link: DirectoryLink) -> str:
    """Why nobody of those given could be met: cause and, as `TO_CHECK`, what to do."""
    reasons = "; ".join(f"{peer[-6:]}: {reason}" for peer, reason in link.unreachable.items()) or "no answer yet"
    return f"no peer is reachable ({reasons}){TO_CHECK}"
