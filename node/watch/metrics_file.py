"""`metrics.jsonl` beside the trace: one line per commit and per validation, for notebooks and `ftnode tensorboard`.

    {"format": 1, "kind": "start", "time": 1763755200.0, "peer": ..., "run": ..., "name": ..., "version": ...}
    {"kind": "commit", "time": ..., "step": 7, "loss": 2.5, "tokens": 8192, "seconds": 0.31,
     "tokens_per_second": 26425.8, "skipped": false}
    {"kind": "validation", "time": ..., "step": 50, "loss": 2.4, "perplexity": 11.02}

`time` is the wall clock when this node heard of it, seconds since 1970 UTC; losses are nats per token. Steps only grow
from one `start` to the next. The file is bounded: a full one becomes `metrics.jsonl.1`, and the one before that goes.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Final

from ftnode.node.watch.status import perplexity_of
from ftnode.protocol.picture import WholeHistory
from ftnode.protocol.words.errors import UserError
from ftnode.protocol.words.messages import Commit

log = logging.getLogger(__name__)

METRICS_NAME: Final = "metrics.jsonl"
FORMAT: Final = 1
METRICS_BYTES_MAX: Final = 16 << 20
"""Some 100,000 steps."""
LINE_BYTES_MAX: Final = 4096
FEW_COMMITS: Final = 64
READ_BYTES_MAX: Final = 2 * METRICS_BYTES_MAX


class MetricsFile:
    """Appends lines. A run goes on without them: when the disk fails, `say` gets one line, and nothing more is written.

    Raises UserError (73) when the file cannot be opened.
    """

    def __init__(
        self, path: Path, say: Callable[[str], None] = log.warning, bytes_max: int = METRICS_BYTES_MAX
    ) -> None:
        self._path, self._say = path, say
        try:
            self._file = _Lines(path, bytes_max)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}; choose another --log-dir", 73) from None
        self._start: dict[str, Any] = {"format": FORMAT, "kind": "start"}
        self._committed = self._validated = 0
        self._broken = False

    def start(self, now: float, **fields: str) -> None:
        self._start |= fields
        self._write(self._start | {"time": now})

    def look(self, history: WholeHistory, now: float) -> None:
        """Write what is new. `now` is the wall clock. When the past was forgotten, since another founder's run of the
        same manifest goes on, a new `start` says so."""
        if history.newest_step < self._committed:
            self._committed = self._validated = 0
            self._write(self._start | {"time": now})
        if history.newest_step > self._committed:
            for commit in _after(history, self._committed):
                speed = commit.tokens / commit.seconds if commit.seconds > 0 else None
                self._write({
                    "kind": "commit", "time": now, "step": commit.step, "loss": commit.loss, "tokens": commit.tokens,
                    "seconds": commit.seconds, "tokens_per_second": speed, "skipped": commit.skipped,
                })  # fmt: skip
            self._committed = history.newest_step
        newest = max(history.validation, default=0)
        if newest > self._validated:
            for step in sorted(step for step in history.validation if step > self._validated):
                loss = history.validation[step]
                figures = {"step": step, "loss": loss, "perplexity": perplexity_of(loss)}
                self._write({"kind": "validation", "time": now, **figures})
            self._validated = newest

    def close(self) -> None:
        """A second call does nothing."""
        self._broken = True
        with suppress(OSError):  # what the disk did not take is lost, as was said
            self._file.close()

    def _write(self, record: dict[str, Any]) -> None:
        if self._broken:
            return
        self._file.emit(logging.makeLogRecord({"msg": json.dumps(record)}))
        if self._file.trouble:
            self.close()
            self._say(f"cannot write {self._path}: {self._file.trouble}; going on without it")


def _after(history: WholeHistory, step: int) -> tuple[Commit, ...]:
    """What is committed after a step, oldest first; without a look at all that is known when it is little."""
    count = history.newest_step - step
    return history.newest_commits(count) if count <= FEW_COMMITS else history.after(step)


class _Lines(RotatingFileHandler):
    """The standard library's rotation, for lines that are no log."""

    def __init__(self, path: Path, bytes_max: int) -> None:
        super().__init__(path, maxBytes=bytes_max, backupCount=1, encoding="utf-8")
        self.trouble = ""

    def handleError(self, record: logging.LogRecord) -> None:
        import sys

        error = sys.exc_info()[1]
        self.trouble = (getattr(error, "strerror", None) or str(error)) if error is not None else "unknown"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file in order. Raises as MetricsTail.read does."""
    return list(MetricsTail(path).read())


class MetricsTail:
    """Follows a metrics file from its beginning, also when it is rotated; a line that is still being written waits."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = self._offset = 0
        self._rest = b""

    def read(self) -> Iterator[dict[str, Any]]:
        """What came since the last call. Raises UserError: 66 when it cannot be read, 65 for a line that is none."""
        try:
            with self._path.open("rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                if inode != self._inode:
                    self._inode, self._offset, self._rest = inode, 0, b""
                file.seek(self._offset)
                data = file.read(READ_BYTES_MAX)
        except OSError as error:
            raise UserError(f"cannot read {self._path}: {error.strerror}", 66) from None
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_BYTES_MAX:
            raise UserError(f"{self._path}: no metrics: a line is longer than {LINE_BYTES_MAX} bytes", 65)
        for number, line in enumerate(lines, 1):
            yield parse_line(line, f"{self._path}:{number}")


def parse_line(line: bytes, where: str) -> dict[str, Any]:
    """One record, its kind known and its figures numbers. Raises UserError (65)."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict) or record.get("kind") not in ("start", "commit", "validation"):
        begins = line[:60].decode(errors="replace").strip()
        raise UserError(f"{where}: no line of metrics: {begins}; give a metrics.jsonl, or the log folder with one", 65)
    if record["kind"] == "start" and record.get("format") != FORMAT:
        raise UserError(f"{where}: metrics of another format than {FORMAT}; use the ftnode that wrote them", 65)
    if record["kind"] != "start" and not all(_is_number(record.get(name)) for name in ("time", "step", "loss")):
        raise UserError(f"{where}: a {record['kind']} without time, step or loss", 65)
    return record


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
