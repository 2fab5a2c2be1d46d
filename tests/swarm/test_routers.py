"""Volunteers behind routers, in network namespaces: a run trains past its meeting point where the routers permit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from ftnode.lab.lines.network import open_network, read_counts
from ftnode.lab.lines.router import MAPPINGS
from ftnode.lab.lines.switch import Homes
from ftnode.lab.routers import relay_killed
from ftnode.lab.routers.matrix import Asked, measure
from ftnode.lab.swarms.swarm import NODE, Swarm
from ftnode.lab.swarms.trial import Trial, small_manifest
from ftnode.lab.traces.story import Story
from ftnode.node.cli.manifest import manifest_text
from tests.namespaces import skipped_without_namespaces

pytestmark = pytest.mark.timeout(240)

POINT = "bootstrap"
RATE = 2.5e6
DELAY = 0.015
PACED = ("--compute", "paced", "--paced-seconds", "0.01", "0.02")
STEPS = 5
EVERYWHERE = ("--listen", "/ip4/0.0.0.0/tcp/4101")
"""p2pd has no port mapped for a single address."""
ASKED_SECONDS = 60.0
"""For a command that looks at the run. A busy machine starts it slowly."""
SAID_SECONDS = 20.0
"""The node looks at its reachability every five."""


@contextmanager
def behind(folder: Path, kinds: Sequence[str], options: Mapping[str, Sequence[str]] | None = None) -> Iterator[Trial]:
    """A run whose volunteers are behind routers of these kinds, with options by name. Skips where there can be no
    namespaces."""
    names = [f"v{number}" for number in range(len(kinds))]
    homes = Homes(((RATE, RATE),) * (1 + len(kinds)), DELAY, str(folder / "counts.jsonl"), ("none", *kinds))
    path, before = folder / "manifest.toml", set(os.listdir("/sys/class/net"))
    path.write_text(manifest_text(small_manifest(None, len(kinds) - 1)), encoding="utf-8")
    with (
        skipped_without_namespaces(),
        open_network((POINT, *names), homes) as places,
        Swarm(folder, path, options=PACED, places=places) as swarm,
    ):
        swarm.start_bootstrap(POINT)
        trial = Trial(swarm, Story())
        for name in names:
            trial.volunteer(name, options=(options or {}).get(name, ()))
        yield trial
    assert set(os.listdir("/sys/class/net")) == before


def carried(trial: Trial) -> list[int]:
    """Bytes that each home's line has carried upwards, the meeting point's first."""
    return [up for up, _ in read_counts(trial.swarm.directory / "counts.jsonl").carried[-1]]


def reachable(trial: Trial, name: str) -> str:
    """What the node last said of it."""
    lines = trial.swarm.processes[name].output.read_text().splitlines()
    return next((line.split("reachable", 1)[1].strip() for line in reversed(lines) if " reachable " in line), "")


def wait_for_word(trial: Trial, name: str, word: str) -> None:
    trial.wait(f"{name} to say {word!r}", lambda story: word in reachable(trial, name), SAID_SECONDS)


def test_tensors_of_two_behind_port_restricted_routers_pass_by_the_meeting_point(tmp_path: Path) -> None:
    with behind(tmp_path, ("port-restricted", "port-restricted")) as trial:
        trial.wait_for_step(1)
        before, step = carried(trial), trial.story.committed
        trial.wait_for_step(step + STEPS)
        point, *homes = (after - earlier for after, earlier in zip(carried(trial), before))
        assert point < 0.1 * min(homes), "by the lines themselves, whatever anybody says"
        trial.wait(
            "their word", lambda story: all(_says(trial, name, "punched") for name in ("v0", "v1")), SAID_SECONDS
        )
        trial.kill(POINT)
        step = trial.story.committed
        trial.wait_for_step(step + STEPS)  # nobody needs the meeting point any more


@pytest.mark.parametrize("kind", MAPPINGS)
def test_a_router_that_keeps_a_port_open_is_asked_to_unless_its_owner_says_no(tmp_path: Path, kind: str) -> None:
    with behind(tmp_path, (kind, kind), {"v0": EVERYWHERE, "v1": (*EVERYWHERE, "--no-port-mapping")}) as trial:
        trial.wait_for_step(1)
        trial.wait("v0 to be dialled", lambda story: _says(trial, "v0", "direct"), SAID_SECONDS)
        address = reachable(trial, "v0").split(" at ")[1].split()[0]
        assert address.startswith("/ip4/44.77.0.2/tcp/"), "the router's address and not its own"
        assert _answers(trial, address, "v0"), "a stranger dials it there, whom it has sent nothing"
        trial.wait("v1 to be asked", lambda story: reachable(trial, "v1") != "", SAID_SECONDS)
        assert not _says(trial, "v1", "direct")
        asked = (tmp_path / "counts.log").read_text()
        assert "was asked by 192.168.2.2" in asked and "was asked by 192.168.3.2" not in asked


def _answers(trial: Trial, address: str, name: str) -> bool:
    """Whether a watcher in the meeting point's namespace has the node's status from this address."""
    peer, enter = trial.story.peers[name].id, trial.swarm.places[POINT].enter
    argv = [*enter, sys.executable, "-m", *NODE, "status", "--peer", f"{address}/p2p/{peer}", "--json"]
    home = trial.swarm.directory / "watcher"
    asked = subprocess.run([*argv, "--home", str(home)], capture_output=True, timeout=ASKED_SECONDS, check=True)
    return bool(json.loads(asked.stdout)["speaker"]["peer"] == peer)


def test_where_routers_cannot_be_opened_the_run_trains_through_the_meeting_point(tmp_path: Path) -> None:
    with behind(tmp_path, ("port-restricted", "symmetric")) as trial:
        trial.wait_for_step(1)
        before, step = carried(trial), trial.story.committed
        trial.wait_for_step(step + STEPS)
        point, *homes = (after - earlier for after, earlier in zip(carried(trial), before))
        assert point > 0.9 * max(homes)
        reason = "no way through the routers: neither router let the other's packets in"
        trial.wait(
            "their word", lambda story: _says(trial, "v0", "relay") and reason in reachable(trial, "v0"), SAID_SECONDS
        )


def _says(trial: Trial, name: str, kind: str) -> bool:
    return reachable(trial, name).startswith(f"{kind}: ")


def test_a_relay_that_is_killed_in_mid_step_costs_a_redial(tmp_path: Path) -> None:
    """First the one that carries everything, then the next: each time another one takes over."""
    with skipped_without_namespaces():
        kills = relay_killed.measure(tmp_path, DELAY)
    assert len({kill.relay for kill in kills}) == 2 and all(kill.carried > 1e6 for kill in kills)
    assert all(kill.commit_seconds < relay_killed.COMMIT_SECONDS for kill in kills), kills


def test_some_pairs_of_the_matrix(tmp_path: Path) -> None:
    began = time.monotonic()
    with skipped_without_namespaces():
        cells = measure(Asked(("address-restricted", "symmetric"), (RATE, RATE), (RATE, RATE), DELAY), tmp_path)
    ways = {(cell.dials, cell.dialled): cell.way for cell in cells}
    assert ways == {
        ("address-restricted", "address-restricted"): "punched",
        ("address-restricted", "symmetric"): "punched",
        ("symmetric", "address-restricted"): "punched",
        ("symmetric", "symmetric"): "relayed",
    }, json.dumps([cell.why for cell in cells])
    assert all(cell.rate > 0.3 * RATE for cell in cells)
    assert time.monotonic() - began < 120
