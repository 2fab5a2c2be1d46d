"""Peers behind routers by hundreds of seeds: whoever can be connected directly is, whoever cannot goes through relays
that share the load, and nobody tries, or takes, without end."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import pytest

from ftnode.lab.lines.router import KINDS
from ftnode.node.links import punch_rules, relay_choice, relay_rules
from ftnode.node.links.punch_rules import AGAIN_SECONDS, Connections
from tests.sim.planted import patched
from tests.sim.routers import TICK, RoutersWorld, can_be_opened

HOUR = 3600.0
STRANGERS_BYTES = relay_rules.STRANGER.bytes_an_hour
RELAYED = {("port-restricted", "symmetric"), ("symmetric", "symmetric"), ("two", "symmetric")}
"""The cells of `ftnode lab routers` that only a relay connects, with real routers."""


def lived(seed: int) -> RoutersWorld:
    """An hour, in which a relay dies and a router becomes another one."""
    world = RoutersWorld(seed)
    world.run(world.chance.uniform(60.0, HOUR / 8))
    world.kill(world.chance.choice(world.relays))
    world.run(world.chance.uniform(60.0, HOUR / 8))
    world.change_router(world.chance.choice(world.members), world.chance.choice(list(KINDS)[1:]))
    world.run(AGAIN_SECONDS[-1] + 2 * TICK)
    return world


def wrong(world: RoutersWorld) -> list[str]:
    """What should not be, of a world in which nothing has changed for as long as a punch waits."""
    found = []
    for one, other in world.pairs():
        name, open_to_both = f"{one.kind} and {other.kind}", can_be_opened(one.kind, other.kind)
        if other.id not in one.ends:
            found.append(f"{name}: no connection")
        elif open_to_both and world.is_circuit(one, other):
            found.append(f"{name}: still through a relay")
        if (other.id in one.punches.punched) != (other.id in one.ends and not world.is_circuit(one, other)):
            found.append(f"{name}: what the node says of it is not so")
        tries = world.tries[frozenset((one.id, other.id))]
        if tries > 2 + len(AGAIN_SECONDS) + world.now / AGAIN_SECONDS[-1]:
            found.append(f"{name}: {tries} tries")
    loads, relays = world.loads(), world.living()
    if max(loads.values(), default=0) > 1 + 1.5 * loads.total() / len(relays):
        found.append(f"the load is not shared: {sorted(loads.values())} over {len(relays)} relays")
    most = STRANGERS_BYTES * (1 + world.now / HOUR)
    found += [f"a stranger got {count / 1e9:.1f} GB" for count in world.stranger_bytes.values() if count > most]
    return found


@pytest.mark.parametrize("seeds", [range(start, start + 20) for start in range(0, 80, 20)], ids=str)
def test_all_is_well_in_the_end(seeds: Collection[int]) -> None:
    for seed in seeds:
        assert wrong(lived(seed)) == [], seed


def test_the_world_is_as_the_lab_found_it() -> None:
    relayed = set(RELAYED) | {(other, one) for one, other in RELAYED}
    for one in KINDS:
        for other in KINDS:
            assert can_be_opened(one, other) == ((one, other) not in relayed), (one, other)


def test_after_a_relay_has_died_all_are_connected_with_the_next_look() -> None:
    for seed in range(20):
        world = RoutersWorld(seed)
        world.run(300.0)
        world.kill(world.relays[0])
        world.run(2 * TICK)
        assert all(other.id in one.ends for one, other in world.pairs()), seed


def a_circuit_counts_as_direct(peer_id: str, connections: Connections, addresses: Collection[str] = ()) -> str:
    return "punched" if any(owner == peer_id for owner, _ in connections) else ""


def the_first_relay(me: str, offers: Any, given: Any, held: Any, most: int) -> tuple[str, ...]:
    return tuple(sorted(offers))[:1]


PLANTED: dict[str, tuple[Callable[[], Any], str]] = {
    "a circuit counts as direct": (
        partial(patched, (punch_rules, "way_to", a_circuit_counts_as_direct)), "what the node says",
    ),
    "a punch that never gives up": (partial(patched, (punch_rules, "AGAIN_SECONDS", (0.0, 0.0, 0.0))), "tries"),
    "a relay that forwards for strangers without limit": (
        partial(patched, (relay_rules, "STRANGER", relay_rules.MEMBER)), "a stranger got",
    ),
    "all go to the first relay": (partial(patched, (relay_choice, "choose_places", the_first_relay)), "not shared"),
}  # fmt: skip


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str) -> None:
    plant, sign = PLANTED[bug]
    with plant():
        assert any(sign in line for seed in range(12) for line in wrong(lived(seed)))
