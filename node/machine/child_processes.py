"""Processes that die with the one that started them, even when that one is killed outright.

Linux delivers the parent-death signal when the *thread* that forked ends, so children are started from the main
thread. Elsewhere the call is a no-op, and our own children end when their socket pair closes.
"""

from __future__ import annotations

import ctypes
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from socket import socket, socketpair
from typing import Any

from ftnode.protocol.words.errors import LocalError

logger = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""
STOP_SECONDS = 2.0
"""A child that ignores SIGTERM for this long is killed."""
FILES_MAX = 16384
"""Descriptors that a node needs at most: two for each stream and each link, of which a service may have 1,024 only."""
LOOK_SECONDS = 0.1
"""Between two looks at a child for which there is no descriptor."""
GONE_SECONDS = 30.0
"""A killed child is left to itself after so long. The kernel takes a quarter of a second for each GB of its memory; one
that waits inside a driver may never end."""

THREAD_VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "RAYON_NUM_THREADS",
)  # fmt: skip
"""Of OpenMP, which torch uses, of the two BLAS that numpy comes with, of numexpr, and of the tokenizers."""

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True, slots=True)
class Order:
    """A child that is to be started. `environment` is all of it; `output` is a descriptor."""

    argv: tuple[str, ...]
    output: int
    pass_fds: tuple[int, ...]
    environment: Mapping[str, str]
    own_session: bool


starter: Callable[[Order], subprocess.Popen[bytes] | None] | None = None
"""Another way to start a child, which may decline. Only the lab's tests set it (lab/swarms/template.py)."""


def raise_files_limit() -> None:
    """Have as many descriptors as a node can need, as far as the system allows. Children inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):  # macOS allows fewer than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def start_child(
    argv: Sequence[str],
    *,
    log: Path | None = None,
    pass_fds: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
    own_session: bool = False,
) -> subprocess.Popen[bytes]:
    """Start `argv` without stdin, its output appended to the file `log` (None: discarded, and so it is when the disk
    takes no such file).

    `environment` is added to our own. `own_session`: where the kernel shares the processor among sessions first
    (sched(7), autogroup), a low priority means nothing outside of one's own. Raises OSError when the program cannot be
    started, and LocalError when called from another thread than the main one.
    """
    if threading.current_thread() is not threading.main_thread():
        raise LocalError("a child must be started from the main thread, whose end is the node's end")
    output = _opened(log)
    order = Order(tuple(argv), output, tuple(pass_fds), {**os.environ, **(environment or {})}, own_session)
    try:
        return (starter(order) if starter else None) or _start(order)
    finally:
        os.close(output)


def start_linked(
    argv_to: Callable[[int], Sequence[str]], *, pass_fds: Sequence[int] = (), **how: Any
) -> tuple[subprocess.Popen[bytes], socket]:
    """Start a child with one end of a socket pair; it and the other end. `argv_to`: with the number that the child's
    end has there. The rest as of `start_child`, also what it raises."""
    ours, theirs = socketpair()
    try:
        with theirs:
            child = start_child(argv_to(theirs.fileno()), pass_fds=(theirs.fileno(), *pass_fds), **how)
    except BaseException:
        ours.close()
        raise
    return child, ours


def _start(order: Order) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        order.argv,
        stdin=subprocess.DEVNULL,
        stdout=order.output,
        stderr=subprocess.STDOUT,
        pass_fds=order.pass_fds,
        env=order.environment,
        # Ctrl-C in a terminal reaches the whole foreground group; the node decides when its children end.
        process_group=None if order.own_session else 0,
        start_new_session=order.own_session,
        preexec_fn=partial(die_with, os.getpid()) if _libc is not None else None,
    )


def _opened(log: Path | None) -> int:
    if log is not None:
        try:
            return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            logger.warning("%s is not written: %s", log, error.strerror)
    return os.open(os.devnull, os.O_WRONLY)


def die_with(parent: int) -> None:
    """In a child, before anything else: the kernel kills this process when its parent ends, or it ends right here."""
    if _libc is None:
        return
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the signal was asked for
        os._exit(1)


def thread_environment(threads: int) -> dict[str, str]:
    """For a child: every library with threads of its own keeps to so many. Threads of OpenMP that wait for each other
    sleep: by default they keep the cores busy that the others need, and where something else runs, all stand still."""
    waiting = {"OMP_WAIT_POLICY": "passive", "TOKENIZERS_PARALLELISM": "false"}
    return {name: str(threads) for name in THREAD_VARIABLES} | waiting


def stop_child(process: subprocess.Popen[bytes], seconds: float = STOP_SECONDS) -> int:
    """End a child and return its exit status (negative: the signal). Blocks for `seconds` at most before SIGKILL."""
    if process.poll() is None:
        process.terminate()
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()


def ending(status: int | None) -> str:
    """How a child ended, for a person; `status` as of `ended_within`."""
    if status is None:
        return "it has not ended yet"
    if status >= 0:
        return f"exit status {status}"
    try:
        name = f" ({signal.Signals(-status).name})"
    except ValueError:
        name = ""  # of real time
    why = ", often for want of memory" if status == -signal.SIGKILL else ""
    return f"killed by signal {-status}{name}{why}"


async def kill_child(process: subprocess.Popen[bytes], seconds: float = GONE_SECONDS) -> int | None:
    """Kill a child, and wait on trio until it has ended, also when cancelled; its exit status. None: it has not ended
    within `seconds`, and is left to itself."""
    process.kill()
    status = await ended_within(process, seconds)
    if status is None:
        logger.warning(
            "process %d was killed and has not ended for %g s: it may wait inside a driver", process.pid, seconds
        )
    return status


async def ended_within(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """As `child_ended`, also when cancelled. None: it has not ended within `seconds`."""
    import trio

    with trio.CancelScope(deadline=trio.current_time() + seconds, shield=True):
        return await child_ended(process)
    return None


def is_running(pid: int) -> bool:
    """Whether a process runs, of whosever making; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        if sys.platform == "linux":
            return False
    except OSError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def process_of(pid: int) -> Iterator[Callable[[int], None]]:
    """A function that sends signals to the process which has this number now, and to no later one. It and this raise
    ProcessLookupError when it is gone."""
    if not hasattr(signal, "pidfd_send_signal"):
        yield partial(os.kill, pid)
        return
    descriptor = os.pidfd_open(pid)
    try:
        yield partial(signal.pidfd_send_signal, descriptor)
    finally:
        os.close(descriptor)


async def child_ended(process: subprocess.Popen[bytes]) -> int:
    """Wait on trio until the child has ended; its exit status, negative for a signal."""
    import trio  # only those who wait need it: whoever merely starts children stays cheap to import

    if sys.platform != "linux":
        return await trio.to_thread.run_sync(process.wait, abandon_on_cancel=True)
    while process.poll() is None:
        try:
            descriptor = os.pidfd_open(process.pid)
        except OSError:  # as for want of descriptors: who only waits must not be what ends a node
            await trio.sleep(LOOK_SECONDS)
            continue
        try:
            await trio.lowlevel.wait_readable(descriptor)
        finally:
            os.close(descriptor)
    return process.wait()
