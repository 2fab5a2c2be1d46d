"""Tests side by side: each computes with one thread, and those that measure the machine have it for themselves."""

from __future__ import annotations

import fcntl
import gc
import os
import sys
from collections.abc import Generator
from pathlib import Path

import hypothesis
import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from ftnode.lab.swarms.template import use_template
from ftnode.node.machine import child_processes
from ftnode.node.machine.child_processes import thread_environment
from tests import tiers

os.environ.update(thread_environment(1))
"""Threads that wait for each other on busy cores take ten times as long. Before torch is loaded, and for children."""
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
"""Hundreds of processes start, and a node's modules take nearly twice as long to load without bytecode. What pytest
makes of the tests' assertions takes 8 s of processor time anew."""

hypothesis.settings.register_profile(
    "every change", max_examples=100, derandomize=True, database=None, deadline=None, print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.differing_executors],
)  # fmt: skip
hypothesis.settings.register_profile(
    "night", hypothesis.settings.get_profile("every change"), max_examples=3000, derandomize=False
)
hypothesis.settings.load_profile("every change")
"""Nothing depends on the day, or on what failed on this machine: what a night finds is kept as an @example."""

use_template()
"""Nodes, compute and directory processes are forks of a process that has torch loaded, but in tests marked `fresh`."""

DOOR, ROOM = Path(__file__).parent, Path(__file__)
"""Everybody comes through the door. Who wants the room alone keeps it shut while the others leave, so that nobody who
comes later is let in first. Locks of files end with whoever holds them, however that ends."""

WORKERS_MAX = 8
"""Each takes half a gigabyte."""
WORLD = Path(__file__).parent / "sim"
SEEDS = "test_virtual_world.py"
KEPT = ("test_at_odds.py", "test_bad_newcomers.py", "test_checks.py", "test_credit.py", "test_duty.py",
        "test_every_moment.py", "test_first_lie.py", "test_forked_paths.py", "test_fuzz.py", "test_hidden_parts.py",
        "test_hidden_tensors.py", "test_lent_weights.py", "test_lying_copies.py", "test_lying_donors.py",
        "test_moments_of_change.py", "test_neighbours.py", "test_only_holders.py", "test_planted_in_steps.py",
        "test_probation.py", "test_signed_tensors.py", "test_third.py", "test_vouched.py",
        "test_watched.py")  # fmt: skip
"""They take the same worlds up again and again (tests/sim/kept_worlds.py)."""
LONG = ("test_exactness.py", "test_slow_lines.py")
"""Swarms that take minutes."""


def lock(path: Path, how: int) -> int:
    descriptor = os.open(path, os.O_RDONLY)
    fcntl.flock(descriptor, how)
    return descriptor


def unlock(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough while a forked child has it, too
    os.close(descriptor)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Workers share the machine, but for tests marked `alone`. The wait for it is not part of a test's time."""
    if not hasattr(item.config, "workerinput"):
        return (yield)
    how = fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH
    door = lock(DOOR, how)
    room = lock(ROOM, how)
    unlock(door)
    try:
        return (yield)
    finally:
        unlock(room)


@pytest.fixture(autouse=True, scope="session")
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> Generator[None, None, None]:
    """What whoever runs the tests keeps in the folders of the platform (options, keys, logs) is not the tests'."""
    with pytest.MonkeyPatch.context() as patch:
        for kind in ("CONFIG", "DATA", "STATE"):
            patch.setenv(f"XDG_{kind}_HOME", str(tmp_path_factory.mktemp(kind.lower())))
        yield


@pytest.fixture(autouse=True)
def started_anew(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("fresh"):
        monkeypatch.setattr(child_processes, "starter", None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """For `-n auto`: twice the cores, since many tests wait; none for a selection, which is not worth their start."""
    selected = config.option.keyword or config.args_source is not config.ArgsSource.TESTPATHS
    return 0 if selected else min(WORKERS_MAX, 2 * (os.cpu_count() or 1))


GARBAGE_AFTER = 10_000
"""So many new objects at least before Python looks for circles among them, and not 700."""


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """What is loaded by its end stays, and is not gone through again: half a second each time, and with the rest of the
    collector a fifteenth of what the virtual world takes."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(GARBAGE_AFTER)
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Those alone come first, one after the other, so that nobody waits for the end of others' tests. The virtual world
    takes longest and comes before the rest, its seeds before all else. Then come those of the whole tree, which start
    Python for each look: at the end the other workers would wait for them. tiers.py says what is left to the night."""
    tiers.mark(items)
    if hasattr(config, "workerinput"):
        items.sort(
            key=lambda item: (
                item.get_closest_marker("alone") is None or not item.get_closest_marker("swarm"),
                item.path.name not in LONG,
                WORLD not in item.path.parents,
                item.path.name != SEEDS,
                item.path.parent != ROOM.parent,
            )
        )


class ByFile(LoadScopeScheduling):
    """A worker takes a whole file; of the virtual world and of the swarms a test at a time, but for those that look at
    the same seeds or take the same worlds up, and for swarms of nine that compute."""

    def _split_scope(self, nodeid: str) -> str:
        file, _, name = nodeid.partition("::")
        shared = (file.endswith(SEEDS) and "[" not in name) or file.endswith(("test_exactness.py", *KEPT))
        return nodeid if file.startswith(("tests/sim/", "tests/swarm/")) and not shared else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    return ByFile(config, log)
