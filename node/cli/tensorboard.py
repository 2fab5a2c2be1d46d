"""`ftnode tensorboard`: a node's metrics.jsonl as TensorBoard events. The node itself needs nothing for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from ftnode.node.cli.options import INPUT, OUTPUT, unused_home_option
from ftnode.protocol.words.errors import UserError

ERRORS = "cli_tensorboard"

FOLLOW_SECONDS = 2.0
SERIES = {
    "commit": (
        ("loss", "loss/training"), ("tokens_per_second", "speed/tokens_per_second"), ("seconds", "speed/step_seconds"),
    ),
    "validation": (("loss", "loss/validation"), ("perplexity", "loss/perplexity")),
}  # fmt: skip
"""Kind of line → (field, TensorBoard's tag)."""


@click.command("tensorboard")
@click.argument("metrics", type=INPUT)
@click.argument("out", type=OUTPUT)
@click.option("--follow", is_flag=True, help="Go on with what the node writes, until Ctrl-C.")
@unused_home_option
def tensorboard(metrics: Path, out: Path, follow: bool, home: str | None) -> None:
    """Write METRICS, a metrics.jsonl or the log folder that has it, as TensorBoard events to the new folder OUT."""
    from ftnode.node.watch.metrics_file import METRICS_NAME, MetricsTail, read_metrics

    _need_library()
    path = metrics / METRICS_NAME if metrics.is_dir() else metrics
    earlier, tail = path.with_name(path.name + ".1"), MetricsTail(path)
    lines = list(tail.read())  # before anything is written, so that bad input leaves nothing behind
    _check_new(out)
    with _writing(out) as events:
        count = write(events.add, read_metrics(earlier)) if earlier.exists() else 0
        count += write(events.add, lines)
        events.flush()
        click.echo(f"{count} steps and validations of {path} are in {out}; look with: tensorboard --logdir {out}")
        with suppress(KeyboardInterrupt):
            while follow:
                time.sleep(FOLLOW_SECONDS)
                write(events.add, tail.read())
                events.flush()


class Events:
    """The file of events in a folder. Written by whoever calls: tensorboardX's own SummaryWriter has a thread that an
    error of the disk ends, and who gives it more waits for ever."""

    def __init__(self, out: Path) -> None:
        """Raises OSError."""
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import scalar

        out.mkdir(parents=True, exist_ok=True)
        self._event, self._scalar, self._file = Event, scalar, EventsWriter(str(out / "events"))

    def add(self, tag: str, value: float, step: int, wall_time: float) -> None:
        self._file.write_event(self._event(wall_time=wall_time, step=step, summary=self._scalar(tag, value)))

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


@contextmanager
def _writing(out: Path) -> Iterator[Events]:
    """Events, closed at the end. Raises UserError (74)."""
    events: Events | None = None
    try:
        events = Events(out)
        yield events
        events.close()
    except OSError as error:
        if events is not None:
            with suppress(OSError):  # what it has kept would be tried once more at exit
                events.close()
        reason = error.strerror or "its disk fails"
        raise UserError(f"cannot write to {out}: {reason}; make room on the disk", 74) from None


def write(add: Callable[[str, float, int, float], None], lines: Iterable[dict[str, Any]]) -> int:
    """Give every figure to `add(tag, value, step, wall time)`; how many lines had some."""
    count = 0
    for line in lines:
        figures = SERIES.get(line["kind"], ())
        for field, tag in figures:
            if isinstance(line.get(field), int | float):
                add(tag, float(line[field]), int(line["step"]), float(line["time"]))
        count += bool(figures)
    return count


def _check_new(out: Path) -> None:
    try:
        if out.exists() and any(out.iterdir()):
            raise UserError(f"{out} is not empty and stays as it is; choose another folder", 73)
    except OSError as error:
        raise UserError(f"cannot write to {out}: {error.strerror}; choose another folder", 73) from None


def _need_library() -> None:
    """Before anything is read. Raises UserError (69)."""
    try:
        import tensorboardX  # noqa: F401
    except ImportError:
        raise UserError(
            "tensorboardX is not installed; install it with: pip install 'ftnode[tensorboard]'", 69
        ) from None
