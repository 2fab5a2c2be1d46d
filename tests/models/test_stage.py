"""A stage's contract: exact recomputation, exactly once, nothing broken gets in."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from ftnode.models import number_check
from ftnode.models.faults import Misuse, StageFault
from ftnode.models.initial import DEVIATION
from ftnode.models.number_check import ACTIVATION_NORM_MAX, GRADIENT_NORM_MAX, NumberCheck
from ftnode.models.optimiser import OptimiserConfig
from ftnode.models.stage import Stage, StageVersion, Unread
from ftnode.models.tensors import bits_digest, digest, plain_sum
from ftnode.models.whole_gradient import stage_gradient
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


def activation(seed: int = 0) -> torch.Tensor:
    drawn = torch.randn(2, CONFIG.context, CONFIG.dim, generator=torch.Generator().manual_seed(seed))
    return drawn.to(DEVICE[0])


def block() -> Stage:
    return stages()[1]


def test_recomputing_equals_saving_to_the_bit() -> None:
    saved, recomputed = stages(), stages()
    for microbatch in range(MICROBATCHES):
        run_microbatch(saved, microbatch, save=True)
        run_microbatch(recomputed, microbatch, save=False)
    for one, other in zip(saved, recomputed):
        assert one.gradient.any()
        assert torch.equal(one.memory, other.memory)


def test_saving_survives_new_bytes_in_the_slot_it_came_from() -> None:
    kept, overwritten = block(), block()
    gradients = []
    for stage, overwrite in ((kept, False), (overwritten, True)):
        x = activation()
        stage.forward((ATTEMPT, 0, 1), x, save=True)
        if overwrite:
            x.fill_(7.0)
        gradients.append(stage.backward((ATTEMPT, 0, 1), activation(1), None).gradient)
    assert gradients[0] is not None and gradients[1] is not None
    assert torch.equal(gradients[0], gradients[1])


def test_training_learns_and_replicas_agree_to_the_bit() -> None:
    one, other = stages(), stages()
    losses = [run_step(one, step) for step in range(1, 16)]
    for step in range(1, 16):
        run_step(other, step)
    assert losses[-1] < losses[0] - 0.5
    assert [digest(stage.weights) for stage in one] == [digest(stage.weights) for stage in other]


def test_the_same_visit_twice_is_refused_and_changes_nothing() -> None:
    stage = block()
    stage.backward((ATTEMPT, 0, 1), activation(1), activation())
    before = stage.memory.clone()
    with pytest.raises(Misuse, match="already accumulated"):
        stage.backward((ATTEMPT, 0, 1), activation(1), activation())
    assert torch.equal(stage.memory, before)
    assert stage.reduce(ATTEMPT).covered == [[0, 1]]


def test_the_head_is_covered_at_both_visits() -> None:
    swarm = stages()
    run_microbatch(swarm, 1)
    run_microbatch(swarm, 0)
    assert swarm[0].reduce(ATTEMPT).covered == [[0, 0], [0, LAST_VISIT], [1, 0], [1, LAST_VISIT]]


def test_attempts_do_not_mix() -> None:
    stage = block()
    stage.backward((ATTEMPT, 0, 1), activation(1), activation())
    with pytest.raises(Misuse, match="attempt"):
        stage.backward(((0, 2), 1, 1), activation(1), activation())
    stage.discard(keep=(0, 2))
    stage.backward(((0, 2), 1, 1), activation(1), activation())
    assert stage.reduce((0, 2)).covered == [[1, 1]]
    alone = block()
    alone.backward(((0, 2), 1, 1), activation(1), activation())
    assert torch.equal(stage.memory, alone.memory)


def test_discard_keeps_what_is_asked_for() -> None:
    stage = block()
    stage.forward((ATTEMPT, 0, 1), activation(), save=True)
    stage.forward(((0, 2), 0, 1), activation(), save=True)
    stage.discard(keep=ATTEMPT)
    assert stage.saved == 1
    stage.backward((ATTEMPT, 0, 1), activation(1), None)
    stage.reduce(ATTEMPT)
    stage.discard(keep=ATTEMPT)
    assert stage.apply(StageVersion(1, "c", ATTEMPT), skipped=False) > 0


def test_apply_needs_the_reduced_gradient_of_that_attempt() -> None:
    stage = block()
    stage.backward((ATTEMPT, 0, 1), activation(1), activation())
    before = stage.weights.clone()
    with pytest.raises(Misuse, match="no reduced gradient"):
        stage.apply(StageVersion(1, "c", ATTEMPT), skipped=False)
    stage.reduce(ATTEMPT)
    with pytest.raises(Misuse, match="attempt"):
        stage.apply(StageVersion(1, "c", (0, 2)), skipped=False)
    with pytest.raises(Misuse, match="does not follow"):
        stage.apply(StageVersion(2, "c", ATTEMPT), skipped=False)
    assert torch.equal(stage.weights, before)
    with pytest.raises(Misuse, match="already reduced"):
        stage.backward((ATTEMPT, 1, 1), activation(1), activation())


def test_skip_changes_the_version_and_no_weight() -> None:
    stage = block()
    before = stage.memory.clone()
    stage.apply(StageVersion(1, "skipped", ATTEMPT), skipped=True)
    assert stage.version == StageVersion(1, "skipped", ATTEMPT)
    assert torch.equal(stage.memory, before) and stage.updates == 0


def test_reduce_clips_and_reports_the_norm_before() -> None:
    stage = Stage(CONFIG, STAGES, 1, OptimiserConfig(1e-2, 20, clip=0.5), MICROBATCHES, DEVICE[0], "float32")
    stage.initialise(5, "lineage")
    stage.backward((ATTEMPT, 0, 1), activation(1), activation())
    accumulated = stage.gradient.clone()
    norm_squared = float(accumulated.double().square().sum())
    reduction = stage.reduce(ATTEMPT)
    assert norm_squared > 0.5**2
    assert reduction.norm_squared == pytest.approx(norm_squared, rel=1e-9)
    assert torch.equal(stage.gradient, accumulated)
    clipped = accumulated * (0.5 / math.sqrt(reduction.norm_squared))
    assert float(clipped.norm()) == pytest.approx(0.5, rel=1e-5)
    found = stage_gradient(accumulated, stage.optimiser, 1, compared=True)
    assert found.gradient == bits_digest(clipped) and found.norm_squared == reduction.norm_squared
    assert stage.reduce(ATTEMPT) == reduction
    stage.apply(StageVersion(1, "c", ATTEMPT), skipped=False)
    assert stage.norm_squared == reduction.norm_squared
    assert torch.equal(stage.moments[: len(clipped)], clipped * (1 - stage.optimiser.beta1))
    assert not stage.gradient.any()


BROKEN = [float("nan"), float("inf"), float("-inf")]


def with_broken(number: float) -> torch.Tensor:
    bad = activation()
    bad[1, 3, 4] = number
    return bad


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("save", [True, False])
def test_a_broken_activation_is_a_fault_and_is_not_saved(broken: float, save: bool) -> None:
    stage = block()
    before = stage.memory.clone()
    with pytest.raises(StageFault, match="activation from the stage before"):
        stage.forward((ATTEMPT, 0, 1), with_broken(broken), save)
    assert torch.equal(stage.memory, before) and not stage.saved


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("given", ["input", "gradient", "to the head"])
def test_broken_numbers_are_a_fault_and_spoil_the_attempt(broken: float, given: str) -> None:
    """Nothing waits for the numbers before the backward pass, so they may be in the sum; it is never used."""
    stage = stages()[0 if given == "to the head" else 1]
    before = stage.memory.clone()
    with pytest.raises(StageFault, match="gradient from the next" if given == "gradient" else "stage before"):
        if given == "to the head":
            stage.learn((ATTEMPT, 0, LAST_VISIT), with_broken(broken), windows(0)[:, 1:])
        elif given == "input":
            stage.backward((ATTEMPT, 0, 1), activation(), with_broken(broken))
        else:
            stage.backward((ATTEMPT, 0, 1), with_broken(broken), activation())
    with pytest.raises(StageFault, match="not finite"):
        stage.reduce(ATTEMPT)
    stage.discard(None)
    assert torch.equal(stage.memory, before), "the next attempt begins from nothing"
    if stage.index:
        stage.backward(((0, 2), 0, 1), activation(), activation())
        assert stage.reduce((0, 2)).covered == [[0, 1]]


LARGEST = torch.finfo(torch.float32).max


def huge(size: float) -> torch.Tensor:
    """Of this norm, or with numbers as near the largest float as there are; the plain sum of all is finite."""
    x = activation()
    if size == LARGEST:
        x[1, 3, 4], x[1, 4, 4] = LARGEST, -LARGEST
        return x
    return x / x.norm() * size


def first_fault(size: float, direction: str) -> str:
    """A liar beside two honest block stages hands such a tensor on. What the first of them says that refuses anything,
    until their gradients are added up; empty for nothing."""
    _, first, second = stages()
    key, onward = (ATTEMPT, 0, 1), (ATTEMPT, 0, 2)
    x, back = activation(2), activation(1)
    if direction == "forward":
        x = huge(size)
    else:
        back = huge(size)
    try:
        second.forward(onward, first.forward(key, x, save=True), save=True)
        between = second.backward(onward, back, None).gradient
        assert between is not None
        first.backward(key, between, None)
        for stage in (first, second):
            stage.reduce(ATTEMPT)
    except StageFault as fault:
        return str(fault)
    return ""


FROM = {"forward": "activation from the stage before", "backward": "gradient from the next stage"}


@pytest.mark.parametrize("size", [2.0**49, 2.0**64, 2.0**100, LARGEST])
@pytest.mark.parametrize("direction", FROM)
def test_numbers_near_the_largest_float_are_refused_by_who_gets_them_first(direction: str, size: float) -> None:
    """It says which tensor it was, so that the leader asks who gave it."""
    assert FROM[direction] in first_fault(size, direction)


@pytest.mark.parametrize("direction", FROM)
def test_the_largest_numbers_that_are_taken_are_the_fault_of_nobody_farther_on(direction: str) -> None:
    largest = ACTIVATION_NORM_MAX if direction == "forward" else GRADIENT_NORM_MAX
    assert first_fault(0.4 * largest, direction) == ""
    made = first_fault(0.99 * largest, direction)
    assert made and "from the" not in made, "what it makes of them itself is not sent on"


@pytest.mark.parametrize("direction", FROM)
@pytest.mark.parametrize("size", [2.0**100, LARGEST])
def test_planted_only_the_plain_sum_of_a_tensor_is_looked_at(
    direction: str, size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bug: numbers that are finite pass. Nobody refuses them, or somebody what it has computed of them."""
    monkeypatch.setattr(number_check, "norm", plain_sum)
    monkeypatch.setattr(number_check, "ACTIVATION_NORM_MAX", math.inf)
    monkeypatch.setattr(number_check, "GRADIENT_NORM_MAX", math.inf)
    assert FROM[direction] not in first_fault(size, direction)


def test_a_broken_number_is_the_fault_of_its_own_task_though_the_next_has_begun() -> None:
    assert faults_found(read_all=True) == [True, False]


def test_planted_a_flag_that_is_lost_between_two_tasks() -> None:
    """The bug: a task's numbers are forgotten when the next one begins."""
    assert faults_found(read_all=False) == [False, False]


def faults_found(read_all: bool) -> list[bool]:
    """Two tasks that are begun one after the other; the first has a broken number. Who of them is a fault?"""
    stage = block()
    begun = [
        stage.begin_forward((ATTEMPT, microbatch, 1), x, save=True)
        for microbatch, x in enumerate((with_broken(float("nan")), activation()))
    ]
    found = []
    for task in begun:
        if not read_all and task is not begun[-1]:
            task = Unread(task.tensor, NumberCheck(stage.index), task.broken)
        try:
            task.read()
            found.append(False)
        except StageFault:
            found.append(True)
    assert stage.saved == 2 - sum(found)
    return found


def test_a_gradient_that_overflows_spoils_the_attempt_and_no_weight() -> None:
    stage = block()
    stage.backward((ATTEMPT, 0, 1), activation(1), activation())
    stage.gradient[1] = float("inf")
    for _ in range(2):
        with pytest.raises(StageFault):
            stage.reduce(ATTEMPT)
    with pytest.raises(Misuse):
        stage.apply(StageVersion(1, "c", ATTEMPT), skipped=False)
    stage.discard(None)
    assert not stage.gradient.any()


def test_a_backward_pass_that_breaks_off_spoils_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = block()

    def out_of_memory(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(torch.autograd, "backward", out_of_memory)
        stage.backward((ATTEMPT, 0, 1), activation(1), activation())
    stage.backward((ATTEMPT, 1, 1), activation(1), activation())
    with pytest.raises(StageFault, match="broke off"):
        stage.reduce(ATTEMPT)


def test_a_gradient_whose_squares_overflow_is_a_fault() -> None:
    stage = block()
    stage.backward((ATTEMPT, 0, 1), activation(1), activation())
    stage.gradient[0] = 1e20
    with pytest.raises(StageFault, match="squared norm"):
        stage.reduce(ATTEMPT)


def test_initial_weights_are_a_pure_function_of_seed_and_stage() -> None:
    first, again, other = stages(seed=1), stages(seed=1), stages(seed=2)
    for index in range(STAGES + 1):
        assert torch.equal(first[index].weights, again[index].weights)
        assert not torch.equal(first[index].weights, other[index].weights)
    assert not torch.equal(first[1].weights, first[2].weights)


def test_initial_weights_are_known() -> None:
    """A change of this hash is another model for every run that has begun."""
    assert digest(stages(seed=1)[1].weights) == INITIAL_DIGEST


INITIAL_DIGEST = "f2f0cc631ef5b516b418ecc4969f4afc"


def test_initial_deviations() -> None:
    stage = block()
    view = stage.layout.view
    queries = view(stage.weights, "model.layers.0.self_attn.q_proj.weight")
    outputs = view(stage.weights, "model.layers.0.mlp.down_proj.weight")
    assert float(queries.std()) == pytest.approx(DEVIATION, rel=0.15)
    assert float(outputs.std()) == pytest.approx(DEVIATION / (2 * CONFIG.layers) ** 0.5, rel=0.15)
    assert torch.equal(
        view(stage.weights, "model.layers.1.input_layernorm.weight"), torch.ones(CONFIG.dim, device=DEVICE[0])
    )


def test_block_stages_have_one_layout_and_the_counts_are_true() -> None:
    swarm = stages()
    shapes = [list(stage.layout.entries.values()) for stage in swarm]
    assert shapes[1] == shapes[2]
    assert next(iter(swarm[2].layout.entries)) == "model.layers.2.self_attn.q_proj.weight"
    for stage in swarm:
        assert stage.layout.size == CONFIG.stage_parameters(STAGES, stage.index)
    assert sum(stage.layout.size for stage in swarm) == CONFIG.total_parameters()


def test_the_rate_factor_multiplies_the_schedule() -> None:
    plain, rebuilt = block(), block()
    rebuilt.become(StageVersion(0, "lineage", (-1, 0)), updates=0, rate_factor=1.1, norm_squared=0.0)
    rates = []
    for stage in (plain, rebuilt):
        stage.backward((ATTEMPT, 0, 1), activation(1), activation())
        stage.reduce(ATTEMPT)
        rates.append(stage.apply(StageVersion(1, "c", ATTEMPT), skipped=False))
    assert rates[1] == pytest.approx(1.1 * rates[0])
    assert rates[0] == pytest.approx(OPTIMISER.learning_rate / OPTIMISER.warmup_steps)


@pytest.mark.parametrize(("precision", "equal"), [("float64", True), ("float32", False)])
def test_the_order_of_sums_hardly_matters_to_float64(precision: str, equal: bool) -> None:
    config = replace(CONFIG, precision=precision)
    forwards, backwards = stages(config=config), stages(config=config)
    for step in range(1, 6):
        run_step(forwards, step)
        run_step(backwards, step, order=range(MICROBATCHES)[::-1])
    off = max(float((one.weights - other.weights).abs().max()) for one, other in zip(forwards, backwards))
    assert (off <= 1e-12) == equal


def test_with_muon_a_stage_learns_and_remembers_less() -> None:
    swarm = stages(replace(OPTIMISER, kind="muon"))
    losses = [run_step(swarm, step) for step in range(1, 7)]
    assert losses[-1] < losses[2] < losses[0]
    matrices = CONFIG.stage_parameters(STAGES, 1) - 2 * CONFIG.dim * CONFIG.layers_per_stage(STAGES)
    assert swarm[1].state("all").numel() == 3 * swarm[1].layout.size - matrices
    assert swarm[0].state("all").numel() == 3 * swarm[0].layout.size
    assert swarm[1].moments.all(), "everything has moved"


def test_with_muon_head_and_norms_learn_by_adam() -> None:
    """From the same gradients, until the blocks differ."""
    swarms = [stages(replace(OPTIMISER, kind=kind)) for kind in ("adam", "muon")]
    for swarm in swarms:
        run_step(swarm, 1)
    (adam_head, adam_block, _), (muon_head, muon_block, _) = swarms
    assert torch.equal(adam_head.state("all"), muon_head.state("all"))
    for name in muon_block.layout.entries:
        ours, theirs = (stage.layout.view(stage.weights, name) for stage in (muon_block, adam_block))
        assert torch.equal(ours, theirs) == name.endswith("layernorm.weight")
