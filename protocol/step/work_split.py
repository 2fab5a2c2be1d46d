"""Who does what of a step, as the leader divides it: which holder of the head admits which microbatches, and who takes
over the visits of the dead when an attempt goes on (rules 20, 22)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ftnode.protocol.step.routes import Name, last_visit, route_of, soonest
from ftnode.protocol.words.messages import Begin, Status
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import HEAD, Peer
from ftnode.protocol.words.view import View

Shares = tuple[tuple[Peer, tuple[int, ...]], ...]
Paths = tuple[tuple[int, tuple[Peer, ...]], ...]


def divide(
    group: Sequence[Name], microbatches: int, pace: Mapping[tuple[Name, int], float]
) -> tuple[tuple[Name, tuple[int, ...]], ...]:
    """The step's microbatches over the holders of the head, in proportion to their speed; `pace` as in soonest."""
    given: dict[Name, list[int]] = {peer: [] for peer in group}
    for microbatch in range(microbatches if group else 0):
        queues = {peer: len(share) for peer, share in given.items()}
        given[soonest(group, HEAD, queues, pace)].append(microbatch)
    return tuple((peer, tuple(share)) for peer, share in given.items())


def repair(view: View, begun: Begin, statuses: Mapping[Peer, Status], settings: Settings) -> tuple[Shares, Paths]:
    """Shares and paths with which the attempt `begun` goes on in `view`, whose stages all have holders.

    All paths that members have met, the newest word on each; a path never leaves a peer that is in the view. A
    microbatch that nobody has met was not admitted, or its head died with the news: a holder of the head admits it.
    """
    known: dict[int, tuple[int, tuple[Peer, ...]]] = {}
    visits = last_visit(settings.stages, view) + 1
    for status in statuses.values():
        for microbatch, path in status.paths:
            if len(path) != visits:  # of an attempt that does not go on
                continue
            if microbatch not in known or known[microbatch][0] < status.paths_view:
                known[microbatch] = status.paths_view, path
    given = Counter(peer for _, path in known.values() for peer in path)
    paths = tuple(
        (microbatch, _survivors(view, route_of(settings, microbatch, view), path, given))
        for microbatch, (_, path) in sorted(known.items())
    )
    owner = {microbatch: path[0] for microbatch, path in paths}
    head = view.holders[HEAD]
    for peer, share in begun.shares:
        for microbatch in share:
            if microbatch not in owner and peer in head:
                owner[microbatch] = peer
    load = Counter(owner.values())
    for microbatch in range(settings.microbatches):
        if microbatch not in owner:
            owner[microbatch] = min(head, key=lambda peer: (load[peer], head.index(peer)))
            load[owner[microbatch]] += 1
    shares = tuple((peer, tuple(m for m in range(settings.microbatches) if owner[m] == peer)) for peer in head)
    return shares, paths


def paths_differ(statuses: Iterable[Status]) -> int | None:
    """A microbatch that goes by two paths by the words of members that go by the same Begin. Somebody lies, and two
    holders of a stage may both have done it."""
    known: dict[tuple[int, int], tuple[Peer, ...]] = {}
    for status in statuses:
        for microbatch, path in status.paths:
            if known.setdefault((status.paths_view, microbatch), path) != path:
                return microbatch
    return None


def _survivors(view: View, visited: tuple[int, ...], path: tuple[Peer, ...], given: Counter[Peer]) -> tuple[Peer, ...]:
    """The path, with the least busy survivor of the stage in the place of each peer that is no longer there."""
    repaired: list[Peer] = []
    for visit, (stage, peer) in enumerate(zip(visited, path)):
        group = view.holders[stage]
        if peer not in group:
            last = visit == len(visited) - 1
            peer = repaired[0] if last else min(group, key=lambda other: (given[other], group.index(other)))
            given[peer] += 1
        repaired.append(peer)
    return tuple(repaired)
