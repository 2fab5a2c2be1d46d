"""Runs the command line in this process, as the console script does, and gives back what a person would see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from ftnode.node.cli.main import main


@dataclass(frozen=True)
class Seen:
    code: int
    out: str
    err: str

    def refused(self, code: int, *says: str) -> bool:
        """One line on stderr that names the program and says all of this; nothing on stdout. On a slow machine it may
        come after lines about what is waited for."""
        assert (self.code, self.out) == (code, ""), self
        lines = [line for line in self.err.splitlines(keepends=True) if not line.startswith("ftnode: waits for ")]
        assert len(lines) == 1 and lines[0].startswith("ftnode: ") and lines[0].endswith("\n"), self
        assert all(part in lines[0] for part in says), self
        return True


def runner(capsys: pytest.CaptureFixture[str]) -> Callable[..., Seen]:
    def run(*arguments: object) -> Seen:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Seen(code, captured.out, captured.err)

    return run
