"""A line at the bottom of a real pseudo-terminal, and what is left of it."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import select
import struct
import sys
import termios
from collections.abc import Iterator

import pytest

from ftnode.node.cli.letters import spell_out
from ftnode.node.owner.announcements import Speaking
from ftnode.node.owner.terminal import LINES_KEPT, Terminal, errors_above, terminal_on


class Screen:
    """A terminal of some columns, as its reader sees it: it knows letters, CR, LF and what erases to the end."""

    def __init__(self, columns: int, encoding: str = "utf-8") -> None:
        self.master, slave = pty.openpty()
        self.stream = io.TextIOWrapper(os.fdopen(slave, "wb"), encoding=encoding, errors="strict", write_through=True)
        self.encoding, self.rows, self.row, self.column = encoding, [""], 0, 0
        self.resize(columns)

    def resize(self, columns: int) -> None:
        """Lines that are too long are broken, and the cursor stays at its letter, as terminals do today."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.columns, row = columns, 0
        broken: list[str] = []
        for number, text in enumerate(self.rows):
            row = len(broken) if number == self.row else row
            broken += [text[at : at + columns] for at in range(0, max(1, len(text)), columns)]
        self.rows, self.row, self.column = broken, row + self.column // columns, self.column % columns

    def read(self) -> list[str]:
        """What is on it now, without empty lines at the end."""
        while select.select([self.master], [], [], 0.05)[0]:
            self._take(os.read(self.master, 1 << 16).decode(self.encoding))
        return "\n".join(self.rows).rstrip("\n").split("\n")

    def _take(self, text: str) -> None:
        while text:
            if text.startswith("\x1b[J"):
                self.rows[self.row :] = [self.rows[self.row][: self.column]]
                text = text[3:]
                continue
            letter, text = text[0], text[1:]
            if letter == "\r":
                self.column = 0
            elif letter == "\n":
                self._down()
            else:
                assert letter.isprintable(), f"control character {letter!r}"
                if self.column == self.columns:
                    self._down()
                    self.column = 0
                line = self.rows[self.row].ljust(self.column)
                self.rows[self.row] = line[: self.column] + letter + line[self.column + 1 :]
                self.column += 1

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append("")


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Screen]:
    monkeypatch.setenv("TERM", "xterm")
    made = Screen(40)
    yield made
    made.stream.close()
    os.close(made.master)


def test_lines_stand_above_the_one_that_changes(screen: Screen) -> None:
    terminal = Terminal(screen.stream)
    terminal.show("step 1 of 9; loss 2.0000")
    terminal.say("10:00:00  join       hello")
    assert screen.read() == ["10:00:00  join       hello", "step 1 of 9; loss 2.0000"]
    terminal.show("step 2")
    terminal.say("10:00:01  view       " + "x" * 60)
    assert screen.read() == ["10:00:00  join       hello", "10:00:01  view       " + "x" * 19, "x" * 40, "x", "step 2"]
    terminal.close()
    assert screen.read()[-1] == "x" and screen.column == 0, "nothing is left, and a prompt begins at the edge"


@pytest.mark.parametrize("columns", [25, 12, 9, 5, 2])
def test_a_terminal_that_is_made_narrow_keeps_no_half_of_it(screen: Screen, columns: int) -> None:
    terminal = Terminal(screen.stream)
    terminal.say("hi")
    terminal.show("step 123 of 4,567; loss 2.1234; 9 hours to go")
    assert len(screen.read()[1]) == 39, "the last column stays free"
    screen.resize(columns)
    assert len(screen.rows) > 2, "the terminal breaks it"
    terminal.show("step 124")
    assert screen.read() == ["hi", *(["step 124"[: columns - 1]] if columns > 8 else [])]
    screen.resize(40)
    terminal.show("step 125")
    assert screen.read() == ["hi", "step 125"]
    terminal.close()
    assert screen.read() == ["hi"]


def test_what_the_keyboard_echoes_is_gone_with_the_next_line(screen: Screen) -> None:
    terminal = Terminal(screen.stream)
    terminal.show("step 1")
    screen.stream.write("^C")
    terminal.show("step 2")
    assert screen.read() == ["step 2"]


def test_a_terminal_with_few_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """The width is that of the letters that it gets."""
    monkeypatch.setenv("TERM", "xterm")
    ascii_screen = Screen(20, "ascii")
    spell_out(ascii_screen.stream)
    terminal = Terminal(ascii_screen.stream)
    assert terminal.cells("a…") == 4
    terminal.say("1 → 2")
    terminal.show("…" * 12)
    assert ascii_screen.read() == ["1 -> 2", "." * 19]
    ascii_screen.stream.close()
    os.close(ascii_screen.master)


def test_a_terminal_that_takes_nothing_does_not_stop_the_node(screen: Screen) -> None:
    """Ctrl-S. It gets the newest lines when it takes them again."""
    terminal = Terminal(screen.stream)
    termios.tcflow(screen.stream.fileno(), termios.TCOOFF)
    for number in range(LINES_KEPT + 100):
        terminal.say(f"line {number}")
        terminal.show("step 1")
    assert screen.read() == [""]
    termios.tcflow(screen.stream.fileno(), termios.TCOON)
    terminal.show("step 2")
    shown = screen.read()
    assert shown[0] == "line 100" and shown[-2:] == [f"line {LINES_KEPT + 99}", "step 2"]


def test_what_is_printed_to_stderr_stands_above_it(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", screen.stream)
    terminal = Terminal(screen.stream)
    with errors_above(terminal):
        terminal.show("step 1")
        print("ftnode: cannot write", file=sys.stderr)
        sys.stderr.write("no end")
        assert screen.read() == ["ftnode: cannot write", "step 1"]
    assert sys.stderr is screen.stream and screen.read() == ["ftnode: cannot write", "no end"]


def test_the_node_speaks_above_its_line(screen: Screen) -> None:
    speaking = Speaking(False, Terminal(screen.stream))
    speaking.show("step 1\x1b[2J")
    speaking.say("stand", "it begins")
    above, below = screen.read()
    assert above.endswith("  step       it begins") and below == "step 1 [2J"


def test_where_there_is_a_line_at_all(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    assert terminal_on(screen.stream) is not None
    monkeypatch.setenv("TERM", "dumb")
    assert terminal_on(screen.stream) is None
    monkeypatch.setenv("TERM", "xterm")
    assert terminal_on(io.TextIOWrapper(io.BytesIO())) is None, "a file, or a pipe"
