"""The report's figures, from the miniature run whose times are known."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from ftnode.lab.audit.audit import Findings, audit
from ftnode.lab.demo.baselines import Baselines
from ftnode.lab.demo.demo import Outcome, summary
from ftnode.lab.demo.kills import Planned, plan_kills
from ftnode.lab.demo.pictures import draw_loss, origin, smooth
from ftnode.lab.demo.report import SURVIVORS, Kill, build_report, recover, vacancies_healed
from ftnode.lab.demo.screen import COLUMNS, SPARED, LiveScreen, Sayer, fitting, rows, state_of
from ftnode.lab.traces.story import Story, first_commits
from ftnode.node.driver.trace import TraceWriter, read_trace
from ftnode.protocol.words.errors import UserError
from tests.lab.audit.miniature import NAMES, PEERS, Miniature


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Miniature(tmp_path_factory.mktemp("report") / "run").write()


@pytest.fixture
def story(run: Path) -> Story:
    story = Story()
    for name in NAMES:
        story.follow(name, run / name / "trace.jsonl")
    story.read()
    return story


@pytest.fixture
def kill(run: Path) -> Kill:
    """A moment after the last sign of life."""
    return Kill(2, 3, "middle", read_trace(run / "middle" / "trace.jsonl")[-1]["t"] + 0.001, 1)


def test_the_parts_of_an_outage_add_up(story: Story, kill: Kill) -> None:
    recovery = recover(story, kill)
    assert recovery is not None
    parts = [recovery.detect_seconds, recovery.elect_seconds, recovery.fetch_seconds, recovery.blend_seconds,
             recovery.first_step_seconds]  # fmt: skip
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(recovery.outage_seconds)
    commit = next(told for told in first_commits(story.commits) if told.record["step"] == 3)
    assert recovery.outage_seconds == pytest.approx(commit.time - kill.time)
    lost = next(told for told in story.notes if told.record["kind"] == "lost")
    assert recovery.detect_seconds == pytest.approx(lost.time - kill.time)
    assert (recovery.rung, recovery.epoch, recovery.bytes_fetched) == ("blend", 1, 64)
    assert (recovery.origin, recovery.to) == (PEERS["middle"].id, PEERS["standby"].id)
    assert {"from", "to"} <= recovery.as_json().keys()


def test_a_stage_that_never_comes_back_is_no_recovery(story: Story, kill: Kill) -> None:
    late = Kill(2, 4, "middle", story.commits[-1].time + 1, 1)
    assert recover(story, late) is None
    assert not vacancies_healed(story, [kill, late], [])


def test_the_report_has_what_the_contract_promises(run: Path, story: Story, kill: Kill) -> None:
    recovery = recover(story, kill)
    assert recovery is not None
    report = build_report(story, [kill], [recovery], audit(run), stages=3, volunteers=5)
    assert report.keys() >= {
        "steps", "stages", "volunteers", "loss_first", "loss_last", "validation_loss", "tokens_per_second",
        "duplicates_applied", "microbatches_lost", "audit", "recoveries",
    }  # fmt: skip
    assert (report["steps"], report["loss_first"], report["loss_last"], report["audit"]) == (4, 5.0, 1.25, "passed")
    assert report["recoveries"][0].keys() >= {
        "stage", "step", "rung", "reason", "epoch", "from", "to", "detect_seconds", "elect_seconds", "fetch_seconds",
        "blend_seconds", "first_step_seconds", "outage_seconds", "bytes_fetched",
    }  # fmt: skip
    assert vacancies_healed(story, [kill], [recovery])


def test_the_summary_says_in_plain_words_where_the_weights_came_from(run: Path, story: Story, kill: Kill) -> None:
    recovery = recover(story, kill)
    assert recovery is not None
    report = build_report(story, [kill], [recovery], audit(run), stages=3, volunteers=5)
    report["validation_loss"] = None
    found = summary(Outcome(report, ()), run)
    assert origin(recovery.rung) == "back from a blend of both neighbours' weights"
    assert origin(SURVIVORS) == "others did its part"
    assert "stage 2 lost in step 3, back from a blend of both neighbours' weights after " in found


def test_the_bytes_of_copies_are_summed_over_their_keepers(tmp_path: Path) -> None:
    header = {"peer": ["me", 1], "run": "r", "settings": {"steps": 9, "microbatches": 2}, "chance": 1, "addresses": [],
              "hold": 1, "site": "", "wall": 0.0, "version": "test", "precision": "float32"}  # fmt: skip
    told = Story()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        writer = TraceWriter(tmp_path / name / "trace.jsonl", header)
        writer.record("kept", 1.0, stage=0, step=6, bytes_fetched=480, seconds=0.1)
        writer.record("kept", 2.0, stage=2, step=6, bytes_fetched=20, seconds=0.1)
        told.follow(name, tmp_path / name / "trace.jsonl")
    told.read()
    report = build_report(told, [], [], Findings((), 2, 0, 0, 0, 0, 0, 0, 0), stages=4, volunteers=5)
    assert report["copies"] == [
        {"stage": 0, "copies": 2, "bytes_fetched": 960}, {"stage": 2, "copies": 2, "bytes_fetched": 40},
    ]  # fmt: skip


def test_the_table_shows_who_holds_what(story: Story) -> None:
    assert [row[1].split()[0] for row in rows(story)] == ["head", "first", "standby", "last"]
    assert [row[3:5] for row in rows(story)] == [("0", "4"), ("0", "4"), ("2", "4"), ("0", "4")]
    assert [row[5] for row in rows(story)] == ["1.250", "", "", ""]
    assert state_of(story, 1, story.holder(1)) == "ended"


@pytest.mark.parametrize(("width", "left_out"), [(80, ()), (50, ("epoch", "tokens/s")), (40, SPARED[:3]), (20, SPARED)])
def test_a_narrow_terminal_leaves_columns_out_and_cuts_none(
    width: int, left_out: tuple[str, ...], story: Story
) -> None:
    cells = [COLUMNS, *rows(story)]
    assert [COLUMNS[column] for column in fitting(cells, width)] == [one for one in COLUMNS if one not in left_out]
    screen = LiveScreen(9, to_stderr=False)
    screen._console = Console(width=width, file=io.StringIO(), force_terminal=True)
    screen._console.print(screen._picture(story))
    *table, _bar = screen._console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    shown = "\n".join(table)
    assert "…" not in shown or width == 20
    assert all((name in shown) == (name not in left_out) for name in ("epoch", "peer", "tokens/s", "loss"))


def test_what_every_node_says_is_said_once(story: Story) -> None:
    picked = Sayer().pick(story.notes)
    assert len(picked) == len(set(picked)) == 4
    assert sum(text.startswith("view:") for text in picked) == 3


def test_kills_are_planned_in_the_order_of_their_steps() -> None:
    assert plan_kills(None, 4, 300) == (Planned(2, 150),)
    assert plan_kills((), 4, 300) == ()
    assert plan_kills(((3, 20, False), (2, 10, True)), 4, 300) == (Planned(2, 10, True), Planned(3, 20))
    for wrong in ((5, 10, False), (2, 301, True), (2, 0, False)):
        with pytest.raises(UserError):
            plan_kills((wrong,), 4, 300)


def test_smoothing_stays_centred() -> None:
    line = [(step, float(step)) for step in range(40)]
    assert smooth(line) == pytest.approx([loss for _, loss in line])


def test_the_picture_is_drawn(tmp_path: Path, story: Story, kill: Kill) -> None:
    recovery = recover(story, kill)
    assert recovery is not None
    draw_loss(
        tmp_path / "loss.png", losses=[(step, 5.0 / step) for step in range(1, 5)], evaluated=[(4, 1.3)],
        recoveries=[recovery], baselines=Baselines(2.4, 1.8), title="title", subtitle="subtitle",
    )  # fmt: skip
    assert (tmp_path / "loss.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
