"""Runs the shell blocks of a page, in the page's order, as somebody would type them.

Each block is a shell of its own that begins with the folder and the variables that the block before it ended with.
What a block leaves running lives on until the session ends. A note before a block says how it is run:

    <!-- not run: needs two machines -->            never
    <!-- run: with processes -->                    only among the tests with real processes
    <!-- run: with a swarm -->                      the same, while a small run is going on whose address is $PEER
    <!-- run: with a swarm, until "step" -->        until it has printed this; then it gets Ctrl-C, and must end well
    <!-- run: until "step" -->                      the same without a swarm
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType

from tests.docs.markdown_page import Block

ENDS_WELL = (0, 130)
"""Of what was ended by Ctrl-C."""
LOOK_SECONDS = 0.1
PATIENT = {f"FTNODE_{command}_TIMEOUT": "500" for command in ("JOIN", "STATUS", "PEERS", "HEALTH", "EXPORT", "DOCTOR")}
"""A busy machine starts torch slowly, and answers late."""
UNTIL = re.compile(r'until "([^"]+)"')


class BlockFailed(AssertionError):
    """A block did not do what the page promises; says what it printed."""


def _hears_ctrl_c() -> None:
    """Also where the tests run in the background of a shell, which has its children ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def is_run(block: Block) -> bool:
    return not block.note.startswith("not run:")


def needs_swarm(block: Block) -> bool:
    return block.note.startswith("run: with a swarm")


def needs_processes(block: Block) -> bool:
    return block.note.startswith("run: with ")


@dataclass
class Session:
    """`folder` is where the page begins, with whatever the page takes for granted in it."""

    folder: Path

    @property
    def home(self) -> Path:
        """Of ftnode."""
        return self.folder / "ftnode-home"

    def __post_init__(self) -> None:
        self._groups: list[subprocess.Popen[bytes]] = []
        self._where = self.folder
        home = self.folder / "home"
        home.mkdir(parents=True, exist_ok=True)
        self._variables = {
            **{name: value for name, value in os.environ.items() if not name.startswith("FTNODE_")},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(home),
            "XDG_DATA_HOME": str(home / "data"),
            "XDG_STATE_HOME": str(home / "state"),
            "XDG_CONFIG_HOME": str(home / "config"),
            "FTNODE_HOME": str(self.home),
            "FTNODE_JOIN_PORT_MAPPING": "false",
            "FTNODE_BOOTSTRAP_PORT_MAPPING": "false",
            **PATIENT,
        }

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    def end(self) -> None:
        """Kills all that blocks have left running."""
        for process in self._groups:
            self._signal(process, signal.SIGKILL)
            process.wait()

    def run(self, block: Block, seconds: float, variables: Mapping[str, str] = MappingProxyType({})) -> str:
        """What it printed. Raises BlockFailed when it fails, lasts longer, or never prints what it should. `variables`
        come before those that an earlier block has set."""
        until = UNTIL.search(block.note)
        script, state, printed = (self.folder / f".block-{block.line}.{name}" for name in ("sh", "state", "out"))
        script.write_text(block.text + "\n", encoding="utf-8")
        keep = 'set -aeuo pipefail; source "$1"; { pwd; env -0; } > "$2"'
        with printed.open("wb") as out:
            process = subprocess.Popen(
                ["bash", "-c", keep, "bash", script, state],
                cwd=self._where, env={**self._variables, **variables}, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, preexec_fn=_hears_ctrl_c,
            )  # fmt: skip
        self._groups.append(process)
        try:
            code = self._until(process, printed, until[1], seconds) if until else process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise self._failed(block, printed, f"did not end within {seconds:g} s") from None
        if code not in (ENDS_WELL if until else (0,)):
            raise self._failed(block, printed, f"ended with {code}")
        if state.exists():
            self._take(state)
        return printed.read_text(errors="replace")

    def _until(self, process: subprocess.Popen[bytes], printed: Path, text: str, seconds: float) -> int:
        """Raises TimeoutExpired. Ends early with its exit code, or 1, when it ends before it has printed the text."""
        for _ in range(int(seconds / LOOK_SECONDS)):
            try:
                code = process.wait(LOOK_SECONDS)
            except subprocess.TimeoutExpired:
                if text in printed.read_text(errors="replace"):
                    self._signal(process, signal.SIGINT)
                    return process.wait(seconds)
            else:
                return code or (0 if text in printed.read_text(errors="replace") else 1)
        raise subprocess.TimeoutExpired(process.args, seconds)

    def _take(self, state: Path) -> None:
        where, _, variables = state.read_bytes().partition(b"\n")
        self._where = Path(os.fsdecode(where))
        pairs = (os.fsdecode(each).partition("=") for each in variables.split(b"\0") if each)
        self._variables = {name: value for name, _, value in pairs}

    @staticmethod
    def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return

    @staticmethod
    def _failed(block: Block, printed: Path, what: str) -> BlockFailed:
        said = printed.read_text(errors="replace")[-2000:]
        return BlockFailed(f"the block in line {block.line} {what}:\n{block.text}\n--- it printed:\n{said}")
