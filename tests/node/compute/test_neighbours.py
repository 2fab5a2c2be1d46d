"""Neighbouring stages in one task come to the same numbers as one by one, to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ftnode.node.compute.config import ComputeConfig
from tests.node.compute.computing import ATTEMPT, CONFIG, LAST_VISIT, MICROBATCHES, STAGES, Direct, Refused, direct

TOGETHER = [[(1, 2, 3)], [(1, 2), (3,)], [(1,), (2, 3)]]
EACH = [(1,), (2,), (3,)]


def encoded(forward: str, backward: str, subspace: int) -> ComputeConfig:
    made = replace(CONFIG, boundary=forward, boundary_gradients=backward, subspace=subspace)
    return replace(made, slot_bytes=made.boundary_bytes.largest)


def step(compute: Direct, number: int, ranges: Sequence[tuple[int, ...]]) -> list[Any]:
    """One committed step on a process that holds everything; `ranges`: which block stages are tasks together. Slots 0
    to 4 are activations by the visit that made them, 5 to 9 gradients."""
    common: dict[str, Any] = {"step": number, "attempt": ATTEMPT}
    told: list[Any] = []

    def run(op: str, m: int, visits: tuple[int, ...], source: int | None, output: int | None, **fields: Any) -> None:
        stage, *onward = visits
        at = {"stage": stage % LAST_VISIT, "microbatch": m, "visit": stage, "onward": onward, "output": output}
        answer = compute.call(op, **common, **at, **fields, **{"input" if op == "forward" else "gradient": source})
        told.append(answer["value"])
        assert not answer["fault"]

    for m in range(MICROBATCHES):
        for visits in [(0,), *ranges]:
            source = visits[0] - 1 if visits[0] else None
            run("forward", m, visits, source, visits[-1], save=True, validation=False)
        run("backward", m, (LAST_VISIT,), None, 5 + LAST_VISIT, input=STAGES, recompute=False)
        for visits in [*ranges[::-1], (0,)]:
            output = 5 + visits[0] if visits[0] else None
            run("backward", m, visits[::-1], 6 + visits[-1], output, input=None, recompute=False)
            if visits[0] == 1:
                told.append(compute.numbers(5 + visits[0]).tobytes())
    told += [compute.call("reduce", **common, stage=stage) for stage in range(STAGES + 1)]
    told += [
        compute.call("apply", **common, stage=stage, commit=f"c{number}", skipped=False)["digest"]
        for stage in range(STAGES + 1)
    ]
    return [each for each in told if each != 0.0]


@pytest.mark.parametrize("ranges", TOGETHER, ids=str)
@pytest.mark.parametrize(("forward", "backward"), [("float32", "float32"), ("bfloat16", "int8"), ("int8", "int4")])
@pytest.mark.parametrize("subspace", [0, 8])
def test_the_same_numbers_to_the_bit(
    ranges: Sequence[tuple[int, ...]], forward: str, backward: str, subspace: int
) -> None:
    config = encoded(forward, backward, subspace)
    together, apart = direct(config), direct(config)
    for number in (1, 2):
        assert step(together, number, ranges) == step(apart, number, EACH)


def test_a_boundary_that_is_not_encoded_makes_other_numbers() -> None:
    """So the comparison above would notice."""
    digests = [step(direct(encoded(*each, 0)), 1, TOGETHER[0])[-1] for each in (("int8", "int4"), ("float32",) * 2)]
    assert digests[0] != digests[1]


def test_a_fault_names_its_stage_and_spoils_the_attempt() -> None:
    compute = direct(CONFIG)
    compute.numbers(0)[:] = 1.0
    compute.backend._stages[2].weights.fill_(np.nan)  # type: ignore[attr-defined]
    at = {"step": 1, "attempt": ATTEMPT, "microbatch": 0}
    common: dict[str, Any] = {**at, "input": 0, "output": 3, "save": True, "validation": False}
    answer = compute.call("forward", **common, stage=1, visit=1, onward=[2, 3])
    assert answer["fault"] and answer["faulty"] == 2
    compute.numbers(0)[:] = np.nan
    answer = compute.call("forward", **{**common, "microbatch": 1}, stage=1, visit=1, onward=[2, 3])
    assert answer["fault"] and answer["faulty"] == 1


def test_a_visit_is_accumulated_once_in_whatever_task() -> None:
    compute = direct(CONFIG)
    compute.numbers(0)[:] = 1.0
    common: dict[str, Any] = {"step": 1, "attempt": ATTEMPT, "microbatch": 0}
    compute.call("forward", **common, stage=1, visit=1, input=0, output=3, save=True, validation=False, onward=[2, 3])
    gradient: dict[str, Any] = {**common, "gradient": 0, "output": 4, "input": None, "recompute": False}
    compute.call("backward", **gradient, stage=3, visit=3, onward=[2])
    with pytest.raises(Refused, match="microbatch 0 at visit 2 is already accumulated"):
        compute.call("backward", **gradient, stage=2, visit=2, onward=[1])


def test_nothing_is_done_for_a_task_with_a_stage_that_is_lost() -> None:
    compute = direct(CONFIG)
    compute.worker._lost.add(3)
    common: dict[str, Any] = {"step": 1, "attempt": ATTEMPT, "microbatch": 0, "input": 0, "output": 3}
    with pytest.raises(Refused, match="of stage 3 is lost") as refused:
        compute.call("forward", **common, stage=1, visit=1, save=True, validation=False, onward=[2, 3])
    assert (refused.value.kind, refused.value.stage) == ("lost", 3)


def test_paced_stages_take_the_time_of_each_and_count_each() -> None:
    config: ComputeConfig = replace(CONFIG, backend="paced", forward_seconds=0.0, backward_seconds=0.0)
    together, apart = direct(config), direct(config)
    assert step(together, 1, TOGETHER[0])[-8:] == step(apart, 1, EACH)[-8:]
