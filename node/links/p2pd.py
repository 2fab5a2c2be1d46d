"""The libp2p host: hivemind's p2pd as a child process, spoken to over unix sockets on trio.

One control connection per request; after a STREAM_OPEN that connection is the stream. Inbound streams come to one
listening socket of ours, each behind a StreamInfo. p2pd authenticates: the PeerId that it names is the key's owner.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from math import ceil, inf
from pathlib import Path
from weakref import WeakKeyDictionary

import trio

from ftnode.node.home.identity import any_peer_id_bytes, peer_id_bytes, peer_id_text
from ftnode.node.home.waiting import spoken
from ftnode.node.links import p2pd_messages as messages
from ftnode.node.links.bandwidth import Bandwidth
from ftnode.node.links.dial_failures import DialFailures, found_instead, is_another
from ftnode.node.links.dial_gate import DialGate
from ftnode.node.links.dial_rules import has_way
from ftnode.node.links.listening import address_bytes, address_text, check_listen, on_loopback
from ftnode.node.links.newest import newest
from ftnode.node.links.p2pd_folder import private_folder
from ftnode.node.links.peer_lines import PeerLog
from ftnode.node.links.relay_choice import relay_in
from ftnode.node.links.streams import STREAM_ERRORS, StreamHandler, read_exactly
from ftnode.node.links.undigested import serving
from ftnode.node.machine.child_processes import child_ended, start_child
from ftnode.protocol.words.errors import FtnodeError, UserError

log = logging.getLogger(__name__)

LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)
START_SECONDS = 60.0
CONTROL_SECONDS = 5.0
"""For requests that p2pd answers by itself."""
LOOK_SECONDS = 0.1
OWN_DIAL_SECONDS = 0.25
"""Between a connection and p2pd's word that it has made it; without one, the peer has."""
COMING_SECONDS = 1.0
COMING_MAX = 256
INBOUND_STREAMS_MAX = 1024
STRANGERS_STREAMS_MAX = 512
"""Of all of them, of peers that are not known: they may keep two for each name, and names cost nothing."""
PEER_STREAMS_MAX = 128
"""Of one peer: a lane or two, and a reduction for each stage that we both hold."""
SOCKET_BUFFER_BYTES = 1 << 21
"""Fewer wake-ups per tensor; the kernel caps it at net.core.wmem_max."""
GO_ENVIRONMENT = {"GOGC": "400", "GOMEMLIMIT": "256MiB", "GOMAXPROCS": "1"}
"""p2pd allocates a buffer per tensor piece; collecting garbage less often leaves the cores to the tensors. One core
carries more than 500 MB/s, above any volunteer's line, and with more it burns a sixth on looking for work."""


class P2pdError(FtnodeError):
    """p2pd refused a request, did not answer in time, or is dead; the text says which."""

    dialled: tuple[str, ...] = ()
    """Where a peer was dialled in vain; empty when an address that passes the gate's rules had to wait."""
    another = False
    """Whether another peer answers there."""
    instead = ""
    """PeerId of one that answers at each of the peer's addresses."""


class P2pd:
    """A running p2pd. `died` is set when the process has ended, for whatever reason."""

    def __init__(
        self, folder: Path, process: subprocess.Popen[bytes], lock: int, bandwidth: Bandwidth | None = None
    ) -> None:
        self.peer_id = ""
        self.bandwidth = bandwidth
        """Limits of all streams to and from peers together; None: none."""
        self.died = trio.Event()
        self.strike: Callable[[str, str], None] = _say_only
        """Told of (PeerId, reason) when what a peer sends on a stream is worth a strike."""
        self.knows: Callable[[str], bool] = lambda peer_id: True
        """Whether a PeerId is a member of the run."""
        self.offline = False
        """This machine has no way to anybody now."""
        self.gate = DialGate(trio.current_time)
        """p2pd is told no address that did not pass it."""
        self._failures = DialFailures()
        self.process = process
        self._folder = folder
        self._lock = lock
        self._handlers: dict[str, StreamHandler] = {}
        self._told = PeerLog(log)
        self._streams: Counter[str] = Counter()
        """PeerId → its inbound streams."""
        self._inbound = self._strangers = 0
        """Streams, and those of them that peers have who were not known when they opened them."""
        self._coming: dict[str, float] = {}
        """PeerId → until when it is not dialled, since it dials us."""
        self._relays: WeakKeyDictionary[trio.SocketStream, str] = WeakKeyDictionary()
        """Streams that are circuits, and the PeerIds of those who carry them."""
        self._lifeline: trio.SocketStream | None = None
        """p2pd lives as long as somebody holds a persistent connection. Without ours it would die with the directory
        process, which holds the other one; and with ours it dies with us, also where there is no death signal."""

    @classmethod
    async def start(
        cls,
        nursery: trio.Nursery,
        identity: Path,
        *,
        listen: Sequence[str] = LOOPBACK,
        announce: Sequence[str] = (),
        map_ports: bool = False,
        log_path: Path | None = None,
        bandwidth: Bandwidth | None = None,
    ) -> P2pd:
        """Start p2pd with the key in `identity`.

        With no `listen` address we are reached through a relay only (relay.py). `announce`: told to others instead of
        where we listen. `map_ports`: have the router keep ports open for us, if it does that (UPnP, NAT-PMP).
        `bandwidth`: limits of all our streams. Raises UserError when it cannot start.
        """
        check_listen(listen)
        folder, lock = private_folder()
        argv = [
            str(p2pd_binary()),
            f"-listen=/unix{folder}/control",
            f"-id={identity}",
            *_host_flags(listen, announce, map_ports),
        ]
        output = log_path or folder / "log"
        try:
            process = start_child(argv, log=output, environment=GO_ENVIRONMENT)
        except OSError as error:
            raise UserError(f"cannot start {argv[0]}: {error.strerror}; reinstall hivemind", 69) from None
        daemon = cls(folder, process, lock, bandwidth)
        try:
            nursery.start_soon(daemon._watch)
            await daemon._wait_until_ready(output)
            daemon._lifeline = await daemon._request(messages.stay_connected(), CONTROL_SECONDS)
            nursery.start_soon(trio.serve_listeners, daemon._dispatch, [await daemon._listen()])
        except P2pdError as error:
            daemon.close()
            raise unanswered(error) from None
        except BaseException:
            daemon.close()
            raise
        return daemon

    @property
    def folder(self) -> Path:
        """Private, with its sockets, and with its log (`log`) where no other place was named."""
        return self._folder

    @property
    def control_maddr(self) -> str:
        """Where another process of this node (the directory) can attach."""
        return f"/unix{self._folder}/control"

    def close(self) -> None:
        """End p2pd at once, and with it every stream. Idempotent."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self._lifeline is not None:
            self._lifeline.socket.close()
        if self._lock >= 0:
            shutil.rmtree(self._folder, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1

    async def addresses(self) -> tuple[str, ...]:
        """Where we listen now, or what we announce instead, without /p2p. Changes when an interface appears."""
        response = await self._ask(messages.identify(), CONTROL_SECONDS)
        self.gate.own = _texts(response.addresses)
        return self.gate.own

    async def connect(self, peer_id: str, addresses: Sequence[str], seconds: float) -> None:
        """Have a connection to the peer, dialled at those addresses that pass the gate if there is none yet.

        Raises P2pdError, with the reason in plain words, when there is none after `seconds`. When the gate lets nothing
        through, p2pd is not asked, for it would dial what the peer itself has told it (libp2p's identify).
        """
        if await self.is_connected(peer_id):
            return
        passed = self.gate.admit(peer_id, addresses)
        if not passed.addresses:
            raise P2pdError(f"no address of {peer_id} may be dialled: {passed.reason}")
        ways = tuple(address for address in passed.addresses if has_way(address))
        if not ways:  # p2pd would try, and then not again for a while
            self.gate.found(passed)
            raise P2pdError("network is unreachable")
        try:
            await self._dial(peer_id, [address_bytes(way) for way in ways], seconds)
        except P2pdError as error:
            failure = P2pdError(self._failures.words(peer_id, str(error)))
            failure.dialled = ways if len(passed.addresses) == passed.judged else ()
            failure.another = is_another(str(error))
            failure.instead = found_instead(str(error)) if failure.dialled else ""
            raise failure from None
        self.gate.found(passed)
        await self.is_connected(peer_id)

    async def arrival(self, peer_id: str) -> None:
        """Wait for a moment for a peer that is about to dial us."""
        with trio.move_on_at(self._coming.pop(peer_id, -inf)):
            await self._await(peer_id)

    async def _dial(self, peer_id: str, addresses: Sequence[bytes], seconds: float) -> None:
        """Done as soon as there is a connection, also when the peer comes to us while p2pd still tries old
        addresses."""
        request = messages.connect(_raw(peer_id), addresses, ceil(seconds))
        failure: P2pdError | None = None

        async def ask(scope: trio.CancelScope) -> None:
            nonlocal failure
            try:
                await self._ask(request, seconds)
            except P2pdError as error:
                failure = error
            scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, nursery.cancel_scope)
            with suppress(P2pdError):  # which `ask` meets as well
                await self._await(peer_id)
                await trio.sleep(OWN_DIAL_SECONDS)
                nursery.cancel_scope.cancel()
        if failure is not None and not await self.is_connected(peer_id):
            raise failure

    async def _await(self, peer_id: str) -> None:
        """Until there is a connection to the peer."""
        while not await self.is_connected(peer_id):
            await trio.sleep(LOOK_SECONDS)

    async def is_connected(self, peer_id: str) -> bool:
        """Whether there is a connection to the peer; the gate learns where it is met."""
        return bool(await self.ends(peer_id))

    async def ends(self, peer_id: str) -> list[str]:
        """Where our connections with the peer end; the gate learns of it."""
        ends = [address for owner, address in await self.connections() if owner == peer_id]
        self.gate.met(peer_id, ends)
        return ends

    async def open(self, peer_id: str, protocol: str, seconds: float) -> trio.SocketStream:
        """A stream to a connected peer that speaks `protocol`. Raises P2pdError."""
        request = messages.stream_open(_raw(peer_id), protocol, ceil(seconds))
        stream, response = await self._exchange(request, seconds)
        return self._ours(stream, protocol, response.address)

    def relay_of(self, stream: trio.SocketStream) -> str:
        """PeerId of the relay that carries this stream to or from a peer; empty for a direct one."""
        return self._relays.get(stream, "")

    def _ours(self, stream: trio.SocketStream, protocol: str, address: bytes) -> trio.SocketStream:
        """Within the limits; `address`: at the other end, as p2pd says."""
        limited = stream if self.bandwidth is None else self.bandwidth.limited(stream, protocol)
        relay = relay_in("".join(_texts([address])))
        if relay:
            self._relays[limited] = relay
        return limited

    async def serve(self, protocol: str, handler: StreamHandler) -> None:
        """From now on give every inbound stream of `protocol` to `handler`."""
        self._handlers[protocol] = handler
        await self._ask(messages.stream_handler(f"{self._folder}/inbound", protocol), CONTROL_SECONDS)

    async def peers(self) -> tuple[str, ...]:
        """PeerIds of everybody we are connected to."""
        return tuple(peer_id for peer_id, _ in await self.connections())

    async def connections(self) -> tuple[tuple[str, str], ...]:
        """(PeerId, address at the other end) of every connection; the address is empty when we cannot write it."""
        response = await self._ask(messages.list_peers(), CONTROL_SECONDS)
        return tuple((peer_id_text(peer), "".join(_texts([address]))) for peer, address in response.connections)

    async def disconnect(self, peer_id: str, it_comes: bool = False) -> None:
        """Close all connections to a peer. `it_comes`: it will dial us, and where we know it may be somebody else by
        now (see `arrival`)."""
        if it_comes:
            newest(self._coming, peer_id, trio.current_time() + COMING_SECONDS, COMING_MAX)
        await self._ask(messages.disconnect(_raw(peer_id)), CONTROL_SECONDS)

    async def _ask(self, request: bytes, seconds: float) -> messages.Response:
        stream, response = await self._exchange(request, seconds)
        await stream.aclose()
        return response

    async def _request(self, request: bytes, seconds: float) -> trio.SocketStream:
        return (await self._exchange(request, seconds))[0]

    async def _exchange(self, request: bytes, seconds: float) -> tuple[trio.SocketStream, messages.Response]:
        stream = None
        try:
            with trio.fail_after(seconds):
                stream = await open_unix_stream(f"{self._folder}/control")
                await stream.send_all(request)
                response = messages.read_response(await read_message(stream))
            if response.error:
                raise P2pdError(response.error)
        except BaseException as error:
            if stream is not None:
                await trio.aclose_forcefully(stream)
            if isinstance(error, trio.TooSlowError):
                raise P2pdError(f"no answer within {seconds:g} s") from None
            if isinstance(error, OSError | trio.BrokenResourceError | EOFError | ValueError):
                raise P2pdError(f"p2pd does not answer: {error}") from None
            raise
        return stream, response

    async def _wait_until_ready(self, output: Path) -> None:
        with trio.move_on_after(START_SECONDS), spoken("p2pd to start"):
            while not self.died.is_set():
                try:
                    response = await self._ask(messages.identify(), CONTROL_SECONDS)
                except P2pdError:
                    await trio.sleep(0.01)  # its control socket does not exist yet
                    continue
                self.peer_id = peer_id_text(response.peer_id)
                self.gate.own = _texts(response.addresses)
                return
        why = _last_line(output) if self.died.is_set() else f"it does not answer after {START_SECONDS:.0f} s"
        raise UserError(f"p2pd did not start: {why}", 69)

    async def _watch(self) -> None:
        status = await child_ended(self.process)
        log.info("p2pd ended with status %d", status)
        self.died.set()

    async def _listen(self) -> trio.SocketListener:
        listening = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        await listening.bind(f"{self._folder}/inbound")
        listening.listen(128)
        return trio.SocketListener(listening)

    async def _dispatch(self, stream: trio.SocketStream) -> None:
        if self._inbound >= INBOUND_STREAMS_MAX:
            self._told.say(logging.WARNING, "", f"inbound stream refused: {self._inbound} are open")
            await trio.aclose_forcefully(stream)
            return
        self._inbound += 1
        try:
            with trio.fail_after(CONTROL_SECONDS):
                info = messages.read_stream_info(await read_message(stream))
            peer_id, handler = peer_id_text(info.peer_id), self._handlers[info.protocol]
            peer_id_bytes(peer_id)  # libp2p knows other kinds of keys, and nobody of ours has one
            if self._streams[peer_id] >= PEER_STREAMS_MAX:
                raise ValueError(f"{peer_id} has {PEER_STREAMS_MAX} streams open")
            stranger = not self.knows(peer_id)
            if stranger and self._strangers >= STRANGERS_STREAMS_MAX:
                raise ValueError(f"{peer_id} is no member, and such peers have {self._strangers} streams open")
        except (*STREAM_ERRORS, ValueError, KeyError) as error:
            self._told.say(logging.INFO, "", f"inbound stream dropped: {error}")
        else:
            self._strangers += stranger
            try:
                await self._hand_over(peer_id, info, handler, stream)
            finally:
                self._strangers -= stranger
        finally:
            self._inbound -= 1
            await trio.aclose_forcefully(stream)

    async def _hand_over(
        self, peer_id: str, info: messages.StreamInfo, handler: StreamHandler, stream: trio.SocketStream
    ) -> None:
        self._streams[peer_id] += 1
        try:
            with serving(peer_id, info.protocol, self.strike, partial(self._told.say, logging.INFO, peer_id)):
                _enlarge_buffers(stream)
                await handler(peer_id, self._ours(stream, info.protocol, info.address))
        finally:
            self._streams[peer_id] -= 1
            if not self._streams[peer_id]:
                del self._streams[peer_id]


def _say_only(peer_id: str, reason: str) -> None:
    log.warning("peer %s broke the protocol: %s", peer_id, reason)


def unanswered(error: P2pdError) -> UserError:
    """For who starts a node, of which p2pd is a part: on a machine that is overloaded it may take too long."""
    return UserError(f"p2pd does not answer ({error}); see what else this machine does, and try again", 69)


def p2pd_binary() -> Path:
    """The binary in the hivemind wheel, found without importing hivemind. Raises UserError."""
    spec = find_spec("hivemind")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        path = Path(folder) / "hivemind_cli" / "p2pd"
        if path.is_file():
            return path
    raise UserError("hivemind's p2pd is not installed; install hivemind from a wheel that has it", 69)


def _host_flags(listen: Sequence[str], announce: Sequence[str], map_ports: bool) -> list[str]:
    """TLS alone: with Noise on, p2pd prefers it, and AES in hardware is up to twice as fast. Every libp2p has TLS."""
    flags = ["-tls=1", "-noise=0", "-connManager=0", "-relayService=0"]  # relay_service.py is ours
    flags += [f"-hostAddrs={','.join(listen)}"] if listen else ["-noListenAddrs=1"]
    if map_ports and not announce and not on_loopback(listen):
        flags.append("-natPortMap=1")
    if announce:
        flags.append(f"-announceAddrs={','.join(announce)}")
    return flags


def _raw(peer_id: str) -> bytes:
    """Raises P2pdError for what is no PeerId."""
    try:
        return any_peer_id_bytes(peer_id)
    except ValueError as error:
        raise P2pdError(f"{peer_id[:60]!r} is no PeerId: {error}") from None


def _last_line(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1][:300] if lines else "it said nothing"


def _texts(addresses: Sequence[bytes]) -> tuple[str, ...]:
    texts = []
    for address in addresses:
        try:
            texts.append(address_text(address))
        except ValueError:
            log.info("an address of ours is of a kind that we cannot write: %s", address.hex())
    return tuple(texts)


def _enlarge_buffers(stream: trio.SocketStream) -> None:
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        stream.socket.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)


async def open_unix_stream(path: str) -> trio.SocketStream:
    connection = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
        await connection.connect(path)
    except BaseException:
        connection.close()
        raise
    return trio.SocketStream(connection)


async def read_message(stream: trio.SocketStream) -> bytes:
    """One varint-delimited message. Raises EOFError when the stream ends before, ValueError for an absurd length."""
    return await messages.read_message(partial(read_exactly, stream))
