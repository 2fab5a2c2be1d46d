"""The trace: what is written is read, nothing else is accepted, nothing is written over."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ftnode.node.driver.trace import (
    STRANGERS_SHARE,
    TraceTail,
    TraceWriter,
    new_trace_path,
    parse_record,
    read_trace,
)
from ftnode.protocol.words.effects import Note
from ftnode.protocol.words.errors import LocalError, UserError
from ftnode.protocol.words.events import DirectoryLost, Wake

HEADER = {"peer": ["p", 1], "run": "r", "settings": {}, "chance": 1, "addresses": [], "hold": 1, "site": "",
          "wall": 0.0, "version": "test", "precision": "float32"}  # fmt: skip


def test_records_come_back_in_sequence(tmp_path: Path) -> None:
    trace = TraceWriter(tmp_path / "trace.jsonl", HEADER)
    trace.event(1.5, Wake())
    trace.note(2.0, Note("lost", "silent", (("peer", "x"),)))
    trace.record("evaluated", 3.0, step=4, loss=2.5, perplexity=12.18)
    trace.close(4.0, "stopped")
    trace.close(5.0, "again")
    records = read_trace(tmp_path / "trace.jsonl")
    assert [record["k"] for record in records] == ["start", "event", "note", "evaluated", "end"]
    assert [record["n"] for record in records] == [0, 1, 2, 3, 4]
    assert records[1]["e"] == ["Wake"]
    assert records[2]["fields"] == {"peer": "x"}
    assert (records[3]["t"], records[3]["loss"]) == (3.0, 2.5)


def test_a_full_disk_ends_the_trace_and_not_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    trace = TraceWriter(tmp_path / "trace.jsonl", HEADER, said.append)
    trace.event(1.0, Wake())
    write = os.write
    room = 20

    def short(file: int, data: bytes) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(file, data[: min(room, 7)])
        room -= written
        return written

    monkeypatch.setattr(os, "write", short)
    trace.event(2.0, Wake())
    trace.event(3.0, Wake())
    trace.close(4.0, "stopped")
    monkeypatch.undo()
    assert len(said) == 1 and "No space left on device" in said[0]
    assert (tmp_path / "trace.jsonl").stat().st_size > 20
    assert [record["n"] for record in read_trace(tmp_path / "trace.jsonl")] == [0, 1]


def test_a_line_in_several_writes_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:5]))
    trace = TraceWriter(tmp_path / "trace.jsonl", HEADER)
    trace.close(1.0, "stopped")
    assert [record["k"] for record in read_trace(tmp_path / "trace.jsonl")] == ["start", "end"]


def test_a_trace_has_a_size_and_says_so_once(tmp_path: Path) -> None:
    said: list[str] = []
    trace = TraceWriter(tmp_path / "trace.jsonl", HEADER, said.append, bytes_max=1000)
    for number in range(1000):
        trace.event(float(number), Wake())
    trace.close(4.0, "stopped")
    assert len(said) == 1 and "is full" in said[0]
    assert 900 < (tmp_path / "trace.jsonl").stat().st_size <= 1000
    records = read_trace(tmp_path / "trace.jsonl")
    assert [record["n"] for record in records] == list(range(len(records)))
    assert records[-1]["k"] == "event"  # no `end`: it reads like the trace of a node that was killed


def test_a_record_that_is_not_in_the_vocabulary_is_refused(tmp_path: Path) -> None:
    trace = TraceWriter(tmp_path / "trace.jsonl", HEADER)
    for kind, fields in (("evaluated", {"step": 1}), ("unheard", {}), ("end", {"reason": "", "more": 1})):
        with pytest.raises(LocalError):
            trace.record(kind, 1.0, **fields)


def test_a_trace_from_before_perplexities_is_read(tmp_path: Path) -> None:
    old = b'{"n":1,"t":1.0,"k":"evaluated","step":4,"loss":2.5}'
    assert parse_record(old, "here")["loss"] == 2.5
    with pytest.raises(UserError, match="without loss"):
        parse_record(old.replace(b"loss", b"loose"), "here")


def test_an_earlier_life_is_never_written_over(tmp_path: Path) -> None:
    first = new_trace_path(tmp_path)
    TraceWriter(first, HEADER).close(1.0, "")
    with pytest.raises(UserError) as error:
        TraceWriter(first, HEADER)
    assert error.value.exit_code == 73
    second = new_trace_path(tmp_path)
    assert (first.name, second.name) == ("trace.jsonl", "trace-2.jsonl")


def test_a_tail_waits_for_the_rest_of_a_line_and_leaves_events_out(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    tail = TraceTail(path)
    assert tail.read() == []
    trace = TraceWriter(path, HEADER)
    trace.event(1.0, Wake())
    trace.record("evaluated", 3.0, step=4, loss=2.5, perplexity=12.18)
    assert [record["k"] for record in tail.read()] == ["start", "evaluated"]
    with path.open("ab") as file:
        file.write(b'{"n":3,"t":1.0,"k":"end",')
        file.flush()
        assert tail.read() == []
        file.write(b'"reason":"x"}\n')
    assert [record["reason"] for record in tail.read()] == ["x"]


@pytest.mark.parametrize("line", [b"[]", b"{}", b'{"k":"end"}', b'{"n":1,"t":1.0,"k":"unheard"}', b"\xff"])
def test_a_line_that_is_no_record_is_one_clear_error(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "trace.jsonl").write_bytes(line + b"\n")
    with pytest.raises(UserError) as error:
        read_trace(tmp_path / "trace.jsonl")
    assert error.value.exit_code == 65
    assert "trace.jsonl:1" in str(error.value)


def test_strangers_have_a_share_of_the_trace_and_cannot_end_it(tmp_path: Path) -> None:
    said: list[str] = []
    trace = TraceWriter(tmp_path / "trace.jsonl", HEADER, said.append, bytes_max=40_000)
    for number in range(1000):
        trace.event(float(number), DirectoryLost("x" * 500), foreign=True)
    assert (tmp_path / "trace.jsonl").stat().st_size < STRANGERS_SHARE * 40_000 + 1000
    assert len(said) == 1 and "strangers" in said[0]
    for number in range(100):
        trace.event(2000.0 + number, Wake())
        trace.event(2000.0 + number, Wake(), foreign=True)
    trace.close(4000.0, "stopped")
    records = read_trace(tmp_path / "trace.jsonl")
    assert [record["n"] for record in records] == list(range(len(records)))
    left_out = [record["k"] for record in records].index("left_out")
    assert [record["k"] for record in records[left_out:]] == ["left_out", *["event"] * 100, "end"]
    assert {record["e"][0] for record in records[left_out:] if record["k"] == "event"} == {"Wake"}
