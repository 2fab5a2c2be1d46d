"""The node's end of its directory process: starts it, asks it, starts it again when it dies, and makes it meet peers.

p2pd holds the connections and the directory process the routing table, so meeting a peer takes two steps: connect by
address here, then `meet` there. Peers given by the user are met again and again, because a bootstrap peer that comes
back knows nobody, and in a small swarm it is often the only one that newcomers know. Nobody is dialled just for
standing in the directory, where anybody can write.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from math import inf
from pathlib import Path
from typing import Any, Protocol

import msgpack
import trio

from ftnode.node.links.addresses import PeerAddress, is_dialable
from ftnode.node.links.side_messages import read_frame
from ftnode.node.machine.child_processes import child_ended, ending, kill_child, start_linked, thread_environment
from ftnode.protocol.wire.length_prefix import framed
from ftnode.protocol.words.errors import FtnodeError, PeerError

log = logging.getLogger(__name__)

FRAME_BYTES_MAX = 1 << 22
READY_SECONDS = 60.0
"""hivemind imports torch; on a machine that starts ten nodes at once that takes a while."""
CALL_SECONDS = 10.0
CONNECT_SECONDS = 5.0
RESTART_SECONDS = 1.0
"""Before the first start after a death. It doubles with each death in a row."""
RESTART_SECONDS_MAX = 60.0
STEADY_SECONDS = 180.0
"""A process that lived for this long did not die of its start; the wait begins again with RESTART_SECONDS."""
MET_PEERS_MAX = 32
"""Other peers that we keep connections to for the directory's sake. The routing table finds the rest through them."""
CALLS_AT_ONCE = 16
UNANSWERED_MAX = 3
"""Calls in a row that got no answer before the process is killed and started again."""


class DirectoryDown(FtnodeError):
    """The directory process is not there, did not answer in time, or answered with an error."""


class Dialer(Protocol):
    """The part of P2pd that the directory needs."""

    @property
    def control_maddr(self) -> str: ...

    @property
    def offline(self) -> bool: ...

    async def connect(self, peer_id: str, addresses: Sequence[str], seconds: float) -> None: ...

    async def is_connected(self, peer_id: str) -> bool: ...


class DirectoryLink:
    """Calls to the directory process. `met`: those given or `introduce`d that answered when last met."""

    def __init__(
        self,
        dialer: Dialer,
        peers: Iterable[PeerAddress],
        *,
        log_path: Path | None,
        on_lost: Callable[[str], None],
        command: tuple[str, ...] = (sys.executable, "-m", "ftnode.node.directory.process"),
    ) -> None:
        self.up = trio.Event()
        """Set while the process answers; a new event after each death."""
        self.tried = trio.Event()
        """Set when this life of the process has met somebody, or has tried everybody once."""
        self.met: set[str] = set()
        self.given = tuple(peers)
        self._has_met = False
        self._unanswered = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.unreachable: dict[str, str] = {}
        """Given peers that could not be met, with the reason of the last try."""
        self._trouble = ""
        self._dialer = dialer
        self._log_path = log_path
        self._on_lost = on_lost
        self._command = command
        self._known: dict[str, PeerAddress] = {}
        self._stream: trio.SocketStream | None = None
        self._answers: dict[int, trio.MemorySendChannel[dict[str, Any]]] = {}
        self._last_id = 0
        self._writing = trio.Lock()
        self._calls = trio.CapacityLimiter(CALLS_AT_ONCE)

    @property
    def connected(self) -> bool:
        """Whether the directory is more than our own store: this life of it met somebody, or nobody was given to meet.

        It stays so when all others have died since, for then an empty directory is the truth.
        """
        return self._has_met or not self.given

    @property
    def doors(self) -> tuple[str, ...]:
        """Given peers that were met. Newcomers are given the same, and can ask nobody else at first: what is written
        stands there as well, however far they are from its key."""
        return tuple(peer.peer_id for peer in self.given if peer.peer_id in self.met)

    @property
    def trouble(self) -> str:
        """What this node does without between a death of the process and its next life; empty while it answers."""
        if self.up.is_set() or not self._trouble:
            return ""
        return f"its directory to be back ({self._trouble})"

    async def run(self) -> None:
        """Start the process, and start it again after each death, until cancelled."""
        wait = RESTART_SECONDS
        while True:
            started = trio.current_time()
            self._trouble = await self._live_once()
            if trio.current_time() - started > STEADY_SECONDS:
                wait = RESTART_SECONDS
            log.warning("directory: %s; starting it again in %g s", self._trouble, wait)
            self._on_lost(self._trouble)
            await trio.sleep(wait)
            wait = min(2 * wait, RESTART_SECONDS_MAX)

    async def call(self, op: str, seconds: float = CALL_SECONDS, **fields: Any) -> dict[str, Any]:
        """Ask the directory process. Raises DirectoryDown."""
        stream = self._stream
        if stream is None:
            raise DirectoryDown("the directory process is not up")
        if self._dialer.offline:  # it would dial in vain, after which p2pd dials nobody for some seconds
            raise DirectoryDown("this machine has no network")
        self._last_id += 1
        number = self._last_id
        send, receive = trio.open_memory_channel[dict[str, Any]](1)
        self._answers[number] = send
        try:
            with trio.fail_after(seconds):
                async with self._calls:
                    await self._write(stream, {"id": number, "op": op, **fields})
                    answer = await receive.receive()
        except trio.TooSlowError:
            self._note_unanswered()
            raise DirectoryDown(f"the directory did not answer {op} within {seconds:g} s") from None
        except (trio.EndOfChannel, trio.BrokenResourceError, trio.ClosedResourceError):
            raise DirectoryDown(f"the directory process died over {op}") from None
        finally:
            self._answers.pop(number, None)
        self._unanswered = 0
        if "error" in answer:
            raise DirectoryDown(f"the directory failed at {op}: {answer['error']}")
        return answer

    def _note_unanswered(self) -> None:
        """A process that answers nothing any more is as good as dead, but its socket does not say so."""
        self._unanswered += 1
        if self._unanswered >= UNANSWERED_MAX and self._process is not None:
            log.warning("directory: %d calls without an answer", self._unanswered)
            self._process.kill()

    def introduce(self, peer: PeerAddress) -> bool:
        """Remember a peer that the directory itself told of; True when it is new and should be met, once there is a
        connection to it. Whom the core dials, it dials for its own reasons."""
        addresses = tuple(address for address in peer.addresses if is_dialable(address))
        new = bool(addresses) and peer.peer_id not in self.met and peer.peer_id not in self._known
        if new and len(self._known) < MET_PEERS_MAX:
            self._known[peer.peer_id] = PeerAddress(peer.peer_id, addresses)
            return True
        return False

    async def meet_all(self) -> None:
        """Meet everybody we know of, the given ones first of all. Reasons of failures are in `unreachable`."""
        async with trio.open_nursery() as nursery:
            for peer in self.given:
                nursery.start_soon(self.meet, peer)
            for peer in list(self._known.values()):
                nursery.start_soon(self.meet, peer, False)
        self.tried.set()

    async def meet(self, peer: PeerAddress, dial: bool = True) -> bool:
        """Get into each other's routing tables. Without `dial`, only with a peer that we are connected to anyway."""
        try:
            if dial:
                await self._dialer.connect(peer.peer_id, peer.addresses, CONNECT_SECONDS)
            elif not await self._dialer.is_connected(peer.peer_id):
                raise DirectoryDown("there is no connection, and the directory's word is no reason to dial")
            answer = await self.call("meet", peer=peer.peer_id)
            reason = "" if answer.get("met") is True else "it runs no directory of ours"
        except FtnodeError as error:
            reason = str(error)
        if reason:
            log.info("cannot meet %s: %s", peer.peer_id, reason)
            self._known.pop(peer.peer_id, None)
            self.met.discard(peer.peer_id)
            if any(peer.peer_id == given.peer_id for given in self.given):
                self.unreachable[peer.peer_id] = reason
            return False
        self.met.add(peer.peer_id)
        self._has_met = True
        self.tried.set()
        self.unreachable.pop(peer.peer_id, None)
        return True

    async def _live_once(self) -> str:
        """One life of the process; returns why it ended."""
        try:
            process, ours = start_linked(
                lambda number: [*self._command, str(number), self._dialer.control_maddr],
                log=self._log_path,
                environment={"HIVEMIND_LOGLEVEL": "WARNING", **thread_environment(1)},
            )
        except OSError as error:
            return f"the directory process cannot be started: {error.strerror}"
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        try:
            return await self._attend(process, stream)
        finally:
            self._down()
            stream.socket.close()
            await kill_child(process)  # it has nothing to save: what it stored, others have too

    async def _attend(self, process: subprocess.Popen[bytes], stream: trio.SocketStream) -> str:
        try:
            with trio.fail_after(READY_SECONDS):
                first = await _read(stream)
        except trio.TooSlowError:
            return f"the directory process was not ready within {READY_SECONDS:g} s"
        except (trio.BrokenResourceError, EOFError, PeerError, ValueError):
            return f"the directory process ended at its start ({ending(await child_ended(process))})"
        if first.get("ready") is not True:
            return "the directory process did not say that it is ready"
        self._stream = stream
        self._process, self._unanswered = process, 0
        self.met.clear()
        self._has_met = False
        self.up.set()
        try:
            while True:
                frame = await _read(stream)
                channel = self._answers.get(frame.get("id", 0))
                if channel is not None:
                    channel.send_nowait(frame)
        except (trio.BrokenResourceError, EOFError):
            return f"the directory process died ({await child_ended(process)})"
        except (PeerError, ValueError, trio.WouldBlock) as error:
            return f"the directory process talks nonsense: {error}"

    def _down(self) -> None:
        self._stream = None
        self.up, self.tried = trio.Event(), trio.Event()
        for channel in self._answers.values():
            channel.close()

    async def _write(self, stream: trio.SocketStream, frame: dict[str, Any]) -> None:
        data = msgpack.packb(frame)
        async with self._writing:
            await stream.send_all(framed(data))


async def _read(stream: trio.SocketStream) -> dict[str, Any]:
    """One frame. Raises EOFError at the end, PeerError and ValueError for what is none. Who asked has the deadline."""
    frame = msgpack.unpackb(await read_frame(stream.receive_some, FRAME_BYTES_MAX, inf))
    if not isinstance(frame, dict):
        raise ValueError("a frame that is no map")
    return frame
