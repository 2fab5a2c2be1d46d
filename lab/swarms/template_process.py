"""The template's own process, and what a fork of it does to become the process that was asked for (template.py).

    python -m ftnode.lab.swarms.template_process SOCKET_FD ROOM

The first message on the socket names the modules to load, and the first byte back says that they are. ROOM is a long
word, over which the command lines of forks are written.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Final

import msgpack

from ftnode.lab.swarms.template import DESCRIPTORS_MAX, DIRECTORY, ENTRIES, MESSAGE_BYTES_MAX, NODE, PROCESS, Template
from ftnode.node.machine import child_processes

ARGUMENTS_FIELDS: Final = (45, 46)
"""Of /proc/PID/stat behind the name: where the command line begins and ends in memory (proc(5): fields 48 and 49)."""
ADOPTED_POLL_SECONDS: Final = 0.0005


@dataclass(frozen=True, slots=True)
class Request:
    """What a fork is to become."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    folder: str
    own_session: bool
    parent: int
    ignored: tuple[int, ...]
    numbers: tuple[int, ...]
    """That the descriptors must have, the last ones of `descriptors`."""
    descriptors: tuple[int, ...]
    """For the answer, for the output, and those that are passed on."""


def main() -> None:
    link = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    load(link.recv(MESSAGE_BYTES_MAX).decode().split(","))
    link.send(b"1")
    run(serve(link))


def load(modules: Sequence[str]) -> None:
    """The directory's part first: it does not load torch, and what it has instead is gone before torch is loaded."""
    if DIRECTORY in modules:
        from ftnode.node.directory import dht_without_torch

        dht_without_torch.load(["hivemind.dht.node", "hivemind.dht.protocol"])
        import_module("ftnode.node.directory.dht")
    for name in modules:
        import_module(name)
    tasks = len(list(Path("/proc/self/task").iterdir()))
    assert tasks == 1, f"a process with {tasks} threads cannot be forked"
    gc.collect()
    gc.freeze()  # so that a collection in a fork leaves the shared pages as they are


def serve(link: socket.socket) -> Request:
    """Answer requests until the other end closes, which ends the process. Returns in a fork only: what it is to be."""
    while (request := receive(link)) is not None:
        torch = sys.modules.get("torch")
        assert torch is None or not torch.cuda.is_initialized(), "CUDA does not survive a fork"
        between = os.fork()
        if not between:
            _orphan(request)
            return request
        for descriptor in request.descriptors:
            os.close(descriptor)
        os.waitpid(between, 0)
    os._exit(0)


def _orphan(request: Request) -> None:
    """Return in a grandchild of the template, once it is a child of the one that asked. Ends everything else."""
    between = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == between:
        time.sleep(ADOPTED_POLL_SECONDS)
    child_processes.die_with(request.parent)


def run(request: Request) -> None:
    """Be the process that was asked for, to its end."""
    _, how, what, *arguments = request.argv
    answer = _take_over(request)
    os.write(answer, os.getpid().to_bytes(4, "big"))
    os.close(answer)
    child_processes.starter = None
    if how == "-c":
        sys.argv = [how, *arguments]
        _end(_status_of(partial(exec, what, {"__name__": "__main__"})))
    place, function = ENTRIES[what]
    entry = import_module(place)
    sys.argv = [str(entry.__file__), *arguments]
    if what == NODE:
        _take_template_along()
    _end(_status_of(getattr(entry, function)))


def _take_over(request: Request) -> int:
    """Become what was asked for in all that can be seen from outside; the descriptor for the answer, the last one that
    was not asked for."""
    if request.own_session:
        os.setsid()
    else:
        os.setpgid(0, 0)
    highest = max([2, *request.numbers])
    answer, *safe = [_moved_above(descriptor, highest) for descriptor in request.descriptors]
    for source, target in zip(safe, (1, *request.numbers)):
        os.dup2(source, target)
    os.dup2(1, 2)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    keep = sorted({0, 1, 2, answer, *request.numbers})
    for low, high in zip(keep, [*keep[1:], os.sysconf("SC_OPEN_MAX")]):
        os.closerange(low + 1, high)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN if number in request.ignored else signal.SIG_DFL)
    if signal.SIGINT not in request.ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.folder)
    time.tzset()
    show_command_line(request.argv)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    return answer


def _moved_above(descriptor: int, highest: int) -> int:
    moved: int = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, highest + 1)
    return moved


def _take_template_along() -> None:
    """Fork a template of the node's own, before the node has threads or anything that should not be copied."""
    ours, theirs = socket.socketpair()
    node = os.getpid()
    if os.fork():
        theirs.close()
        child_processes.starter = Template(ours, os.environ).start
        return
    ours.close()
    os.setpgid(0, 0)
    child_processes.die_with(node)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    show_command_line([sys.executable, "-m", PROCESS, "of", str(node)])
    for target in (0, 1, 2):
        with open(os.devnull, "r+b") as nothing:
            os.dup2(nothing.fileno(), target)
    run(serve(theirs))


def _status_of(entry: Callable[[], int | None]) -> int:
    """What an interpreter makes of how it ends; the traceback of another exception is its own affair."""
    try:
        status: int | str | None = entry()
    except SystemExit as end:
        status = end.code
    if isinstance(status, str):
        print(status, file=sys.stderr)
        return 1
    return status or 0


def _end(status: int) -> None:
    """As an interpreter ends, but for the memory that it shares, which it leaves alone."""
    with suppress(AttributeError):
        threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status & 0xFF)


def show_command_line(argv: Sequence[str]) -> None:
    """Write it over our own in memory, where /proc/PID/cmdline is read from. What does not fit is cut off."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = (int(fields[index]) for index in ARGUMENTS_FIELDS)
    text = b"".join(os.fsencode(word) + b"\0" for word in argv)[: end - begin - 1]
    ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


def receive(link: socket.socket) -> Request | None:
    head, descriptors, _, _ = socket.recv_fds(link, 4, DESCRIPTORS_MAX)
    if len(head) < 4:
        return None
    size, body = int.from_bytes(head, "big"), bytearray()
    while len(body) < size:
        part = link.recv(size - len(body))
        if not part:
            return None
        body += part
    frame = msgpack.unpackb(bytes(body))
    return Request(
        argv=tuple(frame["argv"]), environment=frame["environment"], folder=frame["folder"],
        own_session=frame["own_session"], parent=frame["parent"], ignored=tuple(frame["ignored"]),
        numbers=tuple(frame["descriptors"]), descriptors=tuple(descriptors),
    )  # fmt: skip


if __name__ == "__main__":
    main()
