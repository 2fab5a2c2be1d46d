"""A machine that is taken away at a certain time, which its owner is told before: what it hands over until then."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import pytest

from ftnode.protocol.holder.own_departure import HandedOver
from ftnode.protocol.leader import leavers
from ftnode.protocol.recovery.rungs import LOSSY
from ftnode.protocol.recovery.short_notice import HandOver, what_to_hand_over
from ftnode.protocol.words.events import Leave
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import HEAD, Rung
from tests.sim.faults import END_SECONDS
from tests.sim.host import Host
from tests.sim.planted import patched
from tests.sim.run import run_seeds
from tests.sim.targets import best_view
from tests.sim.test_restart import SETTINGS, Swarm
from tests.tiers import seeds

BLOCK_BYTES = 1000
SEEDS = sorted({*seeds(300), 50})
"""In 50 there is no time for anything."""
STEP_SECONDS = 3.6
"""At most, with which a transfer begins: the next Begin names who learns."""
PART = range(1, 61)
"""Of them, where a bug must show."""


@dataclass
class Taken:
    """What became of one seed."""

    seed: int
    settings: Settings
    had: tuple[int, ...]
    """Stages that the one that goes held, and nobody else."""
    copied: dict[int, int]
    handed_over: set[int]
    lost: set[int]
    within: float
    transfer: float
    """Seconds that a block stage takes."""
    told: HandedOver
    """Its own word at its end."""
    notes: list[str]

    def order(self) -> tuple[int, ...]:
        """Of its stages, if there were time for all."""
        return what_to_hand_over(self.had, 1e9, 0.0, self.copied, 9, self.settings).order


def drawn(chance: random.Random) -> Settings:
    stages = chance.choice([4, 5, 6])
    return replace(
        SETTINGS, stages=stages, steps=4000, snapshot_every=0, replicas=1, swap=chance.random() < 0.3,
        head_every=chance.choice([0, 1]), shadow_every=chance.choice([0, 0, 1]),
        continued=chance.random() < 0.1, block_state_bytes=BLOCK_BYTES,
        head_state_bytes=chance.choice([BLOCK_BYTES // 4, BLOCK_BYTES, BLOCK_BYTES, 5 * BLOCK_BYTES]),
    )  # fmt: skip


def settled(seed: int, settings: Settings, chance: random.Random) -> tuple[Swarm, Host]:
    """Three peers with room for all, and who of them goes: one with most stages."""
    swarm = Swarm(settings, peers=0, seed=seed)
    world = swarm.world
    world.forward_seconds = 0.1
    hosts = [world.start(f"peer{index}", settings.stage_count, True) for index in range(3)]

    def whole() -> bool:
        view = best_view(world)
        return view is not None and len(view.members()) == len(hosts) and world.ledger.top_commit() > 3

    world.run(120.0, whole)
    assert whole(), "\n".join(world.notes)
    world.run(world.now + chance.uniform(3.0, 6.0))
    return swarm, max(hosts, key=lambda host: (len(host.participant.mine), host.peer))


def taken(seed: int) -> Taken:
    """It has room for a part of what it holds: so many transfers, with a beat for each offer."""
    chance = random.Random(f"taken {seed}")
    settings = drawn(chance)
    swarm, leaver = settled(seed, settings, chance)
    world = swarm.world
    transfer = chance.choice([0.3, 2.0, 5.0])
    rate = world.rebuilding.lines[leaver.peer.id] = BLOCK_BYTES / transfer
    had = leaver.participant.mine
    within = 2 * settings.lease_seconds + chance.uniform(0.0, len(had) + 1.0) * (transfer + settings.heartbeat_seconds)
    copied = {
        stage: copy.version.step for host in world.live() if host is not leaver for stage, copy in host.copies.items()
    }
    swarm.installed.clear()
    asked = world.now
    world.deliver(leaver, Leave("its machine is taken away", within=within, bytes_per_second=rate))
    world.run(asked + within + END_SECONDS, lambda: not leaver.alive)
    assert not leaver.alive, f"seed {seed}: it is there after its time\n" + "\n".join(world.notes)
    fate = leaver.participant.picture.fate
    commits = world.ledger.top_commit()
    halts = False

    def goes_on() -> bool:
        nonlocal halts
        halts = any(host.participant.waiting().startswith("halted: ") for host in world.live())
        return halts or world.ledger.top_commit() > commits + 3

    world.run(world.now + 90.0, goes_on)
    assert goes_on(), f"seed {seed}\n" + "\n".join(world.notes)
    rungs = {(stage, rung) for _, stage, rung, _ in swarm.installed}
    lost = {stage for stage, rung in rungs if stage in had and rung in LOSSY}
    if halts:
        view = best_view(world)
        assert view is not None
        lost |= {*had} & {*view.vacancies()}
    over = {stage for stage, rung in rungs if stage in had and rung in (Rung.REPLICA, Rung.KEPT)} - lost
    return Taken(seed, settings, had, copied, over, lost, within, transfer, tuple(fate), [*world.notes])


def objection(found: Taken) -> str:
    """What is wrong with it; empty when all is well."""
    settings, alike = found.settings, found.settings.head_state_bytes == BLOCK_BYTES
    if found.handed_over | found.lost != {*found.had}:
        return f"of {found.had} it is not known what became: {found.handed_over} handed over, {found.lost} lost"
    order = [stage for stage in found.order() if alike or stage != HEAD]
    blocks = [stage for stage in order if stage in found.handed_over]
    if blocks != order[: len(blocks)]:
        return f"handed over {blocks}, where the order of worth is {order}"
    over, way, out, gone, _ = found.told
    if {*over} - found.handed_over or {*out, *gone} - found.lost or {*over, *way, *out, *gone} != {*found.had}:
        return f"it says {found.told}, where {found.handed_over} were handed over and {found.lost} lost"
    room = found.within - settings.lease_seconds - settings.heartbeat_seconds
    sure = int(room // (found.transfer + 2 * settings.heartbeat_seconds + STEP_SECONDS)) - (HEAD in found.had) * 5
    if len(found.handed_over) < min(sure, len(found.had)):
        return f"in {found.within:.1f} s only {found.handed_over} of {found.had}, {found.transfer} s each"
    return ""


@pytest.mark.timeout(600)
def test_what_is_worth_most_is_handed_over_first_and_its_time_ends_it() -> None:
    found = [taken(seed) for seed in SEEDS]
    bad = [(each, why) for each in found if (why := objection(each))]
    assert not bad, f"{len(bad)} seeds, the first {bad[0][0].seed}: {bad[0][1]}\n" + "\n".join(bad[0][0].notes)
    part = [each for each in found if each.handed_over and each.lost]
    assert len(part) > len(SEEDS) // 10, "the time is enough for a part in many of them"
    assert any(not each.lost for each in found) and any(not each.handed_over for each in found)
    assert any(HEAD in each.had and HEAD in each.lost for each in found)


def by_number(alone: Any, *arguments: Any) -> HandOver:
    found = what_to_hand_over(alone, *arguments)
    return HandOver(tuple(sorted(alone))[: len(found.order)], found.left_out, found.reason)


def test_an_order_by_stage_number_is_found() -> None:
    with patched((leavers, "what_to_hand_over", by_number)):
        wrong = next(seed for seed in PART if objection(taken(seed)))
    assert not objection(taken(wrong))


@pytest.mark.timeout(600)
def test_the_world_comes_through_when_notices_fall_among_its_other_faults() -> None:
    faults = ("notice", "notice", "kill", "pause", "partition", "election")
    bad = [outcome for outcome in run_seeds(seeds(40), 2, faults) if outcome.violation]
    assert not bad, bad[0].report()
