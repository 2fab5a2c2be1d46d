"""Programs that stand for volunteers of this machine: each says its PeerId first, and goes with the test."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def starting(program: str, home: Path) -> Iterator[Callable[..., tuple[str, subprocess.Popen[str]]]]:
    """A function that starts `program`, Python's text, with the home and its arguments; the PeerId and the process."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object) -> tuple[str, subprocess.Popen[str]]:
        command = [sys.executable, "-c", program, str(home), *map(str, arguments)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        return process.stdout.readline().strip(), process

    try:
        yield start
    finally:
        for process in started:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait(10)
