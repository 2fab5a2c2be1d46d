"""Who does what of a step with several holders, and who moves where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from pytest import approx

from ftnode.protocol.step.routes import beside, choose_path, places, route
from ftnode.protocol.step.task_order import Pace
from ftnode.protocol.step.work_split import divide, paths_differ, repair
from ftnode.protocol.words.effects import Backward, Forward
from ftnode.protocol.words.messages import Begin, Status
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Attempt, Peer, initial_version
from ftnode.protocol.words.view import Lineage, View

A, B, C, D, E = (Peer(name, 1) for name in "abcde")
SETTINGS = Settings(run="r", stages=2, steps=10, microbatches=4, window=4, replicas=3)
LINEAGE = Lineage("l", 0, 3)


def view(*holders: tuple[Peer, ...], number: int = 3) -> View:
    members = tuple(dict.fromkeys(peer for group in holders for peer in group))
    return View("r", LINEAGE, number, "", holders[0][0], holders, members, (0,) * len(holders), "a test")


def begun(**changed: object) -> Begin:
    fields: dict[str, object] = {
        "lineage": "l", "view": 3, "step": 1, "attempt": Attempt(3, 1), "base": initial_version("l"), "skipped": False,
        "skip": False, "training": True, "evaluate": False, "window": 4, "shares": ((A, (0, 1, 2, 3)),), "paths": (),
        "installs": (), "commits": (), "learners": (),
    }  # fmt: skip
    return Begin(**(fields | changed))  # type: ignore[arg-type]


def told(paths: dict[int, tuple[Peer, ...]], paths_view: int = 3) -> Status:
    return Status("l", 4, Attempt(3, 1), 1, initial_version("l"), False, False, False, (), None, (), (), (),
                  tuple(paths.items()), paths_view)  # fmt: skip


def test_a_slow_holder_of_the_head_admits_less() -> None:
    shares = dict(divide((A, B), 9, {(A, 0): 1.0, (B, 0): 2.0}))
    assert sorted((*shares[A], *shares[B])) == list(range(9))
    assert (len(shares[A]), len(shares[B])) == (6, 3)


def test_paths_follow_queue_and_pace() -> None:
    swarm = view((A,), (B, C), (D,))
    pace = {(B, 1): 1.0, (C, 1): 3.0}
    under_way: list[tuple[Peer, ...]] = []
    for microbatch in range(8):
        under_way.append(choose_path(swarm, route(2, microbatch, False), under_way, pace, A))
    assert Counter(path[1] for path in under_way) == {B: 6, C: 2}
    assert {(path[0], path[2], path[3]) for path in under_way} == {(A, D, A)}


class Counted(list[tuple[Peer, ...]]):
    """Counts who looks at all of it."""

    looks = 0

    def __iter__(self) -> Iterator[tuple[Peer, ...]]:
        self.looks += 1
        return super().__iter__()


def test_what_is_under_way_is_looked_at_once_for_a_path_of_any_length() -> None:
    """With 256 stages of two holders each, and 512 microbatches under way, a look takes 6 ms."""
    groups = [(Peer(f"one{stage}", 1), Peer(f"two{stage}", 1)) for stage in range(20)]
    swarm = view(*groups)
    first = tuple(one for one, _ in (*groups, groups[0]))
    under_way = Counted([first] * 3)
    path = choose_path(swarm, route(19, 0, False), under_way, {}, groups[0][1])
    assert under_way.looks == 1 and len(path) == 21


def paths_of(swarm: View, me: Peer, microbatches: int, pace: dict[tuple[Peer, int], float]) -> list[tuple[Peer, ...]]:
    found: list[tuple[Peer, ...]] = []
    for _ in range(microbatches):
        found.append(choose_path(swarm, route(2, 0, False), found, pace, me))
    return found


def test_equal_groups_become_pipelines_side_by_side() -> None:
    """Each holder of the head keeps to its own column, and needs no word of what the other one gives away. Who holds
    the head and a stage keeps to itself, whatever the order of the groups."""
    swarm = view((A, B), (D, C), (B, A))
    (ours,), (theirs,) = ({*paths_of(swarm, me, 4, {})} for me in (A, B))
    assert {ours[1], theirs[1]} == {C, D}
    assert (ours[0], ours[2], theirs[0], theirs[2]) == (A, A, B, B)


def test_who_lies_beside_whom_gets_as_much_as_it_can_do() -> None:
    """One of two holders of the head is twice as fast, and the stage has three equal ones."""
    heads, group = {"a": 1.0, "b": 2.0}, ["z", "y", "x"]
    lie = places(["b", "a"], heads)
    shares = {me: beside(me, lie, places(group, dict.fromkeys(group, 1.0))) for me in heads}
    assert sorted(shares["a"].values()) == [approx(1 / 3)] * 2 and [*shares["b"].values()] == [approx(1 / 3)]
    assert {*shares["a"], *shares["b"]} == {*group}
    assert beside("new", lie, places(["x", "y"], {})) == {"x": 0.5, "y": 0.5}


def test_who_has_said_nothing_is_tried_with_two_and_others_help_out() -> None:
    swarm, pace = view((A, B), (C, D), (E,)), {(C, 1): 1.0}
    (me,) = (one for one in (A, B) if D in beside(one, places((A, B), {}), places((C, D), {})))
    assert [path[1] for path in paths_of(swarm, me, 4, pace)] == [D, D, C, C]


@pytest.mark.parametrize("me", [A, B])
def test_also_the_one_that_admits_is_tried_at_another_stage_of_its_own(me: Peer) -> None:
    """Its own visits of the head are on each path. While these counted it never was, and another one did all."""
    swarm, other = view((A, B), (C, me), (E,)), {A: B, B: A}[me]
    pace = {(me, 0): 0.1, (other, 0): 10.0, (C, 1): 1.0}
    assert [path[1] for path in paths_of(swarm, me, 4, pace)].count(me) == 2
    assert [path[1] for path in paths_of(swarm, me, 12, pace | {(me, 1): 0.1})].count(me) > 6


def test_a_dead_holders_visits_go_to_the_survivors_and_no_others_move() -> None:
    after = view((A,), (B, E), (D,), number=4)
    paths = {0: (A, C, D, A), 1: (A, B, D, A), 2: (A, C, D, A)}
    shares, repaired = repair(after, begun(), {A: told(paths), B: told({1: paths[1]})}, SETTINGS)
    kept = dict(repaired)
    assert kept[1] == paths[1]
    assert {kept[0][1], kept[2][1]} == {B, E}
    assert shares == ((A, (0, 1, 2, 3)),), "microbatch 3 was never admitted"


def test_a_dead_heads_microbatches_are_admitted_by_another_one() -> None:
    after = view((B,), (C,), (D,), number=4)
    shares, repaired = repair(after, begun(shares=((A, (0, 1)), (B, (2, 3)))), {C: told({0: (A, C, D, A)})}, SETTINGS)
    assert dict(repaired) == {0: (B, C, D, B)}
    assert shares == ((B, (0, 1, 2, 3)),)


def test_the_newest_word_on_a_path_counts() -> None:
    after = view((A,), (B, C, E), (D,), number=5)
    old, new = told({0: (A, B, D, A)}, 3), told({0: (A, C, D, A)}, 4)
    for statuses in ({A: old, B: new}, {A: new, B: old}):
        assert dict(repair(after, begun(), statuses, SETTINGS)[1]) == {0: (A, C, D, A)}


def test_a_pace_is_known_when_both_directions_are() -> None:
    forward = Forward(1, 1, Attempt(1, 1), 0, 1, 1, True, False)
    backward = Backward(1, 1, Attempt(1, 1), 0, 1, 1, 2, False)
    pace = Pace()
    pace.started(10.0)
    pace.done(forward, 11.0)
    assert pace.seconds(1) == 0.0
    pace.done(backward, 13.0)
    assert pace.seconds(1) == 3.0 and pace.seconds(2) == 0.0


def test_the_pace_of_the_head_is_that_of_all_it_does_with_a_microbatch() -> None:
    """It embeds one in 1 s, has the loss in 4 s, and goes back through the embedding in 2 s, in any order."""
    embed = Forward(0, 1, Attempt(1, 1), 0, 0, None, True, False)
    loss = Backward(0, 1, Attempt(1, 1), 0, 3, None, 1, False)
    back = Backward(0, 1, Attempt(1, 1), 0, 0, 2, None, False)
    checked = Forward(0, 1, Attempt(1, 1), 9, 3, 1, False, True)
    pace, now = Pace(), 0.0
    for task, seconds in (
        (embed, 1.0),
        (embed, 1.0),
        (loss, 4.0),
        (loss, 4.0),
        (loss, 4.0),
        (back, 2.0),
        (checked, 9.0),
    ):
        pace.started(now)
        now += seconds
        pace.done(task, now)
    assert pace.seconds(0) == approx(7.0)


def test_two_paths_of_one_microbatch_are_seen_among_those_who_go_by_one_begin() -> None:
    first, second, other = (A, B, D, A), (A, C, D, A), (A, B, E, A)
    assert paths_differ([told({0: first, 1: second}), told({1: second}), told({})]) is None
    assert paths_differ([told({0: first}), told({0: other}, 2)]) is None  # an earlier word
    assert paths_differ([told({0: first, 1: first}), told({1: second}, 3)]) == 1
