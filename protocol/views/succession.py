"""How the next view follows from this one: losses, fills, new voters, survivors without a quorum (rules 2, 13, 16)."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ftnode.protocol.views.votes import bounded
from ftnode.protocol.wire.admission import REASON_MAX
from ftnode.protocol.words.crowds import NOBODY_KNOWN, Crowds
from ftnode.protocol.words.types import Peer, Version
from ftnode.protocol.words.view import Lineage, View

SERIALS_MAX: Final = 8
"""Lineages that one life of a peer founds out of one view, at most, as far as their names are recognised."""


def genesis(run: str, me: Peer, stages: Collection[int], stage_count: int, serial: int = 0) -> View:
    """View 0, founded by one peer that takes `stages`; the others are vacancies. `serial` as in fork."""
    text = f"{run}/{me.id}/{me.nonce}" + (f"/{serial}" if serial else "")
    name = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    holders = tuple((me,) if stage in stages else () for stage in range(stage_count))
    return View(run, Lineage(name, 0, stage_count), 0, "", me, holders, (me,), (0,) * stage_count, "the run is founded")


def restart(
    view: View, founder: Peer, serial: int, number: int, start: Version, exact_stages: int, reason: str, order: int = 0
) -> View:
    """The first view of a lineage that goes on from snapshots of `start` (rule 36), founded by the leader of `view`.
    `serial` as in fork; `number` at least. `order`: the author's order that it follows with that (rule 47)."""
    parent = view.digest()
    text = f"{parent}/{founder.id}/{founder.nonce}/{serial}/restart"
    name = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    number, epochs = max(view.number + 1, number), len(view.epochs)
    lineage = Lineage(name, 0, exact_stages, "", start, order)
    new = View(view.run, lineage, number, parent, founder, view.holders, view.voters, (number,) * epochs, "")
    return _because(reason, new)


def next_view(
    view: View,
    leader: Peer,
    gone: Collection[Peer],
    vacated: Collection[tuple[int, Peer]],
    fills: Mapping[int, Peer],
    settled: Collection[Peer],
    reason: str,
    joins: Collection[tuple[int, Peer]] = (),
    leaves_out: Collection[int] = (),
    crowds: Crowds = NOBODY_KNOWN,
    unproven: Collection[Peer] = (),
) -> View:
    """The view after `view` without `gone` and `vacated`, with `fills` and `joins` (learners that have learnt), voted
    by the old voters that stay and by those in `settled`, who were Ready in `view` (rule 13), as those were who join.
    `leader` is one of them. Routes leave out what they left out before, and `leaves_out`, unless it has holders now.
    An attempt that began earlier does not go on then, which the epoch shows. No crowd is a quorum alone (rule 44), and
    nobody of `unproven` has a vote (45) but who is alone in a stage that it has learnt."""
    number = view.number + 1
    holders, epochs = [], []
    for stage, group in enumerate(view.holders):
        left = tuple(peer for peer in group if peer not in gone and (stage, peer) not in vacated)
        new = (*([fills[stage]] if stage in fills else []), *(peer for joined, peer in joins if joined == stage))
        now = (*left, *(peer for peer in new if peer not in left))
        changed = bool(now) and not set(now) & set(group)
        holders.append(now)
        left_out = not now and stage in leaves_out and stage not in view.omitted
        epochs.append(number if changed or (now and not group) or left_out else view.epochs[stage])
    members = {leader, *(peer for group in holders for peer in group)}
    alone = {peer for stage, peer in joins if epochs[stage] == number}
    came = {peer for peer in (*settled, *(peer for _, peer in joins)) if peer not in unproven or peer in alone}
    voters = {peer for peer in (*view.voters, *came) if peer in members} | {leader}
    order = [peer for peer in view.voters if peer in voters] + sorted(voters - set(view.voters))
    voting = bounded(order, leader, alone, crowds)
    omitted = _still_empty({*view.omitted, *leaves_out}, holders)
    after = View(
        view.run, view.lineage, number, view.digest(), leader, tuple(holders), voting, tuple(epochs), "", omitted
    )  # fmt: skip
    return _because(reason, after)


def _still_empty(stages: Collection[int], holders: Sequence[Collection[Peer]]) -> tuple[int, ...]:
    return tuple(stage for stage in sorted(stages) if not holders[stage])


def revive(view: View, founder: Peer, serial: int, stages: Collection[int], reason: str) -> View:
    """The first view of a new lineage, founded by a former holder when no voter of `view` is left (rule 16): it has the
    newest weights of `stages`, so it is a survivor in all but name."""
    everywhere = range(len(view.holders))
    holders = tuple((founder,) if stage in stages else () for stage in everywhere)
    epochs = tuple(view.number + 1 if stage in stages else view.epochs[stage] for stage in everywhere)
    omitted = _still_empty(view.omitted, holders)
    as_if = replace(view, holders=holders, voters=(founder,), epochs=epochs, omitted=omitted)
    return fork(as_if, founder, serial, (founder,), reason, view.digest())


def fork(view: View, founder: Peer, serial: int, survivors: Collection[Peer], reason: str, parent: str = "") -> View:
    """The first view of a new lineage, founded by survivors of `view` that have no quorum (rule 16).

    `serial` counts what this life of the founder has founded: it may come back to `view` and found again, and two
    lineages of one name would have two views of one number.
    """
    parent = parent or view.digest()
    holders = tuple(tuple(peer for peer in group if peer in survivors) for group in view.holders)
    name, exact = _name(parent, founder, serial), sum(map(bool, holders))
    past = view.lineage
    lineage = Lineage(name, past.forks + 1, exact, past.origin, past.start, past.order)
    staying = {founder, *(peer for group in holders for peer in group)}  # not a leader of before that held nothing
    voters = tuple(peer for peer in view.voters if peer in survivors and peer in staying) or (founder,)
    new = View(view.run, lineage, view.number + 1, parent, founder, holders, voters, view.epochs, "", view.omitted)
    return _because(reason, new)


def _because(reason: str, view: View) -> View:
    """The view with its reason, as much of it as others let in."""
    return replace(view, reason=reason[:REASON_MAX])


def _name(parent: str, founder: Peer, serial: int) -> str:
    text = f"{parent}/{founder.id}/{founder.nonce}/{serial}"
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def descends(view: View, mine: View) -> bool:
    """Was the lineage of `view`, whichever view of it this is, founded out of `mine` without a quorum (rule 16)? Its
    name tells, as long as its founder votes in it."""
    theirs, ours = view.lineage, mine.lineage
    if (theirs.origin, theirs.forks) != (ours.origin, ours.forks + 1) or view.number <= mine.number:
        return False
    parent, founders = mine.digest(), {view.leader, *view.voters}
    names = (_name(parent, peer, serial) for peer in founders for serial in range(1, SERIALS_MAX + 1))
    return view.previous == parent or theirs.id in names
