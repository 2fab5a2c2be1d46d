"""A light client: looks at a swarm through any of its peers, with py-libp2p alone. The only file that imports libp2p.

It has a throwaway identity, listens nowhere and dials the given addresses only; a bootstrap peer's answer adds those of
the members that it names. Our p2pd speaks TLS and yamux (p2pd.py says why), and so does this. Importing
libp2p takes most of a second, so it happens when something is fetched, and never in a process that has hivemind.
"""

from __future__ import annotations

import gc
import logging
import os
import re
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from ftnode.node.links.addresses import PeerAddress, full_addresses, parse_peers
from ftnode.node.links.dial_rules import endpoint_of
from ftnode.node.links.listening import socket_address
from ftnode.node.links.names import look_up, name_in
from ftnode.node.links.relay_words import HOP_PROTOCOL
from ftnode.node.links.side_messages import read_frame
from ftnode.node.watch.circuits import ask_for_circuit
from ftnode.node.watch.early_proposal import early
from ftnode.node.watch.peer_choice import FOLLOWED_MAX, is_meant, named, news, runs_named, unheard
from ftnode.node.watch.status import REPLY_BYTES_MAX, STATUS_PROTOCOL, SwarmStatus, decode_status
from ftnode.node.watch.status_table import others_told, run_text, wanted_text
from ftnode.node.watch.told_on import told_on
from ftnode.node.watch.whole_records import whole
from ftnode.protocol.wire.length_prefix import framed
from ftnode.protocol.words.errors import PeerError, UserError

if TYPE_CHECKING:
    from libp2p.abc import IHost, INetStream
    from libp2p.peer.id import ID

    Host = IHost

ERRORS = "watch"

log = logging.getLogger(__name__)


def _not_from_libp2p(record: logging.LogRecord) -> bool:
    return f"{os.sep}libp2p{os.sep}" not in record.pathname


Result = TypeVar("Result")
Completion = Callable[["Host", PeerAddress, SwarmStatus], Awaitable[SwarmStatus]]
"""What is added to a status that this peer told."""

DIALS_AT_ONCE = 8
ADDRESSES_DIALLED = 8
CIRCUIT_SECONDS = 10.0
DNS_SECONDS = 5.0
CIRCUIT_DELAY = 0.25
"""A peer that can be dialled is dialled (RFC 8305, for two kinds of address)."""
BETTER_SECONDS = 1.0
"""Whoever has not heard all holders has the last word only if nobody who has answers so soon after it."""
REQUEST = b"\x81\xa6format\x01"
"""msgpack of {"format": 1}."""
PROBE_SECONDS = 2.0
ANOTHER = re.compile(r"Peer ID mismatch: expected \w+ got (\w{1,64})")
"""As libp2p says it."""
UNAVAILABLE = 69


def fetch_status(addresses: Sequence[str], timeout: float, run: str = "") -> SwarmStatus:
    """Ask the peers at these full multiaddrs, and return the first answer about a run (`run` only, when given: an id,
    its beginning, or a name). Raises SeveralRuns when those who were asked are in none, and name members of several.

    When only bootstrap peers without any run answer, their answer is returned. Raises UserError after `timeout` s.
    """
    return fetch_answer(addresses, timeout, run)[0]


async def as_told(host: Host, peer: PeerAddress, status: SwarmStatus) -> SwarmStatus:
    """Another look may be needed before a status is shown. This one is not."""
    return status


def fetch_answer(
    addresses: Sequence[str], timeout: float, run: str = "", complete: Completion = as_told, hear: bool = False
) -> tuple[SwarmStatus, tuple[str, ...]]:
    """As `fetch_status`, and the full multiaddrs of the peers that answered, those who were given first. `hear`: where
    no member answers, what meeting points tell on (`told_by`)."""
    peers = parse_peers(addresses)

    async def fetch(host: IHost) -> tuple[SwarmStatus, tuple[str, ...]]:
        answered: list[PeerAddress] = []
        peer, status = await find(host, peers, run, timeout, answered, hear)
        status = status if status.told_by else await complete(host, peer, status)
        who = sorted(answered, key=lambda peer: peer not in peers)
        return status, tuple(full for peer in who for full in full_addresses(peer.peer_id, peer.addresses))

    return with_host(fetch)


def fetch_runs(
    asked: Mapping[str, Sequence[str]], timeout: float
) -> dict[str, SwarmStatus | UserError]:  # fmt: skip
    """A status of each of several runs, by run id: `asked` has the full multiaddrs to ask about it. All are asked side
    by side; of a run that nobody tells of within `timeout` s, why."""
    found: dict[str, SwarmStatus | UserError] = {}

    async def fetch(host: IHost) -> None:
        async def one(run: str) -> None:
            try:
                _, found[run] = await find(host, parse_peers(asked[run]), run, timeout, hear=True)
            except UserError as error:
                found[run] = error

        async with trio.open_nursery() as nursery:
            for run in asked:
                nursery.start_soon(one, run)

    with_host(fetch)
    return found


def exchange(
    addresses: Sequence[str], timeout: float, run: str, protocol: str, request: bytes, reply_max: int
) -> bytes:  # fmt: skip
    """One request of another protocol, and its reply of at most `reply_max` bytes, with the first peer that takes part
    in `run`; who that is, is found as for a status. Raises UserError after `timeout` s, or when that peer does not
    answer.
    """
    peers = parse_peers(addresses)

    async def ask(host: IHost) -> bytes:
        deadline = trio.current_time() + timeout
        peer, _ = await find(host, peers, run, timeout)
        seconds = max(1.0, deadline - trio.current_time())
        try:
            with trio.fail_after(seconds):
                async with open_stream(host, peer, seconds, protocol) as stream:
                    await send(stream, request)
                    return await receive(stream, reply_max)
        except (Unanswered, trio.TooSlowError) as error:
            raise UserError(f"{peer.peer_id} does not answer: {error or 'too slow'}; try again", UNAVAILABLE) from None

    return with_host(ask)


def watch(
    addresses: Sequence[str],
    interval: float,
    timeout: float,
    show: Callable[[SwarmStatus], None],
    run: str = "",
    complete: Completion = as_told,
) -> None:
    """Call `show` every `interval` seconds until interrupted, through one stream as long as it lasts.

    When that peer goes, the others that it named and the given ones are asked, about the same run. Raises UserError
    when none of them answers within `timeout` seconds.
    """
    peers = parse_peers(addresses)

    async def poll(host: IHost) -> None:
        known, wanted = peers, run
        while True:
            answering, status = await find(host, known, wanted, timeout, hear=True)
            wanted = status.run or wanted
            told = named(status, asked=await _by_number(peers))
            known = tuple(dict.fromkeys([answering, *told, *known]))[: 2 * FOLLOWED_MAX]
            show(status if status.told_by else await complete(host, answering, status))
            await _follow(host, answering, interval, timeout, show, complete)

    with_host(poll)


def with_host(work: Callable[[IHost], Awaitable[Result]]) -> Result:
    """Run `work` with a host. Nurseries wrap what passes through them, so our own error goes around them."""

    async def main() -> Result | UserError:
        async with open_host() as host:
            try:
                return await work(host)
            except UserError as error:
                return error

    try:
        result = trio.run(main)
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt) is not None:
            raise KeyboardInterrupt from None
        raise
    if isinstance(result, UserError):
        raise result
    return result


async def _follow(
    host: IHost, peer: PeerAddress, interval: float, timeout: float, show: Callable[[SwarmStatus], None],
    complete: Completion,
) -> None:  # fmt: skip
    """Show what this peer says until it says no more."""
    try:
        async with open_stream(host, peer, timeout) as stream:
            while True:
                await trio.sleep(interval)
                with trio.fail_after(timeout):
                    status = await ask_status(stream)
                if not status.run:
                    return  # a bootstrap peer: by now it may know members
                show(await complete(host, peer, status))
    except Unanswered as error:
        log.info("%s answers no more: %s", peer.peer_id, error)
    except trio.TooSlowError:
        log.info("%s answers no more", peer.peer_id)


class NotBegun(UserError):
    """Somebody answered, and nobody knows the run, which may be about to begin."""


class SeveralRuns(UserError):
    """Who was asked knows several runs that go on. `statuses`: one of each."""

    def __init__(self, message: str, exit_code: int, statuses: Sequence[SwarmStatus]) -> None:
        super().__init__(message, exit_code)
        self.statuses = statuses


class Unanswered(Exception):
    """This peer gave no status; the text says why."""


@dataclass(slots=True)
class Heard:
    """Of those who were asked about a run: who tells of it, who takes part in another one, who in none, and why the
    others gave no status."""

    found: list[tuple[PeerAddress, SwarmStatus]] = field(default_factory=list)
    others: list[tuple[PeerAddress, SwarmStatus]] = field(default_factory=list)
    empty: list[tuple[PeerAddress, SwarmStatus]] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)


async def find(
    host: IHost, peers: Sequence[PeerAddress], run: str, seconds: float, answered: list[PeerAddress] | None = None,
    hear: bool = False,
) -> tuple[PeerAddress, SwarmStatus]:  # fmt: skip
    """A peer that tells of a run, and what it says. Members named by the given peers are asked after them.

    Who answers, with or without a run, is added to `answered`. `hear`: also a meeting point that tells on (`told_by`)
    of runs of which no member answers. Raises UserError when nobody told of it after `seconds`.
    """
    heard = Heard()
    empty, found = heard.empty, heard.found
    with trio.move_on_after(max(seconds, 0.1)):
        await _ask_all(host, peers, run, heard)
        if not found:
            statuses, asked = [status for _, status in empty], await _by_number(peers)
            async with trio.open_nursery() as nursery:
                for one in runs_named(statuses, run):
                    told = news([peer for status in statuses for peer in named(status, one, asked)], peers)
                    nursery.start_soon(_ask_all, host, told[:FOLLOWED_MAX], one, heard)
    best: dict[str, tuple[PeerAddress, SwarmStatus]] = {}
    for peer, status in sorted(found, key=lambda one: unheard(one[1])):
        best.setdefault(status.run, (peer, status))
    if answered is not None:
        answered += [peer for peer, _ in [*empty, *found]]
    direct = any(peer in peers for peer, _ in found)
    for peer, status in told_on(empty, run, time.time()) if hear and not direct else ():
        best.setdefault(status.run, (peer, status))
    if len(best) > 1 and not direct:
        statuses = sorted((status for _, status in best.values()), key=lambda status: (status.name, status.run))
        names = ", ".join(run_text(status.run, status.name) for status in statuses)
        raise SeveralRuns(f"there are several runs: {names}; choose one with --run", 64, statuses)
    if best:
        return next(iter(best.values()))
    if empty and not run:
        return empty[0]
    raise _failure(peers, run, heard)


async def _by_number(peers: Sequence[PeerAddress]) -> list[PeerAddress]:
    """These peers, whose names' IP addresses stand beside them: by these one sees which members are near them. A name
    is looked up for `DNS_SECONDS` at most."""
    found = []
    for peer in peers:
        numbered = list(peer.addresses)
        with trio.move_on_after(DNS_SECONDS), suppress(OSError):
            for address in filter(name_in, peer.addresses):
                numbered += await look_up(address)
        found.append(PeerAddress(peer.peer_id, tuple(numbered)))
    return found


async def _ask_all(host: IHost, peers: Sequence[PeerAddress], run: str, heard: Heard) -> None:
    """Ask them side by side, until one who has heard all holders tells of the run."""
    limit = trio.CapacityLimiter(DIALS_AT_ONCE)

    async def ask(peer: PeerAddress, scope: trio.CancelScope) -> None:
        heard.reasons[peer.peer_id] = "no answer"
        async with limit:
            try:
                async with open_stream(host, peer, seconds=30.0) as stream:
                    status = await ask_status(stream)
            except Unanswered as error:
                heard.reasons[peer.peer_id] = str(error)
                return
        if status.run and is_meant(run, status.run, status.name):
            heard.found.append((peer, status))
            wait = BETTER_SECONDS if unheard(status) else 0.0
            scope.deadline = min(scope.deadline, trio.current_time() + wait)
        else:
            (heard.others if status.run else heard.empty).append((peer, status))

    async with trio.open_nursery() as nursery:
        for peer in peers:
            nursery.start_soon(ask, peer, nursery.cancel_scope)


def _failure(peers: Sequence[PeerAddress], run: str, heard: Heard) -> UserError:
    meant, told = wanted_text(run), others_told([status for _, status in (*heard.empty, *heard.others)])
    if heard.empty and told:
        if run not in told and run.lower() in told.lower():
            told += " (capitals count)"
        only = f"nobody asked knows the run {meant}, only {told}"
        return NotBegun(f"{only}; choose one of these, or see that yours is running", UNAVAILABLE)
    if heard.empty:
        return NotBegun(
            f"nobody asked knows the run {meant}; is it running, and through this meeting point?", UNAVAILABLE
        )
    if heard.others:
        return UserError(
            f"who answered takes part in {told}, not in the run {meant}; choose that, or ask another peer",
            UNAVAILABLE,
        )  # fmt: skip
    shown = "; ".join(f"{peer}: {heard.reasons.get(peer.peer_id, 'no answer')}" for peer in peers[:3])
    return UserError(f"no peer answered ({shown}); check the address, and that the peer runs", UNAVAILABLE)


@contextmanager
def no_collection() -> Iterator[None]:
    """For what makes many objects that all stay. Looking for garbage among them is an eighth of the time that an import
    takes, and half of the time that parsing does."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@asynccontextmanager
async def open_host() -> AsyncIterator[IHost]:
    """A libp2p host that listens nowhere, with an identity that is gone afterwards."""
    with no_collection():
        from libp2p import new_host
        from libp2p.crypto.ed25519 import create_new_key_pair
        from libp2p.custom_types import TProtocol
        from libp2p.security.tls.transport import PROTOCOL_ID, TLSTransport
        from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX_ID
        from libp2p.stream_muxer.yamux.yamux import Yamux

    logging.getLogger("libp2p").setLevel(logging.CRITICAL)  # it reports every failed dial, as do we
    logging.getLogger().addFilter(_not_from_libp2p)  # and some of it by the root logger
    keys = create_new_key_pair()
    security: Any = TLSTransport(keys)
    security.secure_outbound = whole(security.secure_outbound)
    host = new_host(
        key_pair=keys,
        sec_opt={PROTOCOL_ID: security},
        muxer_opt={TProtocol(YAMUX_ID): Yamux},
        negotiate_timeout=10,
    )
    network: Any = host.get_network()
    selecting: list[Any] = [host, network.upgrader.security_multistream, network.upgrader.muxer_multistream]
    for who in selecting:
        who.multiselect_client.select_one_of = early(who.multiselect_client.select_one_of)
    async with host.run(listen_addrs=[]):
        yield host


@asynccontextmanager
async def open_stream(
    host: IHost, peer: PeerAddress, seconds: float, protocol: str = STATUS_PROTOCOL
) -> AsyncIterator[INetStream]:
    """An open stream to a peer. Raises Unanswered for whatever goes wrong before and within."""
    from libp2p.custom_types import TProtocol
    from libp2p.peer.id import ID

    peer_id = ID.from_base58(peer.peer_id)
    stream = None
    try:
        with trio.fail_after(seconds):
            await _connect_once(host, peer)
            stream = await host.new_stream(peer_id, [TProtocol(protocol)])
        yield stream
    except (PeerError, EOFError) as error:
        raise Unanswered(str(error) or "it hung up in the middle of its answer") from None
    except trio.TooSlowError:
        raise Unanswered(f"no connection within {seconds:g} s") from None
    except Exception as error:  # libp2p has no common base for its errors
        log.info("status of %s", peer.peer_id, exc_info=True)
        raise Unanswered(await _cause(peer, error)) from None
    finally:
        if stream is not None:
            with trio.CancelScope(deadline=trio.current_time() + 1.0, shield=True):
                await stream.reset()


async def _connect_once(host: IHost, peer: PeerAddress) -> None:
    """Nothing where there is a connection."""
    from libp2p.peer.id import ID

    if all(one.is_closed for one in host.get_network().get_connections(ID.from_base58(peer.peer_id))):
        await _connect(host, peer)


async def _connect(host: IHost, peer: PeerAddress) -> None:
    """Dial all addresses side by side until one works, relayed ones a moment later. libp2p's own `connect` picks one of
    each kind of transport and refuses a peer for a minute after a failure. Raises the last address's error."""
    from libp2p.peer.id import ID
    from multiaddr import Multiaddr

    errors: list[Exception] = []
    connected = False
    peer_id = ID.from_base58(peer.peer_id)

    async def dial(address: str, scope: trio.CancelScope) -> None:
        nonlocal connected
        endpoint = endpoint_of(address)
        try:
            if endpoint is not None and endpoint.relay:
                await trio.sleep(CIRCUIT_DELAY)
                await _connect_once(host, PeerAddress(endpoint.relay, (endpoint.base,)))
                await _through(host, ID.from_base58(endpoint.relay), peer_id)
            else:
                await host.get_network().dial_addr(Multiaddr(address), peer_id)
        except Exception as error:
            log.info("%s is not at %s", peer.peer_id, address, exc_info=True)
            errors.append(error)
            return
        connected = True
        scope.cancel()

    async def dial_all(address: str, scope: trio.CancelScope) -> None:
        try:
            numbered = await look_up(address)
        except OSError as error:
            errors.append(error)
            return
        async with trio.open_nursery() as inner:
            for one in numbered:
                inner.start_soon(dial, one, scope)

    async with trio.open_nursery() as nursery:
        for address in peer.addresses[:ADDRESSES_DIALLED]:
            nursery.start_soon(dial_all, address, nursery.cancel_scope)
    if not connected:
        raise errors[-1]


async def _through(host: IHost, relay: ID, peer: ID) -> None:
    """Connect to a peer through a relay that we are connected to. Raises what `ask_for_circuit` does, and libp2p."""
    from libp2p.connection_types import ConnectionType
    from libp2p.custom_types import TProtocol
    from libp2p.network.connection.raw_connection import RawConnection

    with trio.fail_after(CIRCUIT_SECONDS):
        stream = await host.new_stream(relay, [TProtocol(HOP_PROTOCOL)])
        try:
            await ask_for_circuit(stream.write, stream.read, peer.to_bytes())
            await host.get_network().upgrade_outbound_raw_conn(
                RawConnection(stream, True, ConnectionType.RELAYED), peer
            )
        except BaseException:
            with trio.CancelScope(deadline=trio.current_time() + 1.0, shield=True):
                await stream.reset()
            raise


async def _cause(peer: PeerAddress, error: Exception) -> str:
    """Why a peer gave no status, in one line. libp2p drops the system's reason, so the port is tried once more."""
    if another := ANOTHER.search(f"{error} {error.__cause__}"):
        return f"something answers there, but it is not this peer: it is {another[1]}"
    try:
        target = socket_address((await look_up(peer.addresses[0]))[0])
    except OSError as failure:
        return f"the name {name_in(peer.addresses[0])} leads nowhere: {failure.strerror}"
    if target is None or target[1] != socket.SOCK_STREAM:
        return (str(error).splitlines() or [""])[0][:160] or type(error).__name__
    try:
        with trio.socket.socket(target[0], target[1]) as probe, trio.fail_after(PROBE_SECONDS):
            await probe.connect((target[2], target[3]))
    except OSError as failure:  # also where this machine does not speak that version of IP
        return os.strerror(failure.errno) if failure.errno else str(failure)
    except trio.TooSlowError:
        return "no answer"
    return "something answers there, but it is not this peer, or it tells no status"


async def ask_status(stream: INetStream) -> SwarmStatus:
    """One request and its reply. Raises PeerError, EOFError or what libp2p raises."""
    await send(stream, REQUEST)
    return decode_status(await receive(stream, REPLY_BYTES_MAX))


async def send(stream: INetStream, data: bytes) -> None:
    """One frame, as status.py has them."""
    await stream.write(framed(data))


async def receive(stream: INetStream, bytes_max: int) -> bytes:
    """One frame. Raises what `read_frame` does."""
    return await read_frame(stream.read, bytes_max)
