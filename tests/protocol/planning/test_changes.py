"""Where somebody who comes is worth most, and who moves: one change of a layout."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given

from ftnode.protocol.lines.step_estimate import Line
from ftnode.protocol.manifest.boundary import BoundaryBytes
from ftnode.protocol.planning.changes import Changes, runs, without
from ftnode.protocol.planning.costs import NO_RISK, Costs, Risk
from ftnode.protocol.planning.schedule import NO_LINE, Batch, Machine
from ftnode.protocol.planning.swarm import Holders, Swarm, alike, stages_of
from tests.chances import CHANCES

STAGES = 4
MANY = 1e6
"""Steps."""


def machine(seconds: float, line: Line = NO_LINE) -> Machine:
    return alike((seconds / 3, 2 * seconds / 3), (seconds / 3, 2 * seconds / 3), STAGES, line)


def changes(
    present: Holders, paces: Mapping[str, float], replicas: int = 3, room: int = STAGES + 1, risk: Risk = NO_RISK,
    tensors: int = 0, lines: Mapping[str, Line] | None = None, sums: int = 0,
) -> Changes:  # fmt: skip
    machines = {name: machine(pace, (lines or {}).get(name, NO_LINE)) for name, pace in paces.items()}
    batch = Batch(16, 16, BoundaryBytes(tensors, tensors), (sums,) * len(present))
    swarm = Swarm(machines, dict.fromkeys(machines, room), (1,) * len(present), batch, replicas)
    return Changes(Costs(swarm, risk), present)


ALONE: Holders = (("a",),) * (STAGES + 1)
CHAIN: Holders = (("a",), ("b",), ("c",), ("d",), ("e",))
SAME = dict.fromkeys("abcdefg", 1.0)


@pytest.mark.parametrize(
    ("pace", "taken"),
    [(1.0, (3, 4)), (0.25, (1, 2, 3, 4)), (3.0, (4,)), (30.0, ())],
    ids=["as fast", "four times as fast", "a third as fast", "so slow that all would wait for it"],
)
def test_a_newcomer_takes_over_what_it_can_do_in_the_time(pace: float, taken: tuple[int, ...]) -> None:
    found = changes(ALONE, {"a": 1.0, "f": pace}, replicas=1).best_place("f")
    assert (found.place.stages if found else ()) == taken
    if found:
        assert found.place.giver == "a" and found.worth.seconds < found.present.seconds
        assert f"{found.worth.seconds:.3g} s then" in found.reason and "rejected" in found.reason


@pytest.mark.parametrize(
    ("paces", "stages"),
    [({"c": 2.0}, (2,)), ({"a": 3.0, "c": 2.0}, (0,)), ({"e": 1.5, "c": 2.0}, (2,))],
)
def test_where_everybody_has_one_stage_it_joins_the_slowest(paces: dict[str, float], stages: tuple[int, ...]) -> None:
    found = changes(CHAIN, SAME | paces, room=1).best_place("f")
    assert found is not None and (found.place.stages, found.place.giver) == (stages, None)


def test_nobody_joins_a_full_group_or_where_it_has_no_room() -> None:
    assert changes(CHAIN, SAME, replicas=1, room=1).best_place("f") is None
    assert changes(ALONE, {"a": 1.0, "f": 1.0}, room=0).best_place("f") is None


def test_a_second_holder_is_found_for_what_one_holds_alone_where_no_step_gets_longer() -> None:
    """Of neighbouring stages of one peer all are taken, since of a part nobody could check anything."""
    pairs: Holders = (("a",), ("b",), ("b",), ("c",), ("c",))
    found = changes(pairs, SAME).best_second("abc")
    assert found is not None and found.place.giver is None
    assert found.place.stages in ((0,), (1, 2), (3, 4)) and found.place.name not in pairs[found.place.stages[0]]
    assert found.worth.cost <= 1.1 * found.present.cost
    assert changes(pairs, SAME, replicas=1).best_second("abc") is None
    assert changes(pairs, SAME, room=2).best_second("bc") is None
    slow = changes(CHAIN, {**SAME, "e": 30.0}).best_second("e")
    assert slow is None or slow.worth.cost <= 1.1 * slow.present.cost


def test_what_somebody_learns_already_is_not_given_up_meanwhile() -> None:
    found = changes(ALONE, {"a": 1.0, "f": 1.0}).best_place("f", {4, 3, 2})
    assert found is not None and not {*found.place.stages} & {4, 3, 2} and found.place.giver == "a"


@pytest.mark.parametrize("liquid", [False, True])
def test_the_schedule_says_whether_one_more_holder_costs_too_much(
    liquid: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers of six volunteers on two busy cores. By the liquid alone two of them stood by until the run was over, and
    two stages had one holder each. The planted bug: the liquid alone."""
    if liquid:
        monkeypatch.setattr(Costs, "scheduled", Costs.liquid)
    line, block, head = Line(20e6, 100e6, 0.001), (0.007, 0.0144), (0.0046, 0.0092)
    machines = {name: Machine({0: head, 1: block, 2: block}, NO_LINE if name in "ae" else line) for name in "abcde"}
    batch = Batch(6, 6, BoundaryBytes(33_700, 33_700), (400_000,) * 3)
    present: Holders = (("a", "e"), ("b",), ("c",))
    asked = Changes(Costs(Swarm(machines, dict.fromkeys(machines, 1), (1,) * 3, batch, 2)), present)
    found = asked.best_place("d")
    assert (found is None) is liquid
    assert found is None or (found.place.stages, found.place.giver) == ((2,), None)


HOMES = dict.fromkeys("abcdef", Line(1e6, 5e6, 0.0))


@pytest.mark.parametrize(
    ("present", "sums", "replicas", "giver"),
    [
        (ALONE, 0, 3, None),
        (ALONE, 1_000_000, 3, None),
        (ALONE, 100_000_000, 3, "a"),
        ((("a", "b"),) * 5, 100_000_000, 3, None),
    ],
    ids=["nothing to send", "little", "sums take longer than the rest", "where two have sums already"],
)
def test_who_is_new_takes_a_place_only_where_one_more_holder_costs_too_much(
    present: Holders, sums: int, replicas: int, giver: str | None
) -> None:
    found = changes(present, SAME, replicas, lines=HOMES, sums=sums).best_place("f", beside=True)
    assert found is not None and found.place.giver == giver


def test_who_is_new_takes_no_place_where_a_group_is_full() -> None:
    assert changes(ALONE, SAME, replicas=1).best_place("f", beside=True) is None
    full: Holders = (("a", "b"), *((("a",),) * STAGES))
    found = changes(full, SAME, replicas=2, lines=HOMES, sums=100_000_000)
    assert found.best_place("f") is not None and found.best_place("f", beside=True) is None


SHARED: Holders = (("a", "b"), ("a",), ("a",))


@pytest.mark.parametrize(
    ("present", "paces", "shared", "released"),
    [
        (SHARED, SAME, {"a": (0,), "b": (0,)}, (0,)),
        (SHARED, SAME, {"b": (0,)}, None),
        (SHARED, SAME | {"b": 30.0}, {"a": (0,)}, None),
        ((("a", "b"),) * 5, SAME, {"a": (0, 1, 2, 3, 4)}, None),
        (CHAIN, SAME, {}, None),
    ],
    ids=["as fast", "who has it is new", "too slow", "all of it", "nothing shared"],
)
def test_who_limits_leaves_to_others_what_they_hold_as_well(
    present: Holders,
    paces: Mapping[str, float],
    shared: Mapping[str, tuple[int, ...]],
    released: tuple[int, ...] | None,
) -> None:
    found = changes(present, paces).best_release(shared)
    assert (None if found is None else found.place.stages) == released
    if found is not None:
        assert found.place.giver == "a" and found.worth.cost <= 0.9 * found.present.cost and all(found.place.holders)


def test_a_stage_that_costs_much_gets_a_second_holder_first() -> None:
    """All are as fast; the loss of stage 1 costs 200 steps."""
    risk = Risk(1e-4, 10.0, (1.0, 200.0, 1.0, 1.0, 1.0))
    found = changes(CHAIN, SAME, room=1, risk=risk).best_place("f")
    assert found is not None and found.place.stages == (1,)


def test_over_a_thin_line_a_range_is_taken_and_no_single_stage() -> None:
    """c's line carries a tensor in a second; whoever takes something out of the middle makes it carry more."""
    line = Line(1e6, 1e6, 0.0)
    found = changes(ALONE, {"a": 1.0, "f": 1.0}, tensors=500_000, lines={"a": line, "f": line}).best_place("f")
    assert found is not None and found.place.stages == (3, 4)


MOVABLE = {"c": (2,), "d": (2,), "e": (2,)}
CROWD: Holders = (("a",), ("b",), ("c", "d", "e"), ("f",), ("g",))


@pytest.mark.parametrize(
    ("paces", "steps", "moved"),
    [
        ({"b": 2.0}, MANY, (1,)),
        ({"b": 1.05}, MANY, None),
        ({"b": 2.0}, 0.0, None),
        ({"b": 2.0, "g": 2.0}, MANY, None),
    ],
    ids=["twice as slow", "hardly slower", "the run is over", "one move does not help"],
)
def test_a_replica_moves_where_it_pays(paces: dict[str, float], steps: float, moved: tuple[int, ...] | None) -> None:
    found = changes(CROWD, SAME | paces, room=1).best_move(MOVABLE, steps)
    assert (found.place.stages if found else None) == moved


def test_a_move_that_costs_more_than_it_gains_is_not_made() -> None:
    """While it moves, its own stage has nobody who keeps up: c alone takes four times as long."""
    present: Holders = (("a",), ("b",), ("c", "d"), ("f",), ("g",))
    paces, movable = SAME | {"b": 2.0, "c": 2.0}, {"d": (2,)}
    slow = changes(present, paces, room=1, risk=Risk(0.0, 3600.0))
    assert slow.best_move(movable, 1.0) is None
    assert slow.best_move({}, MANY) is None


def test_who_has_room_takes_a_part_of_what_limits() -> None:
    present: Holders = (("a",), ("a",), ("a",), ("a",), ("b",))
    found = changes(present, {"a": 1.0, "b": 0.25}, replicas=1).best_wider(["b"])
    assert found is not None and found.place.giver == "a" and found.place.name == "b"
    assert found.worth.seconds < 0.9 * found.present.seconds
    assert changes(found.place.holders, {"a": 1.0, "b": 0.25}, replicas=1).best_wider(["a", "b"]) is None, "no way back"


def test_a_lost_stage_gets_the_replica_that_is_missed_least() -> None:
    holders: Holders = (("a",), (), ("b", "c"), ("d", "e"), ("f",))
    paces = SAME | {"d": 3.0, "e": 0.5}
    found = changes(holders, paces).best_filler({"b": (2,), "c": (2,), "d": (3,), "e": (3,)}, 1)
    assert found == ("c", 2), "without e stage 3 would be slow, and with d stage 1; c came after b"
    both = changes((*holders[:4], ()), paces).best_filler({"b": (2,), "c": (2,), "d": (3,), "e": (3,)}, 1)
    assert both == ("c", 2), "also when another stage has nobody"


def test_who_is_full_gives_up_for_a_lost_stage_what_is_missed_least() -> None:
    """Stage 1 would be left to a slow one, and the head to two that are fast."""
    holders: Holders = (("a", "b", "c"), ("a", "d"), ("e",), (), ("f",))
    assert changes(holders, SAME | {"d": 3.0}, room=2).best_filler({"a": (0, 1)}, 3) == ("a", 0)
    only: Holders = (("a", "b"), ("a",), ("b",), (), ("c",))
    assert changes(only, SAME, room=2).best_filler({"b": (0,)}, 3) == ("b", 0), "it keeps what it holds alone"


def test_ranges_have_no_gaps() -> None:
    assert runs((0, 1, 3, 4, 5, 8)) == [(0, 1), (3, 4, 5), (8,)]
    assert without(CROWD, "d", (2,))[2] == ("c", "e")


def drawn(chance: Random) -> tuple[Changes, str]:
    """Some layout of two to five machines, and one more."""
    names = "abcdef"[: chance.randint(3, 6)]
    paces = {name: 10 ** chance.uniform(-1, 1) for name in names}
    holders = tuple(tuple(chance.sample(names[:-1], chance.randint(1, 2))) for _ in range(STAGES + 1))
    risk = Risk(chance.uniform(0, 1e-3), 10.0, tuple(chance.uniform(0, 50) for _ in range(STAGES + 1)))
    return changes(holders, paces, room=chance.randint(1, 9), risk=risk), names[-1]


def taken(chance: Random) -> tuple[int, int]:
    """1 where a newcomer is taken, 1 where it comes instead of another. AssertionError where that makes it worse, or
    something is said of its place that is not so."""
    of, name = drawn(chance)
    found = of.best_place(name)
    if found is None:
        return 0, 0
    place = found.place
    freed = place.giver is not None and place.giver not in stages_of(place.holders)
    most = 0.9 if freed else 1.1 if place.giver is None or len(of.held) == 1 else 1.0
    assert found.worth.cost < most * found.present.cost and found.worth == of.costs.scheduled(place.holders)
    assert all(place.holders) and max(map(len, place.holders)) <= 3
    assert stages_of(place.holders)[name] == place.stages and of.costs.swarm.fits(name, place.stages)
    for stage, (before, after) in enumerate(zip(of.present, place.holders)):
        gone, come = {*before} - {*after}, {*after} - {*before}
        assert (gone, come) == (({place.giver} - {None}, {name}) if stage in place.stages else (set(), set()))
    assert not freed or of.held[place.giver or ""] == place.stages, "all that it held"
    return 1, int(freed)


@given(CHANCES)
def test_nobody_is_taken_who_makes_it_worse_and_all_that_is_said_of_a_place_is_so(chance: Random) -> None:
    taken(chance)


def test_most_newcomers_are_taken_and_some_instead_of_another() -> None:
    found = [taken(Random(seed)) for seed in range(300)]
    assert sum(one for one, _ in found) > 150 and sum(instead for _, instead in found) > 20
