"""The meeting point: p2pd, a relay, a directory, and answers for watchers. It trains nothing.

Newcomers dial it first, find each other in the directory, and need it no longer: what it stores the others store too.
Its identity stays in its home, so after a restart people's addresses of it still hold, and it dials the peers that it
remembers in order to be part of the directory again before anybody asks.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import trio

from ftnode.bootstrap.addresses import join_lines, shown_addresses
from ftnode.node.directory.directory import read_statements
from ftnode.node.directory.link import DirectoryDown, DirectoryLink
from ftnode.node.directory.records import RUNS_KEY, RunNotice, Statement
from ftnode.node.home.child_logs import keep_trimmed
from ftnode.node.home.closed_terminal import forget_output, heeded
from ftnode.node.home.identity import BOOTSTRAP_NAME, Identity, take_identity
from ftnode.node.home.waiting import tell_waits
from ftnode.node.links.addresses import PeerAddress, parse_peers, remember_peers, remembered_peers
from ftnode.node.links.dead_connections import SEEN_PROTOCOL, seen_handler
from ftnode.node.links.dial_back import KNOCK_PROTOCOL, knock_handler
from ftnode.node.links.listening import from_here
from ftnode.node.links.p2pd import P2pd, P2pdError, unanswered
from ftnode.node.links.punch import PUNCH_PROTOCOL, Puncher
from ftnode.node.links.reachability import DIRECT, Reach
from ftnode.node.links.relaying import Relaying
from ftnode.node.machine.child_processes import raise_files_limit
from ftnode.node.owner.announcements import FULL
from ftnode.node.owner.join_options import Running, forget_running
from ftnode.node.owner.limits import NO_LIMITS, Limits
from ftnode.node.owner.line_limits import bandwidth_of
from ftnode.node.owner.running_note import RunningNote
from ftnode.node.owner.systemd import Supervisor, state_of
from ftnode.node.watch.metrics_server import NONE, MetricsServer
from ftnode.node.watch.peer_latency import WHO_PROTOCOL, who_handler
from ftnode.node.watch.status import STATUS_PROTOCOL, Member, Speaker, SwarmStatus, status_handler
from ftnode.node.watch.versions import VERSION
from ftnode.protocol.words.errors import UserError
from ftnode.protocol.words.site import implied_site

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""How often the directory is read for runs, while nobody has to wait for it."""
MEET_SECONDS = 30.0
MEMBERS_MAX = 64
WORDS_PER_RUN = 2
"""Members whose words on their run are told on."""
URGENT = (STATUS_PROTOCOL, KNOCK_PROTOCOL, PUNCH_PROTOCOL, SEEN_PROTOCOL, WHO_PROTOCOL)
"""Its own answers never wait behind what it relays."""


def _print_now(line: str) -> None:
    try:
        print(line, flush=True)
    except OSError as error:
        if error.errno != errno.EIO:  # a terminal that was closed
            raise
        forget_output()


def in_service(say: Callable[[str], None]) -> Callable[[str], None]:
    """For lines of a meeting point that others have come to: a disk that is full may have room for the next one."""

    def heard(line: str) -> None:
        try:
            say(line)
        except OSError as error:
            if error.errno not in FULL:
                raise
            log.warning("not said, for want of room: %s", line)

    return heard


@dataclass(frozen=True, slots=True)
class Wishes:
    """What its owner typed; each as `JoinConfig` has it."""

    listen: tuple[str, ...]
    home: Path
    metrics: str = NONE
    announce: tuple[str, ...] = ()
    port_mapping: bool = False
    relay: str = "auto"
    limits: Limits = NO_LIMITS


def run(wishes: Wishes, say: Callable[[str], None] = _print_now) -> int:
    """Serve until Ctrl-C, SIGTERM or, without nohup, the end of its terminal; 0 then. Raises UserError when it cannot
    start or its p2pd dies."""
    raise_files_limit()
    identity = take_identity(wishes.home, BOOTSTRAP_NAME)
    forget_running(wishes.home, identity.peer_id)  # of who had it before and was killed
    try:
        failure = trio.run(_serve, identity, wishes, say)
    finally:
        forget_running(wishes.home, identity.peer_id)
        identity.release()
    if failure is not None:
        raise failure
    return 0


async def _serve(identity: Identity, wishes: Wishes, say: Callable[[str], None]) -> UserError | None:
    """Errors for the user are returned, since nurseries would wrap them."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, *heeded(signal.SIGHUP)) as signals:
        async with trio.open_nursery() as nursery:
            heard = in_service(say)
            note = RunningNote(wishes.home, lambda kind, line: heard(line))
            nursery.start_soon(Supervisor(os.environ).run, lambda: state_of(note.last))
            try:
                p2pd = await P2pd.start(
                    nursery, identity.path, listen=wishes.listen, announce=wishes.announce,
                    map_ports=wishes.port_mapping, bandwidth=bandwidth_of(wishes.limits, URGENT),
                )  # fmt: skip
            except UserError as error:
                nursery.cancel_scope.cancel()
                return error
            nursery.start_soon(keep_trimmed, p2pd.folder, "log")
            nursery.start_soon(keep_trimmed, wishes.home, "directory.log")
            try:
                point = MeetingPoint(p2pd, wishes, note, say)
                if wishes.metrics != NONE:
                    server = MetricsServer(wishes.metrics, point.status)
                    nursery.start_soon(server.run)
                    say(f"metrics: {server.line}")
                await point.start(nursery)
                for line in await point.lines():
                    say(line)
                nursery.start_soon(tell_waits, lambda: point.status().waiting, lambda kind, line: heard(line))
                reason = await _until_asked(signals, p2pd.died)
                failure = UserError(reason, 69) if reason else None
            except P2pdError as error:
                failure = unanswered(error)
            finally:
                p2pd.close()
            nursery.cancel_scope.cancel()
            if failure is not None:
                return failure
            heard("stopped; the run goes on without this meeting point")
    return None


async def _until_asked(signals: AsyncIterator[int], died: trio.Event) -> str:
    """Empty when a signal came, else what happened."""
    reason = "p2pd died; start the meeting point again"

    async def wait_for_signal(scope: trio.CancelScope) -> None:
        nonlocal reason
        async for _ in signals:
            reason = ""
            scope.cancel()
            return

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_signal, nursery.cancel_scope)
        await died.wait()
        nursery.cancel_scope.cancel()
    return reason


class MeetingPoint:
    """What runs on the p2pd: the directory, a cache of the runs that it knows of, answers for watchers."""

    def __init__(self, p2pd: P2pd, wishes: Wishes, note: RunningNote, say: Callable[[str], None]) -> None:
        home = wishes.home
        self.p2pd = p2pd
        self.home = home
        self._note, self._here = note, from_here(wishes.listen) if wishes.announce else ()
        """Where this machine itself reaches it, if not where others do."""
        self.members: tuple[Member, ...] = ()
        remembered = parse_peers(remembered_peers(home, say))
        p2pd.gate.remember(remembered)
        self.link = DirectoryLink(p2pd, remembered, log_path=home / "directory.log", on_lost=self._lost)
        self._relaying = Relaying(
            p2pd, wishes.relay, lambda: wishes.limits.up, takes_part=lambda peer: True,
            say=lambda kind, line: in_service(say)(line), reach=Reach(DIRECT, (), "newcomers dial it"),
        )  # fmt: skip

    async def start(self, nursery: trio.Nursery) -> None:
        """Answers watchers when this returns, and is noted as running where the disk takes it; the directory follows in
        a few seconds."""
        await self._relaying.service.serve()
        await self.p2pd.serve(STATUS_PROTOCOL, status_handler(self.status))
        await self.p2pd.serve(KNOCK_PROTOCOL, knock_handler(self.p2pd))
        await self.p2pd.serve(PUNCH_PROTOCOL, Puncher(self.p2pd).handler)
        await self.p2pd.serve(SEEN_PROTOCOL, seen_handler(self.p2pd))
        await self.p2pd.serve(WHO_PROTOCOL, who_handler(lambda: self.status().speaker))
        addresses = shown_addresses(self.p2pd.peer_id, (*await self.p2pd.addresses(), *self._here))
        self._note.write(Running(os.getpid(), self.p2pd.peer_id, "", addresses))
        nursery.start_soon(self._relaying.run)
        nursery.start_soon(self._note.keep)
        nursery.start_soon(self.link.run)
        nursery.start_soon(self._meet_forever)
        nursery.start_soon(self._look_forever)

    async def lines(self) -> list[str]:
        """What people need to know to come here."""
        return join_lines(shown_addresses(self.p2pd.peer_id, await self.p2pd.addresses()))

    def status(self) -> SwarmStatus:
        speaker = Speaker(self.p2pd.peer_id, VERSION, "none", "bootstrap")
        waiting = "" if self.link.up.is_set() else self.link.trouble or "the directory to start"
        clock = time.time()
        return SwarmStatus(speaker, state="meeting point", waiting=waiting, members=self.members, clock=clock)

    def _lost(self, reason: str) -> None:
        log.warning("directory lost: %s", reason)

    async def _meet_forever(self) -> None:
        while True:
            await self.link.up.wait()
            await self.link.meet_all()
            await trio.sleep(MEET_SECONDS)

    async def _look_forever(self) -> None:
        while True:
            await self.link.up.wait()
            try:
                notices = await read_statements(self.link, RUNS_KEY, int(time.time() * 1000))
                self._learn(notices, await self._seen())
            except DirectoryDown as error:
                log.info("no look at the runs: %s", error)
            await trio.sleep(LOOK_SECONDS)

    async def _seen(self) -> dict[str, str]:
        """Whom we are connected to, each with its network."""
        ends = defaultdict[str, list[str]](list)
        with suppress(P2pdError):
            for peer_id, address in await self.p2pd.connections():
                ends[peer_id].append(address)
        return {peer_id: implied_site(addresses) for peer_id, addresses in ends.items()}

    def _learn(self, notices: list[Statement], seen: Mapping[str, str]) -> None:
        shown = {member.peer for member in self.members}
        members, met_before = members_of(notices, seen, shown), _where(self.members)
        self.members = members
        if _where(members) != met_before:
            met = [PeerAddress(member.peer, member.addresses[:2]) for member in members]
            remember_peers(self.home, [text for peer in met for text in self.p2pd.gate.presentable(peer)])


def members_of(
    notices: Iterable[Statement], seen: Mapping[str, str], shown: Collection[str] = ()
) -> tuple[Member, ...]:
    """Who takes part in a run, and where; the newest words of WORDS_PER_RUN of each run go along.

    Where there are more than MEMBERS_MAX, networks take turns, and runs within each. `seen`: the network of everybody
    that we are connected to, by its PeerId. All others are one, since anybody can name addresses. `shown`: who was told
    of before, and so goes before others of its network.
    """
    told: Counter[str] = Counter()
    found = []
    every = [notice for notice in notices if isinstance(notice.body, RunNotice) and notice.body.addresses]
    every.sort(key=lambda one: (one.peer.id not in shown, -one.sequence))
    every = _in_turns(every, lambda one: (seen.get(one.peer.id), one.run))
    every = _in_turns(every, lambda one: seen.get(one.peer.id))
    for notice in sorted(every[:MEMBERS_MAX], key=lambda one: -one.sequence):
        assert isinstance(notice.body, RunNotice)
        words = notice.body.words if told[notice.run] < WORDS_PER_RUN else ""
        told[notice.run] += bool(words)
        found.append(Member(notice.run, notice.body.name, notice.peer.id, notice.body.addresses, words))
    return tuple(sorted(found, key=lambda member: member.peer))


def _in_turns(notices: Iterable[Statement], kind: Callable[[Statement], Hashable]) -> list[Statement]:
    """The first of each kind, then the second of each, and so on."""
    rank: Counter[Hashable] = Counter()
    ranked = []
    for notice in notices:
        ranked.append((rank[kind(notice)], notice))
        rank[kind(notice)] += 1
    return [notice for _, notice in sorted(ranked, key=lambda one: one[0])]


def _where(members: Iterable[Member]) -> list[tuple[str, tuple[str, ...]]]:
    return [(member.peer, member.addresses) for member in members]
