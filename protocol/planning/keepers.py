"""Who keeps copies of which stages, by who holds what (protocol/recovery/copies.py says what for)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from ftnode.protocol.step.routes import Name
from ftnode.protocol.words.site import nearness
from ftnode.protocol.words.types import HEAD


def keeping_stage(stage: int, stages: int) -> int:
    """The block stage whose first holder keeps the shadow of block stage `stage`, where that can be: half the pipeline
    away, and at least two stages."""
    return (stage - 1 + max(2, stages // 2)) % stages + 1


def keepers_of(
    holders: Sequence[tuple[Name, ...]], sites: Mapping[Name, str], kept: Collection[Name] = (), *, head: bool,
    blocks: bool,
) -> tuple[tuple[int, Name], ...]:  # fmt: skip
    """(stage, name): who keeps a copy of what, of the head and of block stages where these are kept. `sites`, `kept`:
    as in keepers() of recovery/copies.py."""
    found: list[tuple[int, Name]] = []
    if head:
        found += [(HEAD, name) for name in _of_head(holders, sites, kept)]
    if blocks:
        found += _of_blocks(holders, sites)
    return tuple(found)


def _of_head(holders: Sequence[tuple[Name, ...]], sites: Mapping[Name, str], kept: Collection[Name]) -> list[Name]:
    """The first holders of the first and of the last block stage, and else of those that are next to these; two that
    are apart, too."""
    blocks, heads, found = holders[1:], holders[HEAD], list[Name]()
    orders = [_firsts_before_others(blocks), _firsts_before_others(blocks[::-1])]
    while orders:
        ranked = [
            (closeness(peer, heads, sites), closeness(peer, found, sites), peer not in kept, place, number, peer)
            for number, peers in enumerate(orders)
            for place, peer in enumerate(peers)
            if peer not in heads and peer not in found
        ]
        if not ranked:
            break
        *_, number, keeper = min(ranked)
        found.append(keeper)
        del orders[number]
    return found


def _firsts_before_others(groups: Sequence[tuple[Name, ...]]) -> list[Name]:
    firsts = [peer for group in groups for peer in group[:1]]
    return firsts + [peer for group in groups for peer in group[1:]]


def _of_blocks(holders: Sequence[tuple[Name, ...]], sites: Mapping[Name, str]) -> list[tuple[int, Name]]:
    """One for each block stage, as near to half the pipeline away as can be, and rather not next to it. Each keeps no
    more shadows than it holds block stages, as long as others have room; stages that have few at other sites choose
    first. The shadow of a run's one block stage lies with the head.
    """
    stages: int = len(holders) - 1
    found: list[tuple[int, Name]] = []
    blocks = range(1, stages + 1)
    at = blocks if stages > 1 else (HEAD,)
    places = [(peer, other, rank) for other in at for rank, peer in enumerate(holders[other])]
    room = Counter(peer for peer, _, _ in places)
    able = {
        stage: [(closeness(peer, group, sites), peer, other, rank) for peer, other, rank in places if peer not in group]
        for stage, group in enumerate(holders)
        if stage
    }
    for stage in sorted(blocks, key=lambda stage: (sum(near == 0 for near, *_ in able[stage]), stage)):
        half: int = keeping_stage(stage, stages)
        beside = {peer for other in blocks if abs(other - stage) == 1 for peer in holders[other]}
        ranked = [
            (room[peer] <= 0, near, peer in beside, _between(half, other, stages), rank, peer)
            for near, peer, other, rank in able[stage]
        ]
        if ranked:
            keeper = min(ranked)[-1]
            room[keeper] -= 1
            found.append((stage, keeper))
    return sorted(found)


def _between(one: int, other: int, stages: int) -> tuple[int, int]:
    """Block stages from one to the other the shorter way round, and the way up."""
    up = (other - one) % stages
    return min(up, stages - up), up


def closeness(peer: Name, others: Iterable[Name], sites: Mapping[Name, str]) -> int:
    """Of a peer's site and those of others, as nearness() of sites."""
    return nearness(sites.get(peer, ""), [sites.get(other, "") for other in others])
