"""A stage with several holders: what each has told, and when the sum is due. The role alone."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from ftnode.protocol.step.group import CONTRIBUTORS_MAX, Groups
from ftnode.protocol.words.effects import Effect, Reduce, Send
from ftnode.protocol.words.events import SumOwed
from ftnode.protocol.words.messages import Share, Wait
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Attempt, Direction, Peer
from ftnode.protocol.words.view import View
from tests.protocol.beginnings import begun
from tests.protocol.situations import NOW, SETTINGS, A, B, C, D, view_of

VIEW = view_of((A,), (B, C), (D,))
"""Two hold stage 1, which four microbatches meet at visit 1."""
LEARNER = Peer("learner", 1)
STAGE = 1
STALL = 30.0
Visits = tuple[tuple[int, int], ...]


def visits(*microbatches: int) -> Visits:
    return tuple((microbatch, STAGE) for microbatch in microbatches)


def share(*microbatches: int, **changes: Any) -> Share:
    return replace(Share("lineage", 3, 8, Attempt(3, 8), STAGE, visits(*microbatches)), **changes)


def groups(me: Peer = B, view: View = VIEW, **changes: Any) -> Groups:
    return Groups(me, view, begun(**changes), SETTINGS)


def test_who_has_handed_the_stage_over_makes_no_sum() -> None:
    """It hears what the others tell, and may have told them itself before."""
    outside, within = groups(A), groups(B)
    for each in (outside, within):
        assert each.on_share(B, share(0, 1)) and each.on_share(C, share(2, 3))
    assert within.due(STAGE, NOW) is not None and outside.due(STAGE, NOW) is None


def task(*counts: tuple[Peer, int]) -> Reduce:
    return Reduce(STAGE, 8, Attempt(3, 8), 3, counts)


@pytest.mark.parametrize(
    ("ours", "theirs", "due"),
    [
        ((0, 1), ((2, 3),), task((B, 2), (C, 2))),
        ((0, 1, 2, 3), (), task((B, 4), (C, 0))),
        ((), ((0, 1, 2, 3),), task((B, 0), (C, 4))),
        ((0, 1), ((2,),), None),
        ((0, 1), (), None),
        ((), (), None),
        ((0, 1), ((1, 2),), None),
        ((0, 1, 2), ((2, 3),), None),
        ((0, 1), ((2,), (2, 3)), task((B, 2), (C, 2))),
        ((0, 1), ((2, 3), (2,)), task((B, 2), (C, 2))),
    ],
    ids=[
        "complete", "we did all", "the other did all", "one visit is missing", "one holder is missing",
        "nothing is told", "one visit twice and one not at all", "one visit twice", "the last comes late",
        "an older word comes later",
    ],
)  # fmt: skip
def test_the_sum_is_due_when_each_visit_is_told_once(
    ours: tuple[int, ...], theirs: tuple[tuple[int, ...], ...], due: Reduce | None
) -> None:
    role = groups()
    role.tell(STAGE, visits(*ours))
    for told in theirs:
        assert role.on_share(C, share(*told))
    assert role.due(STAGE, NOW) == due
    assert role.due(STAGE, NOW + 1.0) is None, "it is begun once"
    assert role.due(2, NOW) is None, "of another stage nothing was told"


@pytest.mark.parametrize(
    ("sender", "told", "taken"),
    [
        (C, share(2, 3), True),
        (C, share(), True),
        (C, share(2, 3, view=2), False),
        (C, share(2, 3, view=4), False),
        (C, share(2, 3, step=7), False),
        (C, share(2, 3, attempt=Attempt(3, 7)), False),
        (C, share(SETTINGS.microbatches), False),
        (C, share(visits=((2, 2),)), False),
        (C, share(stage=2), False),
        (D, share(2, 3), False),
        (LEARNER, share(2, 3), False),
    ],
    ids=[
        "a holder", "a holder without work", "an older view", "a later view", "another step", "late",
        "a microbatch that is none", "a visit of another stage", "a stage that it does not hold",
        "the holder of another stage", "a learner",
    ],
)  # fmt: skip
def test_whose_word_is_taken(sender: Peer, told: Share, taken: bool) -> None:
    role = groups(learners=((STAGE, LEARNER),))
    role.tell(STAGE, visits(0, 1))
    assert role.on_share(sender, told) == taken
    complete = taken and len(told.visits) == 2
    assert role.due(STAGE, NOW) == (task((B, 2), (C, 2), (LEARNER, 0)) if complete else None)


@pytest.mark.parametrize(
    ("view", "learners", "to"),
    [
        (VIEW, (), (C,)),
        (VIEW, ((STAGE, LEARNER),), (C, LEARNER)),
        (VIEW, ((2, LEARNER),), (C,)),
        (view_of((A,), (B, C, D), (D,)), (), (C, D)),
        (view_of((A,), (B,), (D,)), (), ()),
        (view_of((A,), (B,), (D,)), ((STAGE, LEARNER),), (LEARNER,)),
    ],
    ids=["two", "with a learner", "a learner of another stage", "three", "alone", "alone but for a learner"],
)
def test_who_is_told(view: View, learners: tuple[tuple[int, Peer], ...], to: tuple[Peer, ...]) -> None:
    role = groups(view=view, learners=learners)
    assert role.alone(STAGE) == (not to)
    assert role.tell(STAGE, ()) == [] and role.tell_again() == [], "there is nothing to tell yet"
    some, more = ([Send(peer, share(*told), None) for peer in to] for told in ((1,), (0, 1)))
    assert role.tell(STAGE, visits(1)) == some
    assert role.tell(STAGE, visits(1)) == [], "nobody is told twice of the same"
    assert role.tell(STAGE, {*visits(1, 0)}) == more
    assert role.tell_again() == more, "what was lost on the way is said again"


def trickled(count: int, peers: tuple[Peer, ...], chance: Random) -> tuple[list[Share], list[Groups]]:
    """All words of a group in which each gets one microbatch after the other, from time to time several at once, and
    words arrive late, until nothing happens any more. No heartbeat."""
    settings = replace(SETTINGS, microbatches=count)
    view = view_of((A,), peers, (D,))
    roles = {peer: Groups(peer, view, begun(), settings) for peer in peers}
    done: dict[Peer, set[tuple[int, int]]] = {peer: set() for peer in peers}
    said, under_way = list[Share](), list[tuple[Peer, Peer, Share]]()

    def send(sender: Peer, effects: list[Effect]) -> None:
        for effect in effects:
            assert isinstance(effect, Send) and isinstance(effect.message, Share)
            said.append(effect.message)
            under_way.append((sender, effect.to, effect.message))

    def arrive() -> None:
        sender, to, word = under_way.pop(0)
        assert roles[to].on_share(sender, word)
        send(to, roles[to].tell_held(STAGE))

    for microbatch in chance.sample(range(count), count):
        peer = chance.choice(peers)
        done[peer].add((microbatch, STAGE))
        if chance.random() < 0.9:  # else it knows of more to do
            send(peer, roles[peer].tell(STAGE, done[peer]))
        while under_way and chance.random() < 0.7:
            arrive()
    for peer in chance.sample(peers, len(peers)):
        send(peer, roles[peer].tell(STAGE, done[peer]))
    while under_way:
        arrive()
    return said, [*roles.values()]


@pytest.mark.parametrize("peers", [(B, C), (B, C, D), tuple(Peer(f"p{number}", 1) for number in range(12))])
def test_the_sum_waits_for_no_heartbeat_whatever_is_held_back(peers: tuple[Peer, ...]) -> None:
    for seed in range(50):
        _, roles = trickled(Random(seed).choice([3, 20, 100]), peers, Random(seed))
        assert all(role.due(STAGE, NOW) is not None for role in roles)


def test_words_of_a_group_grow_less_than_with_the_square_of_microbatches() -> None:
    """Were each visit told at once, there would be 916 words with 236,000 visits."""
    said, _ = trickled(1024, (B, C), Random(1024))
    assert len(said) < 120 and sum(len(word.visits) for word in said) < 20_000


def test_a_heartbeat_tells_what_is_held_back() -> None:
    role = Groups(B, VIEW, begun(), replace(SETTINGS, microbatches=100))
    assert role.tell(STAGE, visits(0)) == [Send(C, share(0), None)], "the first word, for which others wait"
    assert role.tell(STAGE, visits(0, 1)) == [] == role.tell_held(STAGE)
    assert role.tell_again() == [Send(C, share(0, 1), None)] == role.tell_again()
    assert role.tell(STAGE, visits(0, 1)) == []
    assert role.tell(STAGE, visits(0, 1, 2)) == []
    assert role.on_share(C, share(*range(3, 92))) and role.tell_held(STAGE) == [Send(C, share(0, 1, 2), None)]


def test_what_others_have_told_is_not_told_again() -> None:
    role = groups()
    role.on_share(C, share(2, 3))
    assert role.tell_again() == []


@pytest.mark.parametrize(
    ("changes", "settings", "stage", "expected"),
    [
        ({}, SETTINGS, 1, {(m, 1) for m in range(4)}),
        ({}, SETTINGS, 2, {(m, 2) for m in range(4)}),
        ({}, SETTINGS, 0, {(m, visit) for m in range(4) for visit in (0, 3)}),
        ({"skip": True}, SETTINGS, 1, set()),
        ({"training": False}, SETTINGS, 1, set()),
        ({}, replace(SETTINGS, stages=4, swap=True, microbatches=2), 1, {(0, 1), (1, 2)}),
    ],
    ids=["stage 1", "stage 2", "the head", "a skipped step", "the run is over", "swapped"],
)
def test_what_a_group_has_to_accumulate(
    changes: dict[str, Any], settings: Settings, stage: int, expected: set[tuple[int, int]]
) -> None:
    assert Groups(B, VIEW, begun(**changes), settings).expected(stage) == expected


@pytest.mark.parametrize(("changes", "ours"), [({"skip": True}, ()), ({"training": False}, (0, 1, 2, 3))])
def test_a_step_without_gradients_has_no_sum(changes: dict[str, Any], ours: tuple[int, ...]) -> None:
    role = groups(**changes)
    role.tell(STAGE, visits(*ours))
    assert not role.on_share(C, share(0)) and role.due(STAGE, NOW) is None


@pytest.mark.parametrize(
    ("before", "woke", "done", "stuck"),
    [
        (NOW, 0.0, False, None),
        (NOW + 0.1, 0.0, False, STAGE),
        (NOW + 0.1, NOW + 0.1, False, None),
        (NOW + STALL, NOW + 0.1, False, STAGE),
        (NOW + STALL, 0.0, True, None),
    ],
    ids=["just begun", "for too long", "we were suspended", "and still", "it is finished"],
)
def test_a_sum_that_does_not_end(before: float, woke: float, done: bool, stuck: int | None) -> None:
    role = groups()
    role.tell(STAGE, visits(0, 1, 2, 3))
    assert role.stuck(before, woke) is None, "nothing is in progress"
    reduction = role.due(STAGE, NOW)
    assert reduction is not None
    if done:
        assert role.finished(reduction)
    assert role.stuck(before, woke) == stuck


@pytest.mark.parametrize(
    ("parts", "sums", "told"),
    [
        ((), (), [(Direction.FORWARD, B)]),
        ((C,), (), [(Direction.FORWARD, C)]),
        ((), (C,), [(Direction.BACKWARD, C)]),
        ((C,), (C,), [(Direction.FORWARD, C)]),
    ],
    ids=["it goes on", "a part is owed", "a sum is owed", "both"],
)
def test_whoever_has_a_sum_stand_still_is_named(
    parts: tuple[Peer, ...], sums: tuple[Peer, ...], told: list[tuple[Direction, Peer]]
) -> None:
    role = groups()
    role.tell(STAGE, visits(0, 1))
    role.on_share(C, share(2, 3))
    reduction = role.due(STAGE, NOW)
    assert reduction is not None
    role.on_sum_owed(SumOwed(replace(reduction, view=2), (C,), ()))
    assert role.waits(STAGE) == [Wait(-1, STAGE, Direction.FORWARD, B, False)], "of an earlier view"
    role.on_sum_owed(SumOwed(reduction, parts, sums))
    assert role.waits(STAGE) == [Wait(-1, STAGE, way, peer, False) for way, peer in told]
    assert role.stuck(NOW + STALL, 0.0) == (None if parts or sums else STAGE), "the leader is given time to act"
    assert role.stuck(NOW + STALL + 2 * SETTINGS.task_seconds, 0.0) == STAGE
    role.on_sum_owed(SumOwed(reduction, (), ()))
    assert role.waits(STAGE) == [Wait(-1, STAGE, Direction.FORWARD, B, False)]


@pytest.mark.parametrize(
    ("answered", "taken"),
    [
        (task((B, 4), (C, 0)), True),
        (task((B, 2), (C, 2)), False),
        (replace(task((B, 4), (C, 0)), view=2), False),
        (replace(task((B, 4), (C, 0)), stage=2), False),
        (task(), False),
    ],
    ids=["the one", "other parts", "of the view before", "another stage", "not of a group"],
)
def test_only_the_sum_in_progress_is_finished(answered: Reduce, taken: bool) -> None:
    role = groups()
    role.tell(STAGE, visits(0, 1, 2, 3))
    assert not role.finished(answered)
    role.due(STAGE, NOW)
    assert role.finished(answered) == taken


def test_a_learner_reduces_what_the_holders_told() -> None:
    role = groups(LEARNER, learners=((STAGE, LEARNER),))
    for sender, told in ((B, share(0, 1)), (C, share(2, 3))):
        assert role.due(STAGE, NOW) is None
        assert role.on_share(sender, told)
    assert role.due(STAGE, NOW) == task((B, 2), (C, 2), (LEARNER, 0))


def test_whoever_says_that_it_did_what_we_have_done_is_named() -> None:
    """Together they have told of everything, and the sum cannot be made."""
    role = groups()
    role.tell(STAGE, visits(0, 1))
    assert role.on_share(C, share(1, 2, 3)) and role.due(STAGE, NOW) is None
    assert role.waits(STAGE) == [Wait(-1, STAGE, Direction.FORWARD, C, True)]
    other = groups(D, view_of((A,), (B, C, D), (A,)))
    for peer, said in ((B, share(0, 1)), (C, share(1, 2, 3))):
        assert other.on_share(peer, said)
    assert other.waits(STAGE) == [], "it cannot tell which of them"


@pytest.mark.parametrize("more", [0, 1])
def test_no_more_add_up_than_a_sum_has_room_for(more: int) -> None:
    """A leader may put as many into a view as it likes."""
    crowd = tuple(Peer(f"x{number}", 1) for number in range(CONTRIBUTORS_MAX - 1 + more))
    settings = replace(SETTINGS, microbatches=CONTRIBUTORS_MAX + more)
    role = Groups(B, view_of((A,), (B, *crowd), (D,)), begun(), settings)
    role.tell(STAGE, visits(0))
    for microbatch, peer in enumerate(crowd, 1):
        assert role.on_share(peer, share(microbatch))
    assert (role.due(STAGE, NOW) is None) == bool(more)
