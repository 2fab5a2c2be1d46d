"""Filling vacancies: which stages are open, what can be done about each, whom to ask (rule 10)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from ftnode.protocol.keeping import steps_of
from ftnode.protocol.memory import FAILURES_MAX
from ftnode.protocol.messages import Answer, Contact, Offer, Plan
from ftnode.protocol.paths import neighbours
from ftnode.protocol.records import Presence
from ftnode.protocol.recovery import choose_rung, how_to_go_on
from ftnode.protocol.types import Attempt, Peer, Rung, Version
from ftnode.protocol.vacancy import Offering, assign

if TYPE_CHECKING:
    from ftnode.protocol.leader import Leader

Told = tuple[tuple[int, Version], ...]
"""(stage, version) of each copy that a peer keeps."""


class Recruiting:
    """The leader's offers in one view."""

    def __init__(self, leader: Leader) -> None:
        self.leader, self.core, self.view, self.losses = leader, leader.core, leader.view, leader.losses
        self.offerings: dict[int, Offering] = {}
        self._only_exact: frozenset[int] = frozenset()
        """Stages that only somebody can fill who has their weights."""

    @property
    def pending(self) -> bool:
        """Somebody has been asked and has time left to answer."""
        return any(offering.asked is not None for offering in self.offerings.values())

    @property
    def fills(self) -> dict[int, Peer]:
        """Stage → who accepted it."""
        return {stage: offering.accepted for stage, offering in self.offerings.items() if offering.accepted is not None}

    def close(self, stages: list[int]) -> None:
        """Forget offers of stages that are not open any more."""
        for stage in [stage for stage in self.offerings if stage not in stages]:
            del self.offerings[stage]

    def open_stages(self) -> list[int]:
        """Stages that will have no holder in the next view unless one is found."""
        return [stage for stage in range(len(self.view.holders)) if not self.losses.staying(stage)]

    def rungs(self, stages: list[int]) -> Mapping[int, tuple[bool, str]]:
        """For each open stage: can it be filled without its weights, and why not."""
        known, start = self.leader.base, self.view.lineage.start
        if known is None and start is not None and start.step >= self.core.highest_step():
            known = start  # as good as committed, though nobody has it yet (rule 36)
        base = known.step if known is not None else self.core.highest_step()
        copied = self._copied(base)
        alive = frozenset(range(len(self.view.holders))) - set(stages) - self.leader.empty | copied.keys()
        kept = self.leader.restart.kept(known) if known is not None else {}
        alive |= kept.keys()
        found = {}
        for stage in stages:
            if stage in kept:
                found[stage] = True, "its snapshot is on a disk"
                continue
            rung, _, reason = choose_rung(stage, alive - {stage}, base, self.core.settings, copied)
            found[stage] = (rung is not None, reason)
        return found

    def _copied(self, base: int) -> dict[int, int]:
        """Stage → step of the newest copy of it, not later than `base`, that somebody lends: a member which stays, or
        a peer outside the view."""
        core, broken, doubted = self.core, self.leader.memory.broken, self.leader.memory.doubted()
        failed = {(name, stage, version.step) for (name, stage, version), n in broken.items() if n >= FAILURES_MAX}
        told = {peer: report.copies for peer, report in core.reports.items() if peer not in self.losses.gone}
        told[core.me] = core.holder.copies.told()
        every = [
            (copy.stage, copy.step)
            for peer, copies in told.items()
            for copy in copies
            if peer.id not in doubted and (peer.id, copy.stage, copy.step) not in failed
        ]
        every += (entry for kept in self.lent({}).values() for entry in steps_of(kept))
        return dict(sorted((stage, step) for stage, step in every if step <= base))

    def lent(self, told: Mapping[Peer, Told]) -> dict[Peer, Told]:
        """The copies that members tell of, and what peers outside the view keep: a keeper that lost its compute, and
        with it its stage, has its copies. Not those that were asked for in vain: to be heard is not to lend."""
        lineage, memory = self.view.lineage.id, self.leader.memory
        outside = {p.peer: p.copies for p in self.outside() if p.copies and p.lineage == lineage}
        doubted = memory.doubted()
        return {
            peer: tuple((stage, version) for stage, version in copies if not memory.is_broken(peer, stage, version))
            for peer, copies in (outside | dict(told)).items()
            if peer.id not in doubted
        }

    def borrows(self, installs: Sequence[Plan]) -> bool:
        """Whether these need copies from outside the view, of which nobody knows yet that they are lent."""
        members, copied = self.core.members, (Rung.HEAD, Rung.SHADOW)
        return any(donor.peer not in members for plan in installs if plan.rung in copied for donor in plan.donors)

    def outside(self) -> list[Presence]:
        """Peers outside the view that may lend something: their addresses do not refuse, nor have they failed to."""
        core, unheard = self.core, self.leader.memory.unheard
        return [
            presence
            for peer, presence in core.presences.items()
            if (presence.copies or presence.snapshots) and peer not in core.members
            if peer not in core.liveness.refused
            and (peer not in unheard or core.liveness.heard_since(peer, unheard[peer]))
        ]  # fmt: skip

    def on_given_up(self, peer: Peer, stage: int, not_lent: bool) -> None:
        """Whoever was to rebuild a stage did not: peers outside the view that were to lend a copy may be gone, which
        nobody else would notice. They are asked again when they are heard, and what they tell of is counted on until it
        was not lent FAILURES_MAX times. `not_lent`: nobody gave it."""
        begin, core = self.leader.begin, self.core
        for plan in begin.installs if begin is not None else ():
            if (plan.stage, plan.peer) == (stage, peer):
                outside = [donor.peer for donor in plan.donors if donor.peer not in core.members]
                self.leader.memory.unheard.update(dict.fromkeys(outside, core.now))
                if plan.copy is not None and not_lent:
                    self.leader.memory.not_lent((donor.peer for donor in plan.donors), stage, plan.copy, core.now)

    def halt_reason(self, rungs: Mapping[int, tuple[bool, str]]) -> str:
        stuck = {stage: why for stage, (possible, why) in rungs.items() if not possible}
        if not stuck:
            return ""
        hint = self.leader.restart.hint()
        return f"halted: {'; '.join(sorted(set(stuck.values())))}; {how_to_go_on(sorted(stuck))}{hint}"

    def offer(self, stages: list[int], rungs: Mapping[int, tuple[bool, str]]) -> None:
        core, settings = self.core, self.core.settings
        if not stages:
            return
        self._only_exact = frozenset(stage for stage, (possible, _) in rungs.items() if not possible)
        for stage in self._only_exact & self.offerings.keys():
            if not self.offerings[stage].exact:  # accepted while other stages were there to rebuild it from
                self.offerings[stage].accepted = None
        wanting = [stage for stage in stages if not self._taken(stage)]
        presences = {
            peer: presence
            for peer, presence in core.presences.items()
            if peer not in self.losses.gone and peer not in core.liveness.refused
            and not any(member.id == peer.id and member != peer for member in core.members)
        }  # fmt: skip
        asked = assign(
            wanting,
            presences,
            self.offerings,
            self.view.number,
            self.leader.base,
            self.leader.memory.failures,
            self._only_exact,
            core.members,
        )
        for stage in set(wanting) - {stage for stage, _ in asked} - self._only_exact:
            tried = self.offerings[stage].tried if stage in self.offerings else set()
            taken = {peer for _, peer in asked}.union(*(offering.busy() for offering in self.offerings.values()))
            spare = self.leader.moves.spare(stage, tried, taken)
            if spare is not None:
                asked.append((stage, spare))
        by_peer: dict[Peer, list[int]] = {}
        for stage, peer in asked:
            by_peer.setdefault(peer, []).append(stage)
        for peer, offered in by_peer.items():
            for stage in offered:
                offering = self.offerings.setdefault(stage, Offering(stage))
                offering.asked, offering.deadline = peer, core.now + settings.offer_seconds
                offering.tried.add(peer)
            core.timers.set_if_clear("offer", core.now + settings.offer_seconds)
            around = (
                {near for stage in offered for near in neighbours(self.view, stage, settings.swap)}
                - set(self.losses.gone)
                - {peer}
            )
            base = self.leader.base or Version(core.highest_step(), "", Attempt(-1, 0))
            listed = ", ".join(map(str, offered))
            core.note("offer", f"stage {listed} is offered to {peer}", peer=peer.id, stages=listed)
            self.send_offer(peer, tuple(offered), base, around, False)

    def send_offer(
        self, peer: Peer, stages: tuple[int, ...], base: Version, near: Collection[Peer], learn: bool
    ) -> None:
        """With the addresses of those that it will have to dial."""
        core = self.core
        core.know(peer, core.presences[peer].addresses)
        contacts = tuple(Contact(other, core.contacts.get(other, ())) for other in sorted(near))
        core.send(peer, Offer(self.view.lineage.id, self.view.number, stages, base, contacts, learn))

    def _taken(self, stage: int) -> bool:
        offering = self.offerings.get(stage)
        return offering is not None and (offering.asked is not None or offering.accepted is not None)

    def on_answer(self, sender: Peer, answer: Answer) -> None:
        if self.leader.learning.on_answer(sender, answer) or not any(
            offering.asked == sender for offering in self.offerings.values()
        ):
            return
        for stage in answer.stages:
            offering = self.offerings.get(stage)
            if offering is None or offering.asked != sender:
                continue
            offering.asked = None
            # Who had the weights when it said so in the directory may have them no longer.
            if answer.accepted and (stage in answer.exact or stage not in self._only_exact):
                offering.accepted, offering.exact = sender, stage in answer.exact
        listed = ", ".join(map(str, answer.stages))
        verb = "accepts" if answer.accepted else "declines"
        self.core.note("answer", f"{sender} {verb} stage {listed}: {answer.reason}", peer=sender.id, stages=listed)

    def on_candidate_lost(self, peer: Peer) -> None:
        """The candidate cannot be reached; ask the next one."""
        for offering in self.offerings.values():
            if peer in offering.busy():
                offering.asked = offering.accepted = None

    def expire_offers(self) -> None:
        for offering in self.offerings.values():
            if offering.asked is not None and self.core.now >= offering.deadline:
                self.core.note("answer", f"{offering.asked} did not answer in time", stages=str(offering.stage))
                offering.asked = None
        pending = [offering.deadline for offering in self.offerings.values() if offering.asked is not None]
        if pending:
            self.core.timers.set("offer", min(pending))

    def forget_tries(self) -> None:
        """The directory has been read again: everybody may be asked once more."""
        for offering in self.offerings.values():
            offering.tried = offering.busy()
