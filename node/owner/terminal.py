r"""A terminal with one line at its bottom that changes, and lines above it that stay.

The line is drawn from the first column to the last but one, and the cursor goes back to its beginning. So what erases
it, "\r" and "from here to the end of the screen", erases all of it whatever has become of it since: where a terminal
that is made narrow breaks the line into two, the cursor stays at the beginning of the first. rich.live leaves the
cursor behind the line, and half of the line then stays on the screen. What a terminal is, how wide it is and how wide
letters are is rich's business.

Nothing here waits for a terminal: one that was stopped by Ctrl-S, or hangs behind a dead connection, gets the newest
lines when it takes them again. A node that waited for it would be lost to its swarm.
"""

from __future__ import annotations

import io
import os
import select
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, TextIO, cast

from rich.cells import cell_len, set_cell_size
from rich.console import Console

ERASE: Final = "\r\x1b[J"
COLUMNS_USUAL: Final = 80
WIDTH_MIN: Final = 8
"""Below, there is no line."""
LINES_KEPT: Final = 1000
"""For a terminal that takes none now."""


def terminal_on(stream: TextIO) -> Terminal | None:
    """None where nobody looks at this stream by a terminal on which a line can be changed."""
    if not isinstance(stream, io.TextIOWrapper) or not stream.isatty():
        return None
    console = Console(file=stream)
    return Terminal(stream) if console.is_terminal and not console.is_dumb_terminal else None


class Terminal:
    """`stream` leads to one. A process of the background writes lines and shows none at the bottom, since others write
    there."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        self._stream = stream
        self._line = ""
        self._drawn = False
        self._owed: deque[str] = deque(maxlen=LINES_KEPT)

    @property
    def width(self) -> int:
        """Cells that the line may take; 0 where there is no room for one. The last column stays free: some terminals
        begin a new line as soon as it is written to."""
        try:
            columns = os.get_terminal_size(self._stream.fileno()).columns
        except (OSError, ValueError):
            columns = 0
        width = (columns or COLUMNS_USUAL) - 1  # a serial line says 0, since it does not know
        return width if width >= WIDTH_MIN else 0

    def cells(self, text: str) -> int:
        """The width of `text` when it is written with the letters that the terminal has."""
        return cell_len(self._spelt(text))

    def show(self, line: str) -> None:
        """From now on this is the line at the bottom; empty for none. Raises OSError when the terminal is gone."""
        self._line = line
        self._write()

    def say(self, line: str) -> None:
        """A line above it, which stays. Raises OSError as `show`."""
        self._owed.append(line)
        self._write()

    def close(self) -> None:
        """Leave nothing of the line. Raises OSError as `show`."""
        self._line = ""
        self._write()

    def _write(self) -> None:
        if not self._takes():
            return
        above = "".join(f"{line}\n" for line in self._owed)
        self._owed.clear()
        width, text = self.width, self._spelt(self._line) if self._in_front() else ""
        text = set_cell_size(text, width).rstrip() if cell_len(text) > width else text
        erase = ERASE if self._drawn or text else ""
        self._stream.write(erase + above + (f"{text}\r" if text else ""))
        self._stream.flush()
        self._drawn = bool(text)

    def _takes(self) -> bool:
        """Whether writing does not block."""
        with suppress(ValueError):
            return bool(select.select([], [self._stream], [], 0)[1])
        return True

    def _in_front(self) -> bool:
        try:
            return os.tcgetpgrp(self._stream.fileno()) == os.getpgrp()
        except OSError:
            return True  # not our controlling terminal, as under `script`: nobody else writes there

    def _spelt(self, text: str) -> str:
        encoding = self._stream.encoding
        return text.encode(encoding, self._stream.errors or "replace").decode(encoding)


class _Above(io.TextIOBase):
    """What a program prints to stderr, line by line, above the line."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal, self._begun = terminal, ""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._terminal.say(line)
        return len(text)

    def end(self) -> None:
        if self._begun:
            self.write("\n")


@contextmanager
def errors_above(terminal: Terminal | None) -> Iterator[None]:
    """While the body runs, stderr goes above the line, if it leads to a terminal. In the end the line is gone."""
    if terminal is None:
        yield
        return
    before = sys.stderr
    above = _Above(terminal)
    if before is not None and before.isatty():
        sys.stderr = cast(TextIO, above)
    try:
        yield
    finally:
        sys.stderr = before
        with suppress(OSError):
            above.end()
            terminal.close()
