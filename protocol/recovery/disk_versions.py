"""Snapshots on the disks of the swarm: what a peer tells of its own, and what those of all make possible (rule 34).

Versions are chained hashes, so equal versions are the same step of the same history, and a state that two peers kept
of a stage must be equal: where digests differ, the one that most peers have is taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ftnode.protocol.recovery.learning_cost import steps_lost
from ftnode.protocol.recovery.rungs import Available, filled_from
from ftnode.protocol.words.records import TOLD_MAX
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import NO_ORDER, Peer, RollbackOrder, Snapshot, Version

JUMP_MAX: Final = 2**32
"""A restart numbers its first view at most so far above the view before, whatever anybody says of epochs."""
PEERS_MAX: Final = 256
"""Disks that are looked at, those of members first."""

DiskHolders = Mapping[int, tuple[str, tuple[Peer, ...]]]
"""Stage → the digest that counts, and who has a snapshot with it."""


class OwnDisk:
    """What the disk of this peer holds."""

    def __init__(self) -> None:
        self._kept: tuple[Snapshot, ...] = ()
        self._order = NO_ORDER

    def on_order(self, order: RollbackOrder) -> None:
        """Half of what is told is of the step that the author has ordered, or earlier (rule 47)."""
        self._order = order

    def replace(self, kept: Iterable[Snapshot]) -> None:
        """It holds these from now on."""
        self._kept = tuple(sorted(kept, key=lambda snapshot: (-snapshot.version.step, snapshot.stage)))

    def told(self) -> tuple[Snapshot, ...]:
        """The newest."""
        if not self._order.number:
            return self._kept[:TOLD_MAX]
        early = [kept for kept in self._kept if not self._order.spoils(kept.version.step)][: TOLD_MAX // 2]
        late = [kept for kept in self._kept if self._order.spoils(kept.version.step)][: TOLD_MAX - len(early)]
        return (*late, *early)

    def __bool__(self) -> bool:
        return bool(self._kept)


@dataclass(frozen=True, slots=True)
class CommonVersion:
    """A version that the disks make possible. `missing`: stages that nobody kept, rebuilt from the others."""

    version: Version
    kept: DiskHolders
    missing: tuple[int, ...]
    lost: float
    """Steps of learning that it costs to rebuild them."""


def kept_of(version: Version, known: Mapping[Peer, Iterable[Snapshot]]) -> DiskHolders:
    """The snapshots of exactly this version. Those whose digest fewer peers have than another are left out; of two
    digests with equally many, the lower one counts."""
    return _by_version(known, version).get(version, {})


def _by_version(known: Mapping[Peer, Iterable[Snapshot]], only: Version | None = None) -> dict[Version, DiskHolders]:
    """As kept_of, of every version that is spoken of, or of one. Each snapshot is looked at once."""
    found: dict[Version, dict[int, dict[Peer, str]]] = {}
    for peer in sorted(known):
        for snapshot in known[peer]:
            if only is None or snapshot.version == only:
                found.setdefault(snapshot.version, {}).setdefault(snapshot.stage, {})[peer] = snapshot.digest
    return {version: {stage: _counted(stages[stage]) for stage in sorted(stages)} for version, stages in found.items()}


def _counted(digests: Mapping[Peer, str]) -> tuple[str, tuple[Peer, ...]]:
    votes = Counter(digests.values())
    digest = min(votes, key=lambda name: (-votes[name], name))
    return digest, tuple(peer for peer, name in digests.items() if name == digest)


def common(known: Mapping[Peer, Iterable[Snapshot]], settings: Settings) -> list[CommonVersion]:
    """Every version that all stages can be brought to, best first: the newest, less the steps of learning that it
    costs to rebuild stages. A snapshot of an earlier step is exact; a rebuilt stage never is."""
    found, looked_at = [], dict[frozenset[int], tuple[tuple[int, ...], float] | None]()
    for version, kept in _by_version(known).items():
        stages = frozenset(kept)
        if stages not in looked_at:  # liars tell of very many versions, and hardly of as many sets of stages
            looked_at[stages] = _rebuilt(stages, version.step, settings)
        if (rebuilt := looked_at[stages]) is not None:
            found.append(CommonVersion(version, kept, *rebuilt))
    return sorted(found, key=lambda one: (one.lost - one.version.step, one.version.commit))


def _rebuilt(kept: frozenset[int], step: int, settings: Settings) -> tuple[tuple[int, ...], float] | None:
    """The stages that are missing beside these, and the steps of learning that it costs to rebuild them; None where
    that cannot be. `step`: of any version that was committed."""
    available, lost = Available(step, frozenset(), {}, kept), list[float]()
    missing = tuple(stage for stage in range(settings.stage_count) if stage not in kept)
    for before, stage in enumerate(missing):
        rung, _, _ = filled_from(stage, available, settings)
        if rung is None:
            return None
        lost.append(steps_lost(stage, rung, settings, before=before))
    return missing, sum(lost)


def within(found: Iterable[CommonVersion], highest: int, settings: Settings) -> list[CommonVersion]:
    """Those that lose at most `rollback_max` of `highest` steps."""
    reach = settings.rollback_max
    return [one for one in found if not reach or highest - one.version.step <= reach]


def witnessed(found: list[CommonVersion], known: Mapping[Peer, Iterable[Snapshot]]) -> list[CommonVersion]:
    """For who has no roll (rolls.py): where several tell of a version, one of which a single PeerId tells counts for
    nothing."""
    told: dict[Version, set[str]] = {}
    for peer, snapshots in known.items():
        for snapshot in snapshots:
            told.setdefault(snapshot.version, set()).add(peer.id)
    return [one for one in found if len(told[one.version]) > 1] or found


def credible_step(known: Mapping[Peer, Iterable[Snapshot]], possible: Iterable[CommonVersion]) -> int:
    """The highest step that is known from disks: one that two peers tell of, or that is possible. One liar cannot make
    a swarm wait for a step that never was."""
    told: dict[Version, set[Peer]] = {}
    for peer, snapshots in known.items():
        for snapshot in snapshots:
            told.setdefault(snapshot.version, set()).add(peer)
    steps = [version.step for version, peers in told.items() if len(peers) > 1]
    return max([0, *steps, *(one.version.step for one in possible)])


def number_after(known: Iterable[Snapshot], view_number: int) -> int:
    """What the first view of a lineage must be numbered that goes on from where these were made: its epochs are above
    theirs, unless somebody lies about them. Nothing hangs on that: numbers are compared within a lineage alone."""
    highest = max((snapshot.epoch for snapshot in known), default=-1)
    return min(max(highest, view_number) + 1, view_number + JUMP_MAX)
