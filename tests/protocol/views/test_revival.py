"""Rule 16 when no voter is left: former holders go on in their turn, and do not give the view up before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from ftnode.protocol.participant import Participant
from ftnode.protocol.views.succession import genesis, revive
from ftnode.protocol.words.events import ComputeReady, Directory, Received, Wake
from ftnode.protocol.words.messages import Certificate, founding_proof
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Attempt, Peer, Version

SETTINGS = Settings("r", stages=2, steps=100, microbatches=2, window=1)
LEASE, PATIENCE = SETTINGS.lease_seconds, SETTINGS.minority_wait_seconds
FOUNDED = genesis("r", Peer("a", 1), (0, 1, 2), 3)
VIEW = replace(FOUNDED, holders=(*FOUNDED.holders[:2], (Peer("a", 1), Peer("q", 1))))
"""q holds a stage, and has no vote."""
NEWEST = Version(6, "c", Attempt(0, 6))


def former_holder() -> Participant:
    """Of stage 1, outside the view; the one voter has just been heard for the last time."""
    core = Participant(Peer("p", 1), SETTINGS, Random(1), hold=1)
    core.handle(ComputeReady(1, True, 1.0), 0.0)
    core.handle(Received(Peer("a", 1), Certificate(VIEW, True, (), 0, founding_proof(Peer("a", 1))), None), 0.1)
    core.holder.versions[1] = NEWEST
    core.holder.weights.made_in[1] = VIEW.lineage.id, VIEW.lineage.origin
    return core


def others(count: int) -> tuple[Presence, ...]:
    """They say that they have the newest weights of stage 2, and all come before us."""
    return tuple(
        Presence(Peer(f"o{i}", 1), ("/x",), VIEW.lineage.id, 0, 1, True, (), ((2, NEWEST),), (), 1.0, ())
        for i in range(count)
    )


def goes_on_after(core: Participant, directory: Callable[[float], Directory], limit: float = 1000.0) -> float:
    """Until it has left the view that it knows."""
    now = 0.2
    while now < limit and (core.view is None or core.view.lineage.id == VIEW.lineage.id):
        core.handle(directory(now), now)
        core.handle(Wake(), now)
        now += 1.0
    return now


@pytest.mark.parametrize(("rank", "until"), [(0, 0.0), (1, 91.0), (1, 1000.0), (2, 1000.0)])
def test_each_former_holder_has_its_turn(rank: int, until: float) -> None:
    """Those before us are told of by the directory and never go on."""
    core = former_holder()
    there = others(rank)
    went_on = goes_on_after(core, lambda now: Directory(there if now < until else (), ()))
    assert core.view is not None and (core.view.lineage.forks, core.view.leader) == (1, core.me)
    assert went_on <= PATIENCE + 2 * (1 + rank) * LEASE + 3.0


def test_who_tells_of_later_weights_goes_first() -> None:
    core = former_holder()
    later = Presence(Peer("z", 1), ("/x",), "", 0, 1, True, (), ((2, Version(9, "d", Attempt(0, 9))),), (), 1.0, ())
    went_on = goes_on_after(core, lambda now: Directory((later,), ()))
    assert went_on > PATIENCE + 4 * LEASE


def test_what_it_keeps_of_others_goes_on_with_the_founder_alone() -> None:
    """Another one's copy may be of a commit that the founder does not have."""
    for follows in (False, True):
        core = former_holder()
        core.holder.copies.held[0] = NEWEST
        core.holder.copies._made_in[0] = VIEW.lineage.id
        if follows:
            founder = Peer("q", 1)
            core.handle(
                Received(
                    founder,
                    Certificate(revive(VIEW, founder, 1, (2,), "why"), True, (), 0, founding_proof(founder)),
                    None,
                ),
                100.0,
            )
        else:
            goes_on_after(core, lambda now: Directory((), ()))
        assert core.view is not None and core.view.lineage.forks == 1
        assert bool(core.holder.copies.held) != follows and core.holder.ours == {1: NEWEST}


def test_strangers_who_claim_the_weights_do_not_put_it_off_for_ever() -> None:
    core, there = former_holder(), others(100)
    went_on = goes_on_after(core, lambda now: Directory(there, ()))
    assert core.view is not None and core.view.leader == core.me
    assert went_on <= PATIENCE + 2 * (1 + SETTINGS.stage_count) * LEASE + 3.0


def test_who_waits_for_its_turn_follows_a_swarm_that_goes_on_elsewhere() -> None:
    """Of another past, so that our weights are worth something against it, but not longer than before."""
    core, there = former_holder(), others(2)
    elsewhere = genesis("r", Peer("b", 1), (0, 1, 2), 3)
    went_on = goes_on_after(core, lambda now: Directory(there, (elsewhere,)))
    assert core.view == elsewhere
    assert went_on <= PATIENCE + 4 * LEASE + 3.0


def test_who_has_nothing_to_go_on_with_gives_the_view_up() -> None:
    core = former_holder()
    core.holder.versions.clear()
    goes_on_after(core, lambda now: Directory((), ()), PATIENCE + 3 * LEASE + 3.0)
    assert core.view is None
