"""Runs under losses: an exact answer must give the curve without losses, and a rollback must really roll back."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from ftnode.lab.recovery import at_once
from ftnode.lab.recovery.failures import Schedule
from ftnode.lab.recovery.runs import Policy, Run, is_by_formula, is_of, run
from ftnode.lab.recovery.whole_model import WholeModel
from ftnode.lab.results.cut_off_work import CutOff, Slice
from tests.lab.recovery.recovery_micro import MICRO, corpus, schedule

LOSSES = ((4, 2), (6, 1), (6, 4))


def result(policy: Policy, folder: Path, losses: Schedule | None = None) -> dict[str, Any]:
    return run(MICRO, corpus(), (), policy, losses or schedule(*LOSSES), 3, "cpu", folder, validate_every=2)


def test_a_model_that_was_kept_goes_on_as_if_nothing_had_been() -> None:
    model = WholeModel(MICRO, corpus(), seed=3)
    for iteration in (1, 2):
        model.train(iteration)
    kept = model.keep()
    first = [model.train(3), model.train(4), model.validate()]
    model.restore(kept)
    assert [model.train(3), model.train(4), model.validate()] == first
    assert kept.size_bytes == 3 * 4 * MICRO.config.total_parameters()


def test_halves_are_the_same_step() -> None:
    whole, halves = (WholeModel(MICRO, corpus(), seed=3, halves=halves) for halves in (False, True))
    for iteration in range(1, 5):
        assert halves.train(iteration) == pytest.approx(whole.train(iteration), abs=1e-4)
    assert halves.validate() == pytest.approx(whole.validate(), abs=1e-4)


def test_swapped_routes_train_another_model() -> None:
    normal, swapped = (WholeModel(MICRO, corpus(), seed=3, swap=swap) for swap in (False, True))
    normal.train(1)
    swapped.train(1)
    assert normal.validate() != swapped.validate()


def test_routes_are_swapped_as_often_as_asked() -> None:
    normal, seldom = (WholeModel(MICRO, corpus(), 3, swap=swap, swap_every=3) for swap in (False, True))
    same = []
    for iteration in range(1, 4):
        normal.train(iteration)
        seldom.train(iteration)
        same.append(normal.validate() == seldom.validate())
    assert same == [True, True, False]


def test_exact_answers_change_nothing(tmp_path: Path) -> None:
    clean = result(Policy("none"), tmp_path)["curve"]
    exact = Policy("exact", way="random", shadow_every=1, shadow_encoding="raw", shadow_part="all")
    found = result(exact, tmp_path)
    assert found["curve"] == clean
    assert found["counted"]["by"] == {"shadow": 3}
    redundant = result(Policy("redundant", redundant=True), tmp_path)
    assert redundant["counted"]["by"] == {"redundant": 3}
    for (_, loss), (_, expected) in zip(redundant["curve"], clean):
        assert loss == pytest.approx(expected, abs=1e-3)


def test_losses_cost(tmp_path: Path) -> None:
    clean, lossy = result(Policy("none"), tmp_path), result(Policy("random", way="random"), tmp_path)
    assert lossy["curve"][:2] == clean["curve"][:2]
    assert lossy["curve"][-1] != clean["curve"][-1]
    assert lossy["counted"]["failures"] == 3
    assert clean["counted"]["failures"] == clean["counted"]["kept_bytes"] == 0


def test_a_checkpoint_rolls_back_steps_and_not_data(tmp_path: Path) -> None:
    """Saved at steps 0 and 3; lost before iteration 6, when 5 steps are done: 2 are undone, data go on."""
    policy = Policy("checkpoint 3", checkpoint_every=3)
    found = result(policy, tmp_path, schedule((6, 2)))
    assert (found["final_step"], found["counted"]["rolled_back_steps"]) == (6, 2)
    by_hand = WholeModel(MICRO, corpus(), seed=3)
    for iteration in (1, 2, 3, 6, 7, 8):
        by_hand.train(iteration)
    assert found["curve"][-1] == (8, by_hand.validate())
    size = 3 * 4 * MICRO.config.total_parameters()
    # Steps 0, 3 and 6.
    assert (found["counted"]["copies"], found["counted"]["sent_bytes"]) == (3, 3 * size)
    assert list(tmp_path.glob("*.pt")) == []


def test_shadows_are_counted(tmp_path: Path) -> None:
    found = result(Policy("shadow", way="uniform", shadow_every=3), tmp_path)
    numbers = 4 * WholeModel(MICRO, corpus(), 3).stages[1].layout.size
    assert found["counted"]["kept_bytes"] == 2 * numbers
    assert found["counted"]["sent_bytes"] == 2 * 2 * numbers
    early = result(Policy("shadow", way="uniform", shadow_every=5), tmp_path)
    assert early["counted"]["by"] == {"uniform": 1, "shadow": 2}


def test_survivors_settle_and_the_rebuilt_one_is_quick(tmp_path: Path) -> None:
    policy = Policy(
        "settle", way="uniform", settle_steps=2, settle_factor=0.5, boost_steps=1, boost_factor=3.0, rate_factor=1.2
    )
    one = Run(MICRO, corpus(), policy, schedule((4, 2)), 3, "cpu", tmp_path)
    seen = []
    for iteration in range(1, 8):
        one.advance(iteration)
        seen.append([stage.rate_factor for stage in one.model.stages[1:3]])
    assert seen[:3] == [[1.0, 1.0]] * 3
    assert seen[3:] == [[0.5, pytest.approx(3.6)], [0.5, 1.2], [1.0, 1.2], [1.0, 1.2]]


def test_survivors_hold_only_while_the_loss_is_high(tmp_path: Path) -> None:
    held = {}
    for above in (1e-9, 1e9):
        policy = Policy("hold", way="random", settle_steps=3, settle_factor=0.0, hold_above=above)
        one = Run(MICRO, corpus(), policy, schedule((4, 1)), 3, "cpu", tmp_path)
        before = one.model.keep()
        for iteration in range(1, 8):
            if iteration == 4:
                before = one.model.keep()
            one.advance(iteration)
            held.setdefault(above, []).append(one.model.stages[3].rate_factor)
            if iteration == 4:
                assert (
                    one.model.keep()
                    .states[3][: one.model.stages[3].layout.size]
                    .equal(before.states[3][: one.model.stages[3].layout.size])
                )
    assert held[1e9] == [1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0]
    assert held[1e-9][:4] == [1.0, 1.0, 1.0, 0.0] and held[1e-9][6] == 1.0


@pytest.mark.parametrize(
    "policy",
    [
        Policy("shadow", way="uniform", shadow_every=3),
        Policy("checkpoint 3", checkpoint_every=3),
        Policy("hold", way="random", settle_steps=2, settle_factor=0.5, hold_above=1e-9, boost_steps=1),
    ],
    ids=lambda policy: policy.name,
)
def test_a_run_in_slices_is_the_run_in_one_go(policy: Policy, tmp_path: Path) -> None:
    """Cut off after every second iteration, each time into a new model. Meanwhile another run of the policy has ended
    in the folder, and its checkpoint has gone with it."""
    whole = result(policy, tmp_path)
    slices = 0
    while True:
        part = Slice(tmp_path / "part.pt", iter((False, True)).__next__)
        try:
            found = run(
                MICRO, corpus(), (), policy, schedule(*LOSSES), 3, "cpu", tmp_path, validate_every=2, slice_=part
            )
            break
        except CutOff as cut:
            slices += 1
            assert str(cut) == f"iteration {2 * slices} of 8"
            for checkpoint in tmp_path.glob("checkpoint-*"):
                checkpoint.unlink()
    assert slices == 3 and found["curve"] == whole["curve"] and found["damages"] == whole["damages"]
    for name in ("by", "kept_bytes", "sent_bytes", "moved_bytes", "rolled_back_steps", "failures"):
        assert found["counted"][name] == whole["counted"][name], name
    part.done()
    assert list(tmp_path.iterdir()) == []


def test_losses_at_once_in_slices_are_those_in_one_go(tmp_path: Path) -> None:
    plan = at_once.Plan((12, 14), ((2,), (2, 3)), ("random", "uniform"), (0, 2))
    whole = at_once.measure(MICRO, corpus(), 3, plan)
    slices = 0
    while True:
        part = Slice(tmp_path / "part.pt", lambda: True)
        try:
            found = at_once.measure(MICRO, corpus(), 3, plan, slice_=part)
            break
        except CutOff:
            slices += 1
    assert found == whole and slices == 1 + len(whole["rows"])


def test_what_another_plan_has_begun_is_not_gone_on_with(tmp_path: Path) -> None:
    """Both have the name of the same result file."""
    short, plan = (at_once.Plan((age,), ((2,),), ("uniform",), (0, 2)) for age in (11, 12))
    with pytest.raises(CutOff):
        at_once.measure(MICRO, corpus(), 3, short, slice_=Slice(tmp_path / "part.pt", lambda: True))
    found = at_once.measure(MICRO, corpus(), 3, plan, slice_=Slice(tmp_path / "part.pt"))
    assert found == at_once.measure(MICRO, corpus(), 3, plan)
    assert at_once.is_of(plan, found) and not at_once.is_of(short, found)
    assert not at_once.is_of(replace(plan, after=(0, 4)), found) and not at_once.is_of(replace(plan, swap=True), found)


def test_a_result_is_of_its_policy() -> None:
    policy = Policy("shadow", way="uniform", shadow_every=3)
    found = {"policy": asdict(policy), "curve": [(0, 5.0), (2, 4.0)]}
    assert is_of(policy, 2, found) and not is_of(policy, 4, found)
    assert not is_of(replace(policy, shadow_every=4), 2, found)
    del found["policy"]["clip"]
    assert is_of(policy, 2, found) and not is_of(replace(policy, way="random"), 2, found)


def test_a_policy_may_clip_lower(tmp_path: Path) -> None:
    """After clipping at a norm that all exceed, the blend is uniform, whatever the norms are before."""
    clipped = [result(Policy(way, way=way, clip=1e-3), tmp_path) for way in ("norm-after-clipping", "uniform", "norm")]
    assert clipped[0]["curve"] == clipped[1]["curve"] != clipped[2]["curve"]
    assert clipped[0]["policy"]["clip"] == 1e-3


def test_what_is_by_formula_has_the_size_of_real_copies(tmp_path: Path) -> None:
    model = WholeModel(MICRO, corpus(), 3)
    redundant = result(Policy("redundant", redundant=True), tmp_path)
    held = sum(stage.state("all").nbytes for stage in model.blocks)
    assert redundant["counted"]["kept_bytes"] == held
    assert redundant["counted"]["sent_bytes"] == 8 * held // 3
    plus = result(Policy("plus", way="partner", swap=True), tmp_path)
    assert plus["counted"]["kept_bytes"] == 2 * model.stages[0].state("weights").nbytes
    shadow = result(Policy("shadow", way="uniform", shadow_every=3), tmp_path)
    assert [is_by_formula(one["policy"]) for one in (redundant, plus, shadow)] == [True, True, False]
