"""One process that has torch, hivemind and the node's modules loaded, and becomes the processes that are asked for.

This is the end that asks; template_process.py is the other one.

Starting a volunteer the plain way costs 3.3 s of processor time, nearly all of it Python loading modules: 0.5 s for the
node, 0.3 s for its directory process, 2.5 s for its compute process. A fork of a process that has them loaded takes
some hundredths. Tests with many volunteers call `use_template()`; nodes of users never do, and the path that they take
through `start_child` is the one without it.

What a fork shares with a process that was started anew, as seen from outside:

- It is a child of the process that asked for it, dies with it, and has a process group or a session of its own.
- Command line, environment, working directory, output and inherited descriptors are those that were asked for.
- Its program is one of `ENTRIES`; of a template that was opened for programs, also the text behind `python -c`.
- A node that was forked has a template of its own, forked with it, for its compute and directory processes. That one is
  a child of the node (`is_template` tells it from the others).

What differs: all forks of one template have the same seed for hashes of strings, and memory that they share with it.
A process whose environment says something that Python or the libraries read when they load is started anew.

How it becomes a child of the one that asks: the template forks a process that forks another one and ends. The kernel
gives the orphan to the nearest ancestor that wants orphans (PR_SET_CHILD_SUBREAPER), and the one that asks wants them
for as long as it asks.
"""

from __future__ import annotations

import array
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgpack

from ftnode.node.machine import child_processes
from ftnode.node.machine.child_processes import THREAD_VARIABLES, Order
from ftnode.protocol.words.errors import LocalError

PROCESS: Final = "ftnode.lab.swarms.template_process"
NODE: Final = "ftnode.node.cli"
COMPUTE: Final = "ftnode.node.compute.process"
DIRECTORY: Final = "ftnode.node.directory.process"
READ_AT_LOAD: Final = ("PYTHON", "LD_", "CUDA", "TORCH", "ATEN_", "MKL_", "ONEDNN_")
"""What names of variables begin with that Python and the libraries read when they load."""
ENTRIES: Final = {
    NODE: ("ftnode.node.cli.main", "run_and_exit"),
    COMPUTE: (COMPUTE, "main"),
    DIRECTORY: (DIRECTORY, "main"),
}
"""What is started with `python -m`, and the module and function that do the work then."""
PRELOADED: Final = (
    *(module for module, _ in ENTRIES.values()), "ftnode.node.cli.join", "ftnode.node.life.node",
    "ftnode.node.data.shards", "ftnode.bootstrap.server", "ftnode.node.compute.paced_backend",
    "ftnode.node.compute.torch_backend", "torch.fx.experimental.symbolic_shapes",
)  # fmt: skip
"""Of torch what its first backward pass loads."""
PR_SET_CHILD_SUBREAPER: Final = 36
"""From linux/prctl.h."""
COMMAND_LINE_BYTES: Final = 4096
"""Room for the command line of a fork, which is written over that of the template."""
MESSAGE_BYTES_MAX: Final = 1 << 18
DESCRIPTORS_MAX: Final = 16
READY_SECONDS: Final = 120.0
FORK_SECONDS: Final = 20.0


class Template:
    """The end that asks. `fork` gives the process id of a new child of ours."""

    def __init__(self, link: socket.socket, environment: Mapping[str, str], programs: bool = False) -> None:
        """`environment`: what the template was started with. `programs`: whether it becomes `python -c`, too."""
        self._link, self._programs = link, programs
        self._read_at_load = read_at_load(environment)
        self.forked = 0

    def start(self, order: Order) -> subprocess.Popen[bytes] | None:
        """A fork that carries out `order`; None when only a process started anew can."""
        python, how, what = (*order.argv, "", "", "")[:3]
        is_ours = (how == "-m" and what in ENTRIES) or (how == "-c" and self._programs)
        if python != sys.executable or not is_ours or read_at_load(order.environment) != self._read_at_load:
            return None
        self.forked += 1
        return Forked(self, order)

    def fork(self, order: Order) -> int:
        """Raises LocalError when the template does not answer; it is of no use any more then."""
        ignored = [int(number) for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN]
        frame = {
            "argv": list(order.argv), "descriptors": list(order.pass_fds), "environment": dict(order.environment),
            "folder": os.getcwd(), "own_session": order.own_session, "parent": os.getpid(), "ignored": ignored,
        }  # fmt: skip
        reading, writing = os.pipe()
        try:
            with adopting_orphans():
                try:
                    send(self._link, frame, [writing, order.output, *order.pass_fds])
                finally:
                    os.close(writing)
                answer = read_number(reading, FORK_SECONDS)
        except (OSError, TimeoutError) as error:
            raise LocalError(f"the template does not answer: {error}") from error
        finally:
            os.close(reading)
        return answer


class Forked(subprocess.Popen[bytes]):
    """A child that the template made instead of fork and exec. All else is what it is for any child."""

    def __init__(self, template: Template, order: Order) -> None:
        self._template, self._order = template, order
        super().__init__(order.argv)

    def _execute_child(self, *arguments: Any, **named: Any) -> None:
        self.pid = self._template.fork(self._order)
        self._child_created = True


def use_template(preloaded: Sequence[str] = PRELOADED) -> None:
    """From now on `start_child` in this process starts nodes, compute and directory processes as forks of a template.

    The template itself is started when the first of them is."""
    if sys.platform != "linux":
        return
    made: list[Template] = []

    def start(order: Order) -> subprocess.Popen[bytes] | None:
        if len(order.argv) < 3 or order.argv[1] != "-m" or order.argv[2] not in ENTRIES:
            return None
        if not made:
            child_processes.starter = None
            try:
                made.append(open_template(preloaded))
            finally:
                child_processes.starter = start
        return made[0].start(order)

    child_processes.starter = start


def open_template(preloaded: Sequence[str] = PRELOADED, *, programs: bool = False) -> Template:
    """Start a template process and wait until it has loaded what it is for. Raises LocalError when it cannot."""
    ours, theirs = socket.socketpair()
    argv = [sys.executable, "-m", PROCESS, str(theirs.fileno()), "-" * COMMAND_LINE_BYTES]
    environment = {"PYTHONUNBUFFERED": "1", "HIVEMIND_LOGLEVEL": "WARNING"}
    with theirs:
        child_processes.start_child(argv, pass_fds=[theirs.fileno()], environment=environment)
    ours.settimeout(READY_SECONDS)
    try:
        # Not as an argument: processes are told by the names of modules in their command lines.
        ours.send(",".join(preloaded).encode())
        ready = ours.recv(1)
    except OSError:
        ready = b""
    if not ready:
        raise LocalError("the template process did not start")
    ours.settimeout(None)
    return Template(ours, os.environ, programs)


def read_at_load(environment: Mapping[str, str]) -> dict[str, str]:
    """What Python and the libraries read of the environment when they load."""
    ours = ("PYTHONUNBUFFERED", "HIVEMIND_LOGLEVEL")
    return {
        name: value
        for name, value in environment.items()
        if name in THREAD_VARIABLES or (name.startswith(READ_AT_LOAD) and name not in ours)
    }


def is_template(pid: int) -> bool:
    """Whether this is a process that only waits to become others."""
    try:
        return PROCESS.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


@contextmanager
def adopting_orphans() -> Iterator[None]:
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def send(link: socket.socket, frame: dict[str, Any], descriptors: Sequence[int]) -> None:
    body = msgpack.packb(frame)
    assert len(body) <= MESSAGE_BYTES_MAX and len(descriptors) <= DESCRIPTORS_MAX
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
    link.sendmsg([len(body).to_bytes(4, "big")], [rights])
    link.sendall(body)


def read_number(descriptor: int, seconds: float) -> int:
    """All that comes until the other end is closed. Raises TimeoutError, and OSError when it is no number. `select`
    would refuse a descriptor above 1,023, which a process that has run many tests may have."""
    read, poll = b"", select.poll()
    poll.register(descriptor, select.POLLIN)
    while poll.poll(seconds * 1e3):
        part = os.read(descriptor, 8)
        read += part
        if part:
            continue
        if len(read) != 4:
            raise OSError("it made no process")
        return int.from_bytes(read, "big")
    raise TimeoutError(f"nothing within {seconds:g} s")
