"""The compute process through its socket, its arena and its commands, as the node uses it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ftnode.models.config import ModelConfig
from ftnode.node.arena import Arena
from ftnode.node.compute_config import ComputeConfig, config_from_dict
from ftnode.node.compute_process import carry_out, make_backend, receive, send

STAGES, MICROBATCHES, LAST_VISIT = 3, 2, 4
SLOTS = 12
CONFIG = ComputeConfig(
    dim=16, heads=2, layers=3, context=8, hidden=24, stages=STAGES, microbatches=MICROBATCHES, sequences=2, steps=10,
    learning_rate=1e-2, slot_bytes=2 * 8 * 16 * 4, slots=SLOTS, seed=3, digest_every=1, live_activations=2,
)  # fmt: skip
ATTEMPT = [0, 1]


class Refused(Exception):
    """An error answer."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["reason"])
        self.kind, self.stage = error["kind"], error["stage"]


class Direct:
    """Commands without a process between."""

    def __init__(self, config: ComputeConfig) -> None:
        self.arena = Arena(config.slot_bytes, config.slots)
        self.backend = make_backend(config, self.arena._map)

    def call(self, op: str, **fields: Any) -> dict[str, Any]:
        answer = carry_out(self.backend, {"op": op, "id": 1, **fields})
        if "error" in answer:
            raise Refused(answer["error"])
        return answer

    def numbers(self, slot: int, count: int | None = None) -> np.ndarray[Any, np.dtype[np.float32]]:
        return np.frombuffer(self.arena._map.view(slot), dtype=np.float32)[:count]


class Process(Direct):
    """The real thing."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.arena = Arena(config.get("slot_bytes", 64), config.get("slots", 1))
        self.link, theirs = socket.socketpair()
        self.link.settimeout(60)
        argv = [sys.executable, "-m", "ftnode.node.compute_process", "--socket-fd", str(theirs.fileno()), "--arena-fd"]
        descriptors = (theirs.fileno(), self.arena.descriptor)
        self.child = subprocess.Popen([*argv, str(self.arena.descriptor)], pass_fds=descriptors)
        theirs.close()
        send(self.link, {"config": config})
        self.first = receive(self.link)
        self.sent = 0

    def call(self, op: str, **fields: Any) -> dict[str, Any]:
        self.sent += 1
        send(self.link, {"op": op, "id": self.sent, **fields})
        answer = receive(self.link)
        assert answer is not None and answer.pop("id") == self.sent
        if "error" in answer:
            raise Refused(answer["error"])
        return answer

    def close(self) -> int:
        self.link.close()
        return self.child.wait(timeout=30)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    for i in range(20):
        (folder / f"{i}.txt").write_text(f"line {i} of a text that repeats itself\n" * 20)
    return folder


@pytest.fixture
def config(text: Path) -> ComputeConfig:
    return replace(CONFIG, data=str(text))


@contextlib.contextmanager
def process(config: dict[str, Any]) -> Iterator[Process]:
    made = Process(config)
    try:
        yield made
    finally:
        made.link.close()
        made.child.kill()
        made.child.wait()


def direct(config: ComputeConfig, stages: range = range(STAGES + 1)) -> Direct:
    made = Direct(config)
    made.backend.ready()
    for stage in stages:
        made.call("initialise", stage=stage, commit="lineage")
    return made


def train(compute: Direct, step: int, recompute: bool = False) -> dict[str, Any]:
    """One committed step on a process that holds everything; returns answers worth comparing."""
    common: dict[str, Any] = {"step": step, "attempt": ATTEMPT}
    losses = []
    for m in range(MICROBATCHES):
        for visit in range(STAGES + 1):
            source = visit - 1 if visit else None
            compute.call("forward", **common, stage=visit, microbatch=m, visit=visit, input=source, output=visit,
                         save=not recompute, validation=False)  # fmt: skip
        answer = compute.call("backward", **common, stage=0, microbatch=m, visit=LAST_VISIT, gradient=None,
                              input=STAGES, output=LAST_VISIT, recompute=False)  # fmt: skip
        losses.append(answer["value"])
        for visit in range(STAGES, -1, -1):
            kept = visit - 1 if recompute and visit else None
            output = 5 + visit if visit else None
            gradient = LAST_VISIT if visit == STAGES else 6 + visit
            compute.call("backward", **common, stage=visit, microbatch=m, visit=visit, gradient=gradient, input=kept,
                         output=output, recompute=recompute)  # fmt: skip
    reduced = [compute.call("reduce", **common, stage=stage) for stage in range(STAGES + 1)]
    applied = [
        compute.call("apply", **common, stage=stage, commit=f"c{step}", skipped=False) for stage in range(STAGES + 1)
    ]
    compute.call("discard", keep=None)
    return {"losses": losses, "reduced": reduced, "digests": [answer["digest"] for answer in applied]}


def exported(
    compute: Direct, stage: int, step: int, parts: str, encoding: str = "raw", freeze: bool = False
) -> tuple[dict[str, Any], list[bytes]]:
    begun = compute.call("export_begin", stage=stage, step=step, parts=parts, encoding=encoding, freeze=freeze)
    chunks = read_out(compute, begun)
    assert encoding != "raw" or sum(map(len, chunks)) == begun["bytes"]
    compute.call("export_end", export=begun.pop("export"))
    return begun, chunks


def read_out(compute: Direct, begun: dict[str, Any]) -> list[bytes]:
    chunks = []
    for index in range(begun["chunks"]):
        answer = compute.call("export_chunk", export=begun["export"], index=index, slot=0)
        chunks.append(compute.numbers(0).tobytes()[: answer["length"]])
        assert hashlib.blake2b(chunks[-1], digest_size=16).hexdigest() == answer["hash"]
    return chunks


def install(
    compute: Direct, stage: int, step: int, parts: str, donors: list[tuple[float, list[bytes]]], count: int = 0,
    encoding: str = "raw",
) -> dict[str, Any]:  # fmt: skip
    compute.call(
        "install_begin", stage=stage, step=step, commit=f"c{step}", attempt=ATTEMPT, parts=parts, rate_factor=1.0
    )
    for index in range(len(donors[0][1])):
        for weight, chunks in donors:
            compute.arena._map.view(1)[: len(chunks[index])] = chunks[index]
            compute.call("install_chunk", stage=stage, index=index, weight=weight, slot=1, length=len(chunks[index]),
                         encoding=encoding)  # fmt: skip
    return compute.call("install_end", stage=stage, step_count=count)


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
    half = direct(replace(config, boundary_dtype="bfloat16", slot_bytes=config.slot_bytes // 2))
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


def test_poison_is_answered_as_a_fault(config: ComputeConfig) -> None:
    swarm = direct(config)
    swarm.numbers(0)[:] = 1.0
    swarm.numbers(1)[:] = np.nan
    fields = {"stage": 1, "step": 1, "attempt": ATTEMPT, "microbatch": 0, "visit": 1}
    answer = swarm.call("forward", **fields, input=1, output=2, save=True, validation=False)
    assert answer["fault"] and answer["value"] == 0 and answer["tokens"] == 0
    answer = swarm.call("backward", **fields, gradient=1, input=0, output=2, recompute=True)
    assert answer["fault"]
    assert not swarm.call("backward", **fields, gradient=0, input=0, output=2, recompute=True)["fault"]
    assert swarm.call("reduce", stage=1, step=1, attempt=ATTEMPT)["covered"] == [[0, 1]]


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


def test_out_of_memory_names_the_stage(config: ComputeConfig) -> None:
    huge = Direct(replace(config, hidden=1 << 40, data=""))
    with pytest.raises(Refused) as refused:
        huge.call("initialise", stage=2, commit="lineage")
    assert (refused.value.kind, refused.value.stage) == ("oom", 2)


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
        ({"boundary_dtype": "int8"}, "boundary"),
    ]
    for change, reason in wrong:
        with pytest.raises(ValueError, match=reason):
            config_from_dict({**CONFIG.to_dict(), **change})


def test_neither_the_config_nor_the_paced_backend_loads_torch() -> None:
    code = "import sys, ftnode.node.compute_config, ftnode.node.compute_process, ftnode.node.compute_paced as p"
    done = subprocess.run([sys.executable, "-c", f"{code}; sys.exit('torch' in sys.modules)"], env=dict(os.environ))
    assert done.returncode == 0
