"""What the disks of a swarm make possible, as tables; and what nobody may say of a disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from time import process_time

import pytest

from ftnode.protocol.participant import Participant
from ftnode.protocol.recovery import disk_versions
from ftnode.protocol.recovery.disk_versions import JUMP_MAX, common, credible_step, kept_of, number_after, within
from ftnode.protocol.recovery.rungs import Available, Choice, filled_from
from ftnode.protocol.views.succession import fork, genesis, restart
from ftnode.protocol.wire.admission import objection
from ftnode.protocol.words.codec import from_tagged, tagged
from ftnode.protocol.words.events import EVENTS, Snapshots
from ftnode.protocol.words.messages import Status
from ftnode.protocol.words.records import EPOCH_MAX, TOLD_MAX, sensible
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import INITIAL_ATTEMPT, Attempt, Peer, Snapshot, Version

A, B, C, D = (Peer(name, 1) for name in "abcd")
SETTINGS = Settings("r", stages=3, steps=100, microbatches=2, window=1, snapshot_every=10)


def version(step: int, branch: str = "x") -> Version:
    return Version(step, f"{branch}{step}", Attempt(1, step))


def snapshot(stage: int, step: int, branch: str = "x", digest: str = "d", epoch: int = 0) -> Snapshot:
    return Snapshot(stage, version(step, branch), digest, epoch)


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
        ({A: "0@10 1@10 0@90", B: "2@10 3@10 2@90 3@90"}, 90, 0, (10, ())),
        ({A: "0@10 1@10 0@999", B: "2@10 3@10 2@999 3@999"}, 999, 0, (999, (1,))),  # or it is long ago
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


def test_a_lineage_from_disks_is_numbered_above_the_past() -> None:
    assert number_after([], 3) == 4
    number = number_after([snapshot(0, 10, epoch=7), snapshot(1, 10, epoch=3)], 0)
    assert number == 8
    assert number_after([snapshot(0, 10, epoch=EPOCH_MAX - 1)], 5) == 5 + JUMP_MAX, (
        "a liar moves it so far and no further"
    )
    view = restart(genesis("r", A, (0,), 4), A, 1, number, version(10), 4, "why")
    assert view.lineage.from_disks and view.lineage.start == version(10)
    assert view.number == 8 and view.epochs == (8,) * 4
    again = restart(view, A, 2, 0, version(10), 4, "")
    assert again.number == 9 and again.lineage.id != view.lineage.id and again.lineage.origin != view.lineage.origin
    forked = fork(view, A, 3, (A,), "why")
    assert forked.lineage.origin == view.lineage.origin and forked.lineage.start == version(10)
    assert not forked.lineage.from_disks


def test_one_liar_names_no_step_that_others_must_wait_for() -> None:
    known = {A: (snapshot(1, 90),), B: (snapshot(0, 20), snapshot(1, 20)), C: (snapshot(2, 20), snapshot(3, 20))}
    two, alone = known | {D: (snapshot(2, 90),)}, {A: (snapshot(0, 90), snapshot(1, 90))}
    assert credible_step(known, common(known, SETTINGS)) == 20
    assert credible_step(two, common(two, SETTINGS)) == 90, "two say so"
    assert credible_step(alone, common(alone, SETTINGS)) == 90, "it is possible"


def test_of_very_many_versions_each_set_of_stages_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the head among them, which cannot be rebuilt, and without. Else 256 strangers would take a leader of 32
    stages a second at each heartbeat of a restart."""
    looked = list[int]()

    def counted(stage: int, available: Available, settings: Settings) -> Choice:
        looked.append(stage)
        return filled_from(stage, available, settings)

    monkeypatch.setattr(disk_versions, "filled_from", counted)
    settings, told = replace(SETTINGS, stages=32), dict[Peer, tuple[Snapshot, ...]]()
    for i in range(64):
        steps = range(1, 33)
        pairs = [snapshot(stage, step, f"b{i}-{step}") for step in steps for stage in (0, 1 + step % 4)]
        told[Peer(f"p{i}", 1)] = (*pairs, *(snapshot(1, step, f"c{i}-{step}") for step in steps))
    found = common(told, settings)
    assert len(found) == 64 * 32 and {len(one.missing) for one in found} == {31}
    assert len(looked) == 4 * 31 + 1


def test_what_many_liars_tell_of_is_looked_at_once() -> None:
    """Quadratic in what is told, it would take minutes."""
    known = {Peer(f"p{i}", 1): tuple(snapshot(1, step, f"b{i}-{step}") for step in range(1, 65)) for i in range(256)}
    began = process_time()
    assert common(known, SETTINGS) == []
    assert process_time() - began < 5.0


def test_what_no_disk_can_have_is_not_heard() -> None:
    good = snapshot(3, 100)
    assert sensible(good, SETTINGS)
    assert sensible(replace(good, version=replace(good.version, attempt=INITIAL_ATTEMPT)), SETTINGS)
    bad = [
        replace(good, stage=4), replace(good, stage=-1), snapshot(0, 0), snapshot(0, 101), replace(good, digest=""),
        replace(good, digest="d" * 129), replace(good, epoch=-1), replace(good, epoch=2**60),
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
    told = core.presence().snapshots
    assert len(told) == TOLD_MAX and [one.version.step for one in told[:4]] == [99, 99, 99, 98]
    core.handle(Snapshots(()), 1.0)
    assert core.presence().snapshots == ()
