"""Whom to believe of what lies on disks: rolls, which a quorum has signed (rule 46).

A *roll* says that a version was committed, and which digest the snapshot of each stage has. The members of a view sign
it when their snapshots of a commit are whole, and each keeps it on its disk. After a restart a peer that has one
believes a version in three cases: it has the roll of it; somebody shows a roll of it that follows, by its signatures,
from the newest that it has itself; or so many of the voters of its newest roll tell of the version now as could have
signed one. A liar's later step has none of these.

Voters are compared by their PeerIds, since whoever starts again is another peer with the same key. Signatures are
verified before the core hears of them; here it counts who signed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ftnode.protocol.situation import Outcome, Situation
from ftnode.protocol.words.effects import KeepRoll
from ftnode.protocol.words.messages import Roll, Rolled, Saved, Signed
from ftnode.protocol.words.types import Peer, RollbackOrder, Snapshot, Version
from ftnode.protocol.words.view import Lineage, View

ROLLS_KEPT: Final = 16
"""On a disk, the newest; as many as snapshots of a stage that anybody keeps."""
ROLLS_TOLD: Final = 4
COMMITS_KNOWN: Final = 4
"""Of the newest commits, and of the newest that are kept on disks: what a member signs for."""


def complete(roll: Roll) -> bool:
    """A quorum of the voters of its own view has signed it."""
    return roll.view.is_quorum(roll.signers())


def agreed(roll: Roll, stage: int) -> str:
    """The digest of the stage, if most of its holders have signed it; else empty."""
    group = roll.view.holders[stage]
    return roll.digests[stage] if 2 * len(roll.signers() & set(group)) > len(group) else ""


def speak_for(view: View, names: Collection[str]) -> bool:
    """Whether these PeerIds are enough of the view's voters: more than half, or half with the leader or at least two.
    Both halves of a swarm that was split may be right; one voter alone is not, where there are others."""
    voters = {voter.id for voter in view.voters}
    present = voters & set(names)
    enough = 2 * len(present) > len(voters)
    return enough or (2 * len(present) == len(voters) and (view.leader.id in present or len(present) > 1))


def _signed_for(view: View, roll: Roll) -> bool:
    return speak_for(view, {peer.id for peer in roll.signers()})


def trusted(own: Sequence[Roll], told: Iterable[Roll]) -> list[Roll]:
    """Our own, in the order in which they were kept, and of those that others tell of what follows from our newest, one
    after the other. Empty where we have none to begin from."""
    if not own:
        return []
    chain, versions = [own[-1]], {roll.version for roll in own}
    for roll in sorted(told, key=lambda each: each.version.step):
        if roll.version not in versions and complete(roll) and any(_signed_for(one.view, roll) for one in chain):
            chain.append(roll)
            versions.add(roll.version)
    return [*own[:-1], *chain]


def with_roll(kept: tuple[Roll, ...], roll: Roll) -> tuple[Roll, ...]:
    """The rolls of a disk with one more. Those of its step and later ones are of a history that was left for it."""
    before = (each for each in kept if each.version.step < roll.version.step)
    return (*before, roll)[-ROLLS_KEPT:]


def believed(
    known: Mapping[Peer, tuple[Snapshot, ...]], rolls: Sequence[Roll]
) -> tuple[dict[Peer, tuple[Snapshot, ...]], set[Peer]]:
    """What of the snapshots that peers tell of is to be believed by whoever trusts these rolls (as of `trusted`), and
    who tells of others. Without a roll all are."""
    if not rolls:
        return dict(known), set()
    newest = max(rolls, key=lambda roll: roll.version.step)
    tellers: dict[Version, set[str]] = {}
    for peer, snapshots in known.items():
        for snapshot in snapshots:
            tellers.setdefault(snapshot.version, set()).add(peer.id)
    about: dict[Version, list[Roll]] = {}
    for roll in rolls:
        about.setdefault(roll.version, []).append(roll)
    told = {version for version, names in tellers.items() if speak_for(newest.view, names)}

    def is_true(snapshot: Snapshot) -> bool:
        if snapshot.version not in about:
            return snapshot.version in told
        return all(agreed(roll, snapshot.stage) in ("", snapshot.digest) for roll in about[snapshot.version])

    found = {peer: tuple(filter(is_true, snapshots)) for peer, snapshots in known.items()}
    doubtful = {peer for peer, snapshots in found.items() if len(snapshots) < len(known[peer])}
    return {peer: snapshots for peer, snapshots in found.items() if snapshots}, doubtful


def _made_in(lineage: Lineage, roll: Roll) -> bool:
    """It was made in that lineage, or in one that has gone on from it."""
    return roll.view.lineage.origin == lineage.origin and roll.view.lineage.start == lineage.start


def undone(order: RollbackOrder, version: Version, rolls: Iterable[Roll]) -> bool:
    """Whether the author's order undoes this version (rule 47): it is of a later step, and no roll of a lineage that
    has followed the order names it."""
    followed = any(roll.version == version and roll.view.lineage.order >= order.number for roll in rolls)
    return order.spoils(version.step) and not followed


class OwnRolls:
    """The rolls on our disk, and our part in new ones."""

    def __init__(self) -> None:
        self.kept: tuple[Roll, ...] = ()
        """In the order in which they were kept."""
        self._commits: list[Version] = []
        self._ordered: str | None = None
        """Digest of the last one that the driver was told to keep."""

    def replace(self, kept: tuple[Roll, ...]) -> None:
        """The disk holds these from now on."""
        self.kept = kept[-ROLLS_KEPT:]

    def told(self) -> tuple[Roll, ...]:
        """The newest, for a leader that looks at disks."""
        return self.kept[-ROLLS_TOLD:]

    def of(self, version: Version | None) -> Roll | None:
        return next((roll for roll in reversed(self.kept) if roll.version == version), None)

    def committed(self, version: Version, every: int) -> None:
        """The leader's Begin has committed it; what was after it belongs to another history. Of those that are kept on
        disks, one in `every`, more are known: a save may take longer than many steps."""
        if version.step == 0 or version in self._commits:
            return
        commits = [*(each for each in self._commits if each.step < version.step), version]
        due = [each for each in commits if every and each.step % every == 0]
        known = {*commits[-COMMITS_KNOWN:], *due[-COMMITS_KNOWN:]}
        self._commits = [each for each in commits if each in known]

    def doubts(
        self, lineage: Lineage, shown: Roll | None, disk: Iterable[Snapshot], present: Collection[str],
        tellers: Collection[str],
    ) -> bool:  # fmt: skip
        """Whether a lineage may not go on from the snapshots that it goes on from. `shown`: the roll of these, or one
        that was made in the lineage. `present`: the PeerIds that are about: where too few of those are left whom we
        know, others may rightly go by what we have never seen. `tellers`: those that tell of this version, as
        `believed` counts them. Of a version that is older than all rolls here nobody knows any more."""
        start = lineage.start
        if start is None or not self.kept or start.step < self.kept[0].version.step or self.of(start) is not None:
            return False
        known = self.kept[-1].view
        if any(snapshot.version == start for snapshot in disk) or not speak_for(known, present):
            return False
        if speak_for(known, tellers):
            return False
        fits = shown is not None and (shown.version == start or _made_in(lineage, shown))
        return not fits or shown is None or len(trusted(self.kept, (shown,))) == len(self.kept)

    def speaks_for(self, lineage: Lineage) -> Roll | None:
        """What shows others that the lineage is a right one: the roll of the snapshots that it goes on from, or where
        nobody has that any more, or it was never made, the newest of its own."""
        own = (roll for roll in reversed(self.kept) if _made_in(lineage, roll))
        return self.of(lineage.start) or next(own, None)

    def contradict(self, stage: int, version: Version, digest: str) -> bool:
        """A roll of ours has another digest of the stage."""
        roll = self.of(version)
        return roll is not None and agreed(roll, stage) not in ("", digest)

    def say(self, s: Situation, disk: Iterable[Snapshot]) -> Outcome:
        """Tell the leader what our disk has of the newest commit of which it has all our stages, until we have its
        roll."""
        out = Outcome()
        if s.view is None or not s.member or not s.mine:
            return out
        here = [snapshot for snapshot in disk if snapshot.stage in s.mine and snapshot.version in self._commits]
        for version in reversed(self._commits):
            ours = tuple(snapshot for snapshot in here if snapshot.version == version)
            if {snapshot.stage for snapshot in ours} == {*s.mine}:
                if self.of(version) is None:
                    out.send(s.view.leader, Saved(s.view.lineage.id, s.view.number, ours))
                break
        return out

    def on_rolled(self, s: Situation, rolled: Rolled, disk: Iterable[Snapshot]) -> Outcome:
        """From our leader: sign what we know to be so, or keep what a quorum has signed."""
        out, view, roll = Outcome(), s.view, rolled.roll
        if view is None or not s.member or roll.view != view or roll.version not in self._commits:
            return out
        if rolled.whole:
            if complete(roll) and roll.digest() != self._ordered and self.of(roll.version) is None:
                self._ordered = roll.digest()
                out.append(KeepRoll(roll))
        elif not roll.signed and self._is_so(s, roll, disk):
            signed = replace(roll, signed=(Signed(s.me, ""),))
            out.send(view.leader, Rolled(rolled.lineage, rolled.view, signed, False))
        return out

    def _is_so(self, s: Situation, roll: Roll, disk: Iterable[Snapshot]) -> bool:
        """Of our own stages; of those of others their holders know."""
        ours = {(kept.stage, kept.digest) for kept in disk if kept.version == roll.version}
        return all(not roll.digests[stage] or (stage, roll.digests[stage]) in ours for stage in s.mine)
