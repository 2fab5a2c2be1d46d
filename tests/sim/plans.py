"""Leaders that are replaced in the middle of a plan: somebody is asked, answers, learns or is about to be in the view,
and at that moment the leader that planned it is killed, suspended or cut off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

from ftnode.protocol.leader.outlook import Outlook, name_of
from ftnode.protocol.planning.changes import NOISE
from ftnode.protocol.planning.schedule import step_timing
from ftnode.protocol.words import messages as ms
from ftnode.protocol.words.effects import Send
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import View
from tests.sim.host import Host
from tests.sim.targets import best_view, holders
from tests.sim.test_groups import SETTINGS
from tests.sim.unequal import Devices
from tests.sim.world import World

PLANNED: Final = replace(SETTINGS, steps=100_000, microbatches=4, window=4, evaluate_every=0)
AWAY_SECONDS: Final = 2.5 * PLANNED.lease_seconds
"""Of a leader that is suspended or cut off: longer than others need to choose another one."""
QUIET_SECONDS, SETTLES_SECONDS_MAX = 40.0, 240.0
"""A layout has settled when nobody has changed it for so long, and it does in so long at most."""
Holders = tuple[tuple[Peer, ...], ...]
ANY_ROOM = 9


@dataclass(frozen=True, slots=True)
class Move:
    """Who comes one after the other before the leader plans anything, and who then. `loses`: or a block stage is lost
    then, which others stand by for."""

    stages: int
    replicas: int
    there: Devices
    comes: Devices
    loses: bool = False


def alike(names: str, room: int = 1) -> Devices:
    return dict.fromkeys(names, (0.1, room))


MOVES: Final[dict[str, Move]] = {
    "a range in another's place": Move(3, 1, {"a": (0.1, ANY_ROOM), **alike("be")}, {"c": (0.05, 2)}),
    "all that another holds": Move(2, 1, {"b": (0.05, 1), "a": (0.5, ANY_ROOM), "c": (0.05, 1)}, {"d": (0.05, 1)}),
    "beside others": Move(2, 2, alike("abcde"), alike("f")),
    "a vacancy": Move(3, 1, {**alike("a", 2), **alike("bcdef")}, {}, True),
}
MOMENTS: Final = ("asked", "answering", "answered", "learning", "learnt", "proposed", "voted", "chosen")
"""Before the Offer is sent; before it is received; after the Answer is; after the first Begin is that names who learns
or installs; before the Ready of that one is sent; before the leader proposes the view, receives the first vote for it,
and shows it."""
NEVER: Final = "never"
WAYS: Final = ("killed", "suspended", "cut off")
KINDS: Final = tuple(product(MOVES, WAYS))


def named(message: ms.Message, peer: Peer) -> bool:
    """A Begin that has this peer learn or install something."""
    if not isinstance(message, ms.Begin):
        return False
    return peer in {*(learner for _, learner in message.learners), *(plan.peer for plan in message.installs)}


class MidPlan:
    """A world in which the leader of now is replaced at a moment of the first move that it plans."""

    def __init__(self, world: World, kind: str, moment: str, way: str) -> None:
        view = best_view(world)
        assert view is not None
        self.world, self.kind, self.moment, self.way, self.before = world, kind, moment, way, view
        self.planner = world.by_id[view.leader.id]
        self.candidate: Peer | None = None
        self.wanted: Holders | None = None
        """Who was to hold what when all that was planned had been done, once the leader is gone."""
        self.changed_at = world.now
        self.came = Counter[tuple[int, Peer]]()
        """(stage, peer) → how often it came to hold the stage afterwards."""
        self.lost: list[str] = []
        """Stages that were lost although somebody held them who was not gone."""
        self._alone: set[int] = set()
        """Stages that nobody but the leader held."""
        self._due = False
        world.on_send, world.on_receive, world.on_view = self._on_send, self._on_receive, self._on_view

    # -- the moment

    def _on_send(self, host: Host, effect: Send) -> None:
        if self._due or self.wanted is not None:
            return
        message, plans = effect.message, host is self.planner
        if plans and isinstance(message, ms.Offer) and self.candidate is None:
            self.candidate = effect.to
            self._strike_at("asked")
        elif plans and isinstance(message, ms.Propose) and self._comes_in(message.view):
            self._strike_at("proposed")
        elif plans and isinstance(message, ms.Certificate) and self._comes_in(message.view):
            self._strike_at("chosen")
        elif host.peer == self.candidate and isinstance(message, ms.Ready):
            self._strike_at("learnt")

    def _on_receive(self, host: Host, message: ms.Message) -> None:
        if self._due or self.wanted is not None or self.candidate is None:
            return
        if host.peer == self.candidate and isinstance(message, ms.Offer):
            self._strike_at("answering")
        elif host.peer == self.candidate and named(message, self.candidate):
            self._strike_at("learning", after=True)
        elif host is self.planner and isinstance(message, ms.Answer):
            self._strike_at("answered", after=True)
        elif host is self.planner and isinstance(message, ms.Accepted):
            self._strike_at("voted")

    def _comes_in(self, view: View) -> bool:
        """The candidate holds more than before."""
        peer = self.candidate
        return peer is not None and {*view.stages_of(peer)} > {*self.before.stages_of(peer)}

    def _strike_at(self, moment: str, after: bool = False) -> None:
        if moment == self.moment:
            self._due = True
            if after:
                self.world.at(self.world.now, self.strike, ())
            else:
                self.strike()

    def strike(self) -> None:
        """The leader is gone, for good or for a while."""
        world, host = self.world, self.planner
        leads, view = host.participant.leader, host.view
        assert leads is not None and view is not None
        self.wanted = tuple(map(tuple, leads.learners._expected()))
        alive = {other.peer for other in world.live()} - {host.peer}
        self._alone = {stage for stage, group in enumerate(view.holders) if not alive & {*group}}
        self.changed_at = world.now
        if self.way == "killed":
            world.kill(host, "kill", silently=False)
        elif self.way == "suspended":
            world.pause(host)
            world.at(world.now + AWAY_SECONDS, world.resume, (host,))
        else:
            pairs = {pair for one in world.hosts for pair in ((host.peer.id, one.peer.id), (one.peer.id, host.peer.id))}
            world.network.block(pairs)
            world.at(world.now + AWAY_SECONDS, world.network.heal, (pairs,))

    # -- what becomes of it

    def _on_view(self, host: Host, view: View) -> None:
        self.changed_at = self.world.now
        before = self.world.ledger.views.get((view.lineage.id, view.number - 1))
        if self.wanted is None or before is None:
            return
        having = {one.peer: one.compute.weights for one in self.world.hosts}
        here = {one.peer for one in self.world.live()}
        for stage, (was, now) in enumerate(zip(before.holders, view.holders, strict=True)):
            self.came.update((stage, peer) for peer in {*now} - {*was})
            keeps = any(peer in was or stage in having[peer] for peer in now)
            had = any(peer in here and stage in having[peer] for peer in was)
            if had and not keeps and stage not in self._alone:
                self.lost.append(f"{was} held stage {stage}, and {view} has lost it")

    def settle(self) -> None:
        world = self.world
        world.run(world.now + 60.0, lambda: self.wanted is not None)
        assert self.wanted is not None or self.moment == NEVER, "the moment came"
        until = world.now + SETTLES_SECONDS_MAX
        while world.now < min(until, self.changed_at + QUIET_SECONDS):
            world.run(min(until, self.changed_at + QUIET_SECONDS))

    def wrong(self) -> Iterator[str]:
        """What is wrong when the layout has had its time to settle."""
        world, view = self.world, best_view(self.world)
        assert view is not None and self.wanted is not None and self.candidate is not None
        yield from self.lost
        if world.now < self.changed_at + QUIET_SECONDS:
            yield f"the layout does not settle: {view}"
        if again := {one: times for one, times in self.came.items() if times > 1}:
            yield f"somebody comes to hold again what it held: {again}"
        commit = world.ledger.top_commit()
        world.run(world.now + 60.0, lambda: world.ledger.top_commit() > commit + 1)
        if world.ledger.top_commit() <= commit + 1:
            yield f"the run does not go on after {commit}"
        having = [{host.peer for host in group} for group in holders(world, view).values()]
        if having != [set(group) for group in view.holders]:
            yield f"not all have what they are to hold in {view}"
        if self.moment in MOMENTS[3:] and not view.stages_of(self.candidate):
            yield f"{self.candidate} had agreed to hold something, and holds nothing in {view}"
        if (over := seconds_of(world, view.holders) / seconds_of(world, self._hoped_for(view))) > 1 + NOISE:
            yield f"a step takes {over:.2f} times as long as in the layout that was to be"

    def _hoped_for(self, view: View) -> Holders:
        """What was planned, by those who are still there. Where a stage has nobody of them, what comes of it when the
        leader goes once its plan is carried out."""
        assert self.wanted is not None
        here = {host.peer for host in self.world.live()}
        left = tuple(tuple(peer for peer in group if peer in here) for group in self.wanted)
        if all(left):
            return left
        other = begin(self.world.seed, self.kind, NEVER, self.way)
        other.settle()
        other.strike()
        other.settle()
        found = best_view(other.world)
        assert found is not None
        return tuple(tuple(self.world.by_id[peer.id].peer for peer in group) for group in found.holders)


def seconds_of(world: World, layout: Holders) -> float:
    """A step of the layout, by the estimate of whoever leads now."""
    view = best_view(world)
    assert view is not None
    leads = world.by_id[view.leader.id].participant
    assert leads.leader is not None
    here = [presence for host in world.live() for presence in host.participant.peers.presences.values()]
    idle = {presence for presence in here if not view.stages_of(presence.peer)}
    swarm = Outlook(leads.situation, leads.leader.memory, view.holders, idle).costs.swarm
    return step_timing(swarm.layout(tuple(tuple(map(name_of, group)) for group in layout)), swarm.batch).seconds


def begin(seed: int, kind: str, moment: str, way: str) -> MidPlan:
    """All of a move are there who are before it, and the leader has reason to plan it now."""
    move = MOVES[kind]
    world = World(replace(PLANNED, stages=move.stages, replicas=move.replicas), seed, delay_max=0.005)

    def come(devices: Devices, apart: float) -> None:
        for name, (seconds, room) in devices.items():
            world.start(name, room, True).forward_seconds = seconds
            world.run(world.now + apart)

    come(move.there, 12.0)
    world.run(world.now + 20.0)
    plan = MidPlan(world, kind, moment, way)
    come(move.comes, 0.0)
    if move.loses:
        groups = holders(world, plan.before)
        victim = next(groups[stage][0] for stage in range(move.stages, 0, -1) if groups[stage] != [plan.planner])
        world.kill(victim, "kill", silently=False)
    return plan
