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
EPOCH_MAX: Final = 2**40
"""Epochs and forks stay so small that a view can always be numbered above them."""
RESTART_FORKS: Final = 2**24
"""A restart from disks counts as so many forks, so that a lineage that lived on wins against it (rule 16)."""

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
    version = snapshot.version
    return (
        0 <= snapshot.stage < settings.stage_count
        and 0 < version.step <= settings.steps
        and len(version.commit) <= NAME_MAX
        and -1 <= version.attempt.view < EPOCH_MAX  # that of a state that is made of others' is INITIAL_ATTEMPT
        and all(0 <= number < EPOCH_MAX for number in (version.attempt.n, snapshot.epoch, snapshot.forks))
        and 0 < len(snapshot.digest) <= NAME_MAX
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
    found: dict[int, dict[Peer, str]] = {}
    for peer in sorted(known):
        for snapshot in known[peer]:
            if snapshot.version == version:
                found.setdefault(snapshot.stage, {})[peer] = snapshot.digest
    kept: dict[int, tuple[str, tuple[Peer, ...]]] = {}
    for stage, digests in sorted(found.items()):
        votes = Counter(digests.values())
        digest = min(votes, key=lambda name: (-votes[name], name))
        kept[stage] = digest, tuple(peer for peer, name in digests.items() if name == digest)
    return kept


def common(known: Mapping[Peer, Iterable[Snapshot]], settings: Settings) -> list[Common]:
    """Every version that all stages can be brought to, best first: the one of which the fewest stages must be rebuilt,
    then the newest. A snapshot of an earlier step is exact; a rebuilt stage never is."""
    versions = {snapshot.version for snapshots in known.values() for snapshot in snapshots}
    found = []
    for version in versions:
        kept = kept_of(version, known)
        missing = tuple(stage for stage in range(settings.stage_count) if stage not in kept)
        alive = frozenset(kept)
        if all(choose_rung(stage, alive, version.step, settings, {})[0] is not None for stage in missing):
            found.append(Common(version, kept, missing))
    return sorted(found, key=lambda one: (len(one.missing), -one.version.step, one.version.commit))


def within(found: Iterable[Common], highest: int, settings: Settings) -> list[Common]:
    """Those that lose at most `rollback_max` of `highest` steps."""
    reach = settings.rollback_max
    return [one for one in found if not reach or highest - one.version.step <= reach]


def restarts(forks: int) -> int:
    """How often a lineage has been started again from disks."""
    return forks // RESTART_FORKS


def numbers_after(known: Iterable[Snapshot]) -> tuple[int, int]:
    """(view number, forks) that a lineage needs which goes on from where these were made: its epochs are above theirs,
    and it ranks behind all that lived on."""
    listed = list(known)
    epoch = max((snapshot.epoch for snapshot in listed), default=-1)
    forks = max((snapshot.forks for snapshot in listed), default=-1)
    return epoch + 1, (restarts(forks) + 1) * RESTART_FORKS if listed else 0
