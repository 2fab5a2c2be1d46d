"""Visits of a stage that is not here, done again on a copy of it (rule 53): a holder is believed, a liar is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest
import torch

from ftnode.lab.hostile.lies import LIES
from ftnode.lab.liars.kinds import NUMBERS
from ftnode.models.encoded_size import ENCODINGS
from ftnode.models.number_check import NumberCheck
from ftnode.node.compute.config import ComputeConfig
from ftnode.node.compute.state_shape import shape_of
from ftnode.protocol.manifest.parse import TENSOR_TOLERANCE
from ftnode.protocol.recovery.copy_trials import COPIES_ROUND
from ftnode.protocol.words.effects import NOT_DONE
from tests.node.compute.computing import ATTEMPT, CONFIG, LAST_VISIT, Direct, Refused, direct, exported, train
from tests.node.compute.test_recount import shown, visits

STAGE: Final = 2
STEP: Final = 3
"""That whose visits are done again; before it both have trained as many as that less one."""


def config_of(boundary: str) -> ComputeConfig:
    return replace(
        CONFIG, boundary=boundary, boundary_gradients=boundary, dim=64, hidden=96, context=32,
        slot_bytes=2 * 32 * 64 * 8, precision="float64" if boundary == "float64" else "float32",
    )  # fmt: skip


def brought(of: Direct, to: Direct, encoding: str) -> dict[str, Any]:
    """The stage's copy, chunk by chunk; what a recount on it is called with."""
    header, chunks = exported(of, STAGE, STEP - 1, "weights", encoding, freeze=True)
    for index, chunk in enumerate(chunks):
        to.arena._map.view(0)[: len(chunk)] = chunk
        to.call("copy_chunk", stage=STAGE, index=index, slot=0, length=len(chunk), encoding=encoding)
    return {
        "stage": STAGE, "step": STEP, "attempt": ATTEMPT, "microbatch": 1, "visit": STAGE, "of": ["him", 1, False],
        "input": 1, "gradient": 9, "passed_on": 2, "handed_back": 8, "copy": header["version"],
    }  # fmt: skip


def pair(boundary: str, encoding: str) -> tuple[Direct, Direct, dict[str, Any]]:
    """A holder that has trained and done a visit, and who keeps a copy of its stage and was shown the tensors."""
    him = direct(config_of(boundary))
    for step in range(1, STEP):
        train(him, step)
    us = direct(config_of(boundary), range(1))
    common = brought(him, us, encoding)
    visits(him, 1, STEP)
    for slot in range(7 + LAST_VISIT):
        shown(him, us, slot)
    return him, us, common


def limit(boundary: str) -> float:
    return COPIES_ROUND * TENSOR_TOLERANCE[boundary]


@pytest.mark.parametrize("boundary", TENSOR_TOLERANCE)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_an_honest_holder_is_within_a_quarter_of_the_limit(encoding: str, boundary: str) -> None:
    _, us, common = pair(boundary, encoding)
    answer = us.call("recount", **common)
    assert answer["fault"] == "" and answer["value"] < limit(boundary) / 4, answer


@pytest.mark.parametrize("boundary", TENSOR_TOLERANCE)
@pytest.mark.parametrize("lie", NUMBERS)
def test_each_kind_of_wrong_activation_is_far_off(lie: str, boundary: str) -> None:
    torch.manual_seed(1)  # what noise is drawn from
    _, us, common = pair(boundary, "int8")
    codec = us.backend.tensors.activations  # type: ignore[attr-defined]
    content = torch.frombuffer(us.arena._map.view(2), dtype=torch.uint8)[: codec.bytes]
    told = codec.decode(content)[0].clone()
    before = codec.decode(torch.frombuffer(us.arena._map.view(3), dtype=torch.uint8)[: codec.bytes])[0].clone()
    LIES[lie](told, before)
    codec.encode(told, None, content, NumberCheck(STAGE))
    assert us.call("recount", **common)["value"] > 1.5 * limit(boundary)


FIRST: Final = {"visit": 0, "input": None, "gradient": 7, "passed_on": 0, "handed_back": None}
LAST: Final = {"visit": LAST_VISIT, "input": LAST_VISIT - 1, "gradient": None, "passed_on": None, "handed_back": 10}
"""Of the head: which slots have what it was given and gave."""


def keeper_of_the_head(boundary: str) -> tuple[Direct, dict[str, Any]]:
    """It has the head's copy, of which the moments come behind the weights, and holds another stage."""
    him, us = direct(config_of(boundary)), direct(config_of(boundary), range(1, 2))
    for step in range(1, STEP):
        train(him, step)
    header, chunks = exported(him, 0, STEP - 1, "all", "raw", freeze=True)
    weights = shape_of(config_of(boundary)).lengths(0, "weights", "raw")
    assert len(weights) <= len(chunks) and sum(weights) < sum(map(len, chunks))
    for index, length in enumerate(weights):
        us.arena._map.view(0)[:length] = chunks[index][:length]
        us.call("copy_chunk", stage=0, index=index, slot=0, length=length, encoding="raw")
    visits(him, 1, STEP)
    for slot in range(7 + LAST_VISIT):
        shown(him, us, slot)
    return us, {
        "stage": 0, "step": STEP, "attempt": ATTEMPT, "microbatch": 1, "of": ["him", 1, False],
        "copy": header["version"],
    }  # fmt: skip


@pytest.mark.parametrize("boundary", TENSOR_TOLERANCE)
@pytest.mark.parametrize("visit", [FIRST, LAST], ids=["first", "last"])
def test_an_honest_head_is_believed_and_one_that_lies_is_not(visit: dict[str, Any], boundary: str) -> None:
    us, common = keeper_of_the_head(boundary)
    answer = us.call("recount", **common, **visit)
    assert answer["fault"] == "" and answer["value"] < limit(boundary) / 4, answer
    us, common = keeper_of_the_head(boundary)
    tensors = us.backend.tensors  # type: ignore[attr-defined]
    codec = tensors.activations if visit is FIRST else tensors.gradients
    gave = visit["passed_on"] if visit is FIRST else visit["handed_back"]
    content = torch.frombuffer(us.arena._map.view(gave), dtype=torch.uint8)[: codec.bytes]
    if visit is FIRST:
        tensors.activations.encode(-codec.decode(content)[0], None, content, NumberCheck(0))
    else:
        tensors.encode_gradient(-codec.decode(content), content, STEP, 1, LAST_VISIT, NumberCheck(0))
    assert us.call("recount", **common, **visit)["value"] > 1.5 * limit(boundary)


def test_a_copy_of_other_weights_is_far_off() -> None:
    """Who computes rightly with other weights than it lends is a liar as well."""
    him, us, common = pair("float32", "int8")
    him.backend._stages[STAGE].weights.mul_(-1.0)  # type: ignore[attr-defined]
    brought(him, us, "int8")
    assert us.call("recount", **common)["value"] > 2 * limit("float32")


def test_without_a_copy_there_is_nothing_to_compare_with() -> None:
    _, us, common = pair("float32", "int8")
    assert us.call("recount", **common)["value"] > 0.0
    assert us.call("recount", **common)["value"] == NOT_DONE, "the copy is dropped when it has been tried"
    assert STAGE not in us.backend._stages and not us.backend.recounting.apart  # type: ignore[attr-defined]


def test_where_the_host_has_no_room_nothing_is_tried() -> None:
    """The kernel would end whoever takes too much, and with it all stages that it holds."""
    _, us, common = pair("float32", "int8")
    us.backend.recounting._room = lambda: 100_000  # type: ignore[attr-defined]
    assert us.call("recount", **common)["value"] == NOT_DONE


@pytest.mark.parametrize("planted", [False, True])
def test_numbers_that_are_too_large_for_float16_accuse_nobody(planted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An honest holder on a device of float32, and a keeper on one of float16."""
    him = direct(config_of("float32"))
    stage = him.backend._stages[STAGE]  # type: ignore[attr-defined]
    for name, (offset, shape) in stage.plan.entries(STAGE, "weights").items():
        if ("gate" in name or "up" in name) and len(shape) == 2:
            stage.weights[offset : offset + shape[0] * shape[1]].mul_(3000.0)
    stage.tensors.changed()
    us = direct(replace(config_of("float32"), products="float16"), range(1))
    if planted:
        monkeypatch.setattr(us.backend.recounting, "_new_stage", us.backend._new_stage)  # type: ignore[attr-defined]
    header, chunks = exported(him, STAGE, 0, "weights", "int8", freeze=True)
    for index, chunk in enumerate(chunks):
        us.arena._map.view(0)[: len(chunk)] = chunk
        us.call("copy_chunk", stage=STAGE, index=index, slot=0, length=len(chunk), encoding="int8")
    visits(him, 1, 1)
    for slot in range(7 + LAST_VISIT):
        shown(him, us, slot)
    answer = us.call(
        "recount", stage=STAGE, step=1, attempt=ATTEMPT, microbatch=1, visit=STAGE, of=["him", 1, False], input=1,
        gradient=9, passed_on=2, handed_back=8, copy=header["version"],
    )  # fmt: skip
    assert bool(answer["fault"]) == planted and answer["value"] < COPIES_ROUND * limit("float32"), answer


@pytest.mark.parametrize("index,length", [(1, 64), (0, 7)])
def test_a_copy_comes_whole_and_in_order(index: int, length: int) -> None:
    us = direct(config_of("float32"), range(1))
    with pytest.raises(Refused, match="chunk"):
        us.call("copy_chunk", stage=STAGE, index=index, slot=0, length=length, encoding="int8")


def test_of_copies_that_were_not_tried_only_the_last_one_stays_in_memory() -> None:
    him, us = direct(config_of("float32")), direct(config_of("float32"), range(1))
    for stage in (1, STAGE):
        _, chunks = exported(him, stage, 0, "weights", "int8", freeze=True)
        us.arena._map.view(0)[: len(chunks[0])] = chunks[0]
        us.call("copy_chunk", stage=stage, index=0, slot=0, length=len(chunks[0]), encoding="int8")
    assert {*us.backend.recounting.copies} == {STAGE}  # type: ignore[attr-defined]
