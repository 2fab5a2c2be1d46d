"""The compute process keeps within what it was given, by measurement of the process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ftnode.node.machine.child_processes import THREAD_VARIABLES, thread_environment
from tests.node.compute.computing import CONFIG, Process, Refused, process

pytestmark = [
    pytest.mark.fresh,
    pytest.mark.skipif(sys.platform != "linux", reason="limits are measured in /proc"),
]

ROOM = (1024 if torch.version.cuda else 308) << 20
"""More than torch itself takes, which is another amount in each build of it. One for cards takes more later on, too."""
LARGE = replace(CONFIG, dim=512, heads=8, layers=6, context=64, hidden=1536, slot_bytes=2 * 64 * 512 * 4)
"""A stage of it has 6.6 million parameters: 105 MB with gradient and moments."""


def memory(pid: int, name: str) -> int:
    """A line of /proc/PID/status in bytes: VmHWM is the largest resident size that the process ever had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("line of a text that repeats itself\n" * 400)
    return path


@pytest.fixture(scope="module")
def cap(text: Path) -> int:
    """Bytes: what torch alone takes, as a process says that has less, and ROOM."""
    with process(replace(LARGE, memory_bytes=1 << 20, data=str(text)).to_dict()) as compute:
        assert compute.first is not None
        found = re.search(r"torch alone takes (\d+) MiB", compute.first["error"]["reason"])
        assert found is not None, compute.first
        return (int(found[1]) << 20) + ROOM


def fill(compute: Process, stages: int) -> tuple[int, str]:
    """Take stages until one does not fit: how many did, and what kind of answer the last one gave."""
    for count in range(stages):
        try:
            compute.call("initialise", stage=count, commit="lineage")
        except Refused as refused:
            return count, refused.kind
    return stages, "all fitted"


def test_what_does_not_fit_is_answered_and_never_taken(text: Path, cap: int) -> None:
    config = replace(LARGE, layers=24, stages=24, data=str(text), memory_bytes=cap)
    with process(config.to_dict()) as compute:
        assert compute.first is not None and "ready" in compute.first, compute.first
        ready = compute.first["ready"]
        planned = ready["memory_free"] // ready["stage_bytes"]
        assert 0 < ready["memory_free"] < cap and planned >= 1
        fitted, kind = fill(compute, config.stages)
        assert kind == "oom" and planned - 1 <= fitted < config.stages
        with pytest.raises(Refused, match="is lost"):
            compute.call("initialise", stage=fitted, commit="lineage")
        compute.call("forget", stage=fitted)
        task = {"step": 1, "attempt": [0, 1], "microbatch": 0, "stage": 1, "visit": 1, "input": 0, "output": 1}
        assert not compute.call("forward", **task, save=False, validation=False)["fault"], "the others go on"
        assert memory(compute.child.pid, "VmHWM") <= cap
        compute.call("forget", stage=0)
        compute.call("initialise", stage=0, commit="lineage")  # it goes on with what it has
        assert compute.close() == 0


@pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no NVIDIA card here")
def test_a_card_is_not_filled_beyond_the_limit(text: Path) -> None:
    """By what the card itself says is free, which counts CUDA's context too; nothing else may run on it."""
    torch.cuda.init()
    free = torch.cuda.mem_get_info()[0]
    cap = 2 << 30
    config = replace(LARGE, layers=24, stages=24, data=str(text), device="cuda", memory_bytes=cap)
    with process(config.to_dict()) as compute:
        assert compute.first is not None and "ready" in compute.first, compute.first
        fitted, kind = fill(compute, config.stages)
        assert (kind, fitted > 0) == ("oom", True) and free - torch.cuda.mem_get_info()[0] <= cap


def test_without_a_limit_there_is_none(text: Path) -> None:
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    with process(replace(LARGE, memory_bytes=0, data=str(text), nice=nice).to_dict()) as compute:
        assert compute.first is not None
        assert compute.first["ready"]["memory_free"] > 0
        assert "unlimited" in data_limit(compute.child.pid)
        assert priorities(compute.child.pid) == {nice}
        assert compute.close() == 0


def test_a_limit_below_torch_itself_is_said_at_once(text: Path) -> None:
    with process(replace(LARGE, memory_bytes=64 << 20, data=str(text)).to_dict()) as compute:
        assert compute.first is not None
        error = compute.first["error"]
        assert error["kind"] == "invalid" and "torch alone takes" in error["reason"]
        assert compute.child.wait(timeout=30) == 1


def test_a_share_is_of_this_machines_memory_and_other_programs_come_first(text: Path, cap: int) -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    nice = min(19, os.getpriority(os.PRIO_PROCESS, 0) + 5)
    config = replace(LARGE, memory_bytes=0, memory_share=cap / total, data=str(text), nice=nice)
    with process(config.to_dict()) as compute:
        assert compute.first is not None and compute.first["ready"]["memory_free"] < cap
        assert priorities(compute.child.pid) == {nice}
        assert compute.close() == 0


def test_a_child_is_told_its_threads_in_every_librarys_words() -> None:
    told = thread_environment(2)
    assert {told[name] for name in THREAD_VARIABLES} == {"2"} and told["TOKENIZERS_PARALLELISM"] == "false"


PASSES = """
import sys, time, torch
torch.set_num_threads(int(sys.argv[1]))
layers = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(8)])
passes, until = 0, time.monotonic() + 1
while time.monotonic() < until:
    layers(torch.ones(1024, 128)).sum().backward()
    passes += 1
print(passes)
"""


def passes(environment: dict[str, str]) -> int:
    """Of two processes that use all cores at once, each with a thread for every core."""
    cores = os.cpu_count() or 1
    children = [
        subprocess.Popen(
            [sys.executable, "-c", PASSES, str(cores)], env={**os.environ, **environment}, stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]
    return sum(int(child.communicate(timeout=60)[0]) for child in children)


def test_threads_that_wait_leave_the_cores_to_others() -> None:
    """With OpenMP's default it was a sixteenth. The planted bug: threads that keep a core busy while they wait. Of
    a few tries, since on a machine that others share one of the two may be disturbed."""
    cores = os.cpu_count() or 1
    told = thread_environment(cores)
    tries = (passes(told) > 1.5 * passes({**told, "OMP_WAIT_POLICY": "active"}) for _ in range(6))
    assert cores == 1 or any(tries)


def data_limit(pid: int) -> str:
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    return next(line for line in lines if line.startswith("Max data size"))


def priorities(pid: int) -> set[int]:
    """Of all its threads."""
    return {os.getpriority(os.PRIO_PROCESS, int(task.name)) for task in Path(f"/proc/{pid}/task").iterdir()}
