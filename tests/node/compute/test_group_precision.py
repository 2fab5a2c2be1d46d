"""Groups in a float64 run: who shares a step with others learns what one does who made it alone, to the last digits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ftnode.node.compute.config import ComputeConfig
from ftnode.node.machine.gradient_memory import GradientMap, GradientMemory
from ftnode.protocol.words.errors import LocalError
from ftnode.protocol.words.types import Attempt
from tests.node.compute.computing import Refused, exported, install, process
from tests.node.reduction.reducing import (
    GROUP_CONFIG,
    NUMBERS,
    STAGE,
    WIDE_CONFIG,
    Floats,
    Member,
    Wires,
    group,
    run,
    task,
)

STEPS = (1, 2, 3)
TOLERANCE = 1e-12


def weights(member: Member) -> Floats:
    return member.stage.weights.numpy().copy()  # type: ignore[no-any-return]


def distance_of_a_group_from_one_alone(config: ComputeConfig) -> float:
    """Largest difference of a weight after all steps. A learner comes in between and has what the holders have."""
    found: list[float] = []

    async def main(wires: Wires) -> None:
        a, b, alone = wires.member("a"), wires.member("b"), wires.member("alone")
        learner = wires.member("learner", learner=True)
        start = weights(a)
        shares = group((a, 2), (learner, 0), (b, 2))
        state: list[bytes] = []
        for step in STEPS:
            attempt = Attempt(0, step)
            a.accumulate(0, 3, step=step, attempt=attempt)
            b.accumulate(2, 1, step=step, attempt=attempt)
            alone.accumulate(0, 1, 2, 3, step=step, attempt=attempt)
            for member in (a, b, learner):
                member.start(task(shares, step=step, attempt=attempt))
            answers = [await member.answer() for member in (a, b, learner)]
            assert len({answer["gradient"] for answer in answers}) == 1 and not answers[0]["fault"]
            expected = alone.compute.call("reduce", stage=STAGE, step=step, attempt=list(attempt))
            assert answers[2]["norm_squared"] == pytest.approx(expected["norm_squared"], rel=1e-5)
            digests = {member.apply(step, attempt) for member in (a, b)}
            alone.apply(step, attempt)
            if step == 1:
                state = exported(a.compute, STAGE, 1, "all")[1]
            elif step == 2:  # its base comes late: the sum waits on the shelf
                learner.compute.call("shelve", stage=STAGE, attempt=list(attempt))
                learner.compute.call("discard", keep=None)
                install(learner.compute, STAGE, 1, "all", [(1.0, state)], count=1)
            if step > 1:
                digests.add(learner.apply(step, attempt))
            assert len(digests) == 1
        assert exported(learner.compute, STAGE, 3, "all")[1] == exported(b.compute, STAGE, 3, "all")[1]
        assert float(np.abs(weights(a) - start).max()) > 1e-3, "it has learnt"
        found.append(float(np.abs(weights(a) - weights(alone)).max()))

    run(main, config)
    return found[0]


def test_two_holders_and_one_alone_learn_the_same_in_float64() -> None:
    assert distance_of_a_group_from_one_alone(WIDE_CONFIG) < TOLERANCE


def test_the_tolerance_is_one_that_float32_does_not_meet() -> None:
    assert TOLERANCE < distance_of_a_group_from_one_alone(GROUP_CONFIG) < 1e-4


def test_a_place_has_room_for_the_numbers_of_the_run() -> None:
    memory = GradientMemory(NUMBERS, 8)
    for stage, numbers in enumerate(NUMBERS):
        memory.view(stage)[:] = bytes([stage + 1]) * (8 * numbers)
    theirs = GradientMap(memory.descriptor, NUMBERS, 8)
    for stage, numbers in enumerate(NUMBERS):
        assert theirs.view(stage) == bytes([stage + 1]) * (8 * numbers)
    with pytest.raises(LocalError):
        theirs.view(len(NUMBERS))


@pytest.mark.parametrize("backend", ["torch", "paced"])
def test_a_process_reduces_float64_in_a_group(backend: str, tmp_path: Path) -> None:
    memory = GradientMemory(NUMBERS, 8)
    text = tmp_path / "text"
    text.write_bytes(bytes(range(256)) * 40)
    config = {**WIDE_CONFIG.to_dict(), "backend": backend, "data": str(text)}
    fields = {"stage": 2, "step": 7, "attempt": [0, 7]}
    with process(config, memory) as compute:
        assert compute.call("reduce_open", **fields, count=0) == {"covered": [], "fault": ""}
        gradient = np.frombuffer(memory.view(2), np.float64)
        gradient[:] = 1 + 2.0**-40
        answer = compute.call("reduce_close", **fields)
        if backend == "torch":
            assert answer["norm_squared"] == pytest.approx(NUMBERS[2] * (1 + 2.0**-40) ** 2, rel=1e-13)
        compute.call("shelve", stage=2, attempt=[0, 7])
        with pytest.raises(Refused, match="no weights"):
            compute.call("apply", **fields, commit="c7", skipped=False)
        compute.call("forget", stage=2)
        assert not gradient.any()
