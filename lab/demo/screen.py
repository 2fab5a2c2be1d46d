"""What a person sees while a demo runs: a table and a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from ftnode.lab.demo.report import tokens_per_second
from ftnode.lab.traces.story import Record, Story, Told, first_commits
from ftnode.protocol.words.types import HEAD

if TYPE_CHECKING:
    from rich.console import Group

LINE_STEPS = 10
"""Without a terminal, one line per this many steps."""
REFRESH_SECONDS = 0.2
RATE_COMMITS = 20
SAID = frozenset(
    (
        "lost",
        "offer",
        "answer",
        "view",
        "rebuild",
        "rebuilt",
        "stand",
        "halt",
        "poisoned",
        "skip",
        "compute",
        "finished",
    )
)
"""Kinds of notes that a person is told of."""
SAID_KEPT = 50


COLUMNS = ("stage", "peer", "state", "epoch", "step", "loss", "tokens/s")
NUMBERS = ("epoch", "step", "loss", "tokens/s")
SPARED = ("epoch", "tokens/s", "peer", "loss")
"""Columns that a narrow terminal does without, the first of them soonest."""
BETWEEN = 3
"""Cells that a column takes besides its text, at most."""


class Screen(Protocol):
    """Shows how the story goes on."""

    def __enter__(self) -> Screen: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def say(self, text: str) -> None: ...

    def show(self, story: Story, news: Iterable[Told]) -> None: ...


def open_screen(steps: int, *, to_stderr: bool) -> Screen:
    """A live one on a terminal. `to_stderr` leaves stdout to the report."""
    stream = sys.stderr if to_stderr else sys.stdout
    return LiveScreen(steps, to_stderr) if stream.isatty() else PlainScreen(steps, to_stderr)


def state_of(story: Story, stage: int, node: str | None) -> str:
    """What a holder of a stage does, in a word; what a reader of all traces can know."""
    if node is None:
        return "vacant"
    if node in story.ended:
        return "ended"
    if (node, stage) not in story.applied:
        return "fetching"
    step, counted = story.progress(node, stage)
    if step > story.committed:
        visits = story.microbatches * (2 if stage == HEAD else 1)
        return "ready" if (node, stage, step) in story.reduced else f"{counted}/{visits}"
    return "finished" if story.finished else "idle"


def rows(story: Story) -> list[tuple[str, ...]]:
    """(stage, peer, state, epoch, step, loss, tokens/s) per holder of a stage; the last two are the head's to know."""
    view = story.view
    if view is None:
        return []
    found: list[tuple[str, ...]] = []
    newest = story.commits[-1].record if story.commits else None
    known = ("", "") if newest is None else (f"{newest['loss']:.3f}", f"{rate(story):,.0f}")
    for stage, group in enumerate(view.holders):
        for peer in group or (None,):
            node = story.names.get(peer) if peer is not None else None
            who = "nobody" if peer is None else f"{node} {peer}" if node else str(peer)
            applied = story.applied.get((node, stage), 0) if node else 0
            name = "head" if stage == HEAD else str(stage)
            figures = known if stage == HEAD and peer == next(iter(group), None) else ("", "")
            found.append((name, who, state_of(story, stage, node), str(view.epochs[stage]), str(applied), *figures))
    return found


def fitting(cells: Sequence[Sequence[str]], width: int) -> list[int]:
    """Numbers of the columns that a terminal of `width` letters can show without cutting them. `cells`: the table, its
    first row the names."""
    kept = list(range(len(cells[0])))
    needed = [max(len(row[column]) for row in cells) + BETWEEN for column in kept]
    for name in SPARED:
        if sum(needed[column] for column in kept) > width:
            kept.remove(cells[0].index(name))
    return kept


def rate(story: Story) -> float:
    """Tokens per second over the newest commits."""
    return tokens_per_second(first_commits(story.commits)[-RATE_COMMITS:])


class Sayer:
    """Picks what is worth saying: each note once, though every node may write it at its own moment."""

    def __init__(self) -> None:
        self._said: deque[str] = deque(maxlen=SAID_KEPT)

    def pick(self, news: Iterable[Told]) -> list[str]:
        picked = []
        for told in news:
            text = _in_words(told.record)
            if text and text not in self._said:
                self._said.append(text)
                picked.append(text)
        return picked


def _in_words(record: Record) -> str:
    if record["k"] == "note" and record["kind"] in SAID:
        return f"{record['kind']}: {record['text']}"
    if record["k"] == "evaluated":
        return f"validation loss after step {record['step']}: {record['loss']:.3f}"
    return ""


class PlainScreen:
    """Lines that make sense in a log file."""

    def __init__(self, steps: int, to_stderr: bool) -> None:
        self._stream = sys.stderr if to_stderr else sys.stdout
        self._steps = steps
        self._sayer = Sayer()
        self._next = 1
        self._start = time.monotonic()

    def __enter__(self) -> PlainScreen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.flush()

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._start:7.1f} s  {text}", file=self._stream, flush=True)

    def show(self, story: Story, news: Iterable[Told]) -> None:
        for text in self._sayer.pick(news):
            self.say(text)
        if story.committed >= self._next:
            record = story.commits[-1].record
            self.say(f"step {record['step']}/{self._steps}  loss {record['loss']:.3f}  {rate(story):,.0f} tokens/s")
            self._next = (story.committed // LINE_STEPS + 1) * LINE_STEPS


class LiveScreen:
    """A table of the stages over a progress bar; what was said scrolls above."""

    def __init__(self, steps: int, to_stderr: bool) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._console = Console(stderr=to_stderr)
        self._progress = Progress(
            TextColumn("step"), MofNCompleteColumn(), BarColumn(None), TextColumn("{task.description}"),
            TimeElapsedColumn(), console=self._console,
        )  # fmt: skip
        self._task = self._progress.add_task("waiting for the volunteers", total=steps)
        self._live = Live(self._progress, console=self._console, refresh_per_second=8, auto_refresh=False)
        self._sayer = Sayer()
        self._shown = 0.0

    def __enter__(self) -> LiveScreen:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def say(self, text: str) -> None:
        from rich.markup import escape

        self._live.console.print(f"[dim]{escape(text)}[/dim]", highlight=False)

    def show(self, story: Story, news: Iterable[Told]) -> None:
        for text in self._sayer.pick(news):
            self.say(text)
        if time.monotonic() - self._shown < REFRESH_SECONDS:
            return
        self._shown = time.monotonic()
        if story.commits:
            self._progress.update(self._task, completed=story.committed, description="")
        self._live.update(self._picture(story), refresh=True)

    def _picture(self, story: Story) -> Group:
        from rich.box import SIMPLE_HEAD
        from rich.console import Group
        from rich.table import Table

        table, found = Table(expand=True, box=SIMPLE_HEAD, header_style="bold"), rows(story)
        kept = fitting([COLUMNS, *found], self._console.width)
        for column in kept:
            table.add_column(COLUMNS[column], justify="right" if COLUMNS[column] in NUMBERS else "left")
        for row in found:
            style = "red" if row[2] in ("vacant", "fetching") else None
            table.add_row(*(row[column] for column in kept), style=style)
        return Group(table, self._progress)
