"""The attacks: what each does to a field, and how that is measured. `ATTACKS` is the table.

A stranger is on no list and holds nothing. Members that misbehave are nodes of ours (traitor.py). Whatever is said
comes from forgeries.py.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

import trio

from ftnode.lab.hostile import forgeries
from ftnode.lab.hostile.field import (
    SETTLE_SECONDS,
    SLOWLY,
    TORCH,
    TRAITOR,
    USUAL,
    Attacking,
    Field,
    Ground,
    last_holder,
    leader,
)
from ftnode.lab.hostile.foreign_addresses import (
    OTHER_HOSTS,
    SAME_HOST,
    announce,
    ask_to_knock,
    greet_and_go,
    lists,
    open_ports,
)
from ftnode.lab.hostile.outcome import Measured
from ftnode.lab.hostile.stranger import Stranger, open_stranger
from ftnode.lab.swarms.swarm import child_of
from ftnode.lab.swarms.template import DIRECTORY
from ftnode.node.links.dial_back import ADDRESSES_MAX
from ftnode.node.links.p2pd import P2pdError
from ftnode.node.links.streams import STREAM_ERRORS, write_frame
from ftnode.protocol.manifest.parse import settings
from ftnode.protocol.words.messages import Answer, Begin, Message, Offer, Ready
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import View

BEAT_SECONDS: Final = 0.5
SILENT_PRESENCES: Final = 20
FRESH_PRESENCES: Final = 1500
EMPTY_NEWCOMERS: Final = 8
NEWCOMERS_REPLICAS: Final = 3
FLOOD_A_SECOND: Final = 240
"""Frames; those of one peer on an idle machine came at this rate."""
TRACE_BYTES_MAX: Final = 8 << 20
"""What a stranger may add to a volunteer's trace before it counts as harm."""
NOWHERE: Final = "/ip4/127.0.0.1/tcp/9"
RESTART_SECONDS: Final = 60.0
ARRIVE_SECONDS: Final = 60.0
PLAIN: Final = ("ftnode.node.cli.__main__",)
"""A node that loads its modules anew, and torch: as most do, it finds the directory before it can compute."""
LONG: Final = 15
"""A member that stops the run did so for as long as anybody watched: the rate is that of two minutes."""
DIRECTORY_KILLS: Final = 5
DIRECTORY_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Attack:
    """`carry_out` measures it on a field of this ground."""

    name: str
    about: str
    carry_out: Callable[[Field], Awaitable[Measured]]
    ground: Ground = USUAL


# A view is believed because somebody shows it.


async def forged_certificate(field: Field) -> Measured:
    async with open_stranger(field.manifest) as stranger:
        return await field.around(lambda begun: _lead(field, stranger, begun))


async def forged_donor(field: Field) -> Measured:
    async with open_stranger(field.manifest) as stranger:
        await stranger.lend()
        found = await field.around(lambda begun: _lead(field, stranger, begun, commits=True))
    lent = sorted(set(stranger.lent))
    if not lent:
        return found
    stages = ", ".join(map(str, lent))
    return found.also(harm=f"stages {stages} were fetched from the stranger")


async def _lead(field: Field, stranger: Stranger, begun: trio.Event, commits: bool = False) -> None:
    """Show a view that nobody voted for to everybody, and beat as its leader; another one as soon as they go by
    another. `commits`: begin steps as well, on weights of ours."""
    stranger.know(field.targets())
    shown: list[View] = []
    steps: list[Begin] = []
    ready: set[Peer] = set()
    chosen = settings(field.manifest)

    def hear(sender: Peer, message: Message) -> None:
        if not commits or not isinstance(message, Ready) or not steps or message.attempt != steps[-1].attempt:
            return
        ready.add(sender)
        if ready >= {peer for group in shown[-1].holders for peer in group}:
            ready.clear()
            steps.append(forgeries.begin_after(shown[-1], steps[-1], chosen))
            stranger.say(field.honest_peers(), steps[-1])

    stranger.hear = hear
    begun.set()
    while True:
        view = field.view
        if view.leader != stranger.peer and (not shown or view != shown[-1]):
            number = max([view.number, *(each.number for each in shown)]) + 1
            shown.append(forgeries.led_by(view, stranger.peer, number))
            ready.clear()
            steps[:] = [forgeries.first_begin(shown[-1], stranger.addresses, field.step, chosen)]
        peers = field.honest_peers()
        stranger.say(peers, forgeries.certificate(shown[-1], stranger.alias, stranger.addresses, field.step))
        stranger.say(peers, forgeries.heartbeat(shown[-1], field.step, quorate=True))
        if commits:
            stranger.say(peers, steps[-1])
        await trio.sleep(BEAT_SECONDS)


async def last_number_claimed(field: Field) -> Measured:
    async with open_stranger(field.manifest, field.meeting_point) as stranger:

        async def claim(begun: trio.Event) -> None:
            view = forgeries.held_by(field.view, stranger.peer, forgeries.LAST_NUMBER)
            await stranger.write([forgeries.claim(view, stranger.alias, stranger.addresses)])
            begun.set()

        return await field.around(claim)


async def last_number_certified(field: Field) -> Measured:
    async with open_stranger(field.manifest) as stranger:

        async def show(begun: trio.Event) -> None:
            stranger.know(field.targets())
            view = replace(field.view, number=forgeries.LAST_NUMBER, previous=field.view.digest())
            stranger.say(field.honest_peers(), forgeries.certificate(view, stranger.alias, (), field.step))
            begun.set()

        return await field.around(show, aftermath=last_holder)


# Records of the directory, and addresses.


async def silent_presences(field: Field) -> Measured:
    async with _silent_address() as address, open_stranger(field.manifest, field.meeting_point) as stranger:
        return await field.around(_standing(field, stranger, address, SILENT_PRESENCES), lose=last_holder)


async def fresh_presences(field: Field) -> Measured:
    async with open_stranger(field.manifest, field.meeting_point) as stranger:
        return await field.around(_standing(field, stranger, NOWHERE, FRESH_PRESENCES), lose=last_holder)


def _standing(field: Field, stranger: Stranger, address: str, count: int) -> Attacking:
    """So many presences with room for everything at one address. The attack has begun when all are written."""

    async def write(begun: trio.Event) -> None:
        room = field.manifest.pipeline.stages + 1
        await stranger.write(forgeries.presences(field.view, (address,), room, count))
        await trio.sleep(SETTLE_SECONDS)  # volunteers read the directory twice in this time
        begun.set()

    return write


async def foreign_notice(field: Field) -> Measured:
    """The volunteers are switched off together and others begin, who find nothing but the notice."""
    before = await field.rate()
    async with open_stranger(field.manifest, field.meeting_point) as stranger:
        for name in field.honest():
            field.kill(name)
        await trio.sleep(_lifetime(field))
        name = field.manifest.run.name
        record = forgeries.foreign_notice(field.manifest.run_id, name, stranger.alias, stranger.addresses)
        stored = await stranger.write([record])
        others = [f"w{number}" for number in range(1, field.manifest.pipeline.stages + 2)]
        for each in others:
            field.trial.volunteer(each, program=PLAIN, options=TORCH)
        with trio.move_on_after(RESTART_SECONDS):
            while not field.ended(others) and not await field.rate(1.0):
                pass
        during = await field.rate()
    await trio.sleep(SETTLE_SECONDS)
    seen = "" if stored else "the directory refused the notice"
    return Measured(before, during, await field.rate(), ended=field.ended(others), seen=seen)


def _lifetime(field: Field) -> float:
    """Until the records of volunteers that are gone have expired."""
    return 3 * field.manifest.liveness.lease_seconds + 2.0


async def foreign_addresses(field: Field) -> Measured:
    """By greetings, words about others, presences and knocks; where the swarm is, and on hosts where nobody is."""
    async with open_ports() as ports, open_stranger(field.manifest, field.meeting_point) as stranger:

        async def introduce(begun: trio.Event) -> None:
            stored = await announce(stranger, field.view, ports.addresses)
            begun.set()
            assert stored, "the directory takes no presence"
            while True:
                for target in field.targets():
                    for addresses in lists(ports.addresses, stranger.alias):
                        await greet_and_go(stranger, target, field.view, field.step, addresses)
                        await trio.sleep(BEAT_SECONDS / 5)

        async def knocking(begun: trio.Event) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(introduce, begun)
                while True:
                    for target in field.targets():
                        with suppress(P2pdError, *STREAM_ERRORS):
                            answer, _ = await ask_to_knock(stranger, target, ports.addresses[:ADDRESSES_MAX])
                            told.append(answer)
                    await trio.sleep(BEAT_SECONDS)

        told: list[str] = []
        found = await field.around(knocking)
    elsewhere = sum(ports.made[address] for address in ports.on(*OTHER_HOSTS))
    here = sum(ports.made[address] for address in ports.on(SAME_HOST))
    found = found.also(seen=f"{here} connections to ports of the stranger's own host, for knocks")
    if elsewhere:
        found = found.also(harm=f"{elsewhere} connections to hosts of somebody else")
    return found.also(harm="a volunteer says what it found there") if any(told) else found


@asynccontextmanager
async def _silent_address() -> AsyncIterator[str]:
    """An address that accepts connections and says nothing."""

    async def accept(stream: trio.SocketStream) -> None:
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, accept, [listener])
        yield f"/ip4/127.0.0.1/tcp/{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


# Floods.


async def flood(field: Field) -> Measured:
    """At a member that does not lead, whose trace we do not read meanwhile, for that would cost the swarm time."""
    victim = field.follower()
    trace = field.trial.swarm.processes[victim].trace
    field.trial.story.tails.pop(victim)
    sent = 0
    before = os.path.getsize(trace)
    async with open_stranger(field.manifest) as stranger:

        async def pour(begun: trio.Event) -> None:
            nonlocal sent
            begun.set()
            while True:
                try:
                    stream = await stranger.greet(field.target(victim), stranger.addresses)
                    frame = forgeries.flood_frame(field.view, field.step, settings(field.manifest))
                    while True:
                        await write_frame(stream, frame)
                        sent += 1
                        await trio.sleep(1 / FLOOD_A_SECOND)
                except (P2pdError, *STREAM_ERRORS):
                    await trio.sleep(BEAT_SECONDS)

        found = await field.around(pour)
    grown = os.path.getsize(trace) - before
    said = f"the trace grew by {grown / 1e6:.0f} MB while {sent} frames came"
    return found.also(harm=said) if grown > TRACE_BYTES_MAX else found.also(seen=said)


async def empty_newcomers(field: Field) -> Measured:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(open_stranger(field.manifest, field.meeting_point))
        others = [
            await stack.enter_async_context(open_stranger(field.manifest)) for _ in range(EMPTY_NEWCOMERS - 1)
        ]  # fmt: skip

        async def join(begun: trio.Event) -> None:
            newcomers = [first, *others]
            for each in newcomers:
                each.know(field.targets())
                each.hear = _accept_everything(each, begun)
            while True:
                view = field.view
                await first.write(forgeries.presence(view, each.alias, each.addresses, 1) for each in newcomers)
                for each in newcomers:
                    each.say(field.honest_peers(), forgeries.heartbeat(view, field.step, quorate=False))
                await trio.sleep(BEAT_SECONDS)

        return await field.around(join)


def _accept_everything(stranger: Stranger, begun: trio.Event) -> Callable[[Peer, Message], None]:
    """`begun` is set with the first offer."""

    def hear(sender: Peer, message: Message) -> None:
        if isinstance(message, Offer):
            begun.set()
            said = Answer(
                message.lineage, message.view, message.stages, True, (), "the neighbours answer", message.learn
            )
            stranger.say([sender], said)

    return hear


async def slow_newcomers(field: Field) -> Measured:
    """Nodes as everybody runs them, on a device that takes a minute for each microbatch."""

    async def join(begun: trio.Event) -> None:
        names = [f"slow{number}" for number in range(1, EMPTY_NEWCOMERS + 1)]
        field.outsiders |= {*names}
        for name in names:
            field.trial.volunteer(name, options=("--paced-seconds", "60", "60"))
        await field.arrived(names, ARRIVE_SECONDS)
        begun.set()

    return await field.around(join)


# Members that misbehave.


async def betrayal(field: Field) -> Measured:
    """Of the member that the field was opened with."""
    return await field.around(_betray(field))


async def betrayal_at_a_loss(field: Field) -> Measured:
    """The same, as the leader dies."""
    return await field.around(_betray(field), lose=leader)


def _betray(field: Field) -> Attacking:
    async def begin(begun: trio.Event) -> None:
        field.betray()
        begun.set()

    return begin


async def unready_learner(field: Field) -> Measured:
    """A newcomer that learns a stage and is never Ready. The rate is measured from when it joins."""
    field.betray()

    async def begin(begun: trio.Event) -> None:
        field.start_traitor("unready")
        begun.set()

    found = await field.around(begin)
    learnt = [told for told in field.trial.story.installed if told.node == TRAITOR]
    return found.also(seen=f"it fetched {len(learnt)} stages")


async def killed_directory(field: Field) -> Measured:
    """The directory process of a member ends again and again, each time as soon as there is another one."""
    victim = field.trial.swarm.processes[field.follower()].process.pid
    killed = list[int]()

    async def kill(begun: trio.Event) -> None:
        begun.set()
        while len(killed) < DIRECTORY_KILLS:
            found = child_of(victim, DIRECTORY)
            if found is not None and found not in killed:
                os.kill(found, signal.SIGKILL)
                killed.append(found)
            await trio.sleep(BEAT_SECONDS)

    found = await field.around(kill)
    with trio.move_on_after(DIRECTORY_SECONDS):
        while child_of(victim, DIRECTORY) in (None, *killed):
            await trio.sleep(BEAT_SECONDS)
    again = child_of(victim, DIRECTORY) not in (None, *killed)
    seen = f"it was killed {len(killed)} times"
    return found.also(seen=seen) if again else found.also(harm=f"{seen} and is not there any more")


_MEMBER: Final = Ground(standbys=1, lasts=LONG)
_GROUP: Final = Ground(stages=1, standbys=5, replicas=3, compute=SLOWLY, lasts=LONG)
"""One has no stage, and takes the place of the member that is removed: the rate after it is that of as many devices."""

ATTACKS: Final = (
    Attack("forged-certificate", "a stranger shows a view that nobody voted for, and beats as its leader",
           forged_certificate),
    Attack("forged-donor", "the same, and it commits weights of its own that it lends", forged_donor),
    Attack("claimed-last-number", "in a listed run, a claim to the last view number by a stranger in a holder's place",
           last_number_claimed, Ground(listed=True)),
    Attack("certified-last-number", "the same number in a certificate; then a holder is killed",
           last_number_certified, Ground(standbys=1)),
    Attack("silent-presences", "a holder is killed; twenty presences name one address, where nobody answers",
           silent_presences, Ground(standbys=2, lasts=2)),
    Attack("foreign-notice", "a notice of another run with the run's name, as all volunteers start again",
           foreign_notice),
    Attack("foreign-addresses", "greetings, offers, presences and knocks name addresses of somebody else",
           foreign_addresses),
    Attack("flood", "240 frames of 48 kB a second at one member", flood),
    Attack("fresh-presences", "a holder is killed; the directory has 1,500 presences of fresh identities",
           fresh_presences, Ground(standbys=2, lasts=2)),
    Attack("empty-newcomers", "eight identities that accept every offer and compute nothing", empty_newcomers,
           Ground(replicas=NEWCOMERS_REPLICAS)),
    Attack("slow-newcomers", "eight nodes of ours join that take a minute for each microbatch", slow_newcomers,
           Ground(replicas=NEWCOMERS_REPLICAS)),
    Attack("killed-directory", "a member's directory process is killed five times", killed_directory,
           Ground(lasts=5)),
    Attack("idle-member", "a member acknowledges tensors and does nothing with them", betrayal,
           replace(_MEMBER, way="idle")),
    Attack("deaf-member", "a member never acknowledges a tensor", betrayal, replace(_MEMBER, way="deaf")),
    Attack("poisoning-member", "a member names poison at every step", betrayal, replace(_MEMBER, way="poisoning")),
    Attack("unready-member", "a member works and is never Ready", betrayal, replace(_MEMBER, way="unready")),
    Attack("rambling-member", "a member says random messages of every kind that the wire admits", betrayal,
           replace(_MEMBER, way="rambling")),
    Attack("huge-member", "a member sends activations and gradients next to the largest float", betrayal,
           replace(_MEMBER, way="huge", compute=TORCH)),
    Attack("other-sum-member", "one of three holders of a stage says that its sum is another one", betrayal,
           replace(_GROUP, way="other_sum")),
    Attack("nesting-member", "one of three holders answers requests for sums with lists a thousand deep", betrayal,
           replace(_GROUP, way="nesting")),
    Attack("unready-learner", "a newcomer learns a stage and is never Ready", unready_learner,
           Ground(replicas=2, lasts=LONG)),
    Attack("abstaining-voter", "the leader is killed; a member does not vote", betrayal_at_a_loss,
           Ground(stages=3, standbys=3, way="abstaining", lasts=LONG)),
)  # fmt: skip
