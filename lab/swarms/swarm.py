"""A swarm of real processes on this machine: started, watched by what they write, killed, and always cleared away.

The demo, the benchmarks and the tests stand on it. It starts nodes the way a person would (`ftnode bootstrap`,
`ftnode join`), on loopback with ports that the system chooses, and tells a running node nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from ftnode.lab.swarms.template import is_template
from ftnode.node.driver.trace import TRACE_NAME
from ftnode.node.machine.child_processes import is_running, start_child
from ftnode.node.owner.join_options import running_nodes
from ftnode.protocol.words.errors import UserError

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
NODE = ("ftnode.node.cli",)
BOOTSTRAP_SECONDS = 60.0
LEAVE_SECONDS = 10.0
"""A node that was asked to stop has this long before it is killed."""
AGREE_SECONDS = 1.5
GONE_SECONDS = 5.0
"""The kernel clears away a killed node's children well within this."""
POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process runs that does not share this machine's network: the command that `enter`s there before it
    becomes the program, and where it listens."""

    enter: tuple[str, ...] = ()
    listen: tuple[str, ...] = (LOOPBACK,)


@dataclass
class Process:
    """One started `ftnode`, with the folders that it owns."""

    name: str
    process: subprocess.Popen[bytes]
    home: Path
    log: Path

    @property
    def trace(self) -> Path:
        return self.log / TRACE_NAME

    @property
    def output(self) -> Path:
        return self.home / "output.log"

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def tail(self, lines: int = 5) -> str:
        """The end of what it printed, for a person."""
        if not self.output.exists():
            return ""
        return "\n".join(self.output.read_text(errors="replace").splitlines()[-lines:])


@dataclass
class Swarm:
    """A context manager; leaving it ends everything that it started, by process id, and waits until it is gone.

    `directory` gets `homes/NAME` and `logs/NAME` per process. `manifest` is the file that volunteers join.
    """

    directory: Path
    manifest: Path
    data: Path | None = None
    device: str = "cpu"
    threads: int = 1
    hash_every: int = 0
    """Volunteers hash their weights after every so many steps, for the audit."""
    options: tuple[str, ...] = ()
    """Of all volunteers; those of a single one come after them."""
    places: Mapping[str, Place] = field(default_factory=dict)
    """Of processes by name; all others are on loopback."""
    address: str = ""
    """The meeting point's full multiaddr."""
    processes: dict[str, Process] = field(default_factory=dict)

    def __enter__(self) -> Swarm:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start_bootstrap(self, name: str = "bootstrap", listen: str = "") -> Process:
        """Start a meeting point and wait for its address. Raises UserError (69) when it does not come up."""
        process = self._start(name, ["bootstrap", *self._listening(name, listen)])
        deadline = time.monotonic() + BOOTSTRAP_SECONDS
        while time.monotonic() < deadline and process.alive:
            running = [node for node in running_nodes(process.home) if node.addresses]
            if running:
                self.address = _loopback_first(running[0].addresses)
                return process
            time.sleep(POLL_SECONDS)
        raise UserError(f"the meeting point did not come up; it said: {process.tail() or 'nothing'}", 69)

    def start_volunteer(
        self, name: str, *, hold: int = 1, options: Sequence[str] = (), link: str = "", program: Sequence[str] = NODE,
        environment: Mapping[str, str] | None = None,
    ) -> Process:  # fmt: skip
        """Start a node that joins the run through the meeting point, by the manifest's file or by a link. `options`
        come last and win over ours. `program`: what takes the command line, a module and its first arguments.
        `environment`: more of it than ours, for all of its processes."""
        arguments = [
            "join", link or str(self.manifest), "--allow-unsigned", "--peer", self.address, "--hold", str(hold),
            "--device", self.device, "--threads", str(self.threads), "--log-dir", str(self.directory / "logs" / name),
            "--dump-rebuilds", "--hash-every", str(self.hash_every), "--run-on-battery", "--share-gpu", "--nice", "0",
        ]  # fmt: skip
        if "--listen" not in options:
            arguments += self._listening(name)
        if self.data is not None:
            arguments += ["--data", str(self.data)]
        return self._start(name, [*arguments, *self.options, *options], program, environment)

    def _start(
        self, name: str, arguments: list[str], program: Sequence[str] = NODE,
        environment: Mapping[str, str] | None = None,
    ) -> Process:  # fmt: skip
        home, log = self.directory / "homes" / name, self.directory / "logs" / name
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        log.parent.mkdir(parents=True, exist_ok=True)
        argv = [*self._place(name).enter, sys.executable, "-m", *program, *arguments, "--home", str(home)]
        theirs = {name: "" for name in os.environ if name.startswith(("FTNODE_JOIN_", "FTNODE_BOOTSTRAP_"))}
        whole = {"PYTHONUNBUFFERED": "1", **theirs, **(environment or {})}
        started = start_child(argv, log=home / "output.log", environment=whole)
        process = Process(name, started, home, log)
        self.processes[name] = process
        return process

    def _listening(self, name: str, listen: str = "") -> list[str]:
        where = (listen,) if listen else self._place(name).listen
        return [word for address in where for word in ("--listen", address)]

    def _place(self, name: str) -> Place:
        return self.places.get(name, Place())

    def kill(self, name: str) -> float:
        """SIGKILL a node's process, and only that one. Returns CLOCK_MONOTONIC at that moment."""
        process = self.processes[name].process
        now = time.monotonic()
        process.send_signal(signal.SIGKILL)
        process.wait()
        return now

    def stop(self, seconds: float = LEAVE_SECONDS) -> list[str]:
        """End all: ask, wait, kill. Returns the names of those that had to be killed. The meeting point goes last."""
        stubborn: list[str] = []
        for group in (
            [process for process in self.processes.values() if process.name != "bootstrap"],
            [process for process in self.processes.values() if process.name == "bootstrap"],
        ):
            families = [pid for process in group for pid in (process.process.pid, *descendants(process.process.pid))]
            for process in group:
                if process.alive:
                    process.process.send_signal(signal.SIGCONT)
                    process.process.terminate()
            self._ask_again(group)
            deadline = time.monotonic() + seconds
            for process in group:
                try:
                    process.process.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    process.process.kill()
                    process.process.wait()
                    stubborn.append(process.name)
            left = wait_until_gone(families)
            if left:
                raise UserError(f"processes {left} outlived their node; end them with kill", 70)
        return stubborn

    def _ask_again(self, group: Sequence[Process]) -> None:
        """A node that leaves waits for the others to agree; when all leave at once a second signal cuts that short."""
        deadline = time.monotonic() + AGREE_SECONDS
        while time.monotonic() < deadline and any(process.alive for process in group):
            time.sleep(POLL_SECONDS)
        for process in group:
            if process.alive:
                process.process.terminate()


def _loopback_first(addresses: Sequence[str]) -> str:
    return next((address for address in addresses if "/127.0.0.1/" in address), addresses[0])


def descendants(pid: int) -> tuple[int, ...]:
    """All processes below `pid`, children before grandchildren, without templates (template.py), which do nothing.
    Empty where there is no /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = entry.read_text().rpartition(")")[2].split()
        except OSError:  # it ended while we looked
            continue
        children.setdefault(int(after_name[1]), []).append(int(entry.parent.name))
    found, rest = [], list(children.get(pid, []))
    while rest:
        child = rest.pop(0)
        if not is_template(child):
            found.append(child)
        rest += children.get(child, [])
    return tuple(found)


def child_of(pid: int, word: str) -> int | None:
    """The first process below `pid` whose command line has `word` in it."""
    for child in descendants(pid):
        with suppress(OSError):  # it has ended meanwhile
            if word in Path(f"/proc/{child}/cmdline").read_bytes().decode(errors="replace"):
                return child
    return None


def wait_until_gone(pids: Sequence[int], seconds: float = GONE_SECONDS) -> tuple[int, ...]:
    """Those of `pids` that are still there after `seconds`; returns as soon as there are none."""
    deadline = time.monotonic() + seconds
    while True:
        left = tuple(pid for pid in pids if is_running(pid))
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(POLL_SECONDS)
