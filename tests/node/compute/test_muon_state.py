"""A run with Muon on the side of the tensors: its one moment goes wherever the weights go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ftnode.models.muon import scratch_bytes
from ftnode.node.compute.state_shape import shape_of, state_numbers
from tests.node.compute.computing import (
    ATTEMPT,
    CONFIG,
    STAGES,
    Direct,
    Refused,
    direct,
    exported,
    install,
    train,
)

MUON = replace(CONFIG, optimiser="muon")
MATRICES = 4 * 16 * 16 + 3 * 16 * 24
NORMS = 2 * 16


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def learnt(original: Direct, parts: str = "all") -> Direct:
    """A newcomer that has been handed every stage as of step 2."""
    newcomer = direct(MUON, stages=range(0))
    for stage in range(STAGES + 1):
        begun, chunks = exported(original, stage, 2, parts, freeze=stage % 2 == 1)
        assert install(newcomer, stage, 2, parts, [(1.0, chunks)], begun["step_count"])["digest"] == begun["digest"]
    return newcomer


def test_who_learns_a_stage_goes_on_to_the_bit() -> None:
    original = direct(MUON)
    train(original, 1)
    train(original, 2)
    newcomer = learnt(original)
    assert [train(newcomer, step) for step in (3, 4)] == [train(original, step) for step in (3, 4)]


def test_without_the_momentum_the_next_step_shows_it() -> None:
    """What the hashes of replicas would find, if a hand-over forgot the optimiser's part."""
    original = direct(MUON)
    train(original, 1)
    train(original, 2)
    newcomer = learnt(original, "weights")
    ours, theirs = train(newcomer, 3), train(original, 3)
    assert ours["reduced"] == theirs["reduced"], "the same weights, the same gradients"
    assert all(one != other for one, other in zip(ours["digests"], theirs["digests"]))


@pytest.mark.parametrize("parts", ["weights", "optimiser"])
def test_a_stage_that_is_handed_over_without_its_last_bit_is_found_out(parts: str) -> None:
    """A single bit of the momentum, as of the weights, makes other weights at the next step."""
    original = direct(MUON)
    train(original, 1)
    begun, chunks = exported(original, 1, 1, "all")
    state = bytearray(b"".join(chunks))
    state[1 if parts == "weights" else begun["weight_bytes"] + 1] ^= 64
    flipped = [bytes(state[start : start + MUON.chunk_bytes]) for start in range(0, len(state), MUON.chunk_bytes)]
    replica = direct(MUON, stages=range(0))
    for stage in range(STAGES + 1):
        theirs = flipped if stage == 1 else exported(original, stage, 1, "all")[1]
        install(replica, stage, 1, "all", [(1.0, theirs)], count=1)
    assert train(replica, 2)["digests"][1] != train(original, 2)["digests"][1]


def test_an_attempt_that_breaks_off_leaves_no_trace() -> None:
    """As when a holder dies in the middle of a step, and the step is done again under a new attempt."""
    undisturbed, disturbed = direct(MUON), direct(MUON)
    for step in (1, 2):
        disturbed.call("forward", step=step, attempt=[9, step], stage=0, microbatch=0, visit=0, input=None, output=0,
                       save=True, validation=False)  # fmt: skip
        disturbed.call("forward", step=step, attempt=[9, step], stage=1, microbatch=0, visit=1, input=0, output=1,
                       save=True, validation=False)  # fmt: skip
        disturbed.call("backward", step=step, attempt=[9, step], stage=1, microbatch=0, visit=1, gradient=1, input=None,
                       output=2, recompute=False)  # fmt: skip
        disturbed.call("discard", keep=ATTEMPT)
        assert train(disturbed, step) == train(undisturbed, step)


def test_a_rebuilt_stage_has_fresh_moments_or_blended_ones() -> None:
    swarm = direct(MUON)
    train(swarm, 1)
    train(swarm, 2)
    for parts in ("weights", "all"):
        newcomer = direct(MUON, stages=range(0))
        donors = {stage: exported(swarm, stage, 2, parts)[1] for stage in (1, 3)}
        install(newcomer, 2, 2, parts, [(0.25, donors[1]), (0.75, donors[3])])
        state = np.frombuffer(b"".join(exported(newcomer, 2, 2, "all")[1]), "<f4")
        one, other = (np.frombuffer(b"".join(donors[stage]), "<f4") for stage in (1, 3))
        np.testing.assert_allclose(state[: len(one)], 0.25 * one + 0.75 * other, rtol=1e-5, atol=1e-7)
        assert state[MATRICES + NORMS :].any() == (parts == "all")


@pytest.mark.parametrize("backend", ["torch", "paced"])
def test_lengths_are_known_before_there_is_room(backend: str) -> None:
    config = replace(MUON, backend=backend)
    swarm, shape = direct(config), shape_of(config)
    train(swarm, 1)
    for stage in range(STAGES + 1):
        begun, chunks = exported(swarm, stage, 1, "all")
        assert begun["bytes"] == shape.size(stage, "all") == 4 * state_numbers(config)[stage]
        assert begun["weight_bytes"] == shape.size(stage, "weights")
        assert tuple(map(len, chunks)) == shape.lengths(stage, "all", "raw")
    assert shape.size(1, "all") == 4 * (2 * MATRICES + 3 * NORMS)
    assert shape.size(0, "all") == shape_of(CONFIG).size(0, "all")


def test_the_state_of_another_kind_does_not_fit() -> None:
    adam, muon = direct(CONFIG), direct(MUON, stages=range(0))
    train(adam, 1)
    with pytest.raises(Refused, match=r"there is no chunk|a chunk of"):
        install(muon, 1, 1, "all", [(1.0, exported(adam, 1, 1, "all")[1])])


def test_what_a_stage_needs_is_said_before_it_is_claimed() -> None:
    wide = replace(MUON, dim=64, hidden=176, slot_bytes=4 * MUON.slot_bytes)
    matrices, norms = 4 * 64**2 + 3 * 64 * 176, 2 * 64
    ready = Direct(wide).backend.ready()
    assert ready["stage_bytes"] == 4 * (3 * matrices + 4 * norms)
    assert ready["head_bytes"] == Direct(replace(wide, optimiser="adam")).backend.ready()["head_bytes"]
    backend: Any = Direct(wide).backend
    assert backend._scratch_bytes() == scratch_bytes((176, 64), 4)
    assert ready["working_bytes"] >= backend._scratch_bytes()
    backend.memory.free = lambda on_device: ready["working_bytes"] + 1000
    assert backend.ready()["memory_free"] == 1000
