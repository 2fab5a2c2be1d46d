"""Programs that look at swarms with py-libp2p, which takes most of their time to load; forks of one that has it loaded.

In tests marked `fresh` they are started as on a user's machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Final

import trio

from ftnode.lab.swarms.template import Template, open_template
from ftnode.node.machine import child_processes
from ftnode.node.machine.child_processes import child_ended, start_child

COMMAND: Final = "from ftnode.node.cli.main import run_and_exit; run_and_exit()"
"""The program that is `ftnode`."""
LOADED: Final = (
    "ftnode.node.cli.main", "ftnode.node.cli.status", "ftnode.node.cli.doctor", "ftnode.node.cli.dashboard",
    "ftnode.node.manifests.fetch", "ftnode.node.watch.light_client", "ftnode.node.watch.dashboard_live", "libp2p",
    "libp2p.crypto.ed25519", "libp2p.security.tls.transport", "libp2p.stream_muxer.yamux.yamux",
)  # fmt: skip
TWO_OUTPUTS: Final = "import os, sys\nfor target in (1, 2):\n    os.dup2(int(sys.argv.pop(1)), target)\n"
"""A fork has one descriptor for both until it takes others."""


@dataclass
class Program:
    """One that runs, and what it says."""

    process: subprocess.Popen[bytes]
    stdout: trio.lowlevel.FdStream
    stderr: trio.lowlevel.FdStream

    async def ended(self) -> int:
        return await child_ended(self.process)


@cache
def template() -> Template:
    return open_template(LOADED, programs=True)


@contextmanager
def forking() -> Iterator[None]:
    before = child_processes.starter
    if before is not None:
        child_processes.starter = template().start
    try:
        yield
    finally:
        child_processes.starter = before


@asynccontextmanager
async def running(program: str, *arguments: str) -> AsyncIterator[Program]:
    """`python -c program *arguments`, which ends with this context at the latest."""
    (out, out_theirs), (err, err_theirs) = os.pipe(), os.pipe()
    theirs = (out_theirs, err_theirs)
    try:
        with forking():
            argv = [sys.executable, "-c", TWO_OUTPUTS + program, *map(str, theirs), *arguments]
            process = start_child(argv, pass_fds=theirs)
    finally:
        for descriptor in theirs:
            os.close(descriptor)
    async with trio.lowlevel.FdStream(out) as stdout, trio.lowlevel.FdStream(err) as stderr:
        try:
            yield Program(process, stdout, stderr)
        finally:
            process.kill()
            process.wait()


async def finished(program: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """The same, to its own end, and all that it said."""
    said: dict[trio.lowlevel.FdStream, bytes] = {}

    async def read(stream: trio.lowlevel.FdStream) -> None:
        said[stream] = b"".join([part async for part in stream])

    async with running(program, *arguments) as one:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, one.stdout)
            nursery.start_soon(read, one.stderr)
        return subprocess.CompletedProcess(arguments, await one.ended(), said[one.stdout], said[one.stderr])
