"""A stranger names ports that have nothing to do with the swarm wherever it can, and nobody dials them."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from ftnode.lab.hostile.foreign_addresses import (
    OTHER_HOSTS,
    PORTS,
    PRESENCES,
    SAME_HOST,
    ForeignPorts,
    announce,
    ask_to_knock,
    greet_and_go,
    lists,
    open_ports,
)
from ftnode.lab.hostile.stranger import open_stranger
from ftnode.lab.swarms.trial import Trial
from ftnode.node.links.dial_back import KNOCK_SECONDS
from ftnode.node.links.dial_gate import ENDPOINT
from ftnode.node.manifests.reading import read_manifest
from ftnode.node.owner.join_options import running_nodes
from tests.swarm.conftest import OpenTrial

VOLUNTEERS = 3
WATCHED_SECONDS = 15.0
"""A search of the directory comes every ten, and p2pd forgets its own failed dials after five."""
TIMING_SECONDS = 0.3
"""Answers may differ by what the machine makes of it."""


def targets_of(trial: Trial) -> list[str]:
    """Full multiaddrs of the volunteers."""
    names = [name for name in trial.swarm.processes if name != "bootstrap"]
    return [running_nodes(trial.swarm.processes[name].home)[0].addresses[0] for name in names]


async def name_them(trial: Trial, targets: Sequence[str]) -> tuple[ForeignPorts, dict[str, list[tuple[str, float]]]]:
    """Connections before any knock are in the first, answers to knocks by host in the second."""
    manifest = read_manifest(trial.swarm.manifest)[0]
    view, step = trial.story.view, trial.story.committed
    assert view is not None
    knocks: dict[str, list[tuple[str, float]]] = {}
    async with open_ports() as ports, open_stranger(manifest, trial.swarm.address) as stranger:
        assert await announce(stranger, view, ports.addresses) == PRESENCES
        for target in targets:
            for addresses in lists(ports.addresses, stranger.alias):
                await greet_and_go(stranger, target, view, step, addresses)
        await trio.sleep(WATCHED_SECONDS)
        assert sum(ports.made.values()) == 0, ports.made
        for host in (SAME_HOST, *OTHER_HOSTS):
            knocks[host] = [await ask_to_knock(stranger, targets[0], ports.on(host)) for _ in range(2)]
        knocks["shut"] = [await ask_to_knock(stranger, targets[0], [f"/ip4/{SAME_HOST}/tcp/1024"])]
        (own, *_) = stranger.addresses
        knocks["own"] = [await ask_to_knock(stranger, targets[0], [own])]
        assert knocks["own"][0][0] == own, "it is reached where it is"
        return ports, knocks


def test_nobody_is_dialled_because_a_stranger_says_so(open_swarm: OpenTrial) -> None:
    trial = open_swarm(volunteers=VOLUNTEERS, stages=2)
    trial.wait("a view of all", lambda story: story.view is not None and len(story.view.members()) == VOLUNTEERS)
    ports, knocks = trio.run(name_them, trial, targets_of(trial))
    assert sum(ports.made[address] for address in ports.on(*OTHER_HOSTS)) == 0, "no host but the asker's"
    assert sum(ports.made[address] for address in ports.on(SAME_HOST)) <= PORTS * ENDPOINT.at_once
    refused = [answer for host in (*OTHER_HOSTS, SAME_HOST, "shut") for answer in knocks[host]]
    assert {said for said, _ in refused} == {""}, "what was found there is not told"
    assert all(abs(seconds - KNOCK_SECONDS) < TIMING_SECONDS for _, seconds in refused), refused
    trial.wait_for_step(trial.story.committed + 2)
