"""The compute process through its socket, its arena and its commands, as the node uses it."""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import resource
import socket
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ftnode.models import llama
from ftnode.models.config import ModelConfig
from ftnode.node.compute import process as compute_process
from ftnode.node.compute.config import ComputeConfig, config_from_dict
from ftnode.node.compute.exports import EXPORTS_MAX, Exports
from ftnode.node.compute.process import Worker, receive, send, serve
from ftnode.node.compute.state_shape import gradient_numbers
from ftnode.node.compute.torch_backend import TorchStages
from ftnode.node.machine.gradient_memory import GradientMemory
from ftnode.node.machine.tensor_slots import Arena
from tests.node.compute.computing import (
    ATTEMPT,
    CONFIG,
    LAST_VISIT,
    SLOTS,
    STAGES,
    Direct,
    Refused,
    direct,
    exported,
    install,
    process,
    read_out,
    train,
)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    for i in range(20):
        (folder / f"{i}.txt").write_text(f"line {i} of a text that repeats itself\n" * 20)
    return folder


@pytest.fixture
def config(text: Path) -> ComputeConfig:
    return replace(CONFIG, data=str(text))


def test_a_process_answers_as_the_commands_do_and_ends_with_its_socket(config: ComputeConfig) -> None:
    with process(config.to_dict()) as compute:
        assert compute.first is not None
        ready = compute.first["ready"]
        assert ready["tokens_per_second"] > 0 and ready["forward_seconds"] > 0 and ready["backward_seconds"] > 0
        model = ModelConfig(config.dim, config.heads, config.layers, config.context, config.hidden)
        assert ready["stage_bytes"] == 16 * model.block_parameters and ready["activation_bytes"] > config.slot_bytes
        assert len(ready["corpus"]) == 64 and ready["threads"] == 1
        for stage in range(STAGES + 1):
            compute.call("initialise", stage=stage, commit="lineage")
        assert train(compute, 1) == train(direct(config), 1)
        with pytest.raises(Refused) as refused:
            compute.call("reduce", stage=1, step=2, attempt=ATTEMPT)
        assert (refused.value.kind, refused.value.stage) == ("invalid", 1)
        assert compute.close() == 0


def test_a_config_that_cannot_be_is_answered(config: ComputeConfig) -> None:
    with process({**config.to_dict(), "heads": 7}) as compute:
        assert compute.first is not None
        assert compute.first["error"]["kind"] == "invalid" and "heads (7)" in compute.first["error"]["reason"]
        assert compute.child.wait(timeout=30) == 1


def test_training_is_reproducible_and_recomputing_changes_no_bit(config: ComputeConfig) -> None:
    saving, recomputing = direct(config), direct(config)
    first = [train(saving, step) for step in (1, 2, 3)]
    assert first == [train(recomputing, step, recompute=True) for step in (1, 2, 3)]
    assert np.mean(first[2]["losses"]) < np.mean(first[0]["losses"]) < 6
    assert first[0]["reduced"][0]["covered"] == [[0, 0], [0, LAST_VISIT], [1, 0], [1, LAST_VISIT]]


def test_boundaries_can_be_halved(config: ComputeConfig) -> None:
    full = direct(config)
    half = direct(replace(config, boundary="bfloat16", slot_bytes=config.slot_bytes // 2))
    assert train(half, 1)["losses"] == pytest.approx(train(full, 1)["losses"], rel=1e-2)


def test_a_replica_made_from_all_parts_goes_on_exactly(config: ComputeConfig) -> None:
    original = direct(config)
    train(original, 1)
    replica = direct(config)
    for stage in range(STAGES + 1):
        begun, chunks = exported(original, stage, 1, "all")
        assert begun["version"] == [1, "c1", ATTEMPT] and begun["step_count"] == 1 and begun["norm_squared"] > 0
        assert len(chunks) > 3
        assert install(replica, stage, 1, "all", [(1.0, chunks)], count=1)["digest"] == begun["digest"]
    assert train(replica, 2) == train(original, 2)


def test_a_blend_is_the_weighted_mean_of_the_neighbours(config: ComputeConfig) -> None:
    swarm = direct(config)
    train(swarm, 1)
    donors = {stage: exported(swarm, stage, 1, "weights")[1] for stage in (1, 3)}
    newcomer = direct(config, stages=range(0))
    install(newcomer, 2, 1, "weights", [(0.25, donors[1]), (0.75, donors[3])])
    blended = np.frombuffer(b"".join(exported(newcomer, 2, 1, "weights")[1]), np.float32)
    before, after = (np.frombuffer(b"".join(donors[stage]), np.float32) for stage in (1, 3))
    np.testing.assert_allclose(blended, 0.25 * before + 0.75 * after, rtol=0, atol=1e-6)
    assert np.abs(blended - (before + after) / 2).max() > 1e-3


def test_an_incomplete_install_is_no_stage(config: ComputeConfig) -> None:
    swarm = direct(config)
    _, chunks = exported(swarm, 1, 0, "weights")
    with pytest.raises(Refused, match="incomplete"):
        install(swarm, 2, 0, "weights", [(0.5, chunks)])
    with pytest.raises(Refused, match="no weights"):
        swarm.call("export_begin", stage=2, step=0, parts="weights")


@pytest.mark.parametrize("backend", ["torch", "paced"])
def test_exports_are_of_the_step_asked_for(backend: str, config: ComputeConfig) -> None:
    swarm = direct(replace(config, backend=backend))
    export = swarm.call("export_begin", stage=1, step=0, parts="weights")["export"]
    train(swarm, 1)
    with pytest.raises(Refused, match="moved on"):
        swarm.call("export_chunk", export=export, index=0, slot=0)
    with pytest.raises(Refused, match="of step 1, not 0") as refused:
        swarm.call("export_begin", stage=1, step=0, parts="weights")
    assert refused.value.kind == "invalid"
    swarm.call("export_end", export=export)
    with pytest.raises(Refused, match="no export"):
        swarm.call("export_end", export=export)


@pytest.mark.parametrize("backend", ["torch", "paced"])
def test_a_frozen_export_stays_as_it_was_while_the_stage_goes_on(backend: str, config: ComputeConfig) -> None:
    swarm = direct(replace(config, backend=backend))
    train(swarm, 1)
    _, expected = exported(swarm, 0, 1, "all")
    fields = {"stage": 0, "step": 1, "parts": "all", "freeze": True}
    first, second = swarm.call("export_begin", **fields), swarm.call("export_begin", **fields)
    other = swarm.call("export_begin", stage=2, step=1, parts="weights", encoding="int8", freeze=True)
    train(swarm, 2)
    assert read_out(swarm, first) == expected == read_out(swarm, second)
    assert (first["version"], first["digest"], first["step_count"]) == ([1, "c1", ATTEMPT], second["digest"], 1)
    assert len(read_out(swarm, other)) == other["chunks"]
    for begun in (first, second, other):
        swarm.call("export_end", export=begun["export"])
    with pytest.raises(Refused, match="no export"):
        read_out(swarm, first)


def test_what_is_frozen_lies_there_once_and_goes_with_its_last_reader(config: ComputeConfig) -> None:
    swarm = direct(config)
    exports = swarm.backend._exports  # type: ignore[attr-defined]
    fields = {"stage": 0, "step": 0, "parts": "all", "freeze": True}
    begun = [swarm.call("export_begin", **fields)["export"] for _ in range(3)]
    assert len(set(begun)) == 3 and len(exports._frozen) == 1
    for export in begun:
        assert len(exports._frozen) == 1
        swarm.call("export_end", export=export)
    assert not exports._frozen and not exports._live
    for _ in range(EXPORTS_MAX):
        swarm.call("export_begin", **fields)
    with pytest.raises(Refused, match="under way"):
        swarm.call("export_begin", **fields)


@pytest.mark.parametrize(("encoding", "tolerance"), [("bfloat16", 2**-8), ("int8", 1 / 254)])
def test_encoded_chunks_give_nearly_the_same_weights_and_exactly_the_announced_ones(
    encoding: str, tolerance: float, config: ComputeConfig
) -> None:
    swarm, newcomer = direct(config), direct(config, stages=range(0))
    train(swarm, 1)
    begun, chunks = exported(swarm, 2, 1, "weights", encoding, freeze=True)
    assert sum(map(len, chunks)) < 0.6 * begun["bytes"]
    assert install(newcomer, 2, 1, "weights", [(1.0, chunks)], encoding=encoding)["digest"] == begun["digest"]
    mine, theirs = (
        np.frombuffer(b"".join(exported(compute, 2, 1, "weights")[1]), np.float32) for compute in (newcomer, swarm)
    )
    assert 0 < np.abs(mine - theirs).max() <= tolerance * np.abs(theirs).max()
    with pytest.raises(Refused, match="a chunk of"):
        install(newcomer, 2, 1, "weights", [(1.0, chunks)], encoding="raw")


def test_a_stage_is_rebuilt_in_its_own_memory_and_little_more(config: ComputeConfig) -> None:
    """100 MB of weights, optimiser and gradient from two donors of 26 MB each, in chunks of 1 MB."""
    model = {"dim": 512, "hidden": 1408, "heads": 8, "layers": 2, "stages": 1, "context": 128, "sequences": 4}
    large = replace(config, **model, slot_bytes=4 * 128 * 512 * 4)  # type: ignore[arg-type]
    numbers = ModelConfig(512, 8, 2, 128, 1408).stage_parameters(1, 1)
    with process(large.to_dict()) as compute:
        status = Path(f"/proc/{compute.child.pid}")
        compute.call("initialise", stage=0, commit="lineage")
        (status / "clear_refs").write_text("5")  # the peak starts again from here

        def peak() -> int:
            lines = (status / "status").read_text().splitlines()
            return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))

        before = peak()
        chunk = np.arange(large.chunk_bytes // 4, dtype=np.float32).tobytes()
        lengths = [min(large.chunk_bytes, 4 * numbers - at) for at in range(0, 4 * numbers, large.chunk_bytes)]
        donor = [chunk[:length] for length in lengths]
        install(compute, 1, 1, "weights", [(0.25, donor), (0.75, donor)])
        state = 16 * numbers
        assert state > 100_000_000 and len(lengths) > 20
        assert 4 * numbers < peak() - before < state + (16 << 20)


def test_poison_is_answered_as_a_fault(config: ComputeConfig) -> None:
    swarm = direct(config)
    swarm.numbers(0)[:] = 1.0
    swarm.numbers(1)[:] = np.nan
    fields = {"stage": 1, "step": 1, "attempt": ATTEMPT, "microbatch": 0, "visit": 1}
    answer = swarm.call("forward", **fields, input=1, output=2, save=True, validation=False)
    assert answer["fault"] and answer["value"] == 0 and answer["tokens"] == 0
    answer = swarm.call("backward", **fields, gradient=1, input=0, output=2, recompute=True)
    assert answer["fault"] and swarm.call("reduce", stage=1, step=1, attempt=ATTEMPT)["fault"]
    swarm.call("discard", keep=[0, 2])
    fields["attempt"] = [0, 2]
    assert not swarm.call("backward", **fields, gradient=0, input=0, output=2, recompute=True)["fault"]
    assert swarm.call("reduce", stage=1, step=1, attempt=[0, 2])["covered"] == [[0, 1]]


@pytest.mark.parametrize(
    ("op", "fields", "reason"),
    [
        ("explode", {}, "no command"),
        ("reduce", {"stage": 1}, "missing a required argument"),
        ("initialise", {"stage": 9, "commit": ""}, "no stage 9"),
        ("export_begin", {"stage": 1, "step": 0, "parts": "half"}, "parts"),
        ("export_begin", {"stage": 1, "step": 0, "parts": "weights", "encoding": "int8"}, "no export"),
        ("export_chunk", {"export": 2, "index": 0, "slot": 0}, "no export 2"),
        ("install_chunk", {"stage": 1, "index": 0, "weight": 1.0, "slot": 0, "length": 4}, "no install"),
        ("apply", {"stage": 1, "step": 1, "commit": "c", "attempt": [0, 1], "skipped": False}, "attempt"),
        ("discard", {"keep": 7}, "int"),
    ],
)
def test_commands_out_of_place_are_invalid(op: str, fields: dict[str, Any], reason: str, config: ComputeConfig) -> None:
    with pytest.raises(Refused, match=reason) as refused:
        direct(config).call(op, **fields)
    assert refused.value.kind == "invalid"


def test_the_same_backward_twice_and_a_tensor_beyond_the_arena_are_invalid(config: ComputeConfig) -> None:
    swarm = direct(config)
    swarm.numbers(0)[:] = 1.0
    fields = {"stage": 1, "step": 1, "attempt": ATTEMPT, "microbatch": 0, "visit": 1, "input": 0, "output": 2}
    swarm.call("backward", **fields, gradient=0, recompute=True)
    with pytest.raises(Refused, match="already accumulated"):
        swarm.call("backward", **fields, gradient=0, recompute=True)
    with pytest.raises(Refused, match="no slot"):
        swarm.call("backward", **{**fields, "microbatch": 1}, gradient=SLOTS, recompute=True)
    with pytest.raises(Refused, match="step 2 on weights of step 0"):
        swarm.call("backward", **{**fields, "step": 2}, gradient=0, recompute=True)


def test_saved_activations_are_bounded(config: ComputeConfig) -> None:
    swarm = direct(config)
    swarm.numbers(0)[:] = 1.0
    common = {"stage": 1, "step": 1, "attempt": ATTEMPT, "visit": 1, "input": 0, "output": 1, "validation": False}
    for microbatch in range(config.live_activations):
        swarm.call("forward", **common, microbatch=microbatch, save=True)
    with pytest.raises(Refused, match="saved already"):
        swarm.call("forward", **common, microbatch=9, save=True)
    swarm.call("forward", **common, microbatch=9, save=False)


def test_validation_is_the_same_at_every_evaluation_and_changes_nothing(config: ComputeConfig) -> None:
    def evaluate(swarm: Direct, step: int) -> float:
        value = 0.0
        for visit in range(LAST_VISIT + 1):
            last = visit == LAST_VISIT
            stage, source = (0 if last else visit), (visit - 1 if visit else None)
            fields = {"stage": stage, "step": step, "attempt": ATTEMPT, "microbatch": 0, "visit": visit}
            answer = swarm.call("forward", **fields, input=source, output=None if last else visit, save=False,
                                validation=True)  # fmt: skip
            value = answer["value"]
        return value

    evaluated, plain = direct(config), direct(config)
    first = evaluate(evaluated, 1)
    assert first == evaluate(evaluated, 5) and first == pytest.approx(np.log(256), abs=0.3)
    assert train(evaluated, 1) == train(plain, 1)
    assert evaluate(evaluated, 2) < first


def test_a_corpus_that_is_not_the_runs_is_said(config: ComputeConfig) -> None:
    ready = Direct(replace(config, corpus="0" * 64)).backend.ready()
    assert ready["corpus"] == "" and "the run's is 000000000000" in ready["corpus_reason"]
    ready = Direct(replace(config, data="/no/such/text")).backend.ready()
    assert ready["corpus"] == "" and "/no/such/text" in ready["corpus_reason"]
    ready = Direct(replace(config, data="", data_kind="files")).backend.ready()
    assert ready["corpus"] == "" and ready["corpus_reason"].endswith("pass --data with the run's text")


def test_out_of_memory_names_the_stage(config: ComputeConfig) -> None:
    huge = Direct(replace(config, hidden=1 << 40, data=""))
    with pytest.raises(Refused) as refused:
        huge.call("initialise", stage=2, commit="lineage")
    assert (refused.value.kind, refused.value.stage) == ("oom", 2)


def test_out_of_memory_in_a_task_costs_its_stage_and_no_other(
    config: ComputeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others come to the same weights as if nothing had been."""
    swarm, undisturbed = direct(config), direct(config)
    held = weakref.ref(swarm.backend._stages[2])  # type: ignore[attr-defined]

    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    task = {"step": 1, "attempt": ATTEMPT, "microbatch": 0, "stage": 2, "visit": 2, "input": 0, "output": 1}
    with monkeypatch.context() as patch:
        patch.setattr(llama, "block", full)
        patch.setattr(logging.getLogger("ftnode.compute"), "disabled", True)  # pytest keeps records, with their frames
        with pytest.raises(Refused) as refused:
            swarm.call("forward", **task, save=True, validation=False)
    assert (refused.value.kind, refused.value.stage) == ("oom", 2)
    gc.collect()
    assert held() is None, "its memory is free"
    with pytest.raises(Refused, match="what was here of stage 2 is lost") as refused:
        swarm.call("forward", **task, save=True, validation=False)
    assert refused.value.kind == "lost"
    swarm.call("forget", stage=2)
    swarm.call("initialise", stage=2, commit="lineage")
    assert train(swarm, 1) == train(undisturbed, 1)


def test_the_paced_backend_keeps_the_same_accounts(config: ComputeConfig) -> None:
    paced, real = direct(replace(config, backend="paced")), direct(config)
    assert paced.backend.ready()["device"].startswith("paced")
    mine, theirs = train(paced, 1), train(real, 1)
    assert [answer["covered"] for answer in mine["reduced"]] == [answer["covered"] for answer in theirs["reduced"]]
    assert not paced.numbers(5).any()
    begun, chunks = exported(paced, 1, 1, "all")
    expected, real_chunks = exported(real, 1, 1, "all")
    assert [len(chunk) for chunk in chunks] == [len(chunk) for chunk in real_chunks]
    assert set(begun) == set(expected) and begun["version"] == expected["version"]
    install(paced, 2, 1, "weights", [(1.0, exported(paced, 1, 1, "weights")[1])])
    fields = {"stage": 1, "step": 2, "attempt": ATTEMPT, "microbatch": 0, "visit": 1, "input": 0, "output": 2}
    paced.call("backward", **fields, gradient=0, recompute=True)
    with pytest.raises(Refused, match="already accumulated"):
        paced.call("backward", **fields, gradient=0, recompute=True)


def test_config_travels_and_is_checked() -> None:
    assert config_from_dict(CONFIG.to_dict()) == CONFIG
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"dimension": 4}, "unknown field dimension"),
        ({"dim": "4"}, "dim must be int"),
        ({"threads": 0}, "at least 1"),
        ({"slot_bytes": 8}, "cannot hold"),
        ({"backend": "abacus"}, "backend"),
        ({"boundary": "int3"}, "boundary must be one of"),
        ({"precision": "bfloat16"}, "precision"),
        ({"precision": "float64"}, "boundary float32 does not go with precision float64"),
        ({"boundary": "float64"}, "boundary float64 does not go with precision float32"),
        ({"precision": "float64", "boundary": "float64"}, "cannot hold"),
    ]
    for change, reason in wrong:
        with pytest.raises(ValueError, match=reason):
            config_from_dict({**CONFIG.to_dict(), **change})


def test_neither_the_config_nor_the_paced_backend_loads_torch() -> None:
    code = "import sys, ftnode.node.compute.config, ftnode.node.compute.process, ftnode.node.compute.paced_backend as p"
    done = subprocess.run([sys.executable, "-c", f"{code}; sys.exit('torch' in sys.modules)"], env=dict(os.environ))
    assert done.returncode == 0


@pytest.mark.parametrize("backend", ["torch", "paced"])
def test_a_process_reduces_in_a_group(backend: str, config: ComputeConfig) -> None:
    config = replace(config, backend=backend)
    numbers = gradient_numbers(config)
    memory = GradientMemory(numbers, config.number_bytes)
    common: dict[str, Any] = {"stage": 1, "step": 1, "attempt": ATTEMPT}
    with process(config.to_dict(), memory) as compute:
        compute.call("initialise", stage=1, commit="lineage")
        for slot in (0, 1):
            compute.numbers(slot)[:] = np.linspace(-1, 1, len(compute.numbers(slot)), dtype=np.float32)
        compute.call("backward", **common, microbatch=1, visit=1, gradient=0, input=1, output=2, recompute=True)
        with pytest.raises(Refused, match="1 visits"):
            compute.call("reduce_open", **common, count=2)
        with pytest.raises(Refused, match="no sum"):
            compute.call("reduce_close", **common)
        assert compute.call("reduce_open", **common, count=1) == {"covered": [[1, 1]], "fault": ""}
        gradient = np.frombuffer(memory.view(1), np.float32)
        assert gradient.any() == (backend == "torch") and len(gradient) == numbers[1]
        gradient += np.float32(0.25)
        answer = compute.call("reduce_close", **common)
        assert answer["covered"] == [[1, 1]] and answer["gradient"] and not answer["fault"]
        if backend == "torch":
            assert answer["norm_squared"] == pytest.approx(float((gradient.astype(float) ** 2).sum()))
        compute.call("apply", **common, commit="c1", skipped=False)
        learner: dict[str, Any] = {"stage": 2, "step": 7, "attempt": [0, 7]}
        assert compute.call("reduce_open", **learner, count=0) == {"covered": [], "fault": ""}
        assert compute.call("reduce_close", **learner)["covered"] == []
        compute.call("shelve", stage=2, attempt=[0, 7])
        compute.call("discard", keep=None)
        with pytest.raises(Refused, match="no reduced gradient"):
            compute.call("shelve", stage=2, attempt=[0, 7])
        compute.call("forget", stage=1)
        assert not gradient.any(), "its memory is given back"


def test_without_shared_memory_there_is_no_group(config: ComputeConfig) -> None:
    compute = direct(config)
    with pytest.raises(Refused, match="no shared memory"):
        compute.call("reduce_open", stage=1, step=1, attempt=ATTEMPT, count=0)


@pytest.mark.parametrize("backend", ["torch", "paced"])
def test_a_state_with_its_optimiser_is_read_to_the_end_though_the_stage_moves_on(
    backend: str, config: ComputeConfig
) -> None:
    swarm = direct(replace(config, backend=backend))
    train(swarm, 1)
    before, expected = exported(swarm, 1, 1, "all")
    begun = swarm.call("export_begin", stage=1, step=1, parts="all")
    train(swarm, 2)
    late = swarm.call("export_begin", stage=1, step=1, parts="all")
    train(swarm, 3)
    assert read_out(swarm, begun) == expected == read_out(swarm, late)
    assert (late["version"], late["step_count"], late["digest"]) == ([1, "c1", ATTEMPT], 1, before["digest"])
    for one in (begun, late):
        swarm.call("export_end", export=one["export"])
    with pytest.raises(Refused, match="of step 3, not 1"):
        swarm.call("export_begin", stage=1, step=1, parts="all")


@pytest.mark.parametrize("want", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_a_reader_for_whom_there_is_no_memory_costs_the_stage_nothing(
    want: Exception, config: ComputeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm, undisturbed = direct(config), direct(config)
    for each in (swarm, undisturbed):
        train(each, 1)
    begun = swarm.call("export_begin", stage=1, step=1, parts="all")

    def full(self: Exports, flat: torch.Tensor) -> list[bytes]:
        raise want

    with monkeypatch.context() as while_full:
        while_full.setattr(Exports, "_raw", full)
        train(swarm, 2)
    train(undisturbed, 2)
    assert exported(swarm, 1, 2, "all") == exported(undisturbed, 1, 2, "all")
    with pytest.raises(Refused, match="moved on from step 1"):
        swarm.call("export_chunk", export=begun["export"], index=0, slot=0)
    swarm.call("export_end", export=begun["export"])


def test_what_is_wrong_with_numbers_of_others_is_told_from_what_nobody_expects(
    config: ComputeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm = direct(config)
    common = {"stage": 1, "step": 0, "commit": "c0", "attempt": ATTEMPT, "parts": "weights", "rate_factor": 1.0}
    size = 4 * swarm.backend.config.chunk_numbers  # type: ignore[attr-defined]
    swarm.call("install_begin", **common)
    swarm.numbers(0)[:] = np.nan
    with pytest.raises(Refused, match="not finite") as refused:
        swarm.call("install_chunk", stage=1, index=0, weight=1.0, slot=0, length=size)
    assert refused.value.kind == "fault"

    def fails(self: Exports, *given: object) -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    swarm.call("initialise", stage=1, commit="c0")
    monkeypatch.setattr(Exports, "begin", fails)
    with pytest.raises(Refused, match="launch failure") as refused:
        swarm.call("export_begin", stage=1, step=0, parts="weights")
    assert refused.value.kind == "broken"


def test_a_process_whose_card_is_of_no_use_to_it_any_more_ends(
    config: ComputeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no task finds out: a standby would fail at every stage that it is asked to take."""
    calls = []

    def sick(device: torch.device) -> None:
        calls.append(device)
        raise RuntimeError("CUDA error: unknown error")

    def initialise(self: TorchStages, **given: object) -> dict[str, Any]:
        self._device = torch.device("cuda:1")
        raise RuntimeError("CUDA error: unknown error")

    monkeypatch.setattr(torch.cuda, "synchronize", sick)
    monkeypatch.setattr(TorchStages, "initialise", initialise)
    arena = Arena(config.slot_bytes, config.slots)
    ours, theirs = socket.socketpair()
    with ThreadPoolExecutor(1) as pool, ours, theirs:
        served = pool.submit(serve, theirs, os.dup(arena.descriptor))
        send(ours, {"config": config.to_dict()})
        ready = receive(ours)
        assert ready is not None and "ready" in ready
        send(ours, {"op": "forget", "id": 1, "stage": 1})
        assert receive(ours) == {"id": 1}
        send(ours, {"op": "initialise", "id": 2, "stage": 1, "commit": "c0"})
        answer = receive(ours)
        assert answer is not None and answer["error"]["kind"] == "lost"
        assert served.result(60) == 1 and calls == [torch.device("cuda:1")]


def test_signs_of_work_are_few_and_no_answers() -> None:
    """However often there is progress, and whoever waits for an answer."""
    ours, theirs = socket.socketpair()
    now = 100.0
    with ours, theirs:
        progress = compute_process.signs_of_work(theirs, lambda: now)
        for _ in range(1000):
            progress()
            now += 0.01
        send(theirs, {"id": 1})
        read = ours.recv(1 << 16, socket.MSG_PEEK)
        assert read.count(b"working") == int(10 / compute_process.WORKING_SECONDS) - 1
        assert receive(ours) == {"id": 1}


@pytest.mark.parametrize("op", ["ready", "forward"])
def test_who_reads_the_text_shows_that_it_works(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    arena = Arena(CONFIG.slot_bytes, CONFIG.slots)
    backend: Any = compute_process.make_backend(CONFIG, arena._map, progress=lambda: seen.append("piece"))
    worker = Worker(backend)
    backend.ready()
    if op == "forward":
        assert worker.take({"op": "initialise", "id": 1, "stage": 0, "commit": "c0"})
        seen.clear()
        task = {"attempt": [0, 1], "microbatch": 0, "visit": 0, "input": None, "output": 0, "save": True}
        command = {"op": "forward", "id": 2, "stage": 0, "step": 1, "validation": False, "onward": [], **task}
        assert all("error" not in answer for answer in [*worker.take(command), *worker.finish()])
    assert seen


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[1] <= 1200, reason="no descriptor is above 1,023")
def test_a_process_whose_link_has_a_high_number_sees_whether_more_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node may have many descriptors, and the link has the same number in the process."""

    class Unread(Worker):
        unread = True  # type: ignore[assignment]

        def finish(self) -> list[dict[str, Any]]:
            self.over = True
            return [{"id": 7}]

    monkeypatch.setattr(compute_process, "Worker", Unread)
    config = replace(CONFIG, backend="paced")
    arena = Arena(config.slot_bytes, config.slots)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 1200), before[1]))
    ours, theirs = socket.socketpair()
    try:
        high = socket.socket(fileno=fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, 1024))
        with ThreadPoolExecutor(1) as pool, ours, theirs, high:
            served = pool.submit(serve, high, os.dup(arena.descriptor))
            send(ours, {"config": config.to_dict()})
            assert "ready" in (receive(ours) or {})
            assert served.result(60) == 1 and receive(ours) == {"id": 7}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
