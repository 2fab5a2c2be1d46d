"""What is left to the night is there, and of every file something is played for each change."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiers

COLLECT = [
    sys.executable,
    "-m",
    "pytest",
    "--collect-only",
    "-q",
    "-o",
    "addopts=--strict-markers --import-mode=importlib",
]


def collected(*which: str) -> list[str]:
    """Names of tests."""
    done = subprocess.run([*COLLECT, "-n", "0", *which], cwd=tiers.ROOT, capture_output=True, text=True, timeout=120)
    return [line for line in done.stdout.splitlines() if "::" in line]


@pytest.fixture(scope="module")
def swarms() -> list[str]:
    return collected("-m", "swarm", "tests")


def test_every_one_that_is_left_to_the_night_is_there(swarms: list[str]) -> None:
    known = {*swarms, *(name.partition("[")[0] for name in swarms)}
    assert sorted(tiers.NIGHT - known) == []


def test_most_kinds_of_swarms_are_started_for_every_change(swarms: list[str]) -> None:
    played = {name.partition("::")[0] for name in collected("-m", "swarm and not night", "tests/swarm")}
    left = {name.partition("::")[0] for name in swarms if name.startswith("tests/swarm/")} - played
    assert {Path(name).stem for name in left} == {
        "test_flood", "test_foreign_addresses", "test_planner", "test_slow_lines", "test_subspace",
    }  # fmt: skip


def test_a_seed_of_each_test_of_the_virtual_world_and_all_that_failed_once() -> None:
    here = collected("-m", "not night", "tests/sim/test_checks.py", "tests/sim/test_virtual_world.py")
    honest = [name for name in here if "test_honest_peers_are_never_accused" in name]
    kept = [name for name in here if tiers.KEPT in name]
    assert len(honest) == tiers.SEEDS_PLAYED and len(kept) > 50
    assert len(collected("tests/sim/test_checks.py")) > len([name for name in here if "test_checks.py" in name]) + 20
