"""What is left to the night is there, and for each change something of every kind is played."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Final

import pytest

from tests import tiers

COLLECT: Final = [
    sys.executable,
    "-m",
    "pytest",
    "--collect-only",
    "-q",
    "-o",
    "addopts=--strict-markers --import-mode=importlib",
    "-n",
    "0",
]
AT_NIGHT_ONLY: Final = {
    "lab/hostile/test_hostile.py", "lab/parts/test_watchers.py", "models/test_compiled.py",
    "sim/test_step_estimates.py",
    "swarm/test_adapters.py", "swarm/test_dashboard.py", "swarm/test_first_weights.py", "swarm/test_flood.py",
    "swarm/test_foreign_addresses.py", "swarm/test_left_out.py", "swarm/test_lines.py", "swarm/test_lying_disks.py",
    "swarm/test_notice.py", "swarm/test_planner.py", "swarm/test_slow_lines.py", "swarm/test_subspace.py",
    "swarm/test_two_devices.py", "swarm/test_vouched.py",
}  # fmt: skip
"""Files of which nothing is played for a change."""
BASICS: Final = {
    "volunteers come": "test_elastic.py::test_a_run_begins_with_one_peer_and_spreads_out",
    "start at once": "test_losses.py::test_simultaneous_start_ends_in_one_swarm_with_each_stage_held_once",
    "kill, rebuild": "test_losses.py::test_a_middle_stage_is_blended_and_the_step_redone",
    "the leader dies": "test_losses.py::test_the_leader_dies_and_its_stage_is_rebuilt",
    "the head comes back": "test_ladder.py::test_the_head_comes_back_bit_exact_with_its_place_in_the_data",
    "deaths leave no trace": "test_exactness.py::test_in_double_precision_deaths_leave_no_trace[int8]",
    "disks": "test_switched_off.py::test_two_nodes_that_were_killed_go_on_from_the_newest_common_step",
    "rollback": "test_rollback.py::test_a_swarm_goes_back_by_the_order_of_its_author_and_trains_on",
    "a liar": "test_liars.py::test_who_lies_about_a_gradient_is_found_and_nobody_else[times1.5]",
    "nobody lies": "test_liars.py::test_honest_holders_agree_with_each_other",
    "an attack": "test_hostile.py::test_the_swarm_goes_on_during_the_attack_and_after_it[forged-certificate]",
    "a relay": "test_relay.py::test_a_volunteer_behind_a_relay_trains_and_can_be_replaced",
    "routers": "test_routers.py::test_tensors_of_two_behind_port_restricted_routers_pass_by_the_meeting_point",
    "export": "test_export.py::test_the_model_while_it_trains_and_when_it_is_done",
    "an owner": "test_owner.py::test_a_pause_frees_the_machine_and_a_resume_joins_again",
}
"""What a real swarm shows for every change, and the test that shows it."""


def file_of(name: str) -> str:
    return name.partition("::")[0]


def collected(*which: str) -> set[str]:
    """Names of tests of the virtual world, of real swarms, and in other files of which something is left."""
    whole = ("tests/sim", "tests/swarm")
    files = {*whole, *(file for name in tiers.left() if not (file := file_of(name)).startswith(whole))}
    done = subprocess.run([*COLLECT, *which, *files], cwd=tiers.ROOT, capture_output=True, text=True, timeout=120)
    return {line for line in done.stdout.splitlines() if "::" in line}


@pytest.fixture(scope="module")
def everything() -> set[str]:
    return collected()


@pytest.fixture(scope="module")
def played() -> set[str]:
    return collected("-m", "not night")


def test_every_one_that_is_left_to_the_night_is_there(everything: set[str]) -> None:
    known = everything | {name.partition("[")[0] for name in everything}
    assert sorted(tiers.left() - known) == []


def test_each_is_left_for_one_reason(played: set[str]) -> None:
    names = [name for listed in tiers.NIGHT.values() for name in listed]
    assert len({*names}) == len(names)
    assert all(len(why.split()) > 5 for why in tiers.NIGHT)
    assert not {name for name in names if name in played}


def test_of_each_file_something_is_played(everything: set[str], played: set[str]) -> None:
    left = {file_of(name) for name in everything} - {file_of(name) for name in played}
    assert {name.removeprefix("tests/") for name in left} == AT_NIGHT_ONLY


def test_planted_bugs_are_looked_for_with_each_change(everything: set[str], played: set[str]) -> None:
    """With one seed at least, but for some that take long; and one of each file that plants any."""
    planted = {name for name in everything if "planted" in name or "would_be" in name}
    cases, seen = ({name.partition("[")[0] for name in names} for names in (planted, played))
    assert len(cases) > 20 and sorted(cases - seen - {*tiers.NIGHT[tiers.LONG_PLANTED]}) == []
    assert {file_of(name) for name in planted} == {file_of(name) for name in planted & played}


@pytest.mark.parametrize("what", BASICS)
def test_basics_of_a_real_swarm_are_played(what: str, played: set[str]) -> None:
    assert f"tests/swarm/{BASICS[what]}" in played


def test_no_real_swarm_of_every_change_is_elsewhere_than_make_looks() -> None:
    (folders,) = re.findall(r'^SWARMS := -o testpaths="(.*)"$', (tiers.ROOT / "Makefile").read_text(), re.MULTILINE)
    files = [path.relative_to(tiers.ROOT).as_posix() for path in sorted(tiers.ROOT.glob("tests/**/test_*.py"))]
    others = [file for file in files if not file.startswith(tuple(folders.split()))]
    marked = [file for file in others if "mark.swarm" in (tiers.ROOT / file).read_text()]
    done = subprocess.run([*COLLECT, "-m", "swarm and not night", *marked], cwd=tiers.ROOT, capture_output=True)
    assert marked and done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout.decode()


def test_a_seed_of_each_test_of_the_virtual_world_and_some_that_failed_once(
    everything: set[str], played: set[str]
) -> None:
    honest = [name for name in played if "test_checks.py::test_honest_peers_are_never_accused" in name]
    kept = [name for name in played if tiers.KEPT in name]
    assert len(honest) == tiers.SEEDS_PLAYED and len(kept) >= 15
    checks = [name for name in everything if "sim/test_checks.py" in name]
    assert len(checks) > len([name for name in played if "sim/test_checks.py" in name]) + 20
