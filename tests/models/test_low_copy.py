"""Products in few bits: from a copy that follows the weights, with gradients that count once, at a scale that stays at
home."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ftnode.models import loss_scale, low_copy
from ftnode.models.blend import Blend
from ftnode.models.faults import StageFault
from ftnode.models.loss_scale import FIRST, LossScale
from ftnode.models.low_copy import LowCopy, copied_numbers
from ftnode.models.stage import Stage, StageVersion
from tests.models.tiny import (
    ATTEMPT,
    CONFIG,
    DEVICE,
    LAST_VISIT,
    MICROBATCHES,
    OPTIMISER,
    STAGES,
    run_microbatch,
    run_step,
    stages,
    windows,
)

LOW = ["bfloat16", "float16"]


def drawn(seed: int, size: float = 1.0) -> Tensor:
    drawn = torch.randn(2, CONFIG.context, CONFIG.dim, generator=torch.Generator().manual_seed(seed))
    return size * drawn.to(DEVICE[0])


def stage(products: str, index: int = 1) -> Stage:
    made = Stage(CONFIG, STAGES, index, OPTIMISER, MICROBATCHES, DEVICE[0], products)
    made.initialise(5, "lineage")
    return made


def output(of: Stage) -> Tensor:
    return of.forward((ATTEMPT, 9, 1), drawn(0), save=False)


def off(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("products", LOW)
@pytest.mark.parametrize("save", [True, False])
def test_it_computes_what_autocast_computes(products: str, save: bool) -> None:
    """torch.autocast casts weights and sums of gradients as well; on a CPU it also multiplies RoPE in few bits."""
    ours, theirs = stage(products), stage("float32")
    with torch.autocast(DEVICE[0], low_copy.PRODUCTS[products]):
        expected = theirs.forward((ATTEMPT, 0, 1), drawn(0), save=True)
    found = ours.forward((ATTEMPT, 0, 1), drawn(0), save)
    assert found.dtype == torch.float32 and off(found - drawn(0), expected - drawn(0)) < 0.02
    backs = [
        one.backward((ATTEMPT, 0, 1), drawn(1), None if save or one is theirs else drawn(0)).gradient
        for one in (ours, theirs)
    ]
    assert backs[0] is not None and backs[1] is not None and off(backs[0], backs[1]) < 0.02
    assert off(ours.gradient, theirs.gradient) < 0.02


def gradient_error(products: str) -> float:
    """How far the sum over all microbatches is from that in float32."""
    swarms = [stages(products=each) for each in (products, "float32")]
    for swarm in swarms:
        for microbatch in range(MICROBATCHES):
            run_microbatch(swarm, microbatch)
    return max(off(one.gradient, other.gradient) for one, other in zip(*swarms))


@pytest.mark.parametrize("products", LOW)
def test_gradients_count_once(products: str) -> None:
    assert gradient_error(products) < 0.03


def test_planted_gradients_that_count_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    right = low_copy._add_up

    def twice(into: Tensor, scale: LossScale, leaf: Tensor) -> None:
        assert leaf.grad is not None
        into.add_(leaf.grad)
        right(into, scale, leaf)

    monkeypatch.setattr(low_copy, "_add_up", twice)
    assert gradient_error("bfloat16") > 0.5


def stale(change: Callable[[Stage], None]) -> bool:
    """Whether the copy is another than that of a stage which is told its weights anew."""
    ours = stage("bfloat16")
    change(ours)
    fresh = stage("bfloat16")
    fresh.weights.copy_(ours.weights)
    fresh.tensors.low.refresh()  # type: ignore[union-attr]
    return not torch.equal(output(ours), output(fresh))


def update(of: Stage) -> None:
    of.backward((ATTEMPT, 0, 1), drawn(1), drawn(0))
    of.reduce(ATTEMPT)
    of.apply(StageVersion(1, "c", ATTEMPT), skipped=False)


def install(of: Stage) -> None:
    blend = Blend(of.state("weights"), 1000, 1)
    chunks = torch.split(stage("bfloat16").weights * 3, 1000)
    for number, chunk in enumerate(chunks):
        blend.add(number, 1.0, chunk)
    blend.finish()
    of.become(StageVersion(4, "c", ATTEMPT), 0, 1.0, 0.0)


CHANGES = [update, install, lambda of: of.initialise(77, "other")]


@pytest.mark.parametrize("change", CHANGES)
def test_the_copy_follows_the_weights(change: Callable[[Stage], None]) -> None:
    assert not stale(change)


@pytest.mark.parametrize("change", CHANGES)
def test_planted_a_copy_that_is_not_refreshed(change: Callable[[Stage], None], monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(of: Stage) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(LowCopy, "refresh", lambda self: None)
            change(of)

    assert stale(forgetful)


@pytest.mark.parametrize("products", LOW)
def test_a_model_learns_and_replicas_agree_to_the_bit(products: str) -> None:
    one, other = stages(products=products), stages(products=products)
    losses = [run_step(one, step) for step in range(1, 16)]
    for step in range(1, 16):
        run_step(other, step)
    assert losses[-1] < losses[0] - 0.5
    assert all(torch.equal(ours.memory, theirs.memory) for ours, theirs in zip(one, other))


def test_stages_of_any_precision_train_together() -> None:
    """The scale of one is nothing that another hears of."""
    plain, mixed = stages(), stages()
    for index, products in ((0, "float16"), (1, "float16"), (2, "bfloat16")):
        mixed[index] = stage(products, index)
    for swarm in (plain, mixed):
        for microbatch in range(MICROBATCHES):
            run_microbatch(swarm, microbatch)
    assert max(off(ours.gradient, theirs.gradient) for ours, theirs in zip(mixed, plain)) < 0.03


def test_small_gradients_survive_float16() -> None:
    ours, exact, unscaled = stage("float16"), stage("float32"), stage("float16")
    ours.scale.value, unscaled.scale.value = 2.0**20, 1.0
    for each in (ours, exact, unscaled):
        each.backward((ATTEMPT, 0, 1), drawn(1, 3e-8), drawn(0))
    assert off(ours.gradient, exact.gradient) < 0.05 < off(unscaled.gradient, exact.gradient)


def steps_until_it_fits(of: Stage) -> int:
    """Steps that are skipped because float16 has no room for their gradient; beyond 30, it never fits."""
    for step in range(1, 31):
        attempt = (0, step)
        try:
            of.backward((attempt, 0, 1), drawn(1), drawn(0))
            of.reduce(attempt)
        except StageFault:
            of.discard(None)
            of.apply(StageVersion(step, f"c{step}", attempt), skipped=True)
            continue
        return step - 1
    return 30


def test_a_skipped_step_halves_the_scale_until_the_gradient_fits() -> None:
    ours = stage("float16")
    ours.scale.value = 2.0**24
    skipped = steps_until_it_fits(ours)
    assert 1 <= skipped <= 20 and ours.scale.value == 2.0 ** (24 - skipped)


def test_planted_a_scale_that_is_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LossScale, "committed", lambda self, skipped: None)
    ours = stage("float16")
    ours.scale.value = 2.0**24
    assert steps_until_it_fits(ours) == 30


def test_the_scale_depends_on_the_commits_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_scale, "GOOD_STEPS", 3)
    scale, seen = LossScale(torch.float16), []
    for skipped in (False, False, True, False, False, False, False):
        scale.committed(skipped)
        seen.append(scale.value / FIRST)
    assert seen == [1, 1, 0.5, 0.5, 0.5, 1, 1]
    other = LossScale(torch.bfloat16)
    other.committed(skipped=True)
    assert other.value == 1


def test_the_scale_stays_within_a_step_though_a_task_is_done_again() -> None:
    first, again = stage("float16"), stage("float16")
    for attempt in ((0, 1), (0, 2)):
        again.discard(None)
        again.backward((attempt, 0, 1), drawn(1), drawn(0))
    first.backward((ATTEMPT, 0, 1), drawn(1), drawn(0))
    assert torch.equal(first.gradient, again.gradient)


@pytest.mark.parametrize("products", LOW)
def test_a_broken_number_is_found(products: str) -> None:
    bad = drawn(0)
    bad[0, 0, 0] = float("nan")
    ours, head = stage(products), stage(products, 0)
    with pytest.raises(StageFault):
        ours.backward((ATTEMPT, 0, 1), bad, drawn(0))
    with pytest.raises(StageFault):
        head.learn((ATTEMPT, 0, LAST_VISIT), bad, windows(0)[:, 1:])


def test_float64_has_no_copy() -> None:
    exact = Stage(replace(CONFIG, precision="float64"), STAGES, 1, OPTIMISER, MICROBATCHES, DEVICE[0], "bfloat16")
    assert exact.tensors.low is None and exact.storages == {exact.memory.untyped_storage().data_ptr()}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("index", [0, 1])
def test_what_is_copied_is_counted_before_it_is_there(index: int, tied: bool) -> None:
    """Of a head whose embedding is the LM head, too."""
    made = Stage(replace(CONFIG, tied=tied), STAGES, index, OPTIMISER, MICROBATCHES, DEVICE[0], "bfloat16")
    assert made.tensors.low is not None
    assert made.tensors.low.bytes == 2 * copied_numbers(made.layout.entries, not index) > 0
