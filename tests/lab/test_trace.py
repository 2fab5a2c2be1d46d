"""The trace: what is written is read, nothing else is accepted, nothing is written over."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftnode.node.trace import TraceTail, TraceWriter, new_trace_path, read_trace
from ftnode.protocol.effects import Note
from ftnode.protocol.errors import LocalError, UserError
from ftnode.protocol.events import Wake

HEADER = {"peer": ["p", 1], "run": "r", "settings": {}, "chance": 1, "addresses": [], "hold": 1, "wall": 0.0,
          "version": "test"}  # fmt: skip


def test_records_come_back_in_sequence(tmp_path: Path) -> None:
    trace = TraceWriter(tmp_path / "trace.jsonl", HEADER)
    trace.event(1.5, Wake())
    trace.note(2.0, Note("lost", "silent", (("peer", "x"),)))
    trace.record("evaluated", 3.0, step=4, loss=2.5)
    trace.close(4.0, "stopped")
    trace.close(5.0, "again")
    records = read_trace(tmp_path / "trace.jsonl")
    assert [record["k"] for record in records] == ["start", "event", "note", "evaluated", "end"]
    assert [record["n"] for record in records] == [0, 1, 2, 3, 4]
    assert records[1]["e"] == ["Wake"]
    assert records[2]["fields"] == {"peer": "x"}
    assert (records[3]["t"], records[3]["loss"]) == (3.0, 2.5)


def test_a_record_that_is_not_in_the_vocabulary_is_refused(tmp_path: Path) -> None:
    trace = TraceWriter(tmp_path / "trace.jsonl", HEADER)
    for kind, fields in (("evaluated", {"step": 1}), ("unheard", {}), ("end", {"reason": "", "more": 1})):
        with pytest.raises(LocalError):
            trace.record(kind, 1.0, **fields)


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
    trace.record("evaluated", 3.0, step=4, loss=2.5)
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
