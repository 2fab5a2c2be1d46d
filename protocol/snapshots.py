"""Snapshots on the disks of the swarm: what a peer tells of its own, and what those of all make possible (rule 34).

Versions are chained hashes, so equal versions are the same step of the same history, and a state that two peers kept
of a stage must be equal: where digests differ, the one that most peers have is taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ftnode.protocol.recovery import choose_rung
from ftnode.protocol.settings import Settings
from ftnode.protocol.types import Peer, Snapshot, Version

TOLD_MAX: Final = 64
"""Snapshots that a peer tells of, newest first: about 5 KiB of its presence."""
NAME_MAX: Final = 128
"""Characters of a digest or a commit."""
EPOCH_MAX: Final = 2**47
"""Epochs stay so small that a view can always be numbered above them."""
JUMP_MAX: Final = 2**32
"""A restart numbers its first view at most so far above the view before, whatever anybody says of epochs."""
REBUILT_STEPS: Final = 200
"""To rebuild a stage costs about as much as so many steps (docs/recovery.md: CheckFree is 220 iterations behind)."""
PEERS_MAX: Final = 256
"""Disks that are looked at, those of members first."""

Kept = Mapping[int, tuple[str, tuple[Peer, ...]]]
"""Stage → the digest that counts, and who has a snapshot with it."""


class Disk:
    """What the disk of this peer holds."""

    def __init__(self) -> None:
        self._kept: tuple[Snapshot, ...] = ()

    def replace(self, kept: Iterable[Snapshot]) -> None:
        """It holds these from now on."""
        self._kept = tuple(sorted(kept, key=lambda snapshot: (-snapshot.version.step, snapshot.stage)))

    def told(self) -> tuple[Snapshot, ...]:
        """The newest."""
        return self._kept[:TOLD_MAX]

    def __bool__(self) -> bool:
        return bool(self._kept)


def sensible(snapshot: Snapshot, settings: Settings) -> bool:
    """Whether this can be a snapshot of the run at all."""
    return (
        0 <= snapshot.stage < settings.stage_count
        and could_be_kept(snapshot.version, settings)
        and 0 <= snapshot.epoch < EPOCH_MAX
        and 0 < len(snapshot.digest) <= NAME_MAX
    )


def could_be_kept(version: Version, settings: Settings) -> bool:
    """Whether this can name a step that the run has committed."""
    return (
        0 < version.step <= settings.steps
        and len(version.commit) <= NAME_MAX
        and -1 <= version.attempt.view < EPOCH_MAX  # that of a state that is made of others' is INITIAL_ATTEMPT
        and 0 <= version.attempt.n < EPOCH_MAX
    )


@dataclass(frozen=True, slots=True)
class Common:
    """A version that the disks make possible. `missing`: stages that nobody kept, rebuilt from the others."""

    version: Version
    kept: Kept
    missing: tuple[int, ...]


def kept_of(version: Version, known: Mapping[Peer, Iterable[Snapshot]]) -> Kept:
    """The snapshots of exactly this version. Those whose digest fewer peers have than another are left out; of two
    digests with equally many, the lower one counts."""
    return _by_version(known, version).get(version, {})


def _by_version(known: Mapping[Peer, Iterable[Snapshot]], only: Version | None = None) -> dict[Version, Kept]:
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


def common(known: Mapping[Peer, Iterable[Snapshot]], settings: Settings) -> list[Common]:
    """Every version that all stages can be brought to, best first: the newest, where each stage that must be rebuilt
    counts as REBUILT_STEPS fewer steps. A snapshot of an earlier step is exact; a rebuilt stage never is."""
    found = []
    for version, kept in _by_version(known).items():
        missing = tuple(stage for stage in range(settings.stage_count) if stage not in kept)
        alive = frozenset(kept)
        if all(choose_rung(stage, alive, version.step, settings, {})[0] is not None for stage in missing):
            found.append(Common(version, kept, missing))
    return sorted(found, key=lambda one: (REBUILT_STEPS * len(one.missing) - one.version.step, one.version.commit))


def within(found: Iterable[Common], highest: int, settings: Settings) -> list[Common]:
    """Those that lose at most `rollback_max` of `highest` steps."""
    reach = settings.rollback_max
    return [one for one in found if not reach or highest - one.version.step <= reach]


def credible_step(known: Mapping[Peer, Iterable[Snapshot]], possible: Iterable[Common]) -> int:
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
