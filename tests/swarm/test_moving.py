"""Volunteers whose address changes while the run goes on, and runs over IPv6, in network namespaces."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ftnode.lab.lines.network import Network, open_network
from ftnode.lab.lines.switch import Homes, address, address_6
from ftnode.lab.swarms.swarm import Swarm
from ftnode.lab.swarms.trial import LEASE_SECONDS, Trial, small_manifest
from ftnode.lab.traces.story import Story
from ftnode.node.cli.manifest import manifest_text
from tests.namespaces import skipped_without_namespaces

pytestmark = pytest.mark.timeout(240)

POINT = "bootstrap"
RATE = 2.5e6
DELAY = 0.015
PACED = ("--compute", "paced", "--paced-seconds", "0.01", "0.02")
SETTLE_STEPS = 10
STEPS = 5
"""So many after the change, and it has not only been survived."""
USUAL_LEASE_SECONDS = 10.0
"""Where silence is all that there is, it takes most of a short lease."""
MOVED_4, MOVED_6 = "44.77.0.99", "2a44:77::99"


@dataclass
class Place:
    """A run and the network that it is in."""

    trial: Trial
    network: Network

    def says(self, name: str, word: str) -> bool:
        lines = self.trial.swarm.processes[name].output.read_text().splitlines()
        return word in next((line for line in reversed(lines) if " reachable " in line), "")


@contextmanager
def run_of_two(
    folder: Path,
    families: tuple[str, ...],
    listen: tuple[str, ...] = (),
    kinds: tuple[str, ...] = ("none",) * 3,
    lease: float = LEASE_SECONDS,
) -> Iterator[Place]:
    """A meeting point and two volunteers, each of whom holds a stage alone. Skips where there can be no namespaces."""
    names = ("v0", "v1")
    homes = Homes(((RATE, RATE),) * 3, DELAY, str(folder / "counts.jsonl"), kinds, families)
    path, before = folder / "manifest.toml", set(os.listdir("/sys/class/net"))
    manifest = small_manifest(None, 1)
    manifest = replace(manifest, liveness=replace(manifest.liveness, lease_seconds=lease))
    path.write_text(manifest_text(manifest), encoding="utf-8")
    options = [word for one in listen for word in ("--listen", one)]
    with (
        skipped_without_namespaces(),
        open_network((POINT, *names), homes) as network,
        Swarm(folder, path, options=PACED, places=network) as swarm,
    ):
        swarm.start_bootstrap(POINT)
        trial = Trial(swarm, Story())
        for name in names:
            trial.volunteer(name, options=(*options, *other_addresses(swarm)))
        trial.wait_for_step(SETTLE_STEPS)
        yield Place(trial, network)
    assert set(os.listdir("/sys/class/net")) == before


def other_addresses(swarm: Swarm) -> list[str]:
    """Those of the meeting point that a volunteer is not given anyway."""
    said = swarm.processes[POINT].output.read_text().splitlines()
    every = [line.removeprefix("address: ") for line in said if line.startswith("address: ")]
    return [word for one in every if one != swarm.address for word in ("--peer", one)]


def goes_on_within_a_lease(place: Place, change: Callable[[], None], lease: float = LEASE_SECONDS) -> float:
    """Seconds from the change to the next commit of a step that began after it. Nobody is lost, and no life is new."""
    trial = place.trial
    trial.story.read()
    peers, views, step = dict(trial.story.peers), len(trial.story.views), trial.story.committed
    moved = time.monotonic()
    change()
    trial.wait_for_step(step + 2 + STEPS, 10 * lease)
    first: dict[int, float] = {}
    for told in trial.story.commits:
        first[told.record["step"]] = min(told.time, first.get(told.record["step"], told.time))
    seconds = first[step + 2] - moved  # one may have been all but done
    print(f"{seconds:.1f} s until the next commit")
    assert seconds <= lease
    assert trial.story.peers == peers and trial.story.views[views:] == []
    return seconds


def test_a_volunteer_with_ipv6_alone_moves_to_another_network(tmp_path: Path) -> None:
    with run_of_two(tmp_path, ("6", "6", "6"), ("/ip6/::/tcp/4101",)) as place:

        def move() -> None:
            place.network.inside("v0", "ip", "-6", "address", "add", f"{MOVED_6}/64", "dev", "line", "nodad")
            place.network.inside("v0", "ip", "-6", "address", "del", f"{address_6(1)}/64", "dev", "line")

        goes_on_within_a_lease(place, move)
        place.trial.wait("its new address to be known", lambda story: place.says("v0", f"/ip6/{MOVED_6}/tcp/"), 20)


def test_a_volunteer_that_was_without_network_for_a_moment_goes_on(tmp_path: Path) -> None:
    with run_of_two(tmp_path, ("4", "4", "4"), ("/ip4/0.0.0.0/tcp/4101",)) as place:

        def move() -> None:
            place.network.inside("v0", "ip", "address", "del", f"{address(1)}/24", "dev", "line")
            time.sleep(0.7)
            place.network.inside("v0", "ip", "address", "add", f"{MOVED_4}/24", "dev", "line")
            place.network.inside("v0", "ip", "route", "replace", "default", "dev", "line")

        goes_on_within_a_lease(place, move)
        place.trial.wait("its new address to be known", lambda story: place.says("v0", f"/ip4/{MOVED_4}/tcp/"), 20)


@pytest.mark.parametrize("others", ["none", "port-restricted"])
def test_a_volunteer_whose_router_gets_another_address_goes_on(tmp_path: Path, others: str) -> None:
    """Behind a router of their own others do not answer to what comes from nowhere, so that there is only silence."""
    lease = LEASE_SECONDS if others == "none" else USUAL_LEASE_SECONDS
    with run_of_two(tmp_path, ("4", "4", "4"), kinds=("none", "port-restricted", others), lease=lease) as place:
        goes_on_within_a_lease(place, lambda: place.network.move("v0", MOVED_4), lease)


@pytest.mark.parametrize("families", [("46", "46", "46"), ("46", "4", "6")], ids=["both", "one each"])
def test_a_run_over_both_kinds_of_ip(tmp_path: Path, families: tuple[str, ...]) -> None:
    """Two who have no kind of IP in common talk through a meeting point that has both."""
    with run_of_two(tmp_path, families) as place:
        place.trial.wait("their word", lambda story: all(place.says(name, "direct: ") for name in ("v0", "v1")), 20)
        step = place.trial.story.committed
        place.trial.wait_for_step(step + STEPS)
        assert place.says("v0", "a relay passes on who has IPv6 alone") == (families[1] == "4")
        assert place.says("v1", "a relay passes on who has IPv4 alone") == (families[2] == "6")
