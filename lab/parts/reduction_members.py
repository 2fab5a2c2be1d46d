"""A peer of the reduction benchmark as its parent sees it: a process that takes orders and answers, a line each."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from ftnode.protocol.words.errors import UserError

ROUND_SECONDS = 120.0
"""A round that takes longer has failed."""


class TooLate(Exception):
    """A peer that says nothing."""


@dataclass
class Member:
    """A peer that runs. `where`: what others need to find it."""

    index: int
    process: subprocess.Popen[bytes]
    where: Any = None
    _heard: bytes = b""

    def order(self, **order: Any) -> None:
        stdin = _pipe(self.process.stdin)
        stdin.write(json.dumps(order).encode() + b"\n")
        stdin.flush()

    def hear(self) -> Any:
        """The next line that it says. Raises TooLate, and UserError when it ends instead."""
        descriptor = _pipe(self.process.stdout).fileno()
        deadline = time.monotonic() + ROUND_SECONDS
        while b"\n" not in self._heard:
            if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TooLate
            data = os.read(descriptor, 1 << 16)
            if not data:
                raise UserError(f"a peer of the benchmark ended: {self.process.wait()}", 70)
            self._heard += data
        line, self._heard = self._heard.split(b"\n", 1)
        return json.loads(line)

    def kill_after(self, seconds: float) -> None:
        """Without a word, unless it ends before by itself."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    @property
    def peer_id(self) -> str:
        return str(self.where[0])


@contextmanager
def started(module: str, *arguments: object, index: int, descriptor: int | None = None) -> Iterator[Member]:
    """`python -m ftnode.lab.parts.MODULE ARGUMENTS`, which inherits `descriptor`. Ends when its stdin does."""
    argv = [sys.executable, "-m", f"ftnode.lab.parts.{module}", *map(str, arguments)]
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
        pass_fds=() if descriptor is None else (descriptor,),
    )  # fmt: skip
    try:
        yield Member(index, process)
    finally:
        if process.poll() is None:
            _pipe(process.stdin).close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe
