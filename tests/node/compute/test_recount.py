"""Visits of another holder are done again: what they give is what it had, and nothing of the own step changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest
import torch

from ftnode.lab.hostile.lies import LIES, Lie
from ftnode.lab.liars.kinds import NUMBERS
from ftnode.models.number_check import NumberCheck
from ftnode.node.compute.config import ComputeConfig
from ftnode.node.compute.recounting import Recounting
from ftnode.protocol.manifest.parse import TENSOR_TOLERANCE
from tests.node.compute.computing import (
    ATTEMPT,
    CONFIG,
    LAST_VISIT,
    STAGES,
    Direct,
    Refused,
    direct,
    exported,
    install,
)

COMMON: Final[dict[str, Any]] = {"step": 1, "attempt": ATTEMPT}
HIS: Final = ["him", 1]
MODELS: Final = {
    "plain": CONFIG,
    "int8": replace(CONFIG, boundary="int8", boundary_gradients="int8"),
    "bfloat16": replace(CONFIG, boundary="bfloat16"),
}


def visits(compute: Direct, microbatch: int, step: int = 1) -> None:
    """One microbatch through all stages and back. What visit v makes lies in slot v forward, and 6 + v backward."""
    common = COMMON | {"step": step}
    for visit in range(STAGES + 1):
        compute.call(
            "forward", **common, stage=visit, microbatch=microbatch, visit=visit, input=visit - 1 if visit else None,
            output=visit, save=True, validation=False,
        )  # fmt: skip
    for visit in range(LAST_VISIT, -1, -1):
        last = visit == LAST_VISIT
        compute.call(
            "backward", **common, stage=0 if last else visit, microbatch=microbatch, visit=visit,
            gradient=None if last else 7 + visit, input=STAGES if last else None,
            output=6 + visit if visit else None, recompute=visit == 0,
        )  # fmt: skip


def gradient(compute: Direct, stage: int) -> np.ndarray[Any, Any]:
    found: torch.Tensor = compute.backend._stages[stage].gradient  # type: ignore[attr-defined]
    return found.numpy().copy()


def apart(compute: Direct, stage: int) -> np.ndarray[Any, Any]:
    found: torch.Tensor = compute.backend.recounting.apart[stage][1].gradient  # type: ignore[attr-defined]
    return found.numpy().copy()


def shown(of: Direct, to: Direct, slot: int) -> int:
    """The same tensor, in the same slot there."""
    to.arena._map.view(slot)[:] = of.arena._map.view(slot)
    return slot


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("first,last", [(1, 1), (2, 3), (1, 3), (0, 0), (0, 2), (3, 4), (4, 4), (0, 4)])
def test_what_visits_give_is_found_again(first: int, last: int, model: str) -> None:
    config: ComputeConfig = MODELS[model]
    him, us = direct(config), direct(config)
    visits(us, 0)
    visits(him, 1)
    own = [gradient(us, stage) for stage in range(STAGES + 1)]
    stages = [visit % LAST_VISIT for visit in range(first, last + 1)]
    us.call(
        "recount", **COMMON, stage=stages[0], microbatch=1, visit=first, of=HIS, onward=stages[1:],
        input=shown(him, us, first - 1) if first else None,
        gradient=shown(him, us, 7 + last) if last < LAST_VISIT else None,
    )  # fmt: skip
    whole = {0: first == 0 and last == LAST_VISIT}
    for stage in set(stages):
        again = apart(us, stage)
        if whole.get(stage, True):
            assert np.array_equal(again, gradient(him, stage))
        else:  # one of the head's two visits
            assert np.any(again) and not np.array_equal(again, gradient(him, stage))
    assert all(np.array_equal(gradient(us, stage), had) for stage, had in enumerate(own))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("first,last", [(1, 1), (2, 3), (0, 0), (0, 2), (3, 4), (4, 4)])
def test_what_was_passed_on_is_compared(first: int, last: int, model: str) -> None:
    """Right at first, to the bit; then others' numbers, and as many of them as there are ways out."""
    him, us = direct(MODELS[model]), direct(MODELS[model])
    visits(him, 1)
    stages = [visit % LAST_VISIT for visit in range(first, last + 1)]
    for slot in range(7 + LAST_VISIT):
        shown(him, us, slot)
    outputs = {"passed_on": last if last < LAST_VISIT else None, "handed_back": 6 + first if first else None}

    def away(of: str, **slots: int | None) -> float:
        answer = us.call(
            "recount", **COMMON, stage=stages[0], microbatch=1, visit=first, of=[of, 1], onward=stages[1:],
            input=first - 1 if first else None, gradient=7 + last if last < LAST_VISIT else None, **slots,
        )  # fmt: skip
        assert answer["fault"] == ""
        return float(answer["value"])

    assert away("him", **outputs) == 0.0 == away("nobody")
    for name, slot in outputs.items():
        other = {"passed_on": (last + 2) % LAST_VISIT, "handed_back": 7 + (first + 1) % LAST_VISIT}[name]
        assert slot is None or away(name, **{name: other}) > 0.1


def away(us: Direct, of: str) -> float:
    """How far what somebody's visit of stage 2 gave is from what it gives here, as it was shown to us."""
    answer = us.call(
        "recount", **COMMON, stage=2, microbatch=1, visit=2, of=[of, 1], input=1, gradient=9, passed_on=2,
        handed_back=8,
    )  # fmt: skip
    assert answer["fault"] == ""
    return float(answer["value"])


@pytest.mark.parametrize("encoding", TENSOR_TOLERANCE)
def test_a_device_that_rounds_otherwise_is_no_liar(encoding: str) -> None:
    """Weights that differ like numbers in bfloat16 make outputs that differ by less than half of what is allowed; half
    as much again is more."""
    precision = "float64" if encoding == "float64" else "float32"
    config = replace(
        CONFIG, boundary=encoding, boundary_gradients=encoding, precision=precision, dim=64, context=32,
        slot_bytes=2 * 32 * 64 * 8,
    )  # fmt: skip
    him, us = direct(config), direct(config)
    for stage in range(STAGES + 1):
        weights: torch.Tensor = us.backend._stages[stage].weights  # type: ignore[attr-defined]
        weights.mul_(1 + 2.0**-9 * torch.randn_like(weights))
    visits(him, 1)
    for slot in range(7 + LAST_VISIT):
        shown(him, us, slot)

    honest = away(us, "him")
    assert 0.0 < honest < TENSOR_TOLERANCE[encoding] / 2, honest
    codec = us.backend.tensors.activations  # type: ignore[attr-defined]
    content = torch.frombuffer(us.arena._map.view(2), dtype=torch.uint8)[: codec.bytes]
    codec.encode(1.5 * codec.decode(content)[0], None, content, NumberCheck(2))
    assert away(us, "liar") > TENSOR_TOLERANCE[encoding]


def far_off(encoding: str, gradients: bool, lie: Lie) -> tuple[float, float]:
    """How far what a visit of stage 2 passed on, or handed back, is off: as it is, and after the lie. Real tensors."""
    precision = "float64" if encoding == "float64" else "float32"
    config = replace(
        CONFIG, boundary=encoding, boundary_gradients=encoding, precision=precision, slot_bytes=2 * CONFIG.slot_bytes
    )
    him, us = direct(config), direct(config)
    slot = 8 if gradients else 2
    codec = us.backend.tensors.gradients if gradients else us.backend.tensors.activations  # type: ignore[attr-defined]

    def numbers(of: Direct) -> torch.Tensor:
        content = torch.frombuffer(of.arena._map.view(slot), dtype=torch.uint8)[: codec.bytes]
        decoded = codec.decode(content)
        found: torch.Tensor = decoded if gradients else decoded[0]
        return found.clone()

    visits(him, 0)
    before = numbers(him)
    visits(him, 1)
    for each in range(7 + LAST_VISIT):
        shown(him, us, each)

    honest, told = away(us, "him"), numbers(us)
    lie(told, before)
    content = torch.frombuffer(us.arena._map.view(slot), dtype=torch.uint8)[: codec.bytes]
    codec.encode(told, content) if gradients else codec.encode(told, None, content, NumberCheck(2))
    return honest, away(us, "liar")


@pytest.mark.parametrize("encoding", TENSOR_TOLERANCE)
@pytest.mark.parametrize("gradients", [False, True], ids=["passed on", "handed back"])
@pytest.mark.parametrize("lie", NUMBERS)
def test_each_kind_of_number_is_far_off_in_every_encoding(lie: str, gradients: bool, encoding: str) -> None:
    torch.manual_seed(1)  # what noise is drawn from
    honest, found = far_off(encoding, gradients, LIES[lie])
    assert honest == 0.0 and found > 2 * TENSOR_TOLERANCE[encoding]


@pytest.mark.parametrize("encoding", ["float64", "float32", "bfloat16"])
def test_what_is_less_than_the_limit_passes(encoding: str) -> None:
    """It is not defended, as SECURITY.md says."""
    honest, found = far_off(encoding, False, lambda tensor, before: tensor.mul_(1.03))
    assert honest == 0.0 and 0.02 < found < TENSOR_TOLERANCE[encoding]


def test_it_is_of_one_peer_in_one_attempt() -> None:
    him, us = direct(CONFIG), direct(CONFIG)
    visits(him, 1)
    fields: dict[str, Any] = {**COMMON, "stage": 2, "microbatch": 1, "visit": 2, "onward": []}
    for slot in (1, 9):
        shown(him, us, slot)
    us.call("recount", **fields, of=HIS, input=1, gradient=9)
    once = apart(us, 2)
    with pytest.raises(Refused):  # the same visit twice
        us.call("recount", **fields, of=HIS, input=1, gradient=9)
    us.call("recount", **fields, of=["other", 1], input=1, gradient=9)
    assert np.array_equal(apart(us, 2), once)
    us.call("discard", keep=None)
    assert us.backend.recounting.apart == {}  # type: ignore[attr-defined]


def test_broken_numbers_are_no_fault_of_the_step() -> None:
    him, us = direct(CONFIG), direct(CONFIG)
    visits(us, 0)
    visits(him, 1)
    us.arena._map.view(1)[:] = b"\x00\x00\xc0\x7f" * (len(us.arena._map.view(1)) // 4)
    answer = us.call(
        "recount", **COMMON, stage=2, microbatch=1, visit=2, of=HIS, input=1, gradient=shown(him, us, 9), onward=[]
    )
    assert "not finite" in answer["fault"]
    assert us.call("reduce", **COMMON, stage=2)["fault"] == ""


# -- what was lent for a stage that was made of it (rule 48)


def made_of_neighbours(config: ComputeConfig, lie: float = 0.0, parts: str = "weights") -> tuple[Direct, Direct]:
    """One who holds all stages and computes a microbatch, and one whose stage 2 is made of stages 1 and 3 of his. What
    he lends of stage 3 is other than what he works with, by so much of its size."""
    him, us = direct(config), direct(config, stages=range(2, 3))
    lent = [exported(him, stage, 0, parts)[1] for stage in (1, 3)]
    numbers = [np.frombuffer(chunk, dtype=np.float32) for chunk in lent[1]]
    lent[1] = [((1 + lie) * chunk).astype(np.float32).tobytes() for chunk in numbers]
    install(us, 2, 0, parts, [(0.5, chunks) for chunks in lent], lenders=(1, 3))
    visits(him, 1)
    for slot in range(7 + LAST_VISIT):
        shown(him, us, slot)
    return him, us


def away_on_lent(us: Direct, stage: int) -> float:
    """His visit of a stage, done again on what he lent of it."""
    answer = us.call(
        "recount", **COMMON, stage=2, lent=stage, microbatch=1, visit=stage, of=HIS, onward=[], input=stage - 1,
        gradient=7 + stage, passed_on=stage, handed_back=6 + stage,
    )  # fmt: skip
    assert answer["fault"] == ""
    return float(answer["value"])


@pytest.mark.parametrize("parts", ["weights", "all"])
@pytest.mark.parametrize("model", MODELS)
def test_what_was_lent_for_a_new_stage_is_tried_on_the_lenders_visits(model: str, parts: str) -> None:
    _, us = made_of_neighbours(MODELS[model], parts=parts)
    assert [away_on_lent(us, stage) for stage in (1, 3)] == [0.0, 0.0]
    before = gradient(us, 2)
    assert not np.any(before)  # our own stage has learnt nothing of it


@pytest.mark.parametrize("model", MODELS)
def test_other_weights_than_the_lender_works_with_are_seen(model: str) -> None:
    _, us = made_of_neighbours(MODELS[model], lie=0.5)
    assert away_on_lent(us, 1) == 0.0 and away_on_lent(us, 3) > TENSOR_TOLERANCE["int8"]


def test_what_was_lent_is_kept_until_a_step_is_made_with_it() -> None:
    """A step that is skipped changes no weights."""
    _, us = made_of_neighbours(CONFIG, lie=0.5)
    us.call("apply", stage=2, step=1, commit="c1", attempt=ATTEMPT, skipped=True)
    assert us.backend.recounting.lent[2].keys() == {1, 3}  # type: ignore[attr-defined]
    us.call("forget", stage=2)
    assert not us.backend.recounting.lent.get(2)  # type: ignore[attr-defined]


@pytest.mark.parametrize("what", ["_stage_of", "_apart_of", "_forward_again"])
def test_a_stage_beside_ours_for_which_there_is_no_memory_costs_ours_nothing(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says nothing of who lent it then."""
    _, us = made_of_neighbours(CONFIG, lie=0.5)

    def full(self: Recounting, *given: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")

    with monkeypatch.context() as while_full:
        while_full.setattr(Recounting, what, full)
        assert away_on_lent(us, 3) == 0.0
    assert away_on_lent(us, 1) == 0.0 and away_on_lent(us, 3) > 0.0
