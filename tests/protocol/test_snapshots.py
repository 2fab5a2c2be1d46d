"""What the disks of a swarm make possible, as tables; and what nobody may say of a disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

import pytest

from ftnode.protocol.admission import objection
from ftnode.protocol.codec import from_tagged, tagged
from ftnode.protocol.events import EVENTS, Snapshots
from ftnode.protocol.messages import Status
from ftnode.protocol.participant import Participant
from ftnode.protocol.presence import presence_of
from ftnode.protocol.settings import Settings
from ftnode.protocol.snapshots import RESTART_FORKS, TOLD_MAX, common, kept_of, numbers_after, sensible, within
from ftnode.protocol.succession import genesis, restart
from ftnode.protocol.types import INITIAL_ATTEMPT, Attempt, Peer, Snapshot, Version

A, B, C, D = (Peer(name, 1) for name in "abcd")
SETTINGS = Settings("r", stages=3, steps=100, microbatches=2, window=1, snapshot_every=10)


def version(step: int, branch: str = "x") -> Version:
    return Version(step, f"{branch}{step}", Attempt(1, step))


def snapshot(stage: int, step: int, branch: str = "x", digest: str = "d", epoch: int = 0, forks: int = 0) -> Snapshot:
    return Snapshot(stage, version(step, branch), digest, epoch, forks)


def disks(kept: Mapping[Peer, str]) -> dict[Peer, tuple[Snapshot, ...]]:
    """`a: "0@10 1@20y"`: stage 0 of step 10, and stage 1 of step 20 of another branch."""
    found = {}
    for peer, text in kept.items():
        words = [word.partition("@") for word in text.split()]
        found[peer] = tuple(
            snapshot(int(stage), int(step.rstrip("xy")), "y" if step.endswith("y") else "x") for stage, _, step in words
        )
    return found


@pytest.mark.parametrize(
    ("kept", "highest", "rollback_max", "best"),
    [
        ({A: "0@20 1@20", B: "2@20 3@20"}, 20, 0, (20, ())),
        ({A: "0@10 1@10 0@20", B: "2@10 3@10 2@20 3@20"}, 20, 0, (10, ())),  # whole before newer
        ({A: "0@10 1@10 0@20", B: "2@10 3@10 2@20 3@20"}, 20, 9, (20, (1,))),  # unless too much is lost
        ({A: "0@10 0@20", B: "2@10 3@10 2@20 3@20"}, 20, 0, (20, (1,))),  # a stage that nobody kept
        ({A: "0@10 1@10", B: "2@10"}, 40, 20, None),  # too long ago
        ({A: "1@10 2@10", B: "3@10"}, 10, 0, None),  # the head cannot be rebuilt
        ({A: "0@10"}, 10, 0, None),  # nor can all blocks
        ({A: "0@10 1@10 2@10y 3@10y", B: "0@5 1@5 2@5 3@5"}, 10, 0, (5, ())),  # two branches never mix
        ({}, 0, 0, None),
    ],
)
def test_what_the_disks_make_possible(
    kept: dict[Peer, str], highest: int, rollback_max: int, best: tuple[int, tuple[int, ...]] | None
) -> None:
    settings = replace(SETTINGS, rollback_max=rollback_max)
    found = within(common(disks(kept), settings), highest, settings)
    assert ((found[0].version.step, found[0].missing) if found else None) == best


def test_the_digest_that_most_have_counts() -> None:
    known = {A: (snapshot(1, 10, digest="bad"),), B: (snapshot(1, 10),), C: (snapshot(1, 10),), D: (snapshot(2, 10),)}
    assert kept_of(version(10), known) == {1: ("d", (B, C)), 2: ("d", (D,))}
    assert kept_of(version(10), {A: known[A], B: known[B]})[1] == ("bad", (A,)), "the lower of two"
    twice = {A: (snapshot(1, 10, digest="bad"), snapshot(1, 10)), B: known[A]}
    assert kept_of(version(10), twice)[1] == ("bad", (B,)), "nobody votes twice"


def test_a_lineage_from_disks_is_numbered_above_the_past_and_ranks_behind_what_lived_on() -> None:
    assert numbers_after([]) == (0, 0)
    number, forks = numbers_after([snapshot(0, 10, epoch=7, forks=2), snapshot(1, 10, epoch=3, forks=1)])
    assert (number, forks) == (8, RESTART_FORKS)
    again = numbers_after([snapshot(0, 10, epoch=9, forks=forks + 3)])
    assert again == (10, 2 * RESTART_FORKS)
    view = restart(genesis("r", A, (0,), 4), A, 1, number, forks, 4, "why")
    lived = replace(view.lineage, forks=5, exact_stages=1)
    assert lived.beats(view.lineage) and not view.lineage.beats(lived)
    assert (
        view.number == 8 and view.epochs == (8,) * 4 and view.lineage.id != restart(view, A, 2, 0, 0, 4, "").lineage.id
    )


def test_what_no_disk_can_have_is_not_heard() -> None:
    good = snapshot(3, 100)
    assert sensible(good, SETTINGS)
    assert sensible(replace(good, version=replace(good.version, attempt=INITIAL_ATTEMPT)), SETTINGS)
    bad = [
        replace(good, stage=4), replace(good, stage=-1), snapshot(0, 0), snapshot(0, 101), replace(good, digest=""),
        replace(good, digest="d" * 129), replace(good, epoch=-1), replace(good, forks=2**60),
        replace(good, version=replace(good.version, commit="c" * 129)),
        replace(good, version=replace(good.version, attempt=Attempt(2**50, 1))),
    ]  # fmt: skip
    assert not any(sensible(one, SETTINGS) for one in bad)
    status = Status("l", 1, None, 0, None, False, False, False, (), None, (), (), (), (), -1, (good,))
    assert objection(A, status, None, SETTINGS) == ""
    for snapshots in [(one,) for one in bad] + [(good,) * (TOLD_MAX + 1)]:
        assert objection(A, replace(status, snapshots=snapshots), None, SETTINGS)


def test_a_peer_tells_of_its_newest_and_travels_as_it_is() -> None:
    core = Participant(A, SETTINGS, Random(1))
    event = Snapshots(tuple(snapshot(stage, step) for step in range(1, 100) for stage in range(3)))
    core.handle(from_tagged(EVENTS, tagged(event)), 0.0)
    told = presence_of(core).snapshots
    assert len(told) == TOLD_MAX and [one.version.step for one in told[:4]] == [99, 99, 99, 98]
    core.handle(Snapshots(()), 1.0)
    assert presence_of(core).snapshots == ()
