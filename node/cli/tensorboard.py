"""`ftnode tensorboard`: a node's metrics.jsonl as TensorBoard events. The node itself needs nothing for it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from ftnode.node.cli.options import unused_home_option
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
@click.argument("metrics", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path, file_okay=False))
@click.option("--follow", is_flag=True, help="Go on with what the node writes, until Ctrl-C.")
@unused_home_option
def tensorboard(metrics: Path, out: Path, follow: bool, home: str | None) -> None:
    """Write METRICS, a metrics.jsonl or the log folder that has it, as TensorBoard events to the new folder OUT."""
    from ftnode.node.watch.metrics_file import METRICS_NAME, MetricsTail, read_metrics

    writer_of = _writer()
    path = metrics / METRICS_NAME if metrics.is_dir() else metrics
    earlier, tail = path.with_name(path.name + ".1"), MetricsTail(path)
    lines = list(tail.read())  # before anything is written, so that bad input leaves nothing behind
    _check_new(out)
    with _writing(writer_of, out) as writer:
        count = write(writer.add_scalar, read_metrics(earlier)) if earlier.exists() else 0
        count += write(writer.add_scalar, lines)
        writer.flush()
        click.echo(f"{count} steps and validations of {path} are in {out}; look with: tensorboard --logdir {out}")
        with suppress(KeyboardInterrupt):
            while follow:
                writer.flush()
                time.sleep(FOLLOW_SECONDS)
                write(writer.add_scalar, tail.read())


@contextmanager
def _writing(writer_of: Any, out: Path) -> Iterator[Any]:
    """A writer, closed at the end. Its thread ends with an error of the disk, and who gives it more waits for ever:
    that is interrupted, by a signal that nobody ignores as nohup does Ctrl-C. Raises UserError (74)."""
    writer: Any = None
    troubles: list[OSError] = []
    before, raised = threading.excepthook, False

    def hear(told: threading.ExceptHookArgs) -> None:
        if isinstance(told.exc_value, OSError):
            troubles.append(told.exc_value)
            os.kill(os.getpid(), signal.SIGUSR1)
        else:
            before(told)

    def interrupt(*_: object) -> None:
        nonlocal raised
        if not raised:
            raised = True
            raise troubles[0]

    signalled = signal.signal(signal.SIGUSR1, interrupt)
    threading.excepthook = hear
    try:
        writer = writer_of(str(out))
        yield writer
        if troubles:
            interrupt()
        writer.close()
    except OSError as error:
        _forsake(writer)
        reason = error.strerror or "its disk fails"
        raise UserError(f"cannot write to {out}: {reason}; make room on the disk", 74) from None
    finally:
        threading.excepthook = before
        signal.signal(signal.SIGUSR1, signalled)


def _forsake(writer: Any) -> None:
    """At exit it would try once more, and print what comes of it."""
    events = getattr(getattr(writer, "file_writer", None), "event_writer", None)
    if events is not None:
        events.close = lambda: None


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


def _writer() -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise UserError(
            "tensorboardX is not installed; install it with: pip install 'ftnode[tensorboard]'", 69
        ) from None
    return SummaryWriter
