"""What a process says that a stage and the head need is what they take: of the host, by the kernel's account."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftnode.node.compute.config import ComputeConfig
from ftnode.node.owner.announcements import capacity_of, head_fits
from tests.node.compute.computing import ATTEMPT, CONFIG, Process, direct, process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is measured in /proc")

LARGE = replace(
    CONFIG, dim=128, heads=4, layers=2, stages=2, context=64, hidden=352, sequences=4, microbatches=1,
    vocabulary=160_000, slot_bytes=4 * 64 * 128 * 4,
)  # fmt: skip
"""Of the head 41 million parameters, and logits of 164 MB. HOST_SLACK_BYTES is 0.15 of 640 MiB."""
MOST = 1.15
GIVEN_BACK = str(4 << 20)
"""The C library gives freed memory of this size back at once, as long as it is told a size. Left to itself it keeps
up to 80 MiB, another number each time."""


def memory(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def own_memory(pid: int) -> int:
    """Without pages of files, which the kernel takes away and brings back as it likes."""
    return memory(pid, "RssAnon") + memory(pid, "RssShmem")


def step(compute: Process) -> None:
    """Head and stage 1 do all that they do in a step; what stage 2 would give is what stage 1 gave."""
    common: dict[str, Any] = {"step": 1, "attempt": ATTEMPT, "microbatch": 0}
    for visit in (0, 1):
        compute.call("forward", **common, stage=visit, visit=visit, input=visit - 1 if visit else None, output=visit,
                     save=True, validation=False)  # fmt: skip
    last = {**common, "visit": LARGE.stages + 1, "input": 1, "output": 2}
    compute.call("backward", **last, stage=0, gradient=None, recompute=False)
    for visit in (1, 0):
        compute.call("backward", **common, stage=visit, visit=visit, gradient=3 - visit, input=None,
                     output=3 if visit else None, recompute=False)  # fmt: skip
    for stage in (0, 1):
        compute.call("reduce", stage=stage, step=1, attempt=ATTEMPT)
        compute.call("apply", stage=stage, step=1, commit="c", attempt=ATTEMPT, skipped=False)


@pytest.mark.fresh
@pytest.mark.parametrize("products", ["float32", "bfloat16"])
def test_what_is_planned_for_a_head_of_a_large_vocabulary_is_what_it_takes(
    products: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", GIVEN_BACK)
    with process(replace(LARGE, products=products).to_dict()) as compute:
        assert compute.first is not None and "ready" in compute.first, compute.first
        ready, pid = compute.first["ready"], compute.child.pid
        before, files = own_memory(pid), memory(pid, "RssFile")
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # the largest size so far begins anew
        for stage in (0, 1):
            compute.call("initialise", stage=stage, commit="lineage")
        step(compute)
        used = memory(pid, "VmHWM") - max(files, memory(pid, "RssFile")) - before
        working = ready["working_bytes"] + ready["head_working_bytes"]
        planned = ready["head_bytes"] + ready["stage_bytes"] + ready["activation_bytes"] + working
        assert used <= planned <= MOST * used, (used >> 20, planned >> 20)


def config_of(vocabulary: int) -> ComputeConfig:
    return replace(CONFIG, vocabulary=vocabulary)


def test_a_head_that_does_not_fit_beside_a_stage_is_refused_before_it_is_claimed() -> None:
    ready = direct(CONFIG, range(0)).backend.ready()
    stage = ready["stage_bytes"] + 2 * ready["activation_bytes"]
    head = ready["head_bytes"] + ready["head_working_bytes"]
    for free, fits in ((stage + head, True), (stage + head - 1, False)):
        told = ready | {"memory_free": free}
        assert head_fits(told, 2, (0, 0))[0] == fits == bool(capacity_of(told, 1, 2, head=True))
        assert capacity_of(told, 1, 2) == 1
    assert "the head and one stage need" in head_fits(ready | {"memory_free": 0}, 2, (0, 0))[1]


def test_the_head_counts_its_vocabulary() -> None:
    small, large = (direct(config_of(size), range(0)).backend.ready() for size in (256, 4096))
    assert large["head_bytes"] - small["head_bytes"] == 4 * 4 * 2 * (4096 - 256) * CONFIG.dim
    assert large["head_working_bytes"] > small["head_working_bytes"]


@pytest.mark.parametrize("products", ["float32", "bfloat16", "float16"])
def test_the_bytes_that_are_said_are_those_of_the_stages(products: str) -> None:
    made = direct(replace(CONFIG, products=products))
    for stage in (0, 1):
        assert made.backend._bytes(stage) == made.backend._stages[stage].bytes  # type: ignore[attr-defined]
