"""Where the swarm stands by the word of all members."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ftnode.protocol.recovery.standing import Standing, standing
from ftnode.protocol.words.messages import Ready, StageResult, StageStatus, Status
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import (
    INITIAL_ATTEMPT,
    Attempt,
    Peer,
    Version,
    initial_version,
    next_version,
)
from tests.protocol.step.test_work_split import view

SETTINGS = Settings(run="r" * 32, stages=2, steps=9, microbatches=2, window=2)
BASE = Version(5, "c5", INITIAL_ATTEMPT)
EMPTY, ONE, TWO = Peer("m-empty", 1), Peer("x-one", 1), Peer("y-two", 1)


# -- rule 18: where the swarm stands, from what all members say

A, B, C = (Peer(name, 1) for name in "abc")
SWARM = view((A,), (B,), (C,))
"""A leads and has the head; all three vote."""
T, NEXT, LATER = Attempt(3, 5), Attempt(3, 6), Attempt(3, 7)
AT = Version(5, "c5", T)
BEHIND = Version(4, "c4", Attempt(3, 4))
AHEAD = next_version(AT, "l", NEXT, False)
"""What attempt NEXT makes of AT."""
SKIPPED = next_version(AT, "l", NEXT, True)


def ready(peer: Peer, gradient: str = "", attempt: Attempt = NEXT) -> Ready:
    stage = SWARM.stages_of(peer)[0]
    return Ready("l", 3, 6, attempt, (StageResult(stage, 1.0, gradient or f"g{stage}"),), 0.0, 0, None)


def says(
    peer: Peer, version: Version | None = AT, reduced: Attempt | None = None, *, base: Version | None = AT,
    attempt: Attempt | None = NEXT, stage: int | None = None, working: bool = True, **changes: Any,
) -> Status:  # fmt: skip
    """A member in the middle of attempt NEXT on AT, unless told otherwise."""
    at = SWARM.stages_of(peer)[0] if stage is None else stage
    stages = () if at < 0 else (StageStatus(at, version, reduced, working),)
    plain = Status("l", 4, attempt, 6, base, False, False, False, stages, None, (), (), (), (), -1)
    return replace(plain, **changes)


def done(peer: Peer, **changes: Any) -> Status:
    """It is Ready for NEXT."""
    return says(peer, reduced=changes.get("attempt", NEXT), **{"ready": ready(peer), **changes})


def newcomer(peer: Peer, version: Version | None = None, **changes: Any) -> Status:
    """It has got no Begin in this lineage."""
    return says(peer, version, base=None, attempt=None, working=False, **changes)


def on_its_way(peer: Peer, **changes: Any) -> Status:
    """Its weights of AT are not here yet."""
    return says(peer, None, **changes)


AHEAD_A = says(A, AHEAD, base=AHEAD, attempt=LATER)
"""It has got the Begin that commits AHEAD."""
REDONE, NOTHING = "a holder was lost in mid-step: the step is done again", "the next step begins"
LIED = "a member lacks a step that it took part in"
READY = "everybody who is left has done its part: the step counts"
GOES_ON = "nobody is missing: the step goes on"
C_EMPTY = ((2, C),)
"""C holds stage 2 and has nothing in it that is of use."""


def stands(base: Version, reason: str, **changes: Any) -> Standing:
    plain = Standing(base, False, None, None, False, False, (), reason)
    return replace(plain, **changes)


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ((AHEAD_A, done(B), done(C)), stands(AHEAD, REDONE)),
        ((AHEAD_A, done(B), newcomer(C)), stands(AHEAD, REDONE, empty=C_EMPTY)),
        ((AHEAD_A, done(B), newcomer(C, AHEAD)), stands(AHEAD, REDONE)),
        ((AHEAD_A, done(B), newcomer(C, AT)), stands(AHEAD, REDONE, empty=C_EMPTY)),
        ((AHEAD_A, done(B), on_its_way(C)), stands(AHEAD, REDONE, empty=C_EMPTY)),
        ((AHEAD_A, says(B), done(C)), stands(AHEAD, LIED, behind=(B,))),
        ((AHEAD_A, done(B, attempt=LATER), done(C)), stands(AHEAD, LIED, behind=(B,))),
        ((AHEAD_A, says(B, BEHIND, LATER), says(C, BEHIND)), stands(AHEAD, LIED, behind=(B, C))),
    ],
    ids=[
        "all others are Ready for it", "a newcomer without weights", "a newcomer with exactly these",
        "a newcomer with those of before", "weights on their way", "one is not Ready",
        "one is Ready for another attempt", "two are further behind",
    ],
)  # fmt: skip
def test_i_a_commit_that_one_has_got_is_a_commit(statuses: tuple[Status, ...], expected: Standing) -> None:
    assert standing(SWARM, dict(zip((A, B, C), statuses))) == expected


ALL_READY = (ready(A), ready(B), ready(C))


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ((done(A), done(B), done(C)), stands(AHEAD, READY, commits_now=ALL_READY)),
        ((done(A), done(B), newcomer(C)), stands(AHEAD, READY, commits_now=ALL_READY[:2], empty=C_EMPTY)),
        ((done(A), done(B), newcomer(C, AHEAD)), stands(AHEAD, READY, commits_now=ALL_READY[:2])),
        ((done(A), done(B), newcomer(C, AT)), stands(AHEAD, READY, commits_now=ALL_READY[:2], empty=C_EMPTY)),
        ((done(A), done(B), on_its_way(C)), stands(AHEAD, READY, commits_now=ALL_READY[:2], empty=C_EMPTY)),
        (
            (done(A, skip=True), done(B, skip=True), done(C, skip=True)),
            stands(SKIPPED, READY, commits_now=ALL_READY, skipped=True),
        ),
        ((done(A), done(B), says(C)), stands(AT, GOES_ON, continues=NEXT)),
        ((done(A), done(B), done(C, attempt=LATER)), stands(AT, REDONE)),
    ],
    ids=[
        "all", "all but a newcomer", "a newcomer with exactly these", "a newcomer with those of before",
        "all that have weights", "a step that is skipped", "not all", "of different attempts",
    ],
)  # fmt: skip
def test_ii_an_attempt_that_all_survivors_are_ready_for_is_committed(
    statuses: tuple[Status, ...], expected: Standing
) -> None:
    assert standing(SWARM, dict(zip((A, B, C), statuses))) == expected


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ((says(A), says(B), says(C)), stands(AT, GOES_ON, continues=NEXT)),
        ((done(A), says(B), done(C)), stands(AT, GOES_ON, continues=NEXT)),
        ((says(A, skip=True), done(B), says(C)), stands(AT, GOES_ON, continues=NEXT, skip=True)),
        ((says(A, evaluate=True), says(B), says(C)), stands(AT, GOES_ON, continues=NEXT, evaluate=True)),
        ((says(A, skipped=True), says(B), says(C)), stands(AT, GOES_ON, continues=NEXT, skipped=True)),
        ((says(A), says(B), says(C, working=False)), stands(AT, REDONE)),
        ((says(A), says(B), newcomer(C)), stands(AT, REDONE, empty=C_EMPTY)),
    ],
    ids=[
        "nobody is Ready", "some are", "it skips its step", "it validates", "its base was skipped",
        "a stage that was given away comes back", "a newcomer",
    ],
)  # fmt: skip
def test_iii_an_attempt_without_newcomers_and_gaps_goes_on(statuses: tuple[Status, ...], expected: Standing) -> None:
    assert standing(SWARM, dict(zip((A, B, C), statuses))) == expected


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ((done(A), says(B), newcomer(C)), stands(AT, REDONE, empty=C_EMPTY)),
        ((done(A), says(B), newcomer(C, AT)), stands(AT, REDONE)),
        ((says(A), says(B), on_its_way(C)), stands(AT, REDONE, empty=C_EMPTY)),
        ((says(A), says(B), says(C, base=None)), stands(AT, REDONE)),
        ((says(A), says(B), says(C, attempt=LATER)), stands(AT, REDONE)),
        ((says(A), says(B), says(C, attempt=None)), stands(AT, REDONE)),
        (tuple(says(peer, attempt=None) for peer in (A, B, C)), stands(AT, NOTHING)),
        ((on_its_way(A), on_its_way(B), on_its_way(C)), stands(AT, NOTHING, empty=((0, A), (1, B), (2, C)))),
        (
            (newcomer(A), newcomer(B), newcomer(C)),
            stands(initial_version("l"), NOTHING, empty=((0, A), (1, B), (2, C))),
        ),
        ((newcomer(A, AT), newcomer(B, AT), newcomer(C)), stands(AT, NOTHING, empty=C_EMPTY)),
    ],
    ids=[
        "a newcomer", "a newcomer with the weights", "weights on their way", "one works without a Begin",
        "two attempts", "one is in none",
        "all are in none", "nobody has weights", "nothing was ever begun", "what voters have without a Begin",
    ],
)  # fmt: skip
def test_iv_otherwise_the_step_is_redone(statuses: tuple[Status, ...], expected: Standing) -> None:
    assert standing(SWARM, dict(zip((A, B, C), statuses))) == expected


@pytest.mark.parametrize(
    ("theirs", "sums", "expected"),
    [
        (says(C, stage=1), ("g1", ""), stands(AT, GOES_ON, continues=NEXT)),
        (done(C, stage=1), ("g1", "g1"), stands(AHEAD, READY)),
        (done(C, stage=1), ("g1", "another"), stands(AT, GOES_ON, continues=NEXT)),
        (newcomer(C, stage=1), ("g1", ""), stands(AHEAD, READY, empty=((1, C),))),
        (says(C, None, stage=1), ("g1", ""), stands(AHEAD, READY, empty=((1, C),))),
    ],
    ids=["one has its sum", "both have the same", "they have two sums", "a newcomer", "its weights are on their way"],
)
def test_a_stage_of_two_is_committed_with_one_sum_alone(
    theirs: Status, sums: tuple[str, str], expected: Standing
) -> None:
    """A has the head and stage 2, B and C have stage 1."""
    swarm = view((A,), (B, C), (A,))
    both = tuple(StageStatus(stage, AT, NEXT, True) for stage in (0, 2))
    first, second = (ready(B, gradient) for gradient in sums)
    theirs = replace(theirs, ready=second if sums[1] else None)
    told = standing(swarm, {A: done(A, stages=both), B: done(B, ready=first), C: theirs})
    assert replace(told, commits_now=None) == expected
    assert (told.commits_now is not None) == (expected.base == AHEAD)


@pytest.mark.parametrize(
    ("missing", "vacuous"),
    [
        ((), set()),
        (((1, B),), set()),
        (((1, B), (1, C)), {1}),
        (((0, A), (1, C)), {0}),
        (((0, A), (1, B), (1, C)), {0, 1}),
    ],
    ids=["nothing is missing", "one has it", "none has it", "another stage", "two stages"],
)
def test_a_stage_is_lost_when_none_of_its_holders_has_it(
    missing: tuple[tuple[int, Peer], ...], vacuous: set[int]
) -> None:
    assert stands(AT, REDONE, empty=missing).vacuous(view((A,), (B, C), ())) == vacuous


@pytest.mark.parametrize(
    ("voters", "start", "told", "base", "empty"),
    [
        ((A, B, C), None, (AT, AT, AHEAD), AHEAD, ((0, A), (1, B))),
        ((A, B), None, (AT, AT, AHEAD), AT, C_EMPTY),
        ((C,), None, (AT, AT, BEHIND), BEHIND, ((0, A), (1, B))),
        ((A, B), None, (None, None, AHEAD), initial_version("l"), ((0, A), (1, B), (2, C))),
        ((A, B), AT, (None, None, AT), AT, ((0, A), (1, B))),
    ],
    ids=["all vote", "one does not", "one votes alone", "voters have nothing", "it goes on from disks"],
)
def test_where_nothing_was_begun_the_voters_say_what_there_is(
    voters: tuple[Peer, ...], start: Version | None, told: tuple[Version | None, ...], base: Version,
    empty: tuple[tuple[int, Peer], ...],
) -> None:  # fmt: skip
    swarm = replace(SWARM, voters=voters, lineage=replace(SWARM.lineage, start=start))
    statuses = {peer: newcomer(peer, version) for peer, version in zip((A, B, C), told)}
    assert standing(swarm, statuses) == stands(base, NOTHING, empty=empty)


@pytest.mark.parametrize(
    ("version", "working", "expected"),
    [
        (AT, True, stands(AT, GOES_ON, continues=NEXT)),
        (AT, False, stands(AT, REDONE)),
        (None, True, stands(AT, REDONE, empty=((2, A),))),
        (BEHIND, False, stands(AT, REDONE, empty=((2, A),))),
        (BEHIND, True, stands(AT, LIED, behind=(A,))),
    ],
    ids=["whole", "taken over just now", "on its way", "weights of long ago", "behind the commit"],
)
def test_each_stage_of_a_member_counts(version: Version | None, working: bool, expected: Standing) -> None:
    swarm = view((A,), (B,), (A,))
    stages = (StageStatus(0, AT, None, True), StageStatus(2, version, None, working))
    assert standing(swarm, {A: says(A, stages=stages), B: says(B)}) == expected
