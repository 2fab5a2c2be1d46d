"""A stranger that shows views which nobody voted for, with every signature that it can make, and how far a swarm gets
meanwhile (rule 14).

  next       the view after the members', led by the stranger, which beats as its leader.
  last       the same with the highest number that a view can have, so that none could come after it.
  fork       a lineage that comes from a view of the members, and beats theirs by every rank.
  elsewhere  a lineage of another past, of which the stranger says that it is far ahead.
  claimed    the directory shows the highest number, with the stranger in a holder's place.
  astray     as last and claimed, while somebody stands by who knows the run from the directory alone. Then a holder is
             lost, and nobody else can take its place.
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from typing import Final

from ftnode.protocol.participant import Participant
from ftnode.protocol.views.succession import fork, genesis
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words import events as ev
from ftnode.protocol.words import messages as ms
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import View
from tests.sim.compute import Compute
from tests.sim.host import Host
from tests.sim.targets import best_view
from tests.sim.world import World

WAYS: Final = ("next", "last", "fork", "elsewhere", "claimed", "astray")
LAST_NUMBER: Final = 2**48 - 1
SETTINGS: Final = Settings(
    run="sim", stages=3, steps=100_000, microbatches=2, window=2, head_every=1, lease_seconds=6.0,
    minority_wait_seconds=9.0,
)  # fmt: skip
TRAINS_SECONDS: Final = 25.0
LIES_SECONDS: Final = 25.0
REFILL_SECONDS: Final = 10.0
"""From the loss of a holder until its stage is back."""
BEAT_SECONDS: Final = 0.5


class Forger(Participant):
    """It decides nothing by the rules."""

    def __init__(self, world: World, peer: Peer, way: str) -> None:
        super().__init__(peer, world.settings, random.Random(0), addresses=(f"/sim/{peer.id}",))
        self.world, self.way, self.shown = world, way, 0
        self.timers.set("beat", world.now)

    def handle(self, event: ev.Event, now: float) -> list[fx.Effect]:
        if not isinstance(event, ev.Wake):
            return []
        self.timers.set("beat", now + BEAT_SECONDS)
        view = best_view(self.world)
        if view is None or self.way == "claimed":
            return []
        forged = self.forged(view)
        proof = ms.Proof(ms.Ballot(0, self.me), (ms.Signed(self.me, ""),))
        step = self.world.settings.steps - 1
        said = (
            ms.Certificate(forged, True, (), step, proof),
            ms.Heartbeat(forged.lineage.id, forged.number, True, step, (), 0.0, False, (), (), "", ()),
        )
        honest = [host.peer for host in self.world.live() if host.peer != self.me]
        return [fx.Send(to, message, None) for to in honest for message in said]

    def forged(self, view: View) -> View:
        """What nobody voted for."""
        me, mine = self.me, (self.me,)
        self.shown += 1
        match self.way:
            case "next" | "last" | "claimed" | "astray":
                after = LAST_NUMBER if self.way != "next" else view.number + (view.leader != me)
                return replace(view, number=after, previous=view.digest(), leader=me, voters=mine,
                               holders=(*view.holders[:-1], mine))  # fmt: skip
            case "fork":
                alone = fork(view, me, 1, [me], "a forged fork")
                lineage = replace(alone.lineage, id="0", exact_stages=99)
                return replace(alone, lineage=lineage, holders=(mine,) * len(view.holders), voters=mine)
            case _:
                stages = range(len(view.holders))
                return genesis(view.run, me, stages, len(view.holders))


def commits_around(seed: int, way: str) -> tuple[int, int, int]:
    """Steps that a swarm of one peer for each stage, and one that stands by, commits before, during and after. With
    `astray`, after the loss the stranger still lies."""
    chance = random.Random(f"forged views {seed}")
    world = World(SETTINGS, seed, delay_max=chance.choice([0.01, 0.03, 0.08]))
    for index in range(SETTINGS.stage_count + 1):
        late = way == "astray" and index == SETTINGS.stage_count
        world.at(TRAINS_SECONDS if late else chance.uniform(0, 2), world.start, (f"peer{index}", 1, True))
    world.run(TRAINS_SECONDS)
    counts = [world.ledger.top_commit()]
    world.run(world.now + LIES_SECONDS)
    counts.append(world.ledger.top_commit())
    standby = world.by_id[f"peer{SETTINGS.stage_count}"]
    if way == "astray":
        known = standby.participant.following.proofs
        assert standby.view is not None and known.of(standby.view) is None, "it has been shown a proof"
    forger = _enters(world, way)
    world.run(world.now + LIES_SECONDS)
    counts.append(world.ledger.top_commit())
    if way == "astray":
        world.kill(_lost(world), "lost", silently=False)
        world.run(world.now + REFILL_SECONDS)
    else:
        world.directory.lies = None
        world.kill(forger, "silenced", silently=False)
    begun = world.ledger.top_commit()
    world.run(world.now + LIES_SECONDS)
    return counts[1] - counts[0], counts[2] - counts[1], world.ledger.top_commit() - begun


def is_hurt(way: str, before: int, during: int, after: int) -> bool:
    """Slower by a tenth; after the loss of a holder by half. Who takes its place may have slower lines, also where
    nobody lies, and without it there is no step at all."""
    return during < 0.9 * before or after < (0.5 if way == "astray" else 0.9) * before


def _lost(world: World) -> Host:
    """A holder that does not lead."""
    view = next(host.view for host in world.live() if host.participant.leader is not None and host.view is not None)
    holder = next(peer for group in reversed(view.holders) for peer in group if peer != view.leader)
    return world.by_id[holder.id]


def _enters(world: World, way: str) -> Host:
    peer = Peer("0stranger", 1)
    forger = Forger(world, peer, way)
    host = Host(peer, forger, Compute(str(peer), world.settings, world.ledger, []), 0, True)
    host.known.update(other.peer.id for other in world.hosts)
    world.hosts.append(host)
    world.by_id[peer.id] = host
    world.at(world.now, world.deliver, (host, ev.Wake()))
    if way in ("claimed", "astray"):

        def lies() -> ev.Directory:
            view = best_view(world)
            return ev.Directory((), (forger.forged(view),) if view is not None else ())

        world.directory.lies = lies
    return host


def main() -> int:
    """`python -m tests.sim.forged_views FIRST LAST`: the steps of each seed and way in which the swarm is hurt."""
    first, last = map(int, sys.argv[1:3])
    bad = 0
    for seed in range(first, last + 1):
        for way in WAYS:
            before, during, after = commits_around(seed, way)
            if is_hurt(way, before, during, after):
                bad += 1
                print(f"seed {seed}, {way}: {before} steps, then {during}, then {after}", flush=True)
    print(f"{(last + 1 - first) * len(WAYS)} forgeries, {bad} that hurt")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
