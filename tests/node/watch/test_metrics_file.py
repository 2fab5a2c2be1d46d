"""`metrics.jsonl`: a line per commit and per validation, bounded, and no reason for a run to end."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from ftnode.node.cli.tensorboard import write
from ftnode.node.home.log_format import formatter
from ftnode.node.watch.metrics_file import METRICS_NAME, MetricsFile, MetricsTail, parse_line, read_metrics
from ftnode.protocol.chronicle import Chronicle
from ftnode.protocol.words.errors import UserError
from ftnode.protocol.words.messages import Commit
from tests.node.cli.cli_runner import runner


def commit(step: int, loss: float = 2.5, seconds: float = 0.5) -> Commit:
    return Commit(step, loss, 100, seconds, False, ())


def chronicle(*steps: int) -> Chronicle:
    made = Chronicle()
    for step in steps:
        made.commit(commit(step), 0.0)
    return made


def test_a_line_per_commit_and_validation(tmp_path: Path) -> None:
    path, known = tmp_path / METRICS_NAME, chronicle(3, 4)
    file = MetricsFile(path)
    file.start(1.0, peer="p", run="r", name="n", version="v")
    file.look(known, 2.0)
    file.look(known, 3.0)
    known.commit(commit(5, seconds=0.0), 0.0)
    known.commit(commit(1), 0.0)
    known.evaluate(5, 800.0)
    known.evaluate(4, 2.0)
    file.look(known, 4.0)
    file.close()
    start, *lines = read_metrics(path)
    assert start == {"format": 1, "kind": "start", "time": 1.0, "peer": "p", "run": "r", "name": "n", "version": "v"}
    assert [(line["kind"], line["step"], line["time"]) for line in lines] == [
        ("commit", 3, 2.0), ("commit", 4, 2.0), ("commit", 5, 4.0), ("validation", 4, 4.0), ("validation", 5, 4.0),
    ]  # fmt: skip
    assert lines[0] | {"time": 0} == {
        "kind": "commit", "time": 0, "step": 3, "loss": 2.5, "tokens": 100, "seconds": 0.5, "tokens_per_second": 200.0,
        "skipped": False,
    }  # fmt: skip
    assert lines[2]["tokens_per_second"] is None
    assert [line["perplexity"] for line in lines[3:]] == [pytest.approx(7.389, abs=0.001), None]


def test_a_late_comer_writes_what_it_learned_and_a_far_step_costs_nothing(tmp_path: Path) -> None:
    path, known = tmp_path / METRICS_NAME, chronicle(*range(1, 200), 10**12)
    file = MetricsFile(path)
    file.look(known, 2.0)
    file.close()
    assert [line["step"] for line in read_metrics(path)] == [*range(1, 200), 10**12]


def test_a_past_that_is_forgotten_begins_anew(tmp_path: Path) -> None:
    path, known = tmp_path / METRICS_NAME, chronicle(1, 2, 9)
    file = MetricsFile(path)
    file.start(1.0, run="r")
    file.look(known, 2.0)
    known.forget()
    known.commit(commit(1), 0.0)
    file.look(known, 3.0)
    file.close()
    found = [(line["kind"], line.get("step"), line["time"]) for line in read_metrics(path)]
    assert found == [
        ("start", None, 1.0), ("commit", 1, 2.0), ("commit", 2, 2.0), ("commit", 9, 2.0), ("start", None, 3.0),
        ("commit", 1, 3.0),
    ]  # fmt: skip


def test_it_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / METRICS_NAME
    file, known = MetricsFile(path, bytes_max=2000), Chronicle()
    tail, followed = MetricsTail(path), []
    for step in range(1, 200):
        known.commit(commit(step), 0.0)
        file.look(known, 1.0)
        followed += [line["step"] for line in tail.read()]
    file.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == [METRICS_NAME, f"{METRICS_NAME}.1"]
    assert sum(each.stat().st_size for each in tmp_path.iterdir()) < 4500
    assert followed == list(range(1, 200)), "who follows it misses nothing"


def test_a_disk_that_is_full_is_said_once() -> None:
    said: list[str] = []
    file = MetricsFile(Path("/dev/full"), said.append)
    file.look(chronicle(1, 2, 3), 1.0)
    file.look(chronicle(1, 2, 3, 4), 1.0)
    assert said == ["cannot write /dev/full: No space left on device; going on without it"]


def test_a_folder_that_is_none_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot write .* choose another --log-dir"):
        MetricsFile(tmp_path / "missing" / METRICS_NAME)


@pytest.mark.parametrize(
    "line",
    [
        b"", b"x", b"[]", b"{}", b'{"kind":"commit"}', b'{"kind":"start","format":2}', b"\xff", b"[" * 100_000,
        b'{"kind":"commit","time":1,"step":"x","loss":1}', b'{"kind":"validation","time":1,"step":true,"loss":1}',
    ],
)  # fmt: skip
def test_what_is_no_line_of_metrics(line: bytes) -> None:
    with pytest.raises(UserError, match="here"):
        parse_line(line, "here")


def test_a_torn_last_line_waits(tmp_path: Path) -> None:
    path = tmp_path / METRICS_NAME
    path.write_bytes(b'{"kind":"commit","time":1,"step":1,"loss":1}\n{"kind":"com')
    tail = MetricsTail(path)
    assert len(list(tail.read())) == 1 and list(tail.read()) == []
    with path.open("ab") as file:
        file.write(b'mit","time":1,"step":2,"loss":1}\n')
    assert [line["step"] for line in tail.read()] == [2]
    path.write_bytes(b"x" * 10_000)
    with pytest.raises(UserError, match="longer than"):
        list(MetricsTail(path).read())


def test_figures_for_tensorboard() -> None:
    added: list[tuple[str, float, int, float]] = []
    lines: list[dict[str, Any]] = [
        {"kind": "start", "format": 1},
        {"kind": "commit", "time": 5.0, "step": 1, "loss": 2.5, "seconds": 0.5, "tokens_per_second": None},
        {"kind": "validation", "time": 6.0, "step": 1, "loss": 2.0, "perplexity": 7.4},
    ]
    assert write(lambda *each: added.append(each), lines) == 2
    assert added == [
        ("loss/training", 2.5, 1, 5.0), ("speed/step_seconds", 0.5, 1, 5.0), ("loss/validation", 2.0, 1, 6.0),
        ("loss/perplexity", 7.4, 1, 6.0),
    ]  # fmt: skip


def test_events_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboardX")
    run, out = runner(capsys), tmp_path / "events"
    file = MetricsFile(tmp_path / METRICS_NAME)
    file.look(chronicle(1, 2), 1.0)
    file.close()
    seen = run("tensorboard", tmp_path, out)
    assert seen.code == 0 and "2 steps and validations" in seen.out
    (events,) = out.iterdir()
    assert b"loss/training" in events.read_bytes()
    assert run("tensorboard", tmp_path, out).refused(73, "is not empty and stays as it is")
    assert run("tensorboard", tmp_path / "missing", tmp_path / "more").refused(66, "cannot read")
    (tmp_path / METRICS_NAME).write_text("nonsense\n")
    assert run("tensorboard", tmp_path, tmp_path / "more").refused(65, "no line of metrics: nonsense")
    assert not (tmp_path / "more").exists()


def test_without_the_extra_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tensorboardX", None)
    assert runner(capsys)("tensorboard", tmp_path, tmp_path / "out").refused(69, "pip install 'ftnode[tensorboard]'")


def test_the_log_in_json() -> None:
    record = logging.makeLogRecord({"name": "ftnode.x", "levelname": "INFO", "msg": 'a "%s"\n', "args": ("b",)})
    found = json.loads(formatter("json").format(record))
    assert (found["logger"], found["level"], found["message"]) == ("ftnode.x", "info", 'a "b"\n')
    assert "\n" not in formatter("json").format(record) and "exception" not in found
    try:
        raise ValueError("why")
    except ValueError as error:
        record.exc_info = (type(error), error, error.__traceback__)
    assert "why" in json.loads(formatter("json").format(record))["exception"]
    assert "ftnode.x INFO" in formatter("text").format(record)
