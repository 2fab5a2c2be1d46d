"""What a lying member says of others' work, at any moment: the words of checks, paths, convictions and doubts.

A word is one that was heard with some of its places changed, or made anew (lab/hostile/vocabulary.py). Mostly it is
made to fit the step of who gets it. Liars sign what they say themselves, and what they make. Nobody makes another's
signature, and all passes the codec as it does on the wire.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Final

from ftnode.lab.hostile.vocabulary import Vocabulary
from ftnode.protocol.manifest.boundary import BoundaryBytes
from ftnode.protocol.wire.frames import PREFIX_BYTES, Oversized, encode_frame, read_message
from ftnode.protocol.words import messages as ms
from ftnode.protocol.words.errors import PeerError
from ftnode.protocol.words.events import Received
from ftnode.protocol.words.types import Direction, Peer
from tests.sim.compute import Tensor
from tests.sim.host import Host
from tests.sim.lying_world import LyingWorld
from tests.sim.seals import signature_of

SAID: Final = (
    ms.Poisoned, ms.Poisoned, ms.Verdict, ms.Convicted, ms.Convicted, ms.WasGiven, ms.Doubted, ms.Show, ms.Judge,
    ms.Boundary, ms.Boundary,
)  # fmt: skip
TO_LEADERS: Final = (ms.Poisoned, ms.Verdict)
HEARD: Final = frozenset({*SAID, ms.Begin})
BOUNDARY_BYTES: Final = 64
SIZES: Final = BoundaryBytes(BOUNDARY_BYTES, BOUNDARY_BYTES)


class Words:
    """Those of all liars of one world."""

    def __init__(self, world: LyingWorld, chance: Random) -> None:
        self.world, self.chance = world, chance
        self.vocabulary = Vocabulary(chance, world.settings.stages)
        self.vocabulary.extremes = chance.choice([0.02, 0.1])
        few = chance.sample(sorted({*SAID}, key=lambda kind: kind.__name__), chance.randint(1, 3))
        self.kinds: tuple[type, ...] = SAID if chance.random() < 0.4 else tuple(few)
        """What is lied about in this world: who says less is found later, and lies get further."""
        self.said, self.refused = Counter[str](), 0
        world.on_word = self.hear

    def hear(self, host: Host, message: ms.Message) -> None:
        if type(message) in HEARD:
            self.vocabulary.hear(self.world.seals.sealed(host.peer, message))

    def speak(self, host: Host) -> None:
        """It says something to somebody."""
        world, chance, view = self.world, self.chance, host.view
        if view is None or not host.alive or host.paused or host.peer not in view.members():
            return
        self.vocabulary.named = sorted(view.members())
        kind = chance.choice(self.kinds)
        leader = world.by_id.get(view.leader.id)
        targets = [other for other in world.live() if other is not host and other.peer in view.members()]
        if kind in TO_LEADERS and leader in targets and leader is not None:
            targets = [leader]
        if targets:
            target = chance.choice(targets)
            message = self.vocabulary.message(kind)
            self._say(host, target, self._fitting(message, host, target) if chance.random() < 0.9 else message)

    def _fitting(self, message: ms.Message, host: Host, target: Host) -> ms.Message:
        """As its sender could say it to this receiver now."""
        chance, view, begin = self.chance, target.view, target.participant.holder.begin
        if view is None or begin is None:
            return message
        message = self.vocabulary.aimed(message, view, begin.step, begin.attempt)
        ours, peers = view.stages_of(host.peer), sorted({*view.members()} - {host.peer})
        if isinstance(message, ms.Poisoned):
            return self._accusation(message, host, ours, peers)
        if isinstance(message, ms.Verdict) and isinstance(heard := self.vocabulary.message(ms.Judge), ms.Judge):
            return replace(message, about=heard if chance.random() < 0.7 else message.about, signature="")
        if isinstance(message, ms.Convicted):
            return self._conviction(message, host, ours, peers)
        if isinstance(message, ms.Boundary):
            return self._tensor(message, host, target)
        return message

    def _accusation(self, said: ms.Poisoned, host: Host, ours: tuple[int, ...], peers: list[Peer]) -> ms.Poisoned:
        chance, view = self.chance, host.view
        stage = chance.choice(ours) if ours and chance.random() < 0.9 else said.stage
        held = view.holders[stage : stage + 1] if view is not None and stage >= 0 else ()
        group = [peer for peers_of in held for peer in peers_of if peer != host.peer]
        giver = chance.choice(group or peers) if chance.random() < 0.9 and peers else said.giver
        microbatch = chance.choice([ms.UNSHOWN, ms.UNSHOWN, -1, -1, 0, said.microbatch])
        distance = chance.choice([1.0, 1.0, 1.0, said.distance])
        return replace(said, stage=stage, giver=giver, microbatch=microbatch, distance=distance, signature="")

    def _conviction(self, told: ms.Convicted, host: Host, ours: tuple[int, ...], peers: list[Peer]) -> ms.Convicted:
        """By words that it signs itself, as accuser or judge, with whatever others have signed."""
        said = self.vocabulary.message(ms.Poisoned)
        assert isinstance(said, ms.Poisoned)
        chance, accuser = self.chance, host.peer if self.chance.random() < 0.7 else told.accuser
        if accuser == host.peer:
            said = self._accusation(said, host, ours, peers)
        verdicts = told.verdicts
        if said.giver is not None and chance.random() < 0.5:
            about = ms.Judge.of(accuser, said, said.giver)
            verdicts = ((host.peer, ms.Verdict(about, chance.random() < 0.7, "")),)
        proof = told.proof if chance.random() < 0.5 else ()
        return replace(told, accuser=accuser, accusation=said, verdicts=verdicts, proof=proof)

    def _tensor(self, boundary: ms.Boundary, host: Host, target: Host) -> ms.Boundary:
        """One that the sender could give to the receiver: on the path that this one knows, or with one place of it
        changed; signed where it is the sender's own microbatch."""
        chance, work = self.chance, target.participant.holder.work
        known = dict(work.paths()) if work is not None else {}
        if not known or work is None:
            return boundary
        microbatch = chance.choice(sorted(known))
        path, way = list(known[microbatch]), chance.choice([Direction.FORWARD, Direction.BACKWARD])
        visit = chance.randrange(len(path))
        before = visit - 1 if way is Direction.FORWARD else visit + 1
        if chance.random() < 0.5:
            path[chance.randrange(len(path))] = chance.choice([*self.vocabulary.named])
        if chance.random() < 0.7:
            path[visit] = target.peer
            if 0 <= before < len(path):
                path[before] = host.peer
        seal = ms.Seal(ms.path_digest(tuple(path)), "")
        if path[0] == host.peer:
            word = ms.SealedTensor(microbatch, 0, Direction.FORWARD, host.peer, seal)
            seal = ms.Seal(seal.digest, signature_of(word, boundary))
        admitted = seal if chance.random() < 0.7 else boundary.admitted
        return replace(
            boundary, microbatch=microbatch, visit=visit, direction=way, path=tuple(path), admitted=admitted, seal=None
        )

    def _say(self, host: Host, target: Host, message: ms.Message) -> None:
        world, tensor = self.world, None
        tensor_bytes = BOUNDARY_BYTES if isinstance(message, ms.Boundary) else 0
        if isinstance(message, ms.Boundary):
            tensor = self._made(message, target)
            signs = message.seal is None and self.chance.random() < 0.9
            message = world.seals.sealed_tensor(host.peer, message, tensor) if signs else message
        message = world.seals.sealed(host.peer, message)
        try:
            read = read_message(encode_frame(message, tensor_bytes)[PREFIX_BYTES:], tensor_bytes, SIZES)
        except (PeerError, Oversized, OverflowError):
            self.refused += 1
            return
        if world.seals.objection(host.peer, read):
            self.refused += 1
            return
        world.at(world.now + self.chance.uniform(0.001, 0.05), self._arrives, (host, target, read, tensor))

    def _made(self, boundary: ms.Boundary, target: Host) -> Tensor:
        """Numbers of the shape that belongs there."""
        gradient = boundary.direction is Direction.BACKWARD
        begin = target.participant.holder.begin
        commit = begin.base.commit if begin is not None else ""
        visit = boundary.visit + 1 if gradient else boundary.visit - 1
        chain = self.chance.getrandbits(60)
        return Tensor(gradient, boundary.step, boundary.attempt, boundary.microbatch, visit, commit, chain)

    def _arrives(self, host: Host, target: Host, message: ms.Message, tensor: Tensor | None) -> None:
        world = self.world
        if not target.alive:
            return
        if target.paused:
            target.inbox.append((self._arrives, (host, target, message, tensor)))
            return
        target.known.add(host.peer.id)
        self.said[type(message).__name__] += 1
        if world.log is not None:
            world.log(f"{world.now:9.3f} {host.peer} ~> {target.peer} {message}")
        if tensor is not None:
            world._unpack(target, host.peer, message, tensor)
        else:
            world.deliver(target, Received(host.peer, message, None))
