"""The log of one node's life: JSON lines that only ever grow, enough to audit a run and to replay its decisions.

One record a line, `{"n": sequence from 0, "t": monotonic seconds, "k": kind, ...}`. `t` is CLOCK_MONOTONIC
(`time.monotonic()`), which all processes of one machine share; `start` says which wall clock it belongs to. `RECORDS`
is the whole vocabulary. Peers are `[id, nonce]`, attempts `[view, n]`, versions a step and a commit, views and events
what `protocol/words/codec.py` makes of them.

A record that tells of an event follows that event's own line and precedes the next event's, so that the audit can hold
one against the other: an `accumulated` follows the `Done` of its backward task, `reduced` that of its reduction,
`installed` its `Installed`.

What strangers say, and what the directory shows, has a share of the file and no more: whoever can send to a node must
not be able to end its trace. When the share is spent, one `left_out` says so, and such events are not written any more.
A replay ends there, for the core has heard more than the trace tells. The audit needs none of those events.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from itertools import chain, count
from pathlib import Path
from typing import Any, Final

from ftnode.protocol.words.codec import tagged
from ftnode.protocol.words.effects import Note
from ftnode.protocol.words.errors import LocalError, UserError
from ftnode.protocol.words.events import Event

log = logging.getLogger(__name__)

TRACE_NAME: Final = "trace.jsonl"
TRACE_PATTERN: Final = "trace*.jsonl"
LINE_BYTES_MAX: Final = 1 << 20
TRACE_BYTES_MAX: Final = 256 << 20
"""Some ten thousand steps of a leader; a volunteer's disk is not ours to fill."""
STRANGERS_SHARE: Final = 0.25
"""Of the whole file. A hundred standbys fill it in half an hour, with heartbeats of 400 bytes twice a lease of 5 s."""

RECORDS: Final[dict[str, tuple[str, ...]]] = {
    # Always the first line. `settings`, `chance` (the seed), `addresses`, `hold` and `site` (the owner's word) are what
    # a replay needs; `precision` is that of the weights in dumps.
    "start": (
        "format", "peer", "run", "settings", "precision", "chance", "addresses", "hold", "site", "wall", "version",
    ),
    "event": ("e",),
    # From here on events of strangers and of the directory are not written.
    "left_out": ("reason",),
    "note": ("kind", "text", "fields"),
    "accumulated": ("stage", "step", "attempt", "microbatch", "visit"),
    # `covered`: [[microbatch, visit], ...], as counted by the compute process itself.
    "reduced": ("stage", "step", "attempt", "covered", "norm_squared"),
    "applied": ("stage", "step", "commit", "attempt", "skipped"),
    # The weights that an `applied` has made, a moment later and where asked for (`--hash-every`).
    "hashed": ("stage", "step", "commit", "digest"),
    # Written by the leader (effect Committed), before the Begin that commits leaves it.
    "commit": ("lineage", "step", "commit", "attempt", "skipped", "loss", "tokens", "seconds", "norms"),
    # Nats per token, and e to that (null when no number holds it).
    "evaluated": ("step", "loss", "perplexity"),
    "view": ("view",),
    # A donor's side: `to` gets the weights of this version. `purpose`: install; keep, to keep a copy of them; copy,
    # when what it gets is the copy that we keep. `digest` covers the flat weights that it will have; `dump` is
    # a file beside the trace that holds them, or empty.
    "exported": ("stage", "step", "commit", "purpose", "norm_squared", "digest", "dump", "to"),
    # A newcomer's side: each time that it begins to ask for a stage's weights, again or by another plan. `donors`:
    # [[stage, peer], ...], of whom it may ask each once; `copies`: for the copies that they keep.
    "installing": ("stage", "step", "commit", "rung", "donors", "copies"),
    # `donors`: [[stage, peer, omega, digest], ...] in the plan's order. `copy_step`: which step a kept copy was of, or
    # null where none was taken.
    "installed": (
        "stage", "step", "commit", "rung", "reason", "copy_step", "donors", "digest", "dump", "bytes_fetched",
        "fetch_seconds", "blend_seconds",
    ),
    # A keeper's side: a copy of another's stage is whole; `bytes_fetched` came over the wire for it.
    "kept": ("stage", "step", "bytes_fetched", "seconds"),
    # After an installation, and when a donor has told of the past: so many commits are known, up to step `last`.
    "history": ("count", "last"),
    # The last line of a node that was not killed.
    "end": ("reason",),
}  # fmt: skip
FORMAT: Final = 1
ADDED: Final = {"evaluated": {"perplexity"}, "start": {"site"}}
"""Fields that traces of earlier versions do not have."""


class TraceWriter:
    """Appends records; every line is one `write`, so a SIGKILL can tear the last line and no other.

    `header` holds the fields of `start` but `format`. Never writes over a trace (see `new_trace_path`). Raises
    LocalError for a record that `RECORDS` does not know and UserError (73) when the file cannot be created.

    A run goes on without its log: when a write fails, or `bytes_max` is reached, `say` gets one line about it, and
    nothing more is written. What is written reads like the trace of a node that was killed at that moment.
    """

    def __init__(
        self,
        path: Path,
        header: dict[str, Any],
        say: Callable[[str], None] = log.warning,
        bytes_max: int = TRACE_BYTES_MAX,
    ) -> None:
        self._path, self._say = path, say
        self._room = bytes_max
        self._strangers_room = int(STRANGERS_SHARE * bytes_max)
        """-1 when there was none for an event."""
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UserError(f"cannot write the trace {path}: {error.strerror}; choose another --log-dir", 73) from error
        self._sequence = 0
        self.record("start", time.monotonic(), format=FORMAT, **header)

    def event(self, now: float, event: Event, foreign: bool = False) -> None:
        """`foreign`: it is of a stranger's making, or the directory's."""
        if self._file < 0 or (foreign and self._strangers_room < 0):
            return
        line = self._line(now, "event", {"e": tagged(event)})
        if foreign:
            self._strangers_room = max(-1, self._strangers_room - len(line))
        if foreign and self._strangers_room < 0:
            reason = "the share of strangers is spent: what they and the directory say from now on is not written"
            self.record("left_out", now, reason=reason)
            self._say(f"{reason} to {self._path}, and a replay of it ends here")
        else:
            self._append(line)

    def note(self, now: float, note: Note) -> None:
        self._write(now, "note", {"kind": note.kind, "text": note.text, "fields": dict(note.fields)})

    def record(self, kind: str, now: float, **fields: Any) -> None:
        """Fields must be JSON values already (`protocol.codec.to_plain` for dataclasses)."""
        if kind not in RECORDS or set(fields) != set(RECORDS[kind]):
            raise LocalError(f"a {kind!r} record has the fields {RECORDS.get(kind)}, not {tuple(fields)}")
        self._write(now, kind, fields)

    def close(self, now: float, reason: str) -> None:
        """Ends the trace; a second call does nothing."""
        if self._file >= 0:
            self.record("end", now, reason=reason)
        if self._file >= 0:
            self._stop()

    def _write(self, now: float, kind: str, fields: dict[str, Any]) -> None:
        if self._file >= 0:
            self._append(self._line(now, kind, fields))

    def _line(self, now: float, kind: str, fields: dict[str, Any]) -> bytes:
        record = {"n": self._sequence, "t": now, "k": kind, **fields}
        return json.dumps(record, separators=(",", ":")).encode() + b"\n"

    def _append(self, line: bytes) -> None:
        if len(line) > self._room:
            self._stop(f"the trace {self._path} is full; what happens from now on is in no trace")
            return
        self._room -= len(line)
        self._sequence += 1
        try:
            while line:
                line = line[os.write(self._file, line) :]
        except OSError as error:
            self._stop(f"cannot write the trace {self._path}: {error.strerror}; going on without it")

    def _stop(self, why: str = "") -> None:
        os.close(self._file)
        self._file = -1
        if why:
            self._say(why)


def new_trace_path(directory: Path) -> Path:
    """`trace.jsonl`, or `trace-2.jsonl` and so on where earlier lives of a node have left theirs."""
    names = chain([TRACE_NAME], (f"trace-{life}.jsonl" for life in count(2)))
    return next(path for path in (directory / name for name in names) if not path.exists())


class TraceTail:
    """Follows a trace that is being written, from its beginning; a line that is still being written waits."""

    def __init__(self, path: Path, *, events: bool = False) -> None:
        self.path = path
        self._events = events
        self._offset = 0
        self._rest = b""

    def read(self) -> list[dict[str, Any]]:
        """The records since the last call, without `event` lines unless asked for: they are nine of ten and seldom of
        interest to somebody who watches."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if not self._events:
            lines = [line for line in lines if b'"k":"event"' not in line[:80]]
        return [json.loads(line) for line in lines]


def read_trace(path: Path) -> list[dict[str, Any]]:
    """All records of a trace. A torn last line (the node was killed while it wrote) is left out; anything else that is
    no record raises UserError (65), an unreadable file UserError (66)."""
    return list(_records(path))


def _records(path: Path) -> Iterator[dict[str, Any]]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the trace {path}: {error.strerror}", 66) from error
    *lines, rest = data.split(b"\n")
    for number, line in enumerate(lines, 1):
        yield parse_record(line, f"{path}:{number}")
    if len(rest) > LINE_BYTES_MAX:
        raise UserError(f"{path}:{len(lines) + 1}: not a trace: a line of {len(rest)} bytes", 65)


def parse_record(line: bytes, where: str) -> dict[str, Any]:
    """One line, checked for its kind and the fields of it. Raises UserError (65)."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not a trace record: {error}", 65) from error
    if not isinstance(record, dict) or not isinstance(record.get("k"), str) or record["k"] not in RECORDS:
        raise UserError(f"{where}: not a trace record: {line[:60].decode(errors='replace')}", 65)
    kind = record["k"]
    missing = [name for name in ("n", "t", *RECORDS[kind]) if name not in record and name not in ADDED.get(kind, ())]
    if missing:
        raise UserError(f"{where}: a {kind} record without {', '.join(missing)}", 65)
    return record
