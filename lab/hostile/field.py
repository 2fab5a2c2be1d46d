"""The swarm under attack: three honest volunteers on loopback, and what is measured of them.

All waiting is asynchronous, since the attack runs in the same event loop. Times are CLOCK_MONOTONIC, as in traces.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Final

import trio

from ftnode.lab.hostile.outcome import Measured
from ftnode.lab.swarms.listing import list_volunteers
from ftnode.lab.swarms.trial import Trial, open_trial, small_manifest
from ftnode.lab.traces.story import Story, Told
from ftnode.node.home.log_folders import LOG_NAME
from ftnode.node.owner.join_options import running_nodes
from ftnode.protocol.manifest.parse import Manifest
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import View

STAGES: Final = 2
PACED: Final = ("--compute", "paced", "--paced-seconds", "0.01", "0.02")
"""Some five steps a second, in which the machine has time for the attack as well."""
SLOWLY: Final = (*PACED[:3], "0.03", "0.06")
"""For groups of three, so that a step waits for compute and not for this machine's cores."""
TORCH: Final = ("--compute", "torch")
"""Where numbers matter."""
FIRST_STEPS: Final = 8
SETTLE_SECONDS: Final = 10.0
"""Two leases after an attack, the swarm must be as it was before."""
REFILL_SECONDS: Final = 60.0
"""For a lost stage to be back; longer counts as never."""
LOOK_SECONDS: Final = 0.05
STOOD_SECONDS: Final = 1.0
"""A longer time without a step is told."""
TRACE_SECONDS: Final = 0.3
"""A commit is in a trace this soon."""

TRAITOR: Final = "traitor"
PROGRAM: Final = "ftnode.lab.hostile.traitor"

Attacking = Callable[[trio.Event], Awaitable[None]]
"""An attack under way: it sets the event when it has begun, and goes on until it is cut off."""
Choose = Callable[["Field"], str]


@dataclass(frozen=True, slots=True)
class Ground:
    """The swarm that is attacked: `stages` block stages with up to `replicas` holders each, a volunteer for each stage
    and `standbys` more."""

    stages: int = STAGES
    standbys: int = 0
    replicas: int = 1
    way: str = ""
    """How the last of those who hold a stage first misbehaves, once it is told to; empty: it is honest."""
    listed: bool = False
    """Whether the run is for these volunteers alone."""
    compute: tuple[str, ...] = PACED
    lasts: int = 1
    """The rate during the attack is measured for so many times as long as that before it."""

    @property
    def volunteers(self) -> int:
        return self.stages + 1

    def manifest(self) -> Manifest:
        return small_manifest(None, self.stages, replicas=self.replicas)


USUAL: Final = Ground()


@dataclass
class Field:
    """`seconds`: for which each rate is measured. `outsiders`: names of nodes of ours that misbehave."""

    trial: Trial
    manifest: Manifest
    seconds: float
    ground: Ground = USUAL
    outsiders: set[str] = field(default_factory=set)
    killed: set[str] = field(default_factory=set)

    # Who is there.

    @property
    def view(self) -> View:
        """The newest that an honest volunteer has taken up, a forged one as well."""
        self.trial.story.read()
        view = self.trial.story.view_of(self.trial.story.peers.keys() - self.outsiders)
        assert view is not None
        return view

    @property
    def step(self) -> int:
        return self.trial.story.committed

    @property
    def meeting_point(self) -> str:
        return self.trial.swarm.address

    def honest(self) -> tuple[str, ...]:
        """Volunteers that were not killed and do not misbehave."""
        names = self.trial.swarm.processes.keys() - {"bootstrap"} - self.outsiders - self.killed
        return tuple(sorted(names))

    def honest_peers(self) -> tuple[Peer, ...]:
        return tuple(self.trial.story.peers[name] for name in self.honest() if name in self.trial.story.peers)

    def target(self, name: str) -> str:
        """The full multiaddr of a volunteer."""
        (running,) = running_nodes(self.trial.swarm.processes[name].home)
        return running.addresses[0]

    def targets(self) -> tuple[str, ...]:
        return tuple(self.target(name) for name in self.honest())

    def follower(self) -> str:
        """An honest member that does not lead."""
        view = self.view
        return next(
            name for name in self.honest()
            if (peer := self.trial.story.peers.get(name)) in view.members() and peer != view.leader
        )  # fmt: skip

    # The member that misbehaves.

    def start_traitor(self, way: str) -> None:
        """A node of ours that misbehaves in this way once `betray` was called."""
        self.outsiders.add(TRAITOR)
        self.trial.volunteer(TRAITOR, program=(PROGRAM, way, str(self._order)))

    def betray(self) -> None:
        self._order.touch()

    @property
    def _order(self) -> Path:
        return self.trial.swarm.directory / "betray"

    async def arrived(self, names: Sequence[str], seconds: float) -> None:
        """Until these nodes have begun, and two leases more, so that they are part of the swarm; at most `seconds`."""
        with trio.move_on_after(seconds):
            while not set(names) <= self.trial.story.peers.keys():
                await trio.sleep(LOOK_SECONDS)
                self.trial.story.read()
            await trio.sleep(SETTLE_SECONDS)

    # What is measured.

    async def rate(self, seconds: float | None = None) -> float:
        """Steps a second that are committed during the next `seconds`."""
        lasts, began = seconds or self.seconds, time.monotonic()
        while time.monotonic() < began + lasts + TRACE_SECONDS:
            await trio.sleep(LOOK_SECONDS)
            self.trial.story.read()
        found = {_key(told) for told in self._commits() if began <= told.time < began + lasts}
        return len(found) / lasts

    async def around(
        self, attack: Attacking, *, lose: Choose | None = None, aftermath: Choose | None = None
    ) -> Measured:
        """The rates before, during and after `attack`. `lose`: this volunteer is killed as the attack has begun, and
        one without an attack, for the rate before. `aftermath`: this one is killed when the attack is over, and with
        it all outsiders."""
        usual, before = await self._window(lose, self.ground.lasts if lose is not None else 1)
        members, asked, beginning = self._members(), self.honest(), time.monotonic()
        async with trio.open_nursery() as nursery:
            begun = trio.Event()
            nursery.start_soon(attack, begun)
            await begun.wait()
            began = time.monotonic()
            seconds, during = await self._window(lose, self.ground.lasts)
            stood = self._stood(began)
            seen = [f"no step for {stood:.1f} s"] if stood > STOOD_SECONDS else []
            nursery.cancel_scope.cancel()
        for name in {*self.outsiders, *([aftermath(self)] if aftermath is not None else [])} - self.killed:
            self.kill(name)
        await trio.sleep(SETTLE_SECONDS)
        found = Measured(before, during, await self.rate())
        removed = (members - self.killed - self._members()) & self._lost(beginning)
        if lose is not None:
            seen.append(f"the lost stage is back after {_spoken(seconds)}; without the attack it took {_spoken(usual)}")
        return replace(
            found, removed=tuple(sorted(removed)), ended=self.ended(asked), harm=self._bans(), seen="; ".join(seen)
        )  # fmt: skip

    def _stood(self, began: float) -> float:
        """Seconds of the longest time without a step from `began` to now."""
        self.trial.story.read()
        times = [told.time for told in self._commits() if told.time > began]
        return max(later - earlier for earlier, later in pairwise([began, *times, time.monotonic()]))

    def _lost(self, since: float) -> set[str]:
        """Whom a leader has given up. Others may have moved to another stage, and learn it."""
        told = [each for each in self.trial.story.notes if each.time > since and each.node not in self.outsiders]
        lost = {each.record["fields"].get("peer") for each in told if each.record["kind"] == "lost"}
        return {name for name, peer in self.trial.story.peers.items() if peer.id in lost}

    def _bans(self) -> str:
        """Who honest was banned by whom, in words; empty: nobody was."""
        honest = {self.trial.story.peers[name].id: name for name in self.trial.story.peers.keys() - self.outsiders}
        found = []
        for name in sorted({*honest.values()} & self.trial.swarm.processes.keys()):
            log = (self.trial.swarm.processes[name].log / LOG_NAME).read_text(errors="replace")
            found += [f"{name} banned {honest[peer]}" for peer in sorted(honest) if f"peer {peer} is banned" in log]
        return ", ".join(found)

    def ended(self, names: Sequence[str]) -> tuple[str, ...]:
        """Of these, those whose process is over although nobody killed it."""
        processes = self.trial.swarm.processes
        return tuple(name for name in names if name not in self.killed and not processes[name].alive)

    def kill(self, name: str) -> float:
        """SIGKILL; the moment."""
        self.killed.add(name)
        return self.trial.kill(name)

    async def _window(self, lose: Choose | None, lasts: int) -> tuple[float, float]:
        """(seconds until a killed volunteer's stage was back, the rate meanwhile); without a loss, zero seconds."""
        seconds = lasts * self.seconds
        if lose is None:
            return 0.0, await self.rate(seconds)
        name = lose(self)
        moment = self.kill(name)
        rate = await self.rate(seconds)
        return await self._refilled(self.trial.story.peers[name], moment), rate

    async def _refilled(self, lost: Peer, moment: float) -> float:
        """Seconds from `moment` to the first step without `lost`; infinite when there is none in time."""
        while True:
            self.trial.story.read()
            whole = [told.time for told, view in self.trial.story.views if told.time > moment and _is_whole(view, lost)]
            steps = [told.time - moment for told in self._commits() if whole and told.time > min(whole)]
            if steps or time.monotonic() > moment + REFILL_SECONDS:
                return min(steps, default=inf)
            await trio.sleep(LOOK_SECONDS)

    def _commits(self) -> list[Told]:
        """Those of honest volunteers: whoever is cut off may go on alone."""
        told = (told for told in self.trial.story.commits if told.node not in self.outsiders)
        return [each for each in told if not each.record["skipped"]]

    def _members(self) -> set[str]:
        members = self.view.members()
        return {name for name in self.honest() if self.trial.story.peers.get(name) in members}


def last_holder(field: Field) -> str:
    """Who holds the last block stage."""
    return field.trial.story.name(field.view.holders[-1][0])


def leader(field: Field) -> str:
    return field.trial.story.name(field.view.leader)


def _is_whole(view: View, without: Peer) -> bool:
    return not view.vacancies() and without not in view.members()


def _key(told: Told) -> tuple[str, int]:
    return told.record["lineage"], told.record["step"]


def _spoken(seconds: float) -> str:
    return f"more than {REFILL_SECONDS:g} s" if seconds == inf else f"{seconds:.1f} s"


@contextmanager
def open_field(seconds: float, ground: Ground = USUAL, *, directory: Path | None = None) -> Iterator[Field]:
    """A swarm that has committed its first steps."""
    manifest = ground.manifest()
    with open_trial(manifest, directory, options=ground.compute) as trial:
        names = [f"v{number}" for number in range(1, ground.volunteers + ground.standbys + 1)]
        if ground.way:
            names[ground.volunteers - 1] = TRAITOR
        if ground.listed:
            manifest = list_volunteers(trial.swarm, manifest, names)
        found = Field(trial, manifest, seconds, ground)
        trial.volunteer(names[0])
        trial.wait("a first view", lambda story: story.view is not None)
        for name in names[1 : ground.volunteers]:
            if name == TRAITOR:
                found.start_traitor(ground.way)
            else:
                trial.volunteer(name)
        trial.wait_for_step(FIRST_STEPS)
        for name in names[ground.volunteers :]:
            trial.volunteer(name)
        trial.wait("the standbys", lambda story: all(name in story.peers for name in names))
        if ground.replicas > 1 and ground.standbys:
            places = min(len(names), ground.replicas * ground.volunteers)
            trial.wait("replicas", lambda story: len(_holders_of(story)) >= places)
        trial.wait_for_step(trial.story.committed + FIRST_STEPS)
        yield found


def _holders_of(story: Story) -> set[Peer]:
    return {peer for group in story.view.holders for peer in group} if story.view is not None else set()
