"""A stage that a swarm loses, and the same loss in one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ftnode.lab.demo.demo import DemoConfig, _manifest
from ftnode.lab.recovery import swarm_kills
from ftnode.lab.recovery.swarm_kills import (
    AFTER,
    STEP,
    DemoSize,
    Twin,
    compared,
    demo_size,
    of_demo,
    of_twin,
    rung_of,
    table,
)
from ftnode.node.manifests.protection_choice import PROTECTIONS
from ftnode.protocol.words.errors import UserError
from tests.lab.recovery.recovery_micro import MICRO, corpus

LAST = 400
STEPS = [STEP + after for after in AFTER] + [LAST]


def demo(protect: str = "none", rung: str = "copy", reason: str = "", rise: float = 1.0) -> dict[str, Any]:
    losses = {180: 2.01, **dict.fromkeys(STEPS, 2.0 + rise)}
    return {
        "protect": protect, "seed": 1, "validation": [*losses.items()],
        "recovery": {"rung": rung, "reason": reason, "outage_seconds": 2.5},
    }  # fmt: skip


def twin() -> dict[str, Any]:
    """As it comes from a file: steps are texts."""
    rises = {"copy": 0.8, "shadow 190": 0.25}
    return json.loads(json.dumps({
        "clean": dict.fromkeys((180, *STEPS), 2.0),
        "rungs": {name: dict.fromkeys(STEPS, 2.0 + rise) for name, rise in rises.items()},
    }))  # fmt: skip


def test_both_are_rises_over_the_undamaged_model() -> None:
    row = compared(demo(), twin())
    assert row["swarm"] == pytest.approx([1.0] * 4) and row["lab"] == pytest.approx([0.8] * 4)
    assert row["undamaged"] == 2.0 and row["before"] == pytest.approx(0.01)


def test_a_shadow_is_compared_with_one_of_the_same_step() -> None:
    made = demo("shadow", "shadow", "a copy of step 190 is kept, 9 steps old", 0.5)
    assert rung_of(made) == "shadow 190"
    assert compared(made, twin())["lab"] == pytest.approx([0.25] * 4)


def test_the_table_has_means_and_the_worst() -> None:
    rows = [compared(demo(rise=rise), twin()) for rise in (1.0, 2.0)] + [compared(demo("checkfree"), twin())]
    rows[1]["outage_seconds"] = 4.0
    first, second = table(rows)
    assert first[:6] == ("none", "copy", "2", "4.00", "2.000", "+1.500") and second[0] == "checkfree"
    assert len(first) == len(swarm_kills.COLUMNS)


@pytest.mark.parametrize("swap", [False, True])
def test_a_twin_loses_the_stage_before_the_step(swap: bool) -> None:
    size = DemoSize("micro", MICRO.config, 4, 2, 2, 5e-3, 2, 1, steps=60)
    found = of_twin(size, corpus(), 3, swap, [20], step=30)
    assert {*found["clean"]} == {20, 40, 60} and {*found["rungs"]} == {"copy", "shadow 20"}
    assert {*found["rungs"]["copy"]} == {40, 60}
    by_hand = Twin(size, corpus(), 3, swap=swap)
    while by_hand.step < 29:
        by_hand.train(by_hand.step + 1)
    swarm_kills.rebuild(by_hand, 1, swarm_kills.WAYS["partner" if swap else "squared-norm"])
    while by_hand.step < 40:
        by_hand.train(by_hand.step + 1)
    assert found["rungs"]["copy"][40] == by_hand.validate()


def test_it_is_the_size_of_the_demo() -> None:
    size, made = demo_size(), _manifest(DemoConfig())
    rate = size.optimiser()
    assert (size.stages, size.microbatches, size.steps) == (4, made.batch.microbatches, made.run.steps)
    assert (rate.decay, rate.steps, rate.beta2) == ("cosine", 400, 0.99)


@pytest.mark.parametrize("protect", PROTECTIONS)
def test_the_demo_spends_what_was_asked_for(protect: str) -> None:
    made = _manifest(DemoConfig(protect=protect, evaluate_every=20))
    assert made.evaluation.every == 20 and made.pipeline.swap is (protect == "checkfree+")
    assert bool(made.recovery.shadow_every) is (protect == "shadow")
    assert (made.recovery.head_every > 0) is (protect == "none")


@pytest.mark.parametrize(
    ("rebuilds", "recoveries", "code"),
    [([1], [STEP], None), ([1, 2], [STEP], 70), ([1], [STEP + 1], 70), ([], [], 70)],
)
def test_a_demo_in_which_something_else_went_wrong_counts_for_nothing(
    rebuilds: list[int], recoveries: list[int], code: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(config: DemoConfig) -> int:
        assert config.report is not None and config.kills == ((1, STEP, False),)
        config.report.mkdir()
        report = {"rebuilds": [{"stage": stage} for stage in rebuilds], "validation": [[20, 3.0]],
                  "recoveries": [{"step": step} for step in recoveries], "training_seconds": 1.0}  # fmt: skip
        (config.report / "report.json").write_text(json.dumps(report))
        return 0

    monkeypatch.setattr(swarm_kills, "run", run)
    if code is None:
        assert of_demo("none", 1)["validation"] == [[20, 3.0]]
    else:
        with pytest.raises(UserError) as caught:
            of_demo("none", 1)
        assert caught.value.exit_code == code


def test_it_goes_on_with_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def of_demo_(protect: str, seed: int) -> dict[str, Any]:
        made.append(protect)
        reason = "a copy of step 190 is kept"
        return demo(protect, "shadow" if protect == "shadow" else "copy", reason)

    def of_twin_(size: object, text: object, seed: int, swap: bool, shadow_of: list[int]) -> dict[str, Any]:
        made.append(f"twin {swap} {shadow_of}")
        return twin()

    monkeypatch.setattr(swarm_kills, "of_demo", of_demo_)
    monkeypatch.setattr(swarm_kills, "of_twin", of_twin_)
    monkeypatch.setattr(swarm_kills, "load_corpus", lambda path: corpus())
    for _ in range(2):
        swarm_kills.main(tmp_path, (1,))
    assert made == [*PROTECTIONS, "twin False [190]", "twin True []"]
    assert len((tmp_path / "swarm_kills.csv").read_text().splitlines()) == 1 + len(PROTECTIONS)
    assert {row["protect"] for row in json.loads((tmp_path / "swarm_kills.json").read_text())} == {*PROTECTIONS}
