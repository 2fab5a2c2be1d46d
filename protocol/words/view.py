"""Views and lineages: who holds each stage, in order, and who leads (rules 2, 12, 13, 16)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from ftnode.protocol.words.codec import encode_canonical, to_plain
from ftnode.protocol.words.types import Peer, Version


@dataclass(frozen=True, slots=True)
class Lineage:
    """A chain of views. A new one is founded at genesis, by survivors that have no quorum (rule 16), or from disks
    (rule 36)."""

    id: str
    forks: int
    """Since genesis, or since it went on from disks."""
    exact_stages: int
    """How many stages the founders held exactly, of all stages."""
    root: str = ""
    """The lineage that this one is a fork of, or a fork's fork; empty: founded at genesis or from disks itself."""
    start: Version | None = None
    """What it, or its root, went on from: snapshots of this version. None: its root is a genesis."""
    order: int = 0
    """The author's newest order to roll back that it, or its root, has followed, by its number (rule 47); 0: none."""

    @property
    def origin(self) -> str:
        """Lineages of one origin have a common past in memory."""
        return self.root or self.id

    @property
    def from_disks(self) -> bool:
        """It does not go on with what anybody has in memory."""
        return self.start is not None and not self.root

    def beats(self, other: Lineage) -> bool:
        """Static rank when two lineages meet: fewer forks, more exact stages at the founding, lower id."""
        return (self.forks, -self.exact_stages, self.id) < (other.forks, -other.exact_stages, other.id)


@dataclass(frozen=True, slots=True)
class View:
    """Who holds each stage. `holders[k]` is ordered, its first leads the group; an empty one is a vacancy."""

    run: str
    lineage: Lineage
    number: int
    previous: str
    """Digest of the view before; of the parent view at a founding; empty at genesis."""
    leader: Peer
    holders: tuple[tuple[Peer, ...], ...]
    voters: tuple[Peer, ...]
    epochs: tuple[int, ...]
    """Per stage, the view number at which its sole ownership last changed."""
    reason: str
    omitted: tuple[int, ...] = ()
    """Stages without holders that routes leave out until somebody has them again, in order."""

    def members(self) -> tuple[Peer, ...]:
        """Everybody who holds a stage, and the leader, sorted."""
        return _members(self)

    def stages_of(self, peer: Peer) -> tuple[int, ...]:
        return tuple(stage for stage, group in enumerate(self.holders) if peer in group)

    def vacancies(self) -> tuple[int, ...]:
        """Stages without holders that routes need."""
        return tuple(stage for stage, group in enumerate(self.holders) if not group and stage not in self.omitted)

    def is_quorum(self, peers: Iterable[Peer]) -> bool:
        """More than half of the voters, or exactly half with the leader among them (rule 12)."""
        present = set(peers) & set(self.voters)
        twice = 2 * len(present)
        return twice > len(self.voters) or (twice == len(self.voters) and self.leader in present)

    def digest(self) -> str:
        return _digest(self)


def majority(voters: int) -> int:
    """How many are more than half of so many."""
    return voters // 2 + 1


@lru_cache(maxsize=256)
def _members(view: View) -> tuple[Peer, ...]:
    return tuple(sorted({view.leader, *(peer for group in view.holders for peer in group)}))


@lru_cache(maxsize=256)
def _digest(view: View) -> str:
    """One that leaves nothing out, or whose lineage follows no order, has the digest that it had before views could."""
    fields = to_plain(view)
    if not view.lineage.order:
        fields[1] = fields[1][:-1]
    return hashlib.blake2b(encode_canonical(fields if view.omitted else fields[:-1]), digest_size=16).hexdigest()
