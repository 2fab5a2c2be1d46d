"""What goes wrong in a seed: drawn from it, tied to commits so that it falls into the training.

A fault that would halt the run by design (the head or two adjacent stages gone) is put off, unless the seed is meant
to halt.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from ftnode.protocol.words.events import Leave
from ftnode.protocol.words.view import View
from tests.sim.checks import Violation
from tests.sim.compute import Poison
from tests.sim.host import Host
from tests.sim.spread import check_spread
from tests.sim.targets import best_view, holders, would_halt
from tests.sim.world import World

END_SECONDS = 0.05
"""For the clock of a participant to wake it."""


class Faults:
    """The faults of one seed. `ongoing` counts those that last; `last` is when one happened or ended."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self.world = world
        self.chance = chance
        self.ongoing = 0
        self.last = 0.0
        self.counts: Counter[str] = Counter()
        self.newcomers = 0
        self.waiting: list[tuple[int, str]] = []
        """(commit, kind) of those still to come, last first."""
        self.kinds: dict[str, Callable[[], bool]] = {
            "kill": self.kill_holder, "kill-leader": self.kill_leader, "vanish": self.vanish,
            "restart": self.restart, "pause": self.pause, "nap": self.nap, "partition": self.partition,
            "isolate": self.isolate, "link": self.break_link, "one-way": self.one_way, "directory": self.directory,
            "compute": self.compute, "memory": self.memory, "hang": self.hang, "poison": self.poison,
            "spoiled": self.spoiled, "slow": self.slow, "leave": self.leave, "notice": self.notice, "site": self.site,
            "standby": self.kill_standby, "flap": self.flap, "double": self.double, "bereft": self.bereft,
            "split": self.split,
        }  # fmt: skip

    # -- when

    def plan(self, kinds: list[str], commits: list[int]) -> None:
        self.waiting = sorted(zip(commits, kinds), reverse=True)

    def on_commit(self, step: int) -> None:
        while self.waiting and self.waiting[-1][0] <= step:
            _, kind = self.waiting.pop()
            self.ongoing += 1
            self.world.at(self.world.now + self.chance.uniform(0, 1.5), self.strike, (kind, 40))

    def strike(self, kind: str, tries: int) -> None:
        """Do it now, or a little later when it cannot be done now."""
        if not self.kinds[kind]():
            if tries and self.waiting is not None:
                self.world.at(self.world.now + 0.7, self.strike, (kind, tries - 1))
            else:
                self.ongoing -= 1
            return
        self.counts[kind] += 1
        self.ended()

    def ended(self) -> None:
        self.ongoing -= 1
        self.last = self.world.now

    def lasting(self, seconds: float, undo: Callable[[], None]) -> None:
        """Something that is undone after a while."""
        self.ongoing += 1

        def finish() -> None:
            undo()
            self.ended()

        self.world.at(self.world.now + seconds, finish, ())

    def newcomer(self, host: Host | None = None) -> None:
        """Somebody new comes after a while, so that the swarm does not bleed to death."""
        self.newcomers += 1
        name = f"new{self.newcomers}" if host is None else host.peer.id
        hold = self.chance.choice([1, 1, 2]) if host is None else host.hold
        self.world.at(self.world.now + self.chance.uniform(0.1, 6.0), self.world.start, (name, hold))

    # -- whom

    def pick_holder(self, *, spare_head: bool = True, leader: bool | None = None) -> Host | None:
        """A live holder without whom the run does not halt by design."""
        world, view = self.world, best_view(self.world)
        if view is None:
            return None
        hosts = {host for group in holders(world, view).values() for host in group if not host.paused}
        if leader is not None:
            hosts = {host for host in hosts if (host.peer == view.leader) == leader}
        hosts = {host for host in hosts if not (spare_head and would_halt(world, self.gone_with(host)))}
        return self.chance.choice(sorted(hosts, key=lambda host: host.peer)) if hosts else None

    def gone_with(self, host: Host) -> set[str]:
        """Losing this one now means being without these: the paused and the cut off do not count as there."""
        unsure = {other.peer.id for other in self.world.hosts if other.alive and (other.paused or other.hung)}
        cut = (
            {peer for pair in self.world.network.blocked for peer in pair}
            if len(self.world.network.blocked) > 2
            else set()
        )
        return {host.peer.id} | unsure | cut

    def pick_any(self) -> Host | None:
        hosts = [host for host in self.world.hosts if host.alive and not host.paused]
        return self.chance.choice(hosts) if hosts else None

    # -- what

    def kill_holder(self) -> bool:
        host = self.pick_holder()
        if host is None:
            return False
        self.world.kill(host, "kill", silently=False)
        self.newcomer()
        return True

    def bereft(self) -> bool:
        """A middle stage loses its holders, and it takes a while until somebody comes who could take their place."""
        world, view = self.world, best_view(self.world)
        if view is None:
            return False
        groups = {stage: group for stage, group in holders(world, view).items() if 1 < stage < world.settings.stages}
        there = [group for group in groups.values() if group and not any(host.paused for host in group)]
        there = [group for group in there if not would_halt(world, self.site_gone(group))]
        if not there:
            return False
        for host in self.chance.choice(there):
            world.kill(host, "bereft", silently=self.chance.random() < 0.5)
        seconds = world.settings.lease_seconds * self.chance.choice([1.0, 5.0, 10.0, 20.0])
        self.lasting(seconds, self.newcomer)
        return True

    def kill_leader(self) -> bool:
        host = self.pick_holder(leader=True)
        if host is None:
            return False
        self.world.kill(host, "kill-leader", silently=False)
        self.newcomer()
        return True

    def vanish(self) -> bool:
        host = self.pick_holder()
        if host is None:
            return False
        self.world.kill(host, "vanish", silently=True)
        self.newcomer()
        return True

    def kill_standby(self) -> bool:
        view = best_view(self.world)
        hosts = [h for h in self.world.live() if view is not None and h.peer not in view.members()]
        if not hosts:
            return False
        self.world.kill(self.chance.choice(hosts), "standby", silently=False)
        self.newcomer()
        return True

    def restart(self) -> bool:
        host = self.pick_holder()
        if host is None:
            return False
        self.world.kill(host, "restart", silently=False)
        self.newcomer(host)
        return True

    def pause(self) -> bool:
        return self._pause(self.world.settings.lease_seconds * self.chance.uniform(1.5, 6))

    def nap(self) -> bool:
        return self._pause(self.world.settings.lease_seconds * self.chance.uniform(0.2, 1.2))

    def _pause(self, seconds: float) -> bool:
        host = self.pick_holder()
        if host is None:
            return False
        self.world.pause(host)
        self.lasting(seconds, lambda: self.world.resume(host))
        return True

    def _cut(self, pairs: set[tuple[str, str]], seconds: float, name: str) -> None:
        self.world.remark(f"{name}: {sorted(pairs)[:12]} for {seconds:.1f} s")
        self.world.network.block(pairs)

        def heal() -> None:
            self.world.remark(f"{name} is over")
            self.world.network.heal(pairs)

        self.lasting(seconds, heal)

    def _patience(self) -> float:
        settings = self.world.settings
        return (
            self.chance.choice([0.5, 1.5, 3.0]) * settings.lease_seconds
            + self.chance.choice([0.0, 0.0, 2.0]) * settings.minority_wait_seconds
        )

    def partition(self) -> bool:
        """Two sides; neither gets a word across."""
        hosts = self.world.live()
        if self.world.network.blocked or len(hosts) < 3:
            return False
        view = best_view(self.world)
        for _ in range(10):
            near = set(self.chance.sample([h.peer.id for h in hosts], self.chance.randint(1, len(hosts) - 1)))
            far = [h.peer.id for h in hosts if h.peer.id not in near]
            if self.head_has_quorum(view, near) or self.chance.random() < 0.02:
                break
        for host in hosts:
            if view is not None and host.peer in view.members():
                host.cause = "partition"
        self._cut({pair for a in near for b in far for pair in ((a, b), (b, a))}, self._patience(), "partition")
        return True

    def head_has_quorum(self, view: View | None, near: set[str]) -> bool:
        """Is the head on a side that can go on? Where it is not, its last update may be lost and the run halt."""
        if view is None or not view.holders[0]:
            return True
        side = view.holders[0][0].id in near
        return view.is_quorum(peer for peer in view.voters if (peer.id in near) == side)

    def isolate(self) -> bool:
        host = self.pick_holder()
        if host is None or self.world.network.blocked:
            return False
        host.cause = "isolate"
        others = [h.peer.id for h in self.world.live() if h is not host]
        pairs = {pair for other in others for pair in ((host.peer.id, other), (other, host.peer.id))}
        self._cut(pairs, self._patience(), "isolate")
        return True

    def _two_members(self) -> tuple[Host, Host] | None:
        view = best_view(self.world)
        members = [h for h in self.world.live() if view is not None and h.peer in view.members() and not h.paused]
        if len(members) < 2 or self.world.network.blocked:
            return None
        a, b = self.chance.sample(members, 2)
        if any(would_halt(self.world, self.gone_with(host)) for host in (a, b)):
            return None
        return a, b

    def break_link(self) -> bool:
        pair = self._two_members()
        if pair is None:
            return False
        a, b = pair
        a.cause = b.cause = "link"
        seconds = self.world.settings.lease_seconds * self.chance.choice([0.5, 2, 6])
        self._cut({(a.peer.id, b.peer.id), (b.peer.id, a.peer.id)}, seconds, "link")
        return True

    def one_way(self) -> bool:
        pair = self._two_members()
        if pair is None:
            return False
        a, b = pair
        a.cause = b.cause = "one-way"
        self._cut(
            {(a.peer.id, b.peer.id)}, self.world.settings.lease_seconds * self.chance.choice([0.5, 2, 6]), "one-way"
        )
        return True

    def flap(self) -> bool:
        """All links of one host are reset, and can be made again at once."""
        host = self.pick_holder(spare_head=False)
        if host is None:
            return False
        network = self.world.network
        self.world.remark(f"flap: {host.peer}")
        for other in self.world.live():
            for source, target in ((host, other), (other, host)):
                link = source.links.get(target.peer)
                if link is not None:
                    network.break_link(link, target.peer, self.chance.uniform(0.0, 0.5), "reset")
        return True

    def directory(self) -> bool:
        service = self.world.directory
        if service.down:
            return False
        service.down = True
        self.world.remark("directory: down")

        def up() -> None:
            service.down = False

        self.lasting(self.chance.uniform(2, 15), up)
        return True

    def compute(self) -> bool:
        host = self.pick_holder()
        if host is None or not host.compute_up:
            return False
        host.cause = "compute"
        self.world.remark(f"compute: {host.peer} loses its compute process")
        self.world.lose_compute(host, "killed")
        return True

    def memory(self) -> bool:
        host = self.pick_holder()
        if host is None or not host.compute_up or not host.compute.weights:
            return False
        stage = self.chance.choice(sorted(host.compute.weights))
        host.cause = "memory"
        self.world.remark(f"memory: {host.peer} has none left on stage {stage}")
        self.world.lose_stage(host, stage, "out of memory")
        self.newcomer()  # it does not hold as many again
        return True

    def hang(self) -> bool:
        host = self.pick_holder()
        if host is None or not host.compute_up or host.hung:
            return False
        host.cause, host.hung = "hang", True
        self.world.remark(f"hang: the compute of {host.peer} never answers again")
        return True

    def poison(self) -> bool:
        return self._poison(1)

    def spoiled(self) -> bool:
        return self._poison(100)

    def _poison(self, tries: int) -> bool:
        settings = self.world.settings
        step = self.world.ledger.top_commit() + 2
        if step > settings.steps or self.world.poisons:
            return False
        visit = self.chance.randrange(settings.stages + 2)
        backward = visit == settings.stages + 1 or self.chance.random() < 0.5
        microbatch = self.chance.choice([-1, *range(settings.microbatches)])
        if microbatch == -1:
            visit, backward = visit % (settings.stages + 1), True
        self.world.poisons.append(Poison(step, microbatch, visit, backward, tries))
        self.world.remark(f"poison: {self.world.poisons[-1]}")
        return True

    def slow(self) -> bool:
        host = self.pick_any()
        if host is None:
            return False
        host.forward_seconds *= self.chance.choice([3, 10])
        self.world.remark(f"slow: {host.peer}")
        return True

    def leave(self) -> bool:
        host = self.pick_holder()
        if host is None:
            return False
        host.cause = "leave"
        self.world.deliver(host, Leave("its owner wants the machine back"))
        self.newcomer()
        return True

    def notice(self) -> bool:
        """A holder's machine is taken away at a certain time, which it is told before. What only it holds passes in
        that time, or a part of it, or nothing."""
        host, chance, world = self.pick_holder(), random.Random(f"notice {self.world.seed}"), self.world
        if host is None or host.participant.departure.leaving:
            return False
        settings = world.settings
        within = settings.lease_seconds * chance.choice([0.0, 0.3, 1.0, 2.0, 6.0])
        held = sum(map(settings.state_bytes_of, host.participant.mine))
        rate = world.rebuilding.lines[host.peer.id] = held / chance.choice([1.0, 5.0, 20.0])
        host.cause = "notice"
        told = rate if chance.random() < 0.8 else 0.0
        world.deliver(host, Leave("its machine is taken away", within=within, bytes_per_second=told))
        self.ongoing += 1
        world.at(world.now + within + END_SECONDS, self._gone, (host,))
        self.newcomer()
        return True

    def site(self) -> bool:
        """All that are at one site go in the same moment, and nothing comes back there for a while."""
        world, chance = self.world, random.Random(f"site {self.world.seed}")
        there: dict[str, list[Host]] = {}
        for host in world.live():
            there.setdefault(world.site(host.peer.id), []).append(host)
        view = best_view(world)
        members = set(view.members()) if view is not None else set()
        if view is not None and self.ongoing == 1:
            check_spread(world, view)
        several = [site for site, hosts in sorted(there.items()) if sum(host.peer in members for host in hosts) > 1]
        several = [site for site in several if not would_halt(world, self.site_gone(there[site]))]
        if not several:
            return False
        silently = chance.random() < 0.5
        for host in there[chance.choice(several)]:
            world.kill(host, "site", silently=silently)
            host.paused = False
            self.newcomer()
        return True

    def site_gone(self, hosts: list[Host]) -> set[str]:
        return set[str]().union(*map(self.gone_with, hosts))

    def _gone(self, host: Host) -> None:
        if host.paused:  # stopped by another fault: its time is up when it goes on
            self.world.at(self.world.now + 1.0, self._gone, (host,))
            return
        if host.alive:
            raise Violation("I8", f"{host.peer} is there after its time")
        self.ended()

    def double(self) -> bool:
        """Two holders at once."""
        first = self.pick_holder(leader=False)
        if first is None:
            return False
        self.take_away(first, "double")
        second = self.pick_holder(leader=False)
        if second is not None:
            self.take_away(second, "double")
        return True

    def split(self) -> bool:
        """Cut off so many that no quorum is left, for long enough to found a lineage."""
        view = best_view(self.world)
        if view is None or self.world.network.blocked:
            return False
        hosts = self.world.live()
        voters = [peer.id for peer in view.voters]
        far = set(self.chance.sample(voters, (len(voters) + 1) // 2)) - {
            view.holders[0][0].id if view.holders[0] else ""
        }
        if not far or would_halt(self.world, far):
            return False
        for host in hosts:
            if host.peer.id in far:
                host.cause = "split"
        near = [host.peer.id for host in hosts if host.peer.id not in far]
        settings = self.world.settings
        seconds = settings.minority_wait_seconds + settings.lease_seconds * self.chance.uniform(2, 5)
        self._cut({pair for a in far for b in near for pair in ((a, b), (b, a))}, seconds, "split")
        return True

    # -- what happens to one peer at a message

    def take_away(self, host: Host, cause: str) -> None:
        """Kill it, stop it for a while, or cut it off for a while."""
        way = self.chance.random()
        settings = self.world.settings
        seconds = settings.lease_seconds * self.chance.choice([0.5, 1.5, 3.0])
        if way < 0.5:
            self.world.kill(host, cause, silently=False, in_flight=self.chance.random() < 0.5)
            self.newcomer()
        elif way < 0.75:
            self.world.pause(host)
            host.cause = cause
            self.lasting(seconds, lambda: self.world.resume(host))
        else:
            host.cause = cause
            others = [h.peer.id for h in self.world.live() if h is not host]
            self._cut({pair for b in others for pair in ((host.peer.id, b), (b, host.peer.id))}, seconds, cause)
        self.last = self.world.now
