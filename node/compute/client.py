"""The trio side of the compute process: starts it, orders its commands, matches answers, starts it again when it dies.

Commands go out in the order in which they were given and are carried out in that order, so an Apply given before a
Forward is applied before it (docs/explanation/architecture.md).
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any, Final

import msgpack
import trio

from ftnode.node.compute.config import ComputeConfig
from ftnode.node.links.side_messages import read_frame
from ftnode.node.machine.child_processes import ended_within, ending, kill_child, start_linked, thread_environment
from ftnode.node.machine.gradient_memory import GradientMemory
from ftnode.node.machine.snapshot_memory import SnapshotMemory
from ftnode.node.machine.tensor_slots import Arena
from ftnode.node.ports import ComputeError
from ftnode.protocol.wire.length_prefix import framed
from ftnode.protocol.words.errors import PeerError

log = logging.getLogger(__name__)

PROGRAM = "ftnode.node.compute.process"
START_SECONDS: Final = 120.0
"""Torch from a cold disk, the corpus's hash and one dry microbatch."""
COMPILE_SECONDS: Final = 300.0
"""More where blocks are compiled."""
FRAME_BYTES_MAX: Final = 1 << 20
PENDING_MAX: Final = 4096
BACKOFF_SECONDS_MAX: Final = 30.0
ENDED: Final = "the process ended"
ENDED_AT_START: Final = "it ended while it started"
ENDING_SECONDS: Final = 1.0
"""From the end of its socket to its own: a status that we cause ourselves would say nothing."""
Answer = Callable[[dict[str, Any] | ComputeError], None]


class ComputeProcess:
    """Run `run` in a nursery. `on_ready` gets the process's report, `on_lost` why it is gone (not after restart).
    `on_stage_lost`: there was no memory for a stage; what the process had of it is gone, and all other stages are well.
    It does nothing more for the stage before a `forget`."""

    def __init__(
        self,
        config: ComputeConfig,
        arena: Arena,
        on_ready: Callable[[dict[str, Any]], None],
        on_lost: Callable[[str], None],
        on_stage_lost: Callable[[int, str], None],
        log_path: Path | None = None,
        hang_seconds: float = 60.0,
        gradients: GradientMemory | None = None,
        snapshots: SnapshotMemory | None = None,
    ) -> None:
        """`hang_seconds`: a process that says nothing for so long, for each stage of the longest command that waits,
        is killed, and `on_lost` told. Signs of work count, as while it reads a long text from a slow disk. The core
        notices tasks that do not end by itself; an export for a newcomer is no task. `gradients`: for reductions in
        groups; `snapshots`: for copies of states on their way to the disk."""
        self.config = config
        self.pid = 0
        self._arena = arena
        self._on_ready, self._on_lost, self._on_stage_lost = on_ready, on_lost, on_stage_lost
        self._log_path = log_path
        self._hang_seconds = hang_seconds
        self._gradients, self._snapshots = gradients, snapshots
        self._progress = 0.0
        """When it last answered, or began to have something to answer."""
        self._pending: dict[int, Answer] = {}
        self._visits: dict[int, int] = {}
        """Of pending commands that run several stages one after the other, how many."""
        self._outgoing: deque[bytes] = deque()
        self._wakeup = trio.Event()
        self._number = 0
        self._up = False
        self._ever_up = False
        self.refusal = ""
        """Why it cannot start, in its own words, when it never has."""
        self._scope: trio.CancelScope | None = None
        self._told = False
        self._frozen = False
        self._retired = False

    # -- commands

    def post(self, op: str, answer: Answer, **fields: Any) -> None:
        """Queue a command; `answer` is called once, with its fields or a ComputeError."""
        if not self._up or len(self._pending) >= PENDING_MAX:
            answer(ComputeError("lost", "the compute process is not there"))
            return
        if not self._pending:
            self._progress = trio.current_time()
        self._number += 1
        self._pending[self._number] = answer
        if onward := fields.get("onward"):
            self._visits[self._number] = 1 + len(onward)
        body: bytes = msgpack.packb({"op": op, "id": self._number, **fields}, use_bin_type=True)
        self._outgoing.append(framed(body))
        self._wakeup.set()

    async def call(self, op: str, **fields: Any) -> dict[str, Any]:
        """Queue a command and wait for its answer. Raises ComputeError."""
        return await call_and_wait(self.post, op, **fields)

    @property
    def working(self) -> bool:
        """It has something to do."""
        return bool(self._pending)

    def restart(self, reason: str) -> None:
        """Kill the process; another is started. Pending commands fail; `on_lost` is not called."""
        log.warning("compute is restarted: %s", reason)
        self._told = True
        if self._scope is not None:
            self._scope.cancel()

    def freeze(self) -> None:
        """The process keeps its memory and computes nothing until `thaw`; commands wait."""
        if self._up:
            self._frozen = True
            os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        if self._frozen:
            self._frozen = False
            self._progress = trio.current_time()
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGCONT)

    def retire(self) -> None:
        """The process ends, with all its memory, and no other is started. Pending commands fail; nobody is told."""
        self._retired = True
        self.restart("its node keeps nothing in memory any more")

    # -- the process

    async def run(self) -> None:
        """Until cancelled: keep a compute process alive, with a growing pause between failed starts."""
        pause = 0.5
        while not self._retired:
            self._told = False
            reason, worked = await self._live()
            if not self._told:
                self._on_lost(reason)
            pause = 0.5 if worked else min(2 * pause, BACKOFF_SECONDS_MAX)
            if not self._retired:
                await trio.sleep(pause)

    async def _live(self) -> tuple[str, bool]:
        """One process from start to end: why it ended, and whether it ever worked."""
        try:
            child, ours = self._start()
        except OSError as error:  # as for want of memory, of descriptors, or of processes that this user may have
            return f"it cannot be started: {error.strerror}", False
        self.pid = child.pid
        reason, worked = "restarted", False
        try:
            with trio.CancelScope() as self._scope:
                async with trio.SocketStream(trio.socket.from_stdlib_socket(ours)) as stream:
                    reason, worked = await self._talk(stream)
        finally:
            worked = worked or self._up
            self._up = self._frozen = False
            if reason in (ENDED, ENDED_AT_START):
                status = await ended_within(child, ENDING_SECONDS)
                reason = reason if status is None else f"{reason}, {ending(status)}"
            await kill_child(child)
            self._outgoing.clear()
            self._visits.clear()
            pending, self._pending = self._pending, {}
            for answer in pending.values():
                answer(ComputeError("lost", f"the compute process ended ({reason})"))
        return reason, worked

    def _start(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """Raises OSError."""
        memories = {"--arena-fd": self._arena, "--gradients-fd": self._gradients, "--snapshots-fd": self._snapshots}
        descriptors = {name: memory.descriptor for name, memory in memories.items() if memory is not None}
        passed = [text for name, number in descriptors.items() for text in (name, str(number))]
        return start_linked(
            lambda number: [sys.executable, "-m", PROGRAM, "--socket-fd", str(number), *passed],
            log=self._log_path, pass_fds=[*descriptors.values()], own_session=True,
            environment=thread_environment(self.config.threads),
        )  # fmt: skip

    async def _talk(self, stream: trio.SocketStream) -> tuple[str, bool]:
        seconds = START_SECONDS + self.config.compiled * COMPILE_SECONDS
        try:
            with trio.fail_after(seconds) as patience:
                body = msgpack.packb({"config": self.config.to_dict()}, use_bin_type=True)
                await stream.send_all(framed(body))
                while (first := await _receive(stream)) is not None and "working" in first:
                    patience.deadline = trio.current_time() + seconds
        except trio.TooSlowError:
            return f"it did not start within {seconds:.0f} s", False
        except trio.BrokenResourceError:
            return ENDED_AT_START, False
        if first is None or "ready" not in first:
            failure = (first or {}).get("error") or {}
            reason = str(failure.get("reason", ENDED_AT_START))
            self.refusal = "" if self._ever_up or not failure else reason
            return reason, False
        if self._told:  # it is to end, and nobody may count on it
            return "restarted", False
        self._up = self._ever_up = True
        self._on_ready(first["ready"])
        hung: list[str] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write, stream)
            nursery.start_soon(self._watch, nursery.cancel_scope, hung)
            while (frame := await _receive(stream)) is not None:
                self._progress = trio.current_time()
                number = frame.get("id", -1)
                failure, answer = frame.get("error"), self._pending.pop(number, None)
                self._visits.pop(number, None)
                if failure and failure["kind"] == "oom" and failure["stage"] >= 0:
                    self._on_stage_lost(failure["stage"], f"out of memory: {failure['reason']}")
                if answer is not None:
                    answer(ComputeError(failure["kind"], failure["reason"], failure["stage"]) if failure else frame)
            nursery.cancel_scope.cancel()
        return hung[0] if hung else ENDED, True

    async def _watch(self, scope: trio.CancelScope, hung: list[str]) -> None:
        while not hung:
            await trio.sleep(self._hang_seconds / 20)
            silent = trio.current_time() - self._progress
            patience = self._hang_seconds * max(self._visits.values(), default=1)
            if self._pending and not self._frozen and silent > patience:
                hung.append(f"it has answered nothing for {silent:.0f} s")
        scope.cancel()

    async def _write(self, stream: trio.SocketStream) -> None:
        while True:
            await self._wakeup.wait()
            self._wakeup = trio.Event()
            while self._outgoing:
                data = b"".join(self._outgoing)
                self._outgoing.clear()
                try:
                    await stream.send_all(data)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return  # the reader sees the end


async def call_and_wait(post: Callable[..., None], op: str, **fields: Any) -> dict[str, Any]:
    """Queue a command by `post` and wait for its answer. Raises ComputeError."""
    done = trio.Event()
    result: list[dict[str, Any] | ComputeError] = []

    def answer(found: dict[str, Any] | ComputeError) -> None:
        result.append(found)
        done.set()

    post(op, answer, **fields)
    await done.wait()
    if isinstance(result[0], ComputeError):
        raise result[0]
    return result[0]


async def _receive(stream: trio.SocketStream) -> dict[str, Any] | None:
    """The next frame, or None at the end. A paused process may stop in the middle of one; `_watch` notices one that
    hangs."""
    try:
        frame = msgpack.unpackb(await read_frame(stream.receive_some, FRAME_BYTES_MAX, inf), raw=False)
    except (EOFError, PeerError, trio.BrokenResourceError, trio.ClosedResourceError):
        return None
    return frame if isinstance(frame, dict) else None
