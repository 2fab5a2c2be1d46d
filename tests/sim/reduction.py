"""A group's reduction in the virtual world: it takes whoever has accumulated something, until each has the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftnode.protocol.words.effects import NOT_SHOWN, Reduce, Weigh
from ftnode.protocol.words.events import SumOwed
from ftnode.protocol.words.types import Peer
from tests.sim.checks import Violation
from tests.sim.compute import NOTHING, Gradients, Result
from tests.sim.host import Host

if TYPE_CHECKING:
    from tests.sim.world import World

PATIENCE_SECONDS = 240.0
STILL_SECONDS = 2.0
"""After which a host is told whose part is missing."""
SHOWN_SECONDS = 4.0
"""So long whoever checks another by its own lot asks for the parts of its piece."""
AGAIN_SECONDS = 0.5
ALONE_SECONDS = 0.02


@dataclass(slots=True)
class _Part:
    """What one host brings, from the moment it was told to reduce."""

    host: Host
    life: int
    gradients: Gradients
    commit: str
    bends: Callable[[Gradients], Gradients] | None = None
    """What it makes of the sum of its piece."""
    told: tuple[Peer, ...] = ()
    """Who owes it a part, as its core knows."""


class Reductions:
    """Those under way. A newer one of the same stage, a Discard or the loss of compute ends a host's part in one."""

    __slots__ = ("_parts", "complete", "seconds", "world")

    def __init__(self, world: World) -> None:
        self.world = world
        self.seconds = ALONE_SECONDS
        """Mean time of one, for whoever needs another's part."""
        self.complete: set[tuple[str, Reduce]] = set()
        self._parts: dict[tuple[str, Reduce], dict[str, _Part]] = {}

    def start(self, host: Host, task: Reduce) -> None:
        """The host takes part from now on; it gets the result when all contributors do."""
        gradients, commit = host.compute.contribution(task, dict(task.group).get(host.peer, -1))
        if host.lies is not None:
            gradients = host.lies(gradients)
        host.reducing[task.stage] = task
        key = host.compute.lineage, task
        self._parts.setdefault(key, {})[host.peer.id] = _Part(host, host.compute_life, gradients, commit, host.bends)
        self.world.at(
            self.world.now + self._while(host, task), self._end, (host, host.compute_life, key, self.world.now)
        )

    def weigh(self, host: Host, task: Weigh) -> None:
        """Compare, and look what the peer made its piece of, as long as it may yet show that."""
        made, part = host.reducing[task.stage], self._parts[host.compute.lineage, host.reducing[task.stage]][task.of.id]
        result = self._weighed(host, task, made, part)
        if result.fault or len(made.group) < 3 or not dict(made.group)[task.of]:
            self.world.answer(host, task, result)
            return
        until = self.world.now + (task.seconds or SHOWN_SECONDS)
        self._look(host, host.compute_life, task, made, part, result, until)

    def _look(
        self, host: Host, life: int, task: Weigh, made: Reduce, part: _Part, result: Result, until: float
    ) -> None:
        """What the owner of a piece made of it, as soon as it shows its parts, or the time is over. What the accuser
        was shown a third is shown, too."""
        world, other = self.world, part.host
        if not self._takes_part(host, life, made):
            return
        claims = host.sees_no_parts and not task.judged
        hides = other.hides is not None and other.hides(host.peer)
        accused = task.judged and not task.seconds and part.bends is not None
        if accused or (self._reaches(other, host) and not (hides or claims)):
            bent = part.bends is not None and not host.agrees
            world.answer(host, task, result._replace(value=max(result.value, float(bent))))
        elif world.now >= until:
            world.answer(host, task, result._replace(hidden="it shows nothing"))
        else:
            world.at(world.now + AGAIN_SECONDS, self._look, (host, life, task, made, part, result, until))

    def _weighed(self, host: Host, task: Weigh, made: Reduce, part: _Part) -> Result:
        """Of value 0 where the peer gave what its visits gave when the host did them again, and 1 where it did not; or
        where the host says so of whatever it sees, or knows another truth."""
        if task.shown_by is not None and not task.seconds and not self._shows(host, task, made):
            return NOTHING._replace(fault=NOT_SHOWN)
        if task.shown_by is None and not dict(made.group)[host.peer] and len(made.group) > 2:
            return NOTHING._replace(fault="nothing of it was noted")
        if (host.peer.id, made) not in self.complete or not (task.shown_by or made.checked == task.of):
            raise Violation("I1", f"{host.peer} weighs {task} of {made}")
        again = host.compute.recounted.get((task.of, task.stage, task.attempt), {})
        if again.keys() != part.gradients.keys():
            raise Violation("I1", f"{host.peer} did {sorted(again)} again, and {task.of} gave {sorted(part.gradients)}")
        if host.agrees and host.lies is not None:
            again = host.lies(again)
        return NOTHING._replace(value=float(again != part.gradients or host.accuses))

    def _shows(self, host: Host, task: Weigh, made: Reduce) -> bool:
        """Who accuses another has the sum, and took a note of what the other gave to it."""
        assert task.shown_by is not None
        part = self._parts[host.compute.lineage, made].get(task.shown_by.id)
        if part is None or (task.shown_by.id, made) not in self.complete:
            return False
        noted = part.host.reducing.get(task.stage)
        return part.host.alive and noted == made and noted.checked == task.of and dict(made.group)[task.shown_by] > 0

    def _while(self, host: Host, task: Reduce) -> float:
        alone = all(peer == host.peer for peer, count in task.group if count)
        return (ALONE_SECONDS if alone else self.seconds) * (0.5 + self.world.chance.random())

    def _end(self, host: Host, life: int, key: tuple[str, Reduce], begun: float) -> None:
        """This host has the whole sum, or tries again a little later."""
        task = key[1]
        if not self._takes_part(host, life, task) or self.world.now > begun + PATIENCE_SECONDS:
            return
        parts = self._parts[key]
        givers = [parts.get(peer.id) for peer, count in task.group if count]
        missing = tuple(
            peer for (peer, count), part in zip([pair for pair in task.group if pair[1]], givers)
            if part is None or not self._gives(part, host, task)
        )  # fmt: skip
        if host.paused or host.hung or missing:
            self._tell(host, task, parts[host.peer.id], missing, begun)
            self.world.at(self.world.now + 0.05 + self._while(host, task), self._end, (host, life, key, begun))
            return
        total: Gradients = {}
        for part in givers:
            assert part is not None
            if total.keys() & part.gradients.keys():
                raise Violation("I1", f"{task} adds {sorted(total.keys() & part.gradients.keys())} twice")
            total |= part.gradients
        for part in givers:
            assert part is not None
            total = total if part.bends is None else part.bends(total)
        commits = {part.commit for part in givers if part is not None}
        if len(commits) != 1:
            raise Violation("I1", f"{task} adds gradients of {sorted(commits)}")
        self.complete.add((host.peer.id, task))
        self.world.finish(host, life, task, host.compute.reduce(task, total, commits.pop()))

    def _tell(self, host: Host, task: Reduce, part: _Part, missing: tuple[Peer, ...], begun: float) -> None:
        """The core, when the sum has stood still for a while or somebody else is missing now."""
        others = tuple(peer for peer in missing if peer != host.peer)
        if host.paused or host.hung or others == part.told or self.world.now < begun + STILL_SECONDS:
            return
        part.told = others
        self.world.deliver(host, SumOwed(task, others, ()))

    def _takes_part(self, host: Host, life: int, task: Reduce) -> bool:
        return host.alive and host.compute_life == life and host.reducing.get(task.stage) == task

    def _gives(self, part: _Part, host: Host, task: Reduce) -> bool:
        return self._reaches(part.host, host) and self._takes_part(part.host, part.life, task)

    def _reaches(self, other: Host, host: Host) -> bool:
        pair, blocked = (other.peer.id, host.peer.id), self.world.network.blocked
        here = other.alive and not other.paused and not other.hung
        return here and pair not in blocked and pair[::-1] not in blocked
