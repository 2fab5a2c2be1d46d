"""A task tells the norm of the tensor that it was given, which it has taken anyway (rules 42, 43)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest
import torch
from torch import Tensor

from ftnode.models import number_check
from ftnode.models.direction import direction, rounded
from ftnode.node.compute.config import ComputeConfig
from tests.node.compute.computing import ATTEMPT, CONFIG, LAST_VISIT, STAGES, Direct, direct
from tests.node.compute.test_copy_streams import beside

COMMON: Final[dict[str, Any]] = {"step": 1, "attempt": ATTEMPT, "microbatch": 0}
PAIRS: Final = [("float32", "float32"), ("bfloat16", "bfloat16"), ("int8", "int4")]


def config_of(forward: str, backward: str) -> ComputeConfig:
    made = replace(CONFIG, boundary=forward, boundary_gradients=backward)
    return replace(made, slot_bytes=made.boundary_bytes.largest)


def activation(compute: Direct, slot: int) -> float:
    backend: Any = compute.backend
    return float(torch.linalg.vector_norm(backend.tensors.activation(slot, 1)[0].double()))


def gradient(compute: Direct, slot: int) -> float:
    backend: Any = compute.backend
    return float(torch.linalg.vector_norm(backend.tensors.gradient(slot, 1).double()))


def went(compute: Direct, op: str, visit: int, **fields: Any) -> float:
    answer = compute.call(op, **COMMON, stage=visit % LAST_VISIT, visit=visit, **fields)
    assert not answer["fault"]
    return float(answer["received"])


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(("forward", "backward"), PAIRS)
def test_each_task_of_a_microbatch_tells_the_norm_of_what_it_was_given(
    forward: str, backward: str, recompute: bool
) -> None:
    """One that computes its forward pass again is given two tensors, and tells that of the gradient."""
    compute = direct(config_of(forward, backward))
    ways = {"save": not recompute, "validation": False}
    assert went(compute, "forward", 0, input=None, output=0, **ways) == -1.0
    for visit in range(1, STAGES + 1):
        told = went(compute, "forward", visit, input=visit - 1, output=visit, **ways)
        assert told == pytest.approx(activation(compute, visit - 1), rel=1e-5) and told > 0
    told = went(compute, "backward", LAST_VISIT, gradient=None, input=STAGES, output=5, recompute=False)
    assert told == pytest.approx(activation(compute, STAGES), rel=1e-5)
    for visit in range(STAGES, 0, -1):
        source, output = 5 + STAGES - visit, 6 + STAGES - visit
        given = visit - 1 if recompute else None
        told = went(compute, "backward", visit, gradient=source, input=given, output=output, recompute=recompute)
        assert told == pytest.approx(gradient(compute, source), rel=1e-5) and told > 0
    told = went(compute, "backward", 0, gradient=5 + STAGES, input=None, output=None, recompute=True)
    assert told == pytest.approx(gradient(compute, 5 + STAGES), rel=1e-5)


def test_of_several_stages_in_one_task_it_is_what_came_to_the_first() -> None:
    compute = direct(CONFIG)
    ways: dict[str, Any] = {"save": True, "validation": False}
    went(compute, "forward", 0, input=None, output=0, **ways)
    told = went(compute, "forward", 1, input=0, output=1, onward=[2, 3], **ways)
    assert told == pytest.approx(activation(compute, 0), rel=1e-5)
    went(compute, "backward", LAST_VISIT, gradient=None, input=1, output=5, recompute=False)
    told = went(compute, "backward", 3, gradient=5, input=None, output=6, recompute=False, onward=[2, 1])
    assert told == pytest.approx(gradient(compute, 5), rel=1e-5)


@pytest.mark.parametrize("factor", [0.0, 1000.0])
def test_a_tensor_that_is_far_out_is_told_as_it_is(factor: float) -> None:
    compute = direct(CONFIG)
    compute.numbers(0)[:] = factor * np.random.default_rng(1).normal(size=len(compute.numbers(0)))
    told = went(compute, "forward", 1, input=0, output=1, save=False, validation=False)
    assert told == pytest.approx(activation(compute, 0), rel=1e-5) and (told == 0.0) is (factor == 0.0)


def test_with_a_fault_nothing_is_told() -> None:
    compute = direct(CONFIG)
    compute.numbers(0)[:] = float("nan")
    answer = compute.call(
        "forward", **COMMON, stage=1, visit=1, input=0, output=1, save=False, validation=False
    )  # fmt: skip
    assert answer["fault"] and "received" not in answer


def test_nothing_is_computed_for_it_and_a_card_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A norm of what comes in, and one of what goes out, as without it; all come to the host together."""
    swarm, card = beside(CONFIG)
    swarm.numbers(0)[:] = 1.0
    norms, norm = [0], number_check.norm

    def counted(count: list[int], take: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def taken(x: Tensor) -> Tensor:
            count[0] += 1
            return take(x)

        return taken

    monkeypatch.setattr(number_check, "norm", counted(norms, norm))
    before = card.waits
    told = went(swarm, "forward", 1, input=0, output=1, save=False, validation=False)
    assert told == pytest.approx(activation(swarm, 0), rel=1e-5)
    assert (norms, card.waits - before) == ([2], 1)


@pytest.mark.parametrize(("forward", "backward"), PAIRS)
def test_where_somebody_checks_each_task_tells_which_way_an_activation_points(forward: str, backward: str) -> None:
    compute = direct(replace(config_of(forward, backward), checks=True))
    backend: Any = compute.backend

    def told(op: str, visit: int, **fields: Any) -> tuple[int, ...]:
        return tuple(compute.call(op, **COMMON, stage=visit % LAST_VISIT, visit=visit, **fields)["way"])

    def points(slot: int) -> tuple[int, ...]:
        return rounded(direction(backend.tensors.activation(slot, 1)[0]).tolist())

    ways: dict[str, Any] = {"save": True, "validation": False}
    assert told("forward", 0, input=None, output=0, **ways) == ()
    for visit in range(1, STAGES + 1):
        assert told("forward", visit, input=visit - 1, output=visit, **ways) == points(visit - 1)
    last = told("backward", LAST_VISIT, gradient=None, input=STAGES, output=5, recompute=False)
    assert last == points(STAGES) and any(last)
    assert told("backward", STAGES, gradient=5, input=None, output=6, recompute=False) == ()


def test_where_nobody_checks_nothing_is_computed_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(number_check, "direction", None)
    compute = direct(CONFIG)
    went(compute, "forward", 0, input=None, output=0, save=True, validation=False)
    answer = compute.call("forward", **COMMON, stage=1, visit=1, input=0, output=1, save=True, validation=False)
    assert answer["way"] == []
