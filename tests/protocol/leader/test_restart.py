"""When a run goes on from its disks, and from which step: the leader's look at them alone (rules 34 to 36)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from ftnode.protocol.leader.leader_memory import LeaderMemory
from ftnode.protocol.leader.losses import Losses
from ftnode.protocol.leader.progress import ViewProgress
from ftnode.protocol.leader.restart import Restart
from ftnode.protocol.recovery.standing import Standing
from ftnode.protocol.situation import GoOnFromDisks, Situation
from ftnode.protocol.words.effects import Note
from ftnode.protocol.words.records import LIFETIME_SECONDS_MAX
from ftnode.protocol.words.types import Attempt, Peer, Snapshot, Version, initial_version
from tests.protocol.situations import (
    NOW,
    SETTINGS,
    VIEW,
    A,
    B,
    C,
    D,
    Held,
    Past,
    Vote,
    alive,
    situation,
    standby,
    status,
)

KEEPING = replace(SETTINGS, snapshot_every=5)
WAIT = KEEPING.restart_wait_seconds
TEN = Version(10, "c10", Attempt(2, 10))
FIRST = initial_version("lineage")


def kept(*stages: int, version: Version = TEN, epoch: int = 1) -> tuple[Snapshot, ...]:
    return tuple(Snapshot(stage, version, f"digest{stage}", epoch) for stage in stages)


def disks(of: dict[Peer, tuple[Snapshot, ...]], base: Version | None = FIRST, halted: str = "") -> Restart:
    """All members have said what is on their disks."""
    memory, progress = LeaderMemory(), ViewProgress(base=base, halted=halted)
    progress.statuses = {
        peer: status({}, snapshots=of.get(peer, ())) for peer in VIEW.members() if peer != A
    }  # fmt: skip
    return Restart(VIEW, memory, progress, Losses(VIEW, memory, progress, KEEPING))


def at(seconds: float, ours: tuple[Snapshot, ...] = (), **changes: Any) -> Situation:
    said = {"settings": KEEPING, "now": NOW + seconds, "own": Held(snapshots=ours), **changes}
    return situation(**said)


WHOLE = {B: kept(1), C: kept(2)}


def looked(role: Restart, times: Iterable[float], ours: tuple[Snapshot, ...], **changes: Any) -> list[Any]:
    """What it decides when it looks at these moments."""
    told: list[Any] = []
    for seconds in times:
        s = at(seconds, ours, **changes)
        role.listen(s)
        told += role.look(s)
    return told


@pytest.mark.parametrize(
    ("waited", "ours", "others", "known", "goes"),
    [
        (KEEPING.lease_seconds - 0.1, kept(0), WHOLE, 0, False),
        (KEEPING.lease_seconds, kept(0), WHOLE, 0, True),
        (WAIT - 0.1, kept(0), WHOLE, 12, False),
        (WAIT, kept(0), WHOLE, 12, True),
        (WAIT - 0.1, kept(0), {B: kept(1)}, 0, False),
        (WAIT, kept(0), {B: kept(1)}, 0, True),
        (WAIT, (), WHOLE, 0, False),
    ],
    ids=[
        "whole, at once", "whole, after a lease", "a later step is known", "and was waited for", "one is to be rebuilt",
        "and was waited for, too", "nobody has the head",
    ],
)  # fmt: skip
def test_it_goes_on_from_the_best_version_after_a_wait(
    waited: float, ours: tuple[Snapshot, ...], others: dict[Peer, tuple[Snapshot, ...]], known: int, goes: bool
) -> None:
    role = disks(others)
    told = looked(role, (0.0, waited), ours, history=Past(known))
    went = [each for each in told if isinstance(each, GoOnFromDisks)]
    assert [(each.start, each.exact_stages) for each in went] == ([(TEN, len(others) + 1)] if goes else [])
    assert goes or role.waiting


def test_what_is_waited_for_is_said_with_how_long() -> None:
    """And what comes of it then: a person whose stage is damaged must not look at a wait without an end."""
    role = disks(WHOLE)
    looked(role, (0.0,), kept(0))
    assert role.waiting == "others who start at this moment, 10 s at most: step 10 is whole on the disks here"
    role = disks({B: kept(1)})
    looked(role, (0.0,), kept(0))
    sight = "the disks here make step 10 possible, where stage 2 would be rebuilt; step 10 is known"
    assert role.waiting == f"others who were there, {WAIT:.0f} s at most: {sight}"
    looked(role, (0.0,), kept(0), liveness=alive())
    assert role.waiting == f"others who were there: {sight}", "nobody knows how long a quorum takes"


def test_the_new_lineage_is_numbered_above_all_epochs() -> None:
    told = looked(disks({B: kept(1, epoch=8), C: kept(2)}), (0.0, WAIT), kept(0))
    assert [each.number for each in told] == [9]


def test_a_leader_without_a_quorum_founds_nothing() -> None:
    role = disks(WHOLE)
    assert looked(role, (0.0, WAIT), kept(0), liveness=alive()) == [] and role.waiting


def test_steps_that_may_not_be_lost_halt_it() -> None:
    role = disks(WHOLE)
    told = looked(role, (0.0, WAIT), kept(0), settings=replace(KEEPING, rollback_max=5), history=Past(16))
    assert [note.kind for note in told if isinstance(note, Note)] == ["halt"]
    assert role.progress.halted.startswith("halted: the disks here make step 10 possible and step 16 is known")
    role = disks(WHOLE)
    told = looked(role, (0.0, WAIT), kept(0), settings=replace(KEEPING, rollback_max=6), history=Past(16))
    assert [type(each) for each in told] == [GoOnFromDisks]


HEARSAY, LONG_AGO = WAIT + LIFETIME_SECONDS_MAX, 10**4


def test_who_tells_of_disks_again_and_again_is_waited_for_once() -> None:
    memory = LeaderMemory()
    for now in (0.0, WAIT - 0.1, 2 * WAIT - 0.2):
        memory.heard_of_disks(now, WAIT)
        assert (memory.disks_told_since, memory.disks_heard) == (0.0, now)
    memory.heard_of_disks(3 * WAIT, WAIT)
    assert memory.disks_told_since == 3 * WAIT


def where(base: Version) -> Standing:
    return Standing(base, False, None, None, False, False, (), "")


@pytest.mark.parametrize(
    ("base", "every", "others", "since", "heard", "concerns"),
    [
        (FIRST, 5, WHOLE, LONG_AGO, 0.0, True),
        (FIRST, 5, {B: kept(0, 1)}, LONG_AGO, 0.0, True),
        (FIRST, 5, {B: kept(1, 2)}, HEARSAY - 0.1, 0.0, True),
        (FIRST, 5, {B: kept(1, 2)}, HEARSAY, 0.0, False),
        (FIRST, 0, WHOLE, 0.0, None, False),
        (TEN, 5, WHOLE, 0.0, None, False),
        (FIRST, 5, {}, 0.0, None, False),
        (FIRST, 5, {}, WAIT, WAIT - 0.1, True),
        (FIRST, 5, {}, WAIT, WAIT, False),
        (FIRST, 5, {}, HEARSAY - 0.1, 0.0, True),
        (FIRST, 5, {}, HEARSAY, 0.0, False),
    ],
    ids=[
        "two tell of it", "one has enough of it", "one has no head", "one has none for long", "nothing is ever stored",
        "weights are there", "nobody tells of any", "just now", "long ago", "they do not answer",
        "they do not answer for long",
    ],
)  # fmt: skip
def test_disks_are_looked_at(
    base: Version, every: int, others: dict[Peer, tuple[Snapshot, ...]], since: float, heard: float | None,
    concerns: bool,
) -> None:  # fmt: skip
    role = disks(others)
    role.memory.disks_told_since = NOW - since
    role.memory.disks_heard = NOW - heard if heard is not None else None
    assert role.concerns(at(0.0, settings=replace(KEEPING, snapshot_every=every)), where(base)) is concerns


def test_a_question_changes_nothing_and_a_word_that_was_heard_is_remembered() -> None:
    role = disks(WHOLE)
    s = at(0.0, kept(0))
    assert role.prospect(s) == 10 and set(role.known(s)) == {A, B, C} and role.kept(s, TEN).keys() == {0, 1, 2}
    assert role.concerns(s, where(FIRST)) and role.hint(s)
    assert role.memory == LeaderMemory()
    role.listen(s)
    assert role.memory.disks_heard == NOW


def test_what_is_said_is_taken_down_once_a_heartbeat_and_when_others_are_there() -> None:
    role = disks({})
    listed = standby(D, 0)
    role.listen(at(0.0, presences=listed))
    role.progress.statuses[B] = status({}, snapshots=kept(1))
    assert not role.known(at(0.1, presences=listed)), "it is looked at soon"
    assert role.known(at(KEEPING.heartbeat_seconds, presences=listed)).keys() == {B}
    assert role.known(at(0.1, presences=standby(D, snapshots=kept(2)))).keys() == {B, D}


@pytest.mark.parametrize(
    ("base", "halted", "waits", "asked", "ballots", "decided"),
    [
        (FIRST, "", "others", False, Vote(), "anew"),
        (FIRST, "", "", False, Vote(), ""),
        (FIRST, "", "others", False, Vote(True), ""),
        (TEN, "halted: no head", "", False, Vote(), "looks"),
        (TEN, "halted: no head", "", True, Vote(), ""),
        (TEN, "", "others", False, Vote(), "rests"),
    ],
    ids=["it waits", "it does not", "a ballot is under way", "it halts", "somebody is asked", "it trains"],
)
def test_at_a_heartbeat(base: Version, halted: str, waits: str, asked: bool, ballots: Vote, decided: str) -> None:
    role = disks(WHOLE, base, halted)
    role.waiting = waits
    role.memory.possible_since = role.memory.possible_at = NOW - 1.0
    anew, told = role.beat(at(0.0, kept(0), ballots=ballots), asked)
    assert (anew, told) == (decided == "anew", [])
    assert bool(role.waiting) is (decided == "looks" or (waits != "" and decided != "rests"))


def test_disks_that_are_not_lent_are_asked_again_later() -> None:
    role = disks({}, TEN, "halted: no head")
    role.memory.broken["b", 1, TEN], role.memory.broken_at = 2, NOW
    for seconds, left in ((WAIT - 0.1, 1), (WAIT, 0)):
        role.beat(at(seconds), False)
        assert len(role.memory.broken) == left
