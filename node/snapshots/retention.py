"""Which snapshots may go, and which stay while a newer version is not whole.

Stages of a version are written one after the other, and only all of them together are of use. So the newest version
whose stages are all there stays as a whole until a newer one is. For each stage of it that takes room for two, and no
more: what is newer and not whole goes before it, but for the version that is being written. A stage that this version
has not, as one that was taken over since, keeps its newest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ftnode.node.snapshots.format import KeptSnapshot
    from ftnode.protocol.words.types import Version


def rank_in_stage(kept: KeptSnapshot, among: Iterable[KeptSnapshot]) -> int:
    """How many of the same stage were saved later."""
    return sum(each.stage == kept.stage and each.index.sequence > kept.index.sequence for each in among)


def newest_set(
    kept: Collection[KeptSnapshot], held: Collection[int], writing: Version | None = None
) -> list[KeptSnapshot]:
    """Snapshots of the stages `held`, of the version that has most of them; of several, that which was saved last.
    Stages that nothing has but `writing`, the version that is being written, do not count."""
    stages = {each.stage for each in kept if each.stage in held and each.version != writing}
    sets: dict[Version, list[KeptSnapshot]] = {}
    for each in kept:
        if each.stage in stages:
            sets.setdefault(each.version, []).append(each)

    def worth(found: list[KeptSnapshot]) -> tuple[int, int]:
        return len({each.stage for each in found}), max(each.index.sequence for each in found)

    return max(sets.values(), key=worth, default=[])


def order_to_go(kept: Collection[KeptSnapshot], held: Collection[int], writing: Version) -> list[KeptSnapshot]:
    """Those that may make room for `writing`, in the order in which they go: the oldest first, and the newest of a
    stage last."""
    newest = {each.folder for each in kept if each.stage in held and not rank_in_stage(each, kept)}
    whole = newest_set(kept, held, writing)
    folders, stages = {each.folder for each in whole}, {each.stage for each in whole}

    def stays(each: KeptSnapshot) -> bool:
        needed = each.version == writing or each.stage not in stages
        return each.folder in folders or (each.folder in newest and needed)

    may_go = [each for each in kept if not stays(each)]
    return sorted(may_go, key=lambda each: (each.folder in newest, each.index.sequence))
