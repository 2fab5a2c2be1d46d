"""`ftnode lab lines`: what is typed, and what is calculated from traces and counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftnode.lab.lines import lines
from ftnode.lab.lines.lines import Asked, manifest_for, volunteer, work_of
from ftnode.lab.lines.network import Counts
from ftnode.lab.lines.tensors import Travel, came_twice, travels, word_seconds
from ftnode.lab.traces.story import Told
from tests.node.cli.cli_runner import Seen, runner

RATES = (2.5e6, 12.5e6)
HEAD, OTHER = ["head", 1], ["other", 1]


@pytest.fixture
def ftnode(capsys: pytest.CaptureFixture[str]) -> Callable[..., Seen]:
    return runner(capsys)


def asked(**changes: Any) -> Asked:
    values = {
        "volunteers": 5, "rates": RATES, "delay_seconds": 0.03, "pace": (0.02, 0.04), "seconds": 60.0, "preset": "tiny",
        "sequences": 40, "microbatches": 16,
    }  # fmt: skip
    return Asked(**{**values, **changes})


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ((), asked()),
        (("--line", "200Mbit", "--delay", "0.05s"), asked(rates=(25e6, 25e6), delay_seconds=0.05)),
        (("--line", "2.5/10Mbit", "--pace", "0/1"), asked(rates=(2.5e6 / 8, 10e6 / 8), pace=(0.0, 1.0))),
        (("--replica", "2/10Mbit"), asked(replica=(2.5e5, 1.25e6))),
        (("--volunteers", "9", "--sequences", "3", "--seconds", "5"), asked(volunteers=9, sequences=3, seconds=5.0)),
    ],
)
def test_what_is_typed(
    typed: tuple[str, ...], found: Asked, ftnode: Callable[..., Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Asked] = []
    monkeypatch.setattr(lines, "run", lambda asked, as_json, out: seen.append(asked))
    assert ftnode("lab", "lines", *typed).code == 0
    assert seen == [found]


@pytest.mark.parametrize(
    "typed",
    [
        ("--line", "fast"),
        ("--line", "20/"),
        ("--line", "1/1bit"),
        ("--replica", "thin"),
        ("--delay", "30"),
        ("--pace", "0.02"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_write(typed: tuple[str, str], ftnode: Callable[..., Seen]) -> None:
    seen = ftnode("lab", "lines", *typed)
    assert seen.code == 64
    assert typed[0] in seen.err


def test_every_volunteer_has_a_stage_and_the_whole_step_is_on_its_way() -> None:
    manifest = manifest_for(asked(volunteers=9, microbatches=32))
    assert manifest.pipeline.stages == 8
    assert manifest.pipeline.window == manifest.batch.microbatches == 32


def told(node: str, moment: float, event: list[Any]) -> Told:
    return Told(node, {"k": "event", "t": moment, "e": event})


def done(kind: str, visit: int, *onward: int) -> list[Any]:
    return ["Done", [kind, 1, 7, [1, 1], 3, visit, None, True, False, [*onward]], 5, 0.0, 64, "", "", []]


def boundary(sender: list[Any], visit: int, direction: str) -> list[Any]:
    return ["Received", sender, ["Boundary", "lineage", 1, 7, [1, 1], 3, visit, direction, []], 5, ""]


def stored(sender: list[Any], visit: int, direction: str) -> list[Any]:
    return ["Received", sender, ["Stored", "lineage", 7, [1, 1], 3, visit, direction], None, ""]


EVENTS = [
    told("head", 1.0, done("Forward", 0)),
    told("other", 2.0, boundary(HEAD, 1, "forward")),
    told("head", 2.5, stored(OTHER, 1, "forward")),
    told("other", 2.7, boundary(HEAD, 1, "forward")),
    told("other", 3.5, done("Forward", 1, 2)),
    told("head", 5.0, boundary(OTHER, 3, "forward")),
    told("head", 6.0, done("Backward", 3)),
    told("other", 8.0, boundary(HEAD, 2, "backward")),
    told("other", 8.1, done("Backward", 2)),
]
"""Of one microbatch, whose stages 1 and 2 are one task of one peer; its first tensor comes twice."""


def test_tensors_that_went_from_one_node_to_another() -> None:
    assert travels(EVENTS) == [
        Travel(7, "head", "other", 1.0, 2.0, True),
        Travel(7, "head", "other", 6.0, 8.0, False),
        Travel(7, "other", "head", 3.5, 5.0, True),
    ]
    assert came_twice(EVENTS) == 1
    assert word_seconds(EVENTS) == [0.5]


def test_a_line_is_held_against_the_time_between_its_first_and_last_tensor() -> None:
    moments = tuple(float(second) for second in range(11))
    counts = Counts(moments, tuple((((second * 1_000_000), second * 2_000_000),) for second in range(11)))
    moved = [
        Travel(7, "a", "b", 1.0, 3.0, True),
        Travel(7, "b", "a", 4.0, 6.0, False),
        Travel(6, "a", "b", 0.0, 9.0, True),
    ]
    found = volunteer("a", 0, (("b",), ("a",), ("b", "a")), moved, counts, [(7, 0.0, 10.0)], RATES)
    assert (found.stages, found.bytes_up, found.bytes_down) == ((1, 2), 10_000_000, 20_000_000)
    assert found.microbatches == 1
    assert (found.share_up, found.share_down) == (pytest.approx(0.4), pytest.approx(0.16))


def test_the_bound_counts_each_direction_with_its_own_bytes() -> None:
    manifest = manifest_for(asked())
    thin = replace(manifest, pipeline=replace(manifest.pipeline, boundary="int8", boundary_gradients="int4"))
    work = work_of(asked(), thin)
    assert (work.tensors, len(work.paces)) == (thin.boundary_bytes, 5)
    assert work.tensors.forward > 1.8 * work.tensors.backward


def test_a_table_names_every_volunteer_and_the_bound(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    one = {
        "name": "peer-1",
        "stages": [0],
        "bytes_up": 1e6,
        "bytes_down": 2e6,
        "share_up": 0.9,
        "share_down": 0.2,
        "microbatches": 16.0,
    }
    figures = {
        "asked": {"volunteers": 5, "rates": RATES, "delay_seconds": 0.03}, "network": "network namespaces",
        "microbatches": 16, "tensor_bytes": {"forward": 983040, "backward": 491520}, "step_seconds": 20.0, "steps": 3,
        "bound_seconds": 16.0, "bound": {"busy": 12.6, "fill": 3.4, "limiting": "peer-1"}, "ratio": 1.25,
        "tensors": 160, "twice": 0, "word_seconds": 0.2, "volunteers": [one],
    }  # fmt: skip
    text = lines.table(figures)
    assert "0.98 MB, and 0.49 MB back" in text and "12.60 s for what peer-1 has to do" in text
    assert "peer-1" in text and "ratio 1.25" in text and "0 came twice" in text
