"""Encoded boundary tensors in the compute process: work that is done again is the same to the bit, and no bytes of
others end it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ftnode.models import boundary, number_check
from ftnode.models.tensors import plain_sum
from ftnode.node.compute.config import ComputeConfig
from ftnode.protocol.manifest.boundary import ENCODINGS
from ftnode.protocol.words.types import Direction
from tests.node.compute.computing import ATTEMPT, CONFIG, LAST_VISIT, MICROBATCHES, STAGES, Direct, direct, train

AGAIN = [0, 2]
PAIRS = (("int8", "int8"), ("int4", "int4"), ("int4", "int8"), ("float32", "int4"), ("bfloat16", "bfloat16"))
"""Of activations and of gradients."""
VISIT: dict[str, Any] = {"stage": 1, "step": 1, "attempt": ATTEMPT, "microbatch": 0, "visit": 1}


def config_of(forward: str, backward: str) -> ComputeConfig:
    made = replace(CONFIG, boundary=forward, boundary_gradients=backward)
    return replace(made, slot_bytes=made.boundary_bytes.largest)


@pytest.mark.parametrize(("forward", "backward"), PAIRS)
def test_training_is_reproducible_and_recomputing_changes_no_bit(forward: str, backward: str) -> None:
    """One that recomputes reads the encoded activation again, and one that saved has what it decoded then."""
    config = config_of(forward, backward)
    saving, recomputing = direct(config), direct(config)
    for step in (1, 2, 3):
        assert train(saving, step) == train(recomputing, step, recompute=True)


@pytest.mark.parametrize(("forward", "backward"), PAIRS)
def test_a_run_learns_what_it_learns_in_float32(forward: str, backward: str) -> None:
    """Within a percent after five steps, and not the same: something was rounded."""
    exact, rounded = direct(CONFIG), direct(config_of(forward, backward))
    wanted = [np.mean(train(exact, step)["losses"]) for step in range(1, 6)]
    found = [np.mean(train(rounded, step)["losses"]) for step in range(1, 6)]
    assert found == pytest.approx(wanted, rel=0.01) and found != wanted and found[-1] < found[0]


def redone(config: ComputeConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """A step as it is, and one that was half done and discarded before, with its other microbatch first."""
    plain, disturbed = direct(config), direct(config)
    common: dict[str, Any] = {"step": 1, "attempt": [0, 0], "microbatch": 1}
    for visit in range(STAGES + 1):
        source = visit - 1 if visit else None
        disturbed.call("forward", **common, stage=visit, visit=visit, input=source, output=visit, save=True,
                       validation=False)  # fmt: skip
    disturbed.call("backward", **common, stage=0, visit=LAST_VISIT, gradient=None, input=STAGES, output=LAST_VISIT,
                   recompute=False)  # fmt: skip
    disturbed.call("backward", **common, stage=STAGES, visit=STAGES, gradient=LAST_VISIT, input=None, output=9,
                   recompute=False)  # fmt: skip
    disturbed.call("discard", keep=None)
    return train(plain, 1), train(disturbed, 1)


@pytest.mark.parametrize(("forward", "backward"), PAIRS)
def test_a_step_that_is_done_again_is_the_same(forward: str, backward: str) -> None:
    plain, disturbed = redone(config_of(forward, backward))
    assert plain == disturbed


def test_rounding_that_depends_on_the_time_shows_in_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: rounded as fairly as ever, but not as before."""
    honest = boundary._turned
    monkeypatch.setattr(boundary, "_turned", lambda offsets, key: honest(offsets, (*key, time.monotonic_ns())))
    plain, disturbed = redone(config_of("int8", "int8"))
    assert plain["losses"] == disturbed["losses"] and plain["digests"] != disturbed["digests"]


def gradients(forward: str, backward: str) -> set[bytes]:
    """What stage 1 sends back for each microbatch, when activation and gradient are the same every time."""
    config = config_of(forward, backward)
    compute, found = direct(config), set()
    chance = np.random.default_rng(1).normal(size=config.boundary_bytes.forward // 4)
    compute.arena._map.view(0)[: config.boundary_bytes.forward] = chance.astype("<f4").tobytes()
    sizes = config.boundary_bytes
    compute.arena._map.view(1)[: sizes.backward] = bytes((0x80, 0x3F)) * (sizes.backward // 2)
    for microbatch in range(MICROBATCHES):
        fields = {**VISIT, "microbatch": microbatch}
        assert not compute.call("backward", **fields, gradient=1, input=0, output=2, recompute=True)["fault"]
        found.add(bytes(compute.arena._map.view(2)[: sizes.backward]))
    return found


def test_the_same_gradient_of_another_microbatch_is_rounded_otherwise() -> None:
    """Errors that were the same in every microbatch would add up instead of cancelling out."""
    assert len(gradients("float32", "float32")) == 1
    for encoding in ("int8", "int4"):
        assert len(gradients("float32", encoding)) == MICROBATCHES


def spoil(compute: Direct, slot: int, bits: int, level: int) -> None:
    """A tensor with one scale for all blocks, and one level for all numbers."""
    sizes = compute.backend.config.boundary_bytes
    view = compute.arena._map.view(slot)
    view[: sizes.forward_scales] = bits.to_bytes(2, "little") * (sizes.forward_scales // 2)
    view[sizes.forward_scales : sizes.forward] = bytes([level]) * (sizes.forward - sizes.forward_scales)


@pytest.mark.parametrize("encoding", ["int8", "int4"])
@pytest.mark.parametrize("bits", [0x7F80, 0x7FC0, 0xFFC0, 0x7F7F])
def test_scales_that_came_through_all_the_same_are_a_fault_of_the_data(encoding: str, bits: int) -> None:
    """The link refuses them. Behind it the step would be tried again, as with any number that is not finite."""
    compute = direct(config_of(encoding, encoding))
    spoil(compute, 0, 0x3C00, 0x55)
    spoil(compute, 1, bits, 0xFF)
    assert compute.call("forward", **VISIT, input=1, output=2, save=True, validation=False)["fault"]
    assert compute.call("backward", **VISIT, gradient=1, input=0, output=2, recompute=True)["fault"]
    assert compute.call("reduce", stage=1, step=1, attempt=ATTEMPT)["fault"]
    compute.call("discard", keep=AGAIN)
    again = {**VISIT, "attempt": AGAIN}
    assert not compute.call("backward", **again, gradient=0, input=0, output=2, recompute=True)["fault"]
    assert compute.call("reduce", stage=1, step=1, attempt=AGAIN)["covered"] == [[0, 1]]


@pytest.mark.parametrize("encoding", ["int8", "int4"])
@pytest.mark.parametrize("bits", [0x0000, 0x0001, 0x8001, 0x0080, 0xBC00])
def test_odd_scales_are_numbers_like_others(encoding: str, bits: int) -> None:
    """Zero, denormal, negative."""
    compute = direct(config_of(encoding, encoding))
    spoil(compute, 0, bits, 0xFF)
    assert not compute.call("forward", **VISIT, input=0, output=2, save=True, validation=False)["fault"]
    assert not compute.call("backward", **VISIT, gradient=0, input=0, output=2, recompute=True)["fault"]


@pytest.mark.parametrize("token", [256, 0xFFFF])
def test_tokens_that_came_through_all_the_same_are_a_fault_of_the_data(token: int) -> None:
    """The link refuses them, too. Of a slot with sound ones, the same commands are carried out."""
    config = replace(CONFIG, subspace=8, boundary="int8", slot_bytes=1 << 12)
    compute, sizes = direct(config), config.boundary_bytes
    for slot, last in ((0, 255), (1, token)):
        spoil(compute, slot, 0x3C00, 0x55)
        compute.arena._map.view(slot)[sizes.tokens_in(Direction.FORWARD)] = bytes(sizes.forward_tokens)
        compute.arena._map.view(slot)[sizes.forward - 2 : sizes.forward] = last.to_bytes(2, "little")
    head: dict[str, Any] = {**VISIT, "stage": 0, "visit": LAST_VISIT}
    for save in (True, False):
        forward: dict[str, Any] = {**VISIT, "output": 2, "save": save, "validation": not save}
        assert "token" in compute.call("forward", **forward, input=1)["fault"]
        assert not compute.call("forward", **forward, input=0)["fault"]
    looked: dict[str, Any] = {**head, "output": None, "save": False, "validation": True}
    learnt: dict[str, Any] = {**head, "gradient": None, "output": 3, "recompute": False}
    again: dict[str, Any] = {**VISIT, "gradient": 3, "output": 4, "recompute": True}
    for op, fields in (("forward", looked), ("backward", learnt), ("backward", again)):
        assert "token" in compute.call(op, **fields, input=1)["fault"]
        compute.call("discard", keep=None)
        assert not compute.call(op, **fields, input=0)["fault"]
    assert compute.call("reduce", stage=1, step=1, attempt=ATTEMPT)["covered"] == [[0, 1]]


def test_a_gradient_that_is_too_large_to_be_encoded_spoils_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stage has counted it by then, and the stage before can never have it. Norms have a bound far below."""
    monkeypatch.setattr(number_check, "norm", lambda x: plain_sum(x) * 0)
    compute = direct(config_of("int8", "int8"))
    spoil(compute, 0, 0x3C00, 0x55)
    spoil(compute, 1, 0x70FF, 0xFF)
    spoil(compute, 3, 0x70FF, 0x00)
    answer = compute.call("backward", **VISIT, gradient=1, input=0, output=2, recompute=True)
    assert "too large for int8" in answer["fault"] and answer["tokens"] == 0
    assert "too large for int8" in compute.call("reduce", stage=1, step=1, attempt=ATTEMPT)["fault"]
    compute.call("discard", keep=None)
    again = {**VISIT, "attempt": [0, 2]}
    assert not compute.call("backward", **again, gradient=0, input=0, output=2, recompute=True)["fault"]


def test_a_config_says_both_encodings() -> None:
    assert CONFIG.encodings == ("float32", "float32")
    assert replace(CONFIG, boundary="int8").encodings == ("int8", "int8")
    assert replace(CONFIG, boundary="int8", boundary_gradients="float32").encodings == ("int8", "float32")
    with pytest.raises(ValueError, match=f"boundary must be one of {', '.join(ENCODINGS)}, not int3"):
        replace(CONFIG, boundary_gradients="int3")
    with pytest.raises(ValueError, match="cannot hold a boundary of 1024"):
        replace(CONFIG, boundary="int4", boundary_gradients="float32", slot_bytes=1000)
