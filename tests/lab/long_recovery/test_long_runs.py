"""The long runs in milliseconds: from the command's function to tables, cut off and killed, with what they lose."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

from ftnode.lab.long_recovery import long_runs
from ftnode.lab.long_recovery.long_runs import LongConfig
from ftnode.lab.long_recovery.plan import LEFT_OUT, LONG, ROWS, TOGETHER, LongPlan, Row
from ftnode.lab.recovery import failures
from ftnode.lab.recovery.failures import Schedule, draw_together
from ftnode.lab.recovery.plan import CHECKFREE, NONE
from ftnode.lab.recovery.runs import Policy, Run, run
from ftnode.lab.recovery.whole_model import Size, WholeModel
from ftnode.lab.results.cut_off_work import CutOff, Slice
from ftnode.models.config import ModelConfig
from ftnode.models.optimiser import learning_rate_at
from ftnode.protocol.words.errors import UserError
from tests.lab.recovery.recovery_micro import corpus

SIX = Size("six", ModelConfig(16, 2, 6, 16, 24), 6, 1, 2, 5e-3, 2, 1)
OUT_FOR_FIVE = replace(LEFT_OUT[0], omit_steps=5)
HEAD_TOO = replace(TOGETHER, head_every=2)
PLAN = LongPlan(
    replace(SIX, config=replace(SIX.config, vocabulary=280)),
    (Row(NONE), Row(CHECKFREE, "16%"), Row(NONE, share=0.5), Row(HEAD_TOO, "10%", together=True)),
    iterations=40, validate_every=5, vocabulary=280, text_bytes_max=60_000, windows=2,
)  # fmt: skip


def losing(*lost: tuple[int, int], iterations: int = 20) -> Schedule:
    return Schedule("16%", 0, 6, iterations, 1.0, 0.004, lost)


def result(policy: Policy, schedule: Schedule, folder: Path, part: Slice | None = None) -> dict[str, Any]:
    size = replace(SIX, decay_steps=schedule.iterations)
    return run(size, corpus(), (), policy, schedule, 3, "cpu", folder, 2, slice_=part, residuals=True)


def without_seconds(found: dict[str, Any]) -> dict[str, Any]:
    counted = {name: value for name, value in found["counted"].items() if not name.endswith("seconds")}
    return {name: value for name, value in found.items() if name != "wall_seconds"} | {"counted": counted}


@contextmanager
def often() -> Iterator[None]:
    """Short runs lose enough."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failures, "PER_ITERATION", {"5%": 0.05, "10%": 0.08, "16%": 0.12})
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out, printed = tmp_path_factory.mktemp("long"), StringIO()
    with often(), redirect_stdout(printed):
        assert long_runs.run(LongConfig((0, 1), out=out, json=True), PLAN) == 0
    return out, json.loads(printed.getvalue())


def test_it_leaves_results_tables_and_a_picture(whole: tuple[Path, dict[str, Any]]) -> None:
    out, told = whole
    assert told["complete"] and len(list((out / "results").iterdir())) == 8
    ended = {(row["policy"], row["iterations"]): row for row in told["ended"]}
    assert len(ended) == 4 and {row["seeds"] for row in ended.values()} == {2}
    assert ended[NONE.name, 40]["above"] == 0 and ended[NONE.name, 20]["above"] > 0
    lost = ended[CHECKFREE.name, 40]
    assert lost["failures"] >= 20 and lost["worth"] != "" and " to " in lost["worth, interval"]
    assert lost["below the table"] == pytest.approx(told["trigram"]["loss"] - lost["loss"], abs=1e-3)
    stages = {row["stage"] for row in told["damages"]}
    assert {"first", "middle", "head", "several"} <= stages
    assert {row["policy"] for row in told["residuals"]} >= {CHECKFREE.name}
    assert [row["run"][:6] for row in told["cost_of_a_loss"]][:2] == ["seed 0", "seed 1"]
    assert (out / "long.png").read_bytes().startswith(b"\x89PNG")
    assert "Runs that have ended" in (out / "long.md").read_text()


def test_rows_of_one_rate_meet_the_same_losses(whole: tuple[Path, dict[str, Any]]) -> None:
    names = sorted(path.name for path in (whole[0] / "schedules").iterdir())
    assert names == ["all-16-i40-s0.json", "all-16-i40-s1.json", "together-10-i40-s0.json", "together-10-i40-s1.json"]


def test_a_lab_that_takes_turns_and_is_stopped_finds_the_same(
    whole: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look at the clock takes a second: a turn lasts 15 looks, a call 45."""
    seconds = iter(range(10**9))
    clock = type("Clock", (), {"monotonic": staticmethod(lambda: float(next(seconds)))})
    monkeypatch.setattr(long_runs, "time", clock)
    monkeypatch.setattr(long_runs, "TURN", 15.0)
    calls, begun = 0, 0
    while True:
        calls += 1
        with often():
            found = long_runs.measure(PLAN, LongConfig((0,), minutes=0.75), tmp_path)
        begun = max(begun, len(found.begun))
        if found.complete:
            break
        assert len(found.notes) == len(found.begun)
    assert calls > 2 and begun == 2 and not list((tmp_path / "unfinished").iterdir())
    for path in (tmp_path / "results").iterdir():
        once = json.loads((whole[0] / "results" / path.name).read_text())
        assert without_seconds(json.loads(path.read_text())) == without_seconds(once)


def test_a_folder_with_results_of_another_text(whole: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    table = json.loads((whole[0] / "trigram.json").read_text())
    (tmp_path / "trigram.json").write_text(json.dumps(table | {"corpus": "another"}))
    with pytest.raises(UserError, match="another text"):
        long_runs.measure(PLAN, LongConfig((0,), minutes=0), tmp_path)
    (tmp_path / "trigram.json").write_text(json.dumps(table))
    long_runs.measure(PLAN, LongConfig((0,), minutes=0), tmp_path)
    faster = replace(PLAN, size=replace(PLAN.size, learning_rate=1e-2))
    with pytest.raises(UserError, match="or model"):
        long_runs.measure(faster, LongConfig((0,), minutes=0), tmp_path)


def test_what_was_begun_with_other_settings_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "part.pt"
    with pytest.raises(CutOff):
        result(TOGETHER, losing((9, 3)), tmp_path, Slice(path, iter([False] * 11 + [True]).__next__))
    other = result(CHECKFREE, losing((5, 3)), tmp_path, Slice(path))
    assert without_seconds(other) == without_seconds(result(CHECKFREE, losing((5, 3)), tmp_path))


POLICIES = (
    replace(OUT_FOR_FIVE, head_every=3),
    replace(TOGETHER, head_every=3),
    replace(TOGETHER, name="shadows", shadow_every=3, head_every=3),
)
LOSSES = ((5, 3), (8, 0), (8, 4), (12, 2), (12, 3), (17, 6))


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_a_run_that_goes_on_is_the_uninterrupted_one_to_the_bit(policy: Policy, tmp_path: Path) -> None:
    """Cut off after every iteration, each time into a new model; then killed after a state was saved on the way."""
    once = result(policy, losing(*LOSSES), tmp_path)
    slices = 0
    while True:
        try:
            part = Slice(tmp_path / "cut.pt", iter([False, True]).__next__)
            found = result(policy, losing(*LOSSES), tmp_path, part)
            break
        except CutOff:
            slices += 1
    assert slices == 9 and without_seconds(found) == without_seconds(once)
    saved = Slice(tmp_path / "killed.pt", killed_at(13), save_every=1e-9)
    with pytest.raises(KeyboardInterrupt):
        result(policy, losing(*LOSSES), tmp_path, saved)
    again = Slice(tmp_path / "killed.pt")
    assert without_seconds(result(policy, losing(*LOSSES), tmp_path, again)) == without_seconds(once)
    assert torch.load(tmp_path / "killed.pt", weights_only=True)["run"]["iteration"] == 12


def killed_at(looks: int) -> Any:
    """As if the process were killed at this look at the clock: nothing more is written."""
    left = iter(range(looks - 1))

    def is_over() -> bool:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return False

    return is_over


def test_nothing_is_saved_on_the_way_unless_asked(tmp_path: Path) -> None:
    result(CHECKFREE, losing(), tmp_path, Slice(tmp_path / "part.pt"))
    assert list(tmp_path.iterdir()) == []


def test_stages_are_left_out_by_the_rule_and_come_back(tmp_path: Path) -> None:
    """At most a third of six, never the ends; what is left out cannot be lost again."""
    lost = ((4, 3), (5, 4), (6, 5), (7, 1), (8, 3))
    one = Run(SIX, corpus(), OUT_FOR_FIVE, losing(*lost), 3, "cpu", tmp_path)
    out = []
    for iteration in range(1, 12):
        one.advance(iteration)
        out.append(one.model.omitted)
    assert out[2:6] == [(), (3,), (3, 4), (3, 4)], "a third stage at once is rebuilt"
    assert out[6:10] == [(3, 4), (3, 4), (4,), ()], "the first is never left out; each is back after five steps"
    assert one.counted.by == {"omit": 2, "squared-norm": 4} and one.counted.failures == 4
    assert [(at, stages) for at, stages, _ in one.returns] == [(9, (3,)), (10, (4,))]


def test_a_stage_that_is_left_out_learns_nothing_and_its_weights_are_not_used(tmp_path: Path) -> None:
    one = Run(SIX, corpus(), OUT_FOR_FIVE, losing((4, 3)), 3, "cpu", tmp_path)
    for iteration in range(1, 5):
        one.advance(iteration)
    before, loss = one.model.stages[3].weights.clone(), one.model.validate()
    one.model.stages[3].weights.add_(1.0)
    assert one.model.validate() == loss
    one.advance(5)
    assert one.model.stages[3].weights.equal(before + 1.0)


def test_a_head_comes_back_as_it_was_at_its_copy(tmp_path: Path) -> None:
    every = replace(TOGETHER, head_every=1)
    clean = result(Policy("none"), losing(), tmp_path)["curve"]
    found = result(every, losing((9, 0), (14, 0)), tmp_path)
    assert found["curve"] == clean and found["counted"]["by"] == {"head": 2}
    one = Run(SIX, corpus(), replace(TOGETHER, head_every=4), losing((7, 0)), 3, "cpu", tmp_path)
    for iteration in range(1, 5):
        one.advance(iteration)
    copied = one.model.stages[0].weights.clone()
    one.advance(5)
    one.advance(6)
    assert not one.model.stages[0].weights.equal(copied)
    one._lose(7)
    assert one.model.stages[0].weights.equal(copied)


def test_what_is_lost_together() -> None:
    found = draw_together("16%", 0, 6, 20_000, first=201)
    assert found == draw_together("16%", 0, 6, 20_000, first=201) != draw_together("16%", 1, 6, 20_000, first=201)
    by_iteration: dict[int, list[int]] = {}
    for at, stage in found.failures:
        by_iteration.setdefault(at, []).append(stage)
    assert min(by_iteration) > 200 and list(by_iteration) == sorted(by_iteration)
    heads = sum(0 in lost for lost in by_iteration.values())
    pairs = sum(any(stage + 1 in lost for stage in lost if stage) for lost in by_iteration.values())
    assert heads == pytest.approx(20_000 * 0.004, rel=0.3)
    assert pairs == pytest.approx(failures.TOGETHER * 6 * 20_000 * 0.004, rel=0.25)


def test_the_rate_comes_down_by_half_a_cosine() -> None:
    falling = LONG.size_of(ROWS[0]).optimiser()
    assert learning_rate_at(falling, 200) == pytest.approx(5e-3)
    assert learning_rate_at(falling, 5100) == pytest.approx(5e-3 * 0.525)
    assert learning_rate_at(falling, 10_000) == pytest.approx(5e-3 * 0.05)
    half = next(row for row in ROWS if row.share == 0.5)
    assert learning_rate_at(LONG.size_of(half).optimiser(), 5000) == pytest.approx(5e-3 * 0.05)
    assert learning_rate_at(LONG.size.optimiser(), 10_000) == 5e-3, "no decay unless asked"


def test_files_of_the_plan_have_names_of_their_own(tmp_path: Path) -> None:
    paths = {long_runs.result_path(LONG, row, 0, tmp_path) for row in ROWS}
    assert len(paths) == len(ROWS)


def test_the_model_of_the_plan_is_a_whole_one() -> None:
    assert WholeModel(LONG.size, corpus(), 0).size.stages == 6
