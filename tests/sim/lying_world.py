"""A virtual world in which some members lie, and in which all that must hold among the others is looked at.

The world of honest peers (world.py) checks everybody. Here what a liar holds is its own affair. Three things are
looked at besides: nobody honest is convicted, nobody honest takes a tensor on a second path where only one is signed,
and a step is not committed with a liar that somebody honest has found, while others could see it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from ftnode.lab.hostile import traitor
from ftnode.protocol.leader.convictions import liar_of
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words import events as ev
from ftnode.protocol.words.errors import PeerError
from ftnode.protocol.words.messages import (
    Boundary,
    Convicted,
    Judge,
    Message,
    Poisoned,
    Ready,
    Seal,
    Share,
    Status,
    Stored,
    Verdict,
)
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Attempt, Peer, Version
from tests.sim.checks import Ledger, Violation
from tests.sim.compute import Result, Tensor
from tests.sim.forgiving_world import ForgivingWorld
from tests.sim.host import Host
from tests.sim.hostile_world import TABLE_MAX, tables
from tests.sim.seals import WorldSeals, signature_of
from tests.sim.test_duty import lost_twice
from tests.sim.world import CARRY_OUT, World

WORDS: Final = (Convicted, Judge, Poisoned, Ready, Share, Status, Verdict)
"""Signed by who says them, or with words of others in them that are."""
AT_ODDS: Final = ("it is at odds with another holder, who says", "its numbers spoilt two steps in a row")
"""Why somebody goes of two, of whom nobody else has seen which is wrong."""
COUNTED_EVERY: Final = 500
Path = tuple[Peer, ...]


class LyingSeals(WorldSeals):
    """Signatures of words about others' work as well, which nobody makes for another."""

    def __init__(self) -> None:
        super().__init__(tensors=True)
        self.unsigned: set[Peer] = set()
        """Whose tensors have another signature."""

    def sealed(self, sender: Peer, message: Message) -> Message:
        return self._of(sender).sealed(message) if type(message) in WORDS else super().sealed(sender, message)

    def sealed_tensor(self, sender: Peer, boundary: Boundary, tensor: Tensor) -> Boundary:
        made = super().sealed_tensor(sender, boundary, tensor)
        if sender in self.unsigned and boundary.seal is None and made.seal is not None:
            return replace(made, seal=Seal(made.seal.digest, "made up"))
        return made

    def objection(self, sender: Peer, message: Message) -> str:
        if type(message) not in WORDS:
            return super().objection(sender, message)
        plain = message
        if isinstance(message, Convicted):
            said, plain = message.accusation, replace(message, proof=())
            for each in message.proof:
                if each.seal.signature != signature_of(each, said):
                    return f"a tensor's signature that is not by {each.maker}"
        try:
            self._checking.check(sender, plain)
        except PeerError as error:
            return str(error)
        return ""


class Unseen(Ledger):
    """What a liar's compute process tells an onlooker."""

    def check_base(self, lineage: str, attempt: Attempt, step: int, version: Version) -> None:
        pass

    def applied(
        self, owner: str, stage: int, base: Version, version: Version, skipped: bool, before: int, after: int
    ) -> None:
        pass


class LyingWorld(ForgivingWorld):
    """`lying`: PeerIds of members that may lie, now or later."""

    def __init__(self, settings: Settings, seed: int, **nature: float) -> None:
        super().__init__(settings, seed, **nature)
        self.seals: LyingSeals = LyingSeals()
        self.alike, self.liars = False, True
        self.ways: dict[Peer, list[traitor.Way]] = {}
        """What becomes of the events of a liar, and of what its core wants: each of these, one around the other."""
        self.removed: list[tuple[str, str]] = []
        """Honest members that a leader let go: PeerId and why."""
        self.convicted: set[str] = set()
        """Liars, as somebody honest knows."""
        self.found: dict[tuple[str, Attempt], Peer] = {}
        """Of an attempt, a liar that somebody honest has seen what it did to a sum, and others could see it, too."""
        self.calm = False
        """Nothing goes wrong but that somebody lies."""
        self.on_word: Callable[[Host, Message], None] = lambda host, message: None
        self._paths: dict[tuple[str, int, Attempt, int], tuple[Path, Peer]] = {}
        """(lineage, view, attempt, microbatch) → the path on which somebody honest has taken a tensor of it."""

    def honest(self, host: Host) -> bool:
        return host.peer.id not in self.lying

    def start(self, peer_id: str, hold: int, head: bool = True) -> Host:
        host = super().start(peer_id, hold, head)
        if not self.honest(host):
            self._overrule(host)
        return host

    def corrupt(self, host: Host) -> None:
        """From now on it may lie."""
        self.lying |= {host.peer.id}
        self._overrule(host)

    def _overrule(self, host: Host) -> None:
        """Its core goes the ways that it is told to, and nobody looks at its weights."""
        host.compute.ledger = Unseen()
        decide = host.participant.handle

        def handle(event: ev.Event, now: float) -> list[fx.Effect]:
            def through(ways: list[traitor.Way], seen: ev.Event) -> list[fx.Effect]:
                return ways[-1](seen, lambda each: through(ways[:-1], each)) if ways else decide(seen, now)

            effects = through([*self.ways.get(host.peer, ())], event)
            return [effect for effect in effects if not lost_twice(host, effect)]

        host.participant.handle = handle  # type: ignore[method-assign]

    # -- what liars do to themselves

    def forgive(self, violation: Violation) -> None:
        """What a liar's compute process cannot do is its own affair. Raises what is said of somebody honest."""
        about = str(violation).split(": ", 1)[1].split()[0]
        if violation.invariant == "core" or about.partition("#")[0] not in self.lying:
            raise violation
        self.accidents[violation.invariant] += 1

    def carry_out(self, host: Host, effect: fx.Effect) -> None:
        if self.honest(host):
            TABLE[type(effect)](self, host, effect)
            return
        try:
            TABLE[type(effect)](self, host, effect)
        except Violation as violation:
            self.forgive(violation)
            if violation.invariant != "I6":
                self.at(self.now, self._compute_dies, (host, host.compute_life, str(violation)))

    def _compute_dies(self, host: Host, life: int, reason: str) -> None:
        if host.alive and host.compute_life == life and host.compute_up:
            self.lose_compute(host, reason)

    # -- what an onlooker sees

    def deliver(self, host: Host, event: ev.Event) -> None:
        super().deliver(host, event)
        if self.events % COUNTED_EVERY == 0 and host.alive:
            self.count_tables(host)

    def count_tables(self, host: Host) -> None:
        """I6, of what a participant remembers."""
        for name, size in tables(host.participant):
            if size > TABLE_MAX:
                raise Violation("I6", f"{host.peer} has {size} entries in {name}")

    def _send(self, host: Host, effect: fx.Send) -> None:
        message = effect.message
        if type(message) is Stored and self.honest(host):
            self._takes(host, message)
        World._send(self, host, effect)
        self.on_word(host, message)

    def _takes(self, host: Host, stored: Stored) -> None:
        """I1: of paths of one microbatch, who admits it has signed one."""
        work = host.participant.holder.work
        if work is None or host.view is None or stored.attempt != work.begin.attempt:
            return
        path = dict(work.paths()).get(stored.microbatch)
        if path is None or work.begin.view != host.view.number or path[0].id in self.lying:
            return
        place = stored.lineage, work.begin.view, stored.attempt, stored.microbatch
        known, by = self._paths.setdefault(place, (path, host.peer))
        if known != path:
            raise Violation(
                "I1", f"{host.peer} takes microbatch {stored.microbatch} on {path}, {by} on {known}: {place}"
            )

    def _note(self, host: Host, effect: fx.Note) -> None:
        if effect.kind == "lost" and self.honest(host):
            self._count_lost(dict(effect.fields).get("peer", ""), effect.text)
        if effect.kind == "nonsense":
            self.notes.append(f"{self.now:9.3f} {host.peer} {effect.kind}: {effect.text}")
            return
        World._note(self, host, effect)

    def _count_lost(self, peer_id: str, text: str) -> None:
        there = self.by_id.get(peer_id)
        if there is not None and there.alive and not there.paused and peer_id not in self.lying:
            self.removed.append((peer_id, text.partition("(")[2].removesuffix(")")))

    def _keep_convicted(self, host: Host, effect: fx.KeepConvicted) -> None:
        """I10: nobody is told to lie who does not."""
        liar = liar_of(effect.case)
        if liar is not None and self.honest(host):
            self.convicted.add(liar.id)
            if liar.id not in self.lying:
                raise Violation("I10", f"{liar} is convicted at {host.peer}: {effect.case}")
        self.disks.keep_convicted(host, effect)

    # -- who is found

    def answer(self, host: Host, task: fx.Task, result: Result) -> None:
        if type(task) is fx.Weigh and result.value and not result.fault and not task.judged and self.honest(host):
            self._finds(host, task)
        super().answer(host, task, result)

    def _finds(self, host: Host, task: fx.Weigh) -> None:
        """Is there somebody honest besides who could see it, too?"""
        view = host.view
        if not self.calm or view is None or task.of == view.leader or task.of.id not in self.lying:
            return
        others = {*view.holders[task.stage]} - {host.peer, task.of}
        old = [peer for peer in others & {*view.voters} if peer.id not in self.lying]
        if old and len(old) == len(others) and view.leader.id not in self.lying:
            self.found.setdefault((view.lineage.id, task.attempt), task.of)

    def check_found(self, lineage: str, version: Version, skipped: bool) -> None:
        """Rule 50: the step is not over as long as the liar is there."""
        liar = self.found.pop((lineage, version.attempt), None)
        number = max(number for branch, number in self.ledger.views if branch == lineage)
        if liar is not None and not skipped and liar in self.ledger.views[lineage, number].members():
            raise Violation("rule 50", f"{version} is committed with {liar}, which was found to lie in it")


TABLE: Final[dict[type[fx.Effect], Callable[[Any, Host, Any], None]]] = CARRY_OUT | {
    fx.Send: LyingWorld._send, fx.Note: LyingWorld._note, fx.KeepConvicted: LyingWorld._keep_convicted,
}  # fmt: skip
